//! JSON types of the status and the timers of a resource.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_core::timers::Timer;
use tenure_core::{Millis, StatusUpdate, TimerChange, TimerSetting, Token};

use super::jobs::FailureInfo;
#[cfg(feature = "openapi")]
use super::schema;
use super::{instant, parse_document, parse_instant, parse_server_instant, to_document};

/// A timer: an instant at which the engine submits an operation of a resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct TimerInfo {
    /// Operation that it submits.
    pub operation: String,
    /// Instant at which it submits it.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Instant))]
    pub at: String,
    /// Principal or worker that set it.
    pub by: String,
    /// Why the submit was refused. It is repeated every minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<FailureInfo>,
    /// Time of that refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Instant>))]
    pub refused_at: Option<String>,
}

impl TimerInfo {
    /// Converts a timer.
    #[must_use]
    pub fn new(timer: &Timer) -> Self {
        let refused = timer.refused.as_ref();
        Self {
            operation: timer.operation.to_string(),
            at: instant(timer.due),
            by: timer.by.to_string(),
            refused: refused.map(|(error, _)| FailureInfo::new(error)),
            refused_at: refused.map(|(_, at)| instant(*at)),
        }
    }

    pub(super) fn to_timer(&self) -> Timer {
        let refused = self.refused.as_ref().zip(self.refused_at.as_deref());
        Timer {
            operation: self.operation.as_str().into(),
            due: parse_server_instant(&self.at),
            by: self.by.as_str().into(),
            refused: refused.map(|(error, at)| (error.to_failure(), parse_server_instant(at))),
        }
    }
}

/// When a timer fires: exactly one of the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", schema(example = json!({ "after_ms": 3_600_000 })))]
pub struct TimerRequest {
    /// At this instant; at once if it has passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Instant>))]
    pub at: Option<String>,
    /// After this time in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Delay>))]
    pub after_ms: Option<u64>,
}

/// Timers to set by operation; `null` removes a timer.
pub type TimerRequests = BTreeMap<String, Option<TimerRequest>>;

impl TimerRequest {
    /// Creates the request for a setting; `None` removes the timer.
    #[must_use]
    pub fn new(setting: TimerSetting) -> Option<Self> {
        match setting {
            TimerSetting::At(at) => Some(Self { at: Some(instant(at)), after_ms: None }),
            TimerSetting::After(ms) => Some(Self { at: None, after_ms: Some(ms) }),
            TimerSetting::Remove => None,
        }
    }

    /// Converts to the model. Fails with a message that names the field.
    pub fn to_setting(&self) -> Result<TimerSetting, String> {
        match (&self.at, self.after_ms) {
            (Some(at), None) => parse_instant(at)
                .map(TimerSetting::At)
                .map_err(|why| format!("`at` is not an instant like 2030-01-31T12:00:00Z: {why}")),
            (None, Some(ms)) => Ok(TimerSetting::After(ms)),
            _ => Err("give either `at` or `after_ms`".to_owned()),
        }
    }
}

/// Converts the timers of a request to the model. Fails with a message that names the field.
pub fn timer_changes(timers: &TimerRequests) -> Result<Vec<TimerChange>, String> {
    let change = |(operation, request): (&String, &Option<TimerRequest>)| {
        let setting = request.as_ref().map_or(Ok(TimerSetting::Remove), TimerRequest::to_setting);
        let setting = setting.map_err(|why| format!("timers.{operation}: {why}"))?;
        Ok(TimerChange { operation: operation.as_str().into(), setting })
    };
    timers.iter().map(change).collect()
}

/// Creates the timers of a request.
#[must_use]
pub fn timer_requests(changes: &[TimerChange]) -> TimerRequests {
    let entry =
        |change: &TimerChange| (change.operation.to_string(), TimerRequest::new(change.setting));
    changes.iter().map(entry).collect()
}

/// `POST /v1/jobs/{id}/status`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", schema(example = json!({
    "token": 1, "merge": { "infra_id": "prod-x7k2", "draft": null }
})))]
pub struct StatusRequest {
    /// Token of the attempt's tenure.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::FencingToken))]
    pub token: Token,
    /// Merge patch (RFC 7396) for the status of the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<BTreeMap<String, Value>>))]
    pub merge: Option<Value>,
    /// Timers to set, by operation; `null` removes a timer.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub timers: TimerRequests,
}

impl StatusRequest {
    /// Creates the request of a worker.
    #[must_use]
    pub fn new(token: Token, update: &StatusUpdate) -> Self {
        let merge = update.merge.as_ref().map(|merge| parse_document(merge));
        Self { token, merge, timers: timer_requests(&update.timers) }
    }
}

/// Converts an update to the model; `None` if it is empty. Fails with a message that names the
/// field.
pub fn status_update(
    merge: Option<&Value>,
    timers: &TimerRequests,
) -> Result<Option<Box<StatusUpdate>>, String> {
    if merge.is_none() && timers.is_empty() {
        return Ok(None);
    }
    let (merge, timers) = (merge.map(to_document), timer_changes(timers)?);
    Ok(Some(Box::new(StatusUpdate { merge, timers })))
}

/// Numbers of unfinished jobs of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct GroupInfo {
    /// Tenant.
    pub tenant: String,
    /// Kind.
    pub kind: String,
    /// Group.
    pub group: String,
    /// Jobs with a running attempt.
    pub running: usize,
    /// Other unfinished jobs.
    pub waiting: usize,
    /// Resources of which a job can start now.
    pub ready: usize,
}

impl GroupInfo {
    /// Converts the counts of a group.
    #[must_use]
    pub fn new(
        tenant: &str,
        kind: &str,
        group: &str,
        counts: tenure_core::ready::GroupCounts,
    ) -> Self {
        let tenure_core::ready::GroupCounts { running, waiting, ready } = counts;
        let (tenant, kind, group) = (tenant.to_owned(), kind.to_owned(), group.to_owned());
        Self { tenant, kind, group, running, waiting, ready }
    }
}

/// Returns the instant of a status, as part of a resource.
pub(super) fn status_instant(at: Option<&String>) -> Millis {
    at.map_or_else(Millis::default, |at| parse_server_instant(at))
}

//! `/healthz`: the process answers. `/readyz`: so does its store, and who should be looked at.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use tenure_store::StoreError;
use tenure_store::store::{SafetyClass, Status};
use tenure_wire::ReadyAnswer;
use utoipa::ToSchema;

use crate::{ServerState, janitor};
use tenure_app::Problem;
use tenure_app::openapi::Unavailable;

/// A store that needs longer than this for an answer is not ready.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Says that the process answers.
#[utoipa::path(
    get,
    path = "/healthz",
    tag = "health",
    operation_id = "healthz",
    security(()),
    responses((status = 200, description = "It does", body = String))
)]
pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

/// `GET /readyz`
#[derive(Serialize, ToSchema)]
pub(super) struct Ready {
    #[serde(flatten)]
    answer: ReadyAnswer,
    /// What the server needs or uses.
    dependencies: Vec<Dependency>,
}

/// Something that the server needs or uses.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
struct Dependency {
    /// What it is.
    name: &'static str,
    /// Whether it is as it should be.
    ok: bool,
    /// How it is.
    detail: String,
}

/// Says whether the store answers, and what a person should look at.
#[utoipa::path(
    get,
    path = "/readyz",
    tag = "health",
    operation_id = "readyz",
    security(()),
    responses((status = 200, description = "It does", body = Ready), Unavailable)
)]
pub(super) async fn readyz(State(state): State<ServerState>) -> Result<Json<Ready>, Problem> {
    if state.leaving.is_cancelled() {
        return Err(Problem::unavailable("the server is shutting down"));
    }
    let asked = async {
        let status = state.services.store().status().await?;
        Ok::<_, StoreError>((status, reasons(&state).await?))
    };
    let Ok(answered) = tokio::time::timeout(ANSWER_MAX, asked).await else {
        return Err(Problem::unavailable("the store does not answer"));
    };
    let (status, mut reasons) = answered?;
    reasons.extend(doubts(&status));
    let dependencies = dependencies(&status);
    let answer = ReadyAnswer {
        ready: true,
        store: status.store.to_owned(),
        safety: status.safety.as_str().to_owned(),
        incarnation: status.incarnation.0,
        reasons,
    };
    Ok(Json(Ready { answer, dependencies }))
}

/// What is needed, and how it is. Wake-ups that do not come through cost time and nothing else, so
/// that is no reason to send requests elsewhere.
fn dependencies(status: &Status) -> Vec<Dependency> {
    let detail = format!("{} answers, safety class: {}", status.store, status.safety.as_str());
    let mut dependencies = vec![Dependency { name: "store", ok: true, detail }];
    if let Some(ok) = status.wakeups {
        let detail = if ok {
            "notifications of the database come through"
        } else {
            "notifications of the database do not come through: waiting requests poll"
        };
        dependencies.push(Dependency { name: "wake-ups", ok, detail: detail.to_owned() });
    }
    dependencies
}

/// A database can be told not to keep what it has acknowledged. A store in memory is known not to.
fn doubts(status: &Status) -> Option<String> {
    let doubtful = status.store == "postgres" && status.safety == SafetyClass::BestEffort;
    doubtful.then(|| {
        "the database may lose what it has acknowledged: run tenure doctor --store URL".to_owned()
    })
}

/// A janitor that is late, or that nobody is, is no reason to send requests elsewhere: each server
/// answers as well as any. It is a reason for a person to look.
async fn reasons(state: &ServerState) -> Result<Vec<String>, StoreError> {
    let mut reasons = state.janitor.late();
    if !state.janitor.here() {
        let shown = state.services.store().reads().show(&janitor::resource()).await?;
        if shown.is_none_or(|shown| shown.tenures.is_empty()) {
            reasons.push("no server does the janitor's work at the moment".to_owned());
        }
    }
    let apps = state.services.live.get().apps;
    reasons.extend(apps.iter().flat_map(|(_, app)| app.ready()));
    Ok(reasons)
}

#[cfg(test)]
mod tests {
    use tenure_core::{Incarnation, Millis};

    use super::*;

    fn status(safety: SafetyClass, wakeups: Option<bool>) -> Status {
        Status {
            store: "postgres",
            safety,
            incarnation: Incarnation(0),
            now: Millis(0),
            sessions: 0,
            live: 0,
            wakeups,
        }
    }

    #[test]
    fn wake_ups_that_are_down_are_said() {
        for (wakeups, said) in [(None, vec![true]), (Some(false), vec![true, false])] {
            let dependencies = dependencies(&status(SafetyClass::Exclusive, wakeups));
            assert_eq!(dependencies.iter().map(|one| one.ok).collect::<Vec<_>>(), said);
            assert_eq!(dependencies[0].detail, "postgres answers, safety class: exclusive");
        }
    }

    #[test]
    fn a_database_that_forgets_is_a_reason_to_look() {
        assert_eq!(doubts(&status(SafetyClass::Exclusive, None)), None);
        assert!(doubts(&status(SafetyClass::BestEffort, None)).is_some());
        let memory = Status { store: "memory", ..status(SafetyClass::BestEffort, None) };
        assert_eq!(doubts(&memory), None);
    }
}

//! `/healthz`: liveness of the process. `/readyz`: readiness of its store, and warnings.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use tenure_store::StoreError;
use tenure_store::store::{SafetyClass, Status};
use tenure_wire::ReadyResponse;
use utoipa::ToSchema;

use crate::{ServerState, janitor};
use tenure_app::openapi::Unavailable;
use tenure_app::{BrokenFile, Problem};

/// Time after which the store counts as not ready.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);

/// The command that lists the problems of an invalid file.
pub(super) const CONFIG_CHECK: &str = "tenure config check";

/// Maximum number of invalid files that are listed.
const BROKEN_FILES_MAX: usize = 10;

/// Reports that the process is alive.
#[utoipa::path(
    get,
    path = "/healthz",
    tag = "health",
    operation_id = "healthz",
    security(()),
    responses((status = 200, description = "The process is alive", body = String))
)]
pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

/// `GET /readyz`
#[derive(Serialize, ToSchema)]
pub(super) struct Ready {
    #[serde(flatten)]
    answer: ReadyResponse,
    /// Status of what the server depends on.
    dependencies: Vec<Dependency>,
}

/// Status of a dependency of the server.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
struct Dependency {
    /// Name.
    name: &'static str,
    /// Whether it works.
    ok: bool,
    /// Details for people.
    detail: String,
}

/// Reports whether the store answers, and the reasons for an operator to look.
#[utoipa::path(
    get,
    path = "/readyz",
    tag = "health",
    operation_id = "readyz",
    security(()),
    responses((status = 200, description = "The server is ready", body = Ready), Unavailable)
)]
pub(super) async fn readyz(State(state): State<ServerState>) -> Result<Json<Ready>, Problem> {
    if state.draining.is_cancelled() {
        return Err(Problem::unavailable("the server is shutting down"));
    }
    let checks = async {
        let status = state.services.store().status().await?;
        let reasons = readiness_reasons(&state, &status).await?;
        Ok::<_, StoreError>((status, reasons))
    };
    let Ok(checked) = tokio::time::timeout(STORE_TIMEOUT, checks).await else {
        return Err(Problem::unavailable("the store does not answer"));
    };
    let (status, reasons) = checked?;
    let dependencies = dependencies(&status);
    let answer = ReadyResponse {
        ready: true,
        store: status.store.to_owned(),
        safety: status.safety.as_str().to_owned(),
        incarnation: status.incarnation.0,
        reasons,
    };
    Ok(Json(Ready { answer, dependencies }))
}

/// Lists the dependencies. Missing wake-ups cost latency only, so they do not make the server
/// unready.
fn dependencies(status: &Status) -> Vec<Dependency> {
    let detail = format!("{} answers, safety class: {}", status.store, status.safety.as_str());
    let mut dependencies = vec![Dependency { name: "store", ok: true, detail }];
    if let Some(ok) = status.wakeups {
        let detail = if ok {
            "notifications of the database are received"
        } else {
            "notifications of the database are not received: waiting requests poll"
        };
        dependencies.push(Dependency { name: "wake-ups", ok, detail: detail.to_owned() });
    }
    dependencies
}

/// Warns about a database that may lose acknowledged writes. For the memory store that is expected.
fn durability_warning(status: &Status) -> Option<String> {
    let weak = status.store == "postgres" && status.safety == SafetyClass::BestEffort;
    weak.then(|| {
        "the database may lose acknowledged writes: run tenure doctor --store URL".to_owned()
    })
}

/// Collects reasons for an operator to look. A late or missing janitor does not make the server
/// unready: no other server would respond better.
pub(super) async fn readiness_reasons(
    state: &ServerState,
    status: &Status,
) -> Result<Vec<String>, StoreError> {
    let mut reasons: Vec<String> = state.janitor.history().warning().into_iter().collect();
    reasons.extend(state.janitor.late_duties());
    if !state.janitor.holds_lock() {
        let detail = state.services.store().reads().show(&janitor::resource()).await?;
        if detail.is_none_or(|detail| detail.tenures.is_empty()) {
            reasons.push("no server holds the janitor's lock".to_owned());
        }
    }
    let live = state.services.live.get();
    reasons.extend(broken_files(&live.broken));
    reasons.extend(live.apps.iter().flat_map(|(_, app)| app.readiness_warnings()));
    reasons.extend(durability_warning(status));
    Ok(reasons)
}

/// Lists invalid files of apps. Their problems are in the log only: everyone can read this, and a
/// problem may quote the file.
fn broken_files(files: &[BrokenFile]) -> Vec<String> {
    let mut reasons: Vec<String> = files
        .iter()
        .take(BROKEN_FILES_MAX)
        .map(|BrokenFile { app, file, problems }| {
            let (file, line) = (file.display(), problems.first().map_or(1, |first| first.line));
            let invalid = format!("[{app}] {file}:{line} is invalid");
            format!("{invalid}: what the file declares is disabled; run {CONFIG_CHECK}")
        })
        .collect();
    let others = files.len().saturating_sub(BROKEN_FILES_MAX);
    reasons.extend((others > 0).then(|| format!("{others} more files of apps are invalid")));
    reasons
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

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
    fn missing_wake_ups_are_reported() {
        for (wakeups, expected) in [(None, vec![true]), (Some(false), vec![true, false])] {
            let dependencies = dependencies(&status(SafetyClass::Exclusive, wakeups));
            assert_eq!(dependencies.iter().map(|one| one.ok).collect::<Vec<_>>(), expected);
            assert_eq!(dependencies[0].detail, "postgres answers, safety class: exclusive");
        }
    }

    #[test]
    fn broken_files_are_listed_up_to_a_maximum_without_their_contents() {
        let broken = |n: usize| {
            let file = PathBuf::from(format!("/etc/acme/{n}.toml"));
            let problem = tenure_config::Problem::of_file(&file, "quotes the file");
            BrokenFile { app: "greetings", file, problems: vec![problem] }
        };
        let reasons = broken_files(&[broken(1)]);
        assert!(reasons[0].starts_with("[greetings] /etc/acme/1.toml:1 is invalid"), "{reasons:?}");
        assert!(!reasons[0].contains("quotes"), "{reasons:?}");
        let many: Vec<_> = (0..BROKEN_FILES_MAX + 2).map(broken).collect();
        let reasons = broken_files(&many);
        assert_eq!(reasons.len(), BROKEN_FILES_MAX + 1);
        assert_eq!(reasons[BROKEN_FILES_MAX], "2 more files of apps are invalid");
    }

    #[test]
    fn a_database_that_may_lose_writes_is_warned_about() {
        assert_eq!(durability_warning(&status(SafetyClass::Exclusive, None)), None);
        assert!(durability_warning(&status(SafetyClass::BestEffort, None)).is_some());
        let memory = Status { store: "memory", ..status(SafetyClass::BestEffort, None) };
        assert_eq!(durability_warning(&memory), None);
    }
}

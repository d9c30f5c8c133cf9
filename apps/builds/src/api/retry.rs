//! `POST /v1/builds/{id}/retry`: run failed tests again.

use tenure_app::{Problem, Services};
use tenure_core::{Command, Outcome, ResourceAction, Submit};

use super::{OnBuild, report};
use crate::build::Build;
use crate::names::{RUN, test_index};
use crate::results::{self, TestStatus};
use crate::state::TestState;
use crate::tally;
use crate::wire::CHUNK_MAX;

/// Submits the failed tests of a node, or of all nodes, again. Returns their number.
pub(super) async fn retry(
    services: &Services,
    on: &OnBuild,
    worker: Option<&str>,
) -> Result<usize, Problem> {
    let build = Build::load(services, &on.key).await?;
    let (mut commands, mut indexes) = (Vec::new(), Vec::new());
    for view in report::tests(services, &build).await? {
        let document = view.resource.status.as_ref().map(|status| &status.document);
        let status = TestStatus::parse(document);
        let is_selected = worker.is_none_or(|worker| status.worker.as_deref() == Some(worker));
        if *view.resource.state == *TestState::Failed.as_str() && is_selected {
            indexes.extend(test_index(&view.key));
            let request = tenure_store::random::request_id();
            let args = Some(results::args(&status.test));
            let submit = Submit { args, ..Submit::new(request, RUN, on.caller.name.clone()) };
            let action = ResourceAction::Submit(submit);
            commands.push(Command::Resource { key: view.key, action });
        }
    }
    tally::forget_failures(services, &on.caller, &on.key, &indexes).await?;
    let tests = commands.len();
    for chunk in commands.chunks(CHUNK_MAX) {
        for outcome in services.committer.submit_all(chunk.to_vec()).await {
            match outcome? {
                Outcome::Submitted { .. } => {}
                Outcome::Refused(refusal) => return Err(refusal.into()),
                other => return Err(Problem::unexpected(&other)),
            }
        }
    }
    Ok(tests)
}

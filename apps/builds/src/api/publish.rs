//! `POST /v1/builds/{id}/publish`: the leader stores the tests of its term, and makes them count in
//! one step with its token.
//!
//! Tests of a term that never counts are not seen by any node: nodes only reserve tests of the term
//! that counts. The duty deletes them.

use tenure_app::{Problem, Services};
use tenure_core::{Command, Finish, JobAction, Outcome, Refusal, ResourceAction, Submit, Token};

use super::OnBuild;
use super::join::{is_leader, status_update};
use crate::build::{Build, BuildStatus, Published};
use crate::names::{self, RUN, TEST, TEST_BYTES_MAX, TESTS_MAX, test_group, test_key};
use crate::results;
use crate::wire::{CHUNK_MAX, PublishRequest, PublishResponse};

/// Stores tests; the last request makes them count.
pub(super) async fn publish(
    services: &Services,
    on: &OnBuild,
    body: &PublishRequest,
) -> Result<PublishResponse, Problem> {
    check(body)?;
    let build = Build::load(services, &on.key).await?;
    let is_published = build.status.published.as_ref().is_some_and(|tests| tests.term == body.term);
    if !is_published {
        if !is_leader(&build, body.term) {
            // Saves work. What decides is the token of the last request.
            let current = build.setup.clone();
            return Err(Refusal::Lost { token: body.term, how: None, current }.into());
        }
        store_tests(services, on, body).await?;
    }
    let published = body.tests.len();
    let Some(total) = body.total else { return Ok(PublishResponse { published, ready: false }) };
    let digest = body.digest.clone().unwrap_or_default();
    if !is_published {
        check_complete(services, &build, body, (total, &digest)).await?;
    }
    let status = BuildStatus {
        published: Some(Published { term: body.term, total, digest }),
        ..build.status
    };
    let finish = Finish::Ok { state: None, result: None };
    let update = Some(status_update(&status));
    let action = JobAction::Finish { token: body.term, finish, update };
    match services.submit(Command::Job { id: body.job, action }).await? {
        Outcome::Finished { .. } => Ok(PublishResponse { published, ready: true }),
        other => Err(Problem::unexpected(&other)),
    }
}

/// Refuses to let tests count if some are missing, or if they are not those that nodes know.
async fn check_complete(
    services: &Services,
    build: &Build,
    body: &PublishRequest,
    (total, digest): (usize, &str),
) -> Result<(), Problem> {
    let (tenant, group) = (build.key.tenant().into(), test_group(&build.key, body.term));
    let counts = services.store().reads().group(tenant, TEST.into(), group).await?;
    // No node can have reserved one of them.
    let stored = counts.running + counts.waiting;
    if stored != total {
        let detail = format!("{stored} tests are stored, not {total}: send the missing ones first");
        return Err(Problem::new(409, "rejected", &detail));
    }
    match &build.spec.tests {
        Some(tests) if tests.total != total || tests.digest != digest => {
            let expected = tests.total;
            let detail = format!(
                "the tests are not those that the build was created with: {total} tests with the \
                 digest {digest:.12}…, not {expected} with {:.12}…",
                tests.digest
            );
            Err(Problem::new(409, "rejected", &detail))
        }
        _ => Ok(()),
    }
}

fn check(body: &PublishRequest) -> Result<(), Problem> {
    let count = body.tests.len();
    if count > CHUNK_MAX {
        let detail = format!("tests: {count} in one request; at most {CHUNK_MAX} are allowed");
        return Err(Problem::invalid(&detail));
    }
    let known = body.first.saturating_add(count);
    if known > TESTS_MAX {
        let detail = format!("a build has at most {TESTS_MAX} tests; use several builds");
        return Err(Problem::invalid(&detail));
    }
    if let Some(test) = body.tests.iter().find(|test| !names::is_test(test)) {
        let shown: String = test.chars().take(80).collect();
        let detail = format!(
            "tests: {shown:?} is not the id of a test, which is one line of 1 to {TEST_BYTES_MAX} \
             bytes"
        );
        return Err(Problem::invalid(&detail));
    }
    if body.total.is_some_and(|total| total != known) {
        let detail =
            format!("total: the last request ends with test {known}, so the total is {known}");
        return Err(Problem::invalid(&detail));
    }
    if body.total.is_some() != body.digest.is_some() {
        return Err(Problem::invalid(&"give `total` and `digest` together, in the last request"));
    }
    Ok(())
}

async fn store_tests(
    services: &Services,
    on: &OnBuild,
    body: &PublishRequest,
) -> Result<(), Problem> {
    let mut commands = Vec::with_capacity(body.tests.len());
    for (index, test) in (body.first..).zip(&body.tests) {
        commands.push(submit(services, on, body.term, (index, test))?);
    }
    for outcome in services.committer.submit_all(commands).await {
        match outcome? {
            Outcome::Submitted { .. } => {}
            Outcome::Refused(refusal) => return Err(refusal.into()),
            other => return Err(Problem::unexpected(&other)),
        }
    }
    Ok(())
}

/// Returns the command that stores a test. Repeating it changes nothing.
fn submit(
    services: &Services,
    on: &OnBuild,
    term: Token,
    (index, test): (usize, &str),
) -> Result<Command, Problem> {
    let key = test_key(&on.key, term, index).map_err(|error| Problem::invalid(&error))?;
    let request = services.derive_request_id(&format!("publish\n{key}"));
    let submit = Submit {
        args: Some(results::args(test)),
        ..Submit::new(request, RUN, on.caller.name.clone())
    };
    Ok(Command::Resource { key, action: ResourceAction::Submit(submit) })
}

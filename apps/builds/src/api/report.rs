//! `GET /v1/builds/{id}/report`: the results, read from the tests themselves.

use std::collections::BTreeMap;

use tenure_app::{Problem, Services};
use tenure_core::ResourceKey;
use tenure_store::store::{PAGE_MAX, ResourceQuery, ResourceView};

use crate::build::Build;
use crate::names::{TEST, build_id, test_group, test_index};
use crate::results::{TestStatus, test_of};
use crate::state::TestState;
use crate::wire::{BuildReportResponse, TestReport, WorkerReport};

/// Reads the tests of a build, in their order.
pub(crate) async fn tests(
    services: &Services,
    build: &Build,
) -> Result<Vec<ResourceView>, Problem> {
    let Some(published) = &build.status.published else { return Ok(Vec::new()) };
    let mut tests = Vec::with_capacity(published.total);
    let mut after: Option<ResourceKey> = None;
    loop {
        let query = ResourceQuery {
            tenant: Some(build.key.tenant().into()),
            kind: Some(TEST.into()),
            group: Some(test_group(&build.key, published.term)),
            after,
            limit: PAGE_MAX,
            ..ResourceQuery::default()
        };
        let page = services.store().reads().resources(query).await?;
        tests.extend(page.items);
        after = page.next;
        if after.is_none() {
            return Ok(tests);
        }
    }
}

/// Reports the results.
pub(super) async fn report(
    services: &Services,
    build: &Build,
    all: bool,
) -> Result<BuildReportResponse, Problem> {
    let tests = tests(services, build).await?;
    let started = build.published_at().unwrap_or_default();
    let is_final = |view: &&ResourceView| state(view).is_final();
    let ended = tests.iter().filter(is_final).map(|view| view.resource.since).max();
    let duration_ms = ended.unwrap_or(started).since(started);
    let tests: Vec<TestReport> = tests.iter().map(describe).collect();
    let count = |wanted: TestState| tests.iter().filter(|test| is_in(test, wanted)).count();
    let select = |wanted: &dyn Fn(&TestReport) -> bool| {
        tests.iter().filter(|test| wanted(test)).cloned().collect::<Vec<_>>()
    };
    let unfinished = count(TestState::Pending) + count(TestState::Running);
    Ok(BuildReportResponse {
        build: build_id(build.key.name()),
        master_status: build.master_status(unfinished),
        term: build.status.published.as_ref().map(|published| published.term),
        total: tests.len(),
        passed: count(TestState::Passed),
        failed: count(TestState::Failed),
        flaky: count(TestState::Flaky),
        unfinished,
        requeues: build.spec.requeued.len(),
        losses: tests.iter().map(|test| usize::try_from(test.losses).unwrap_or(0)).sum(),
        duration_ms,
        failures: select(&|test| is_in(test, TestState::Failed)),
        flaky_tests: select(&|test| {
            is_in(test, TestState::Flaky) || is_in(test, TestState::Passed) && test.failures > 0
        }),
        lost_tests: select(&|test| test.losses > 0),
        workers: workers(&tests),
        tests: all.then_some(tests),
    })
}

fn is_in(test: &TestReport, state: TestState) -> bool {
    test.state == state.as_str()
}

fn state(view: &ResourceView) -> TestState {
    TestState::parse(&view.resource.state).unwrap_or(TestState::Pending)
}

fn describe(view: &ResourceView) -> TestReport {
    let document = view.resource.status.as_ref().map(|status| &status.document);
    let status = TestStatus::parse(document);
    let job = view.resource.lane.front();
    let is_over = state(view).is_final();
    let losses = job.map_or(status.losses, |job| status.losses_of(job));
    TestReport {
        index: test_index(&view.key).unwrap_or_default(),
        test: job.map_or(status.test, |job| test_of(job)),
        state: state(view).as_str().to_owned(),
        worker: status.worker.filter(|_| is_over),
        duration_ms: status.duration_ms.filter(|_| is_over),
        ended_at: is_over.then(|| tenure_wire::instant(view.resource.since)),
        failures: status.failures,
        losses,
        code: status.code,
        message: status.message,
    }
}

/// Adds up what each node did.
fn workers(tests: &[TestReport]) -> Vec<WorkerReport> {
    let mut workers: BTreeMap<&str, WorkerReport> = BTreeMap::new();
    for test in tests {
        let Some(worker) = test.worker.as_deref() else { continue };
        let report = workers.entry(worker).or_insert_with(|| WorkerReport {
            worker: worker.to_owned(),
            tests: 0,
            failed: 0,
            duration_ms: 0,
        });
        report.tests += 1;
        report.failed += usize::from(is_in(test, TestState::Failed));
        report.duration_ms += test.duration_ms.unwrap_or(0);
    }
    workers.into_values().collect()
}

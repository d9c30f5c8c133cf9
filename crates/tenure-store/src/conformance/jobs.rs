//! Cases about jobs that scenarios cannot express: concurrency, paging, logs, retention.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure_core::{
    Claim, Command, Finish, JobAction, JobId, JobState, Outcome, RequestId, ResourceAction,
    ResourceKey, SessionId, Submit, Token, Verdict, limits,
};

use super::{Harness, acquire, apply_one, open};
use crate::committer::Committer;
use crate::scenario;
use crate::store::{HistoryQuery, JobQuery, LogQuery, PAGE_MAX, ResourceQuery, Retention, Store};
use crate::verify::verify;

pub(super) fn key(kind: &str, name: &str) -> ResourceKey {
    ResourceKey::new("t", kind, name).expect("a valid name")
}

pub(super) fn submit(key: &ResourceKey, operation: &str, request: u128) -> Command {
    let submit = Submit {
        request: RequestId(request),
        operation: operation.into(),
        args: None,
        priority: 0,
        run_at: None,
        by: "A".into(),
        precondition: None,
    };
    Command::Resource { key: key.clone(), action: ResourceAction::Submit(submit) }
}

pub(super) fn claim(kind: &str, request: u128, max: usize) -> Claim {
    let (session, request) = (SessionId(1), RequestId(request));
    Claim { session, request, kinds: vec![kind.into()], max, tenant: None, only: None }
}

fn ok(id: JobId, token: Token) -> Command {
    let finish = Finish::Ok { state: None, result: None };
    Command::Job { id, action: JobAction::Finish { token, finish, update: None } }
}

pub(super) async fn claimed(store: &dyn Store, claim: Claim) -> Vec<(JobId, Token)> {
    match apply_one(store, Command::Claim(claim)).await {
        Outcome::Claimed(jobs) => jobs.iter().map(|a| (a.job.id, a.tenure.token)).collect(),
        other => panic!("unexpected reply to a claim: {other:?}"),
    }
}

/// Declares the kinds of the scenarios and opens the session of a worker.
pub(super) async fn prepare(store: &dyn Store) {
    store.declare(scenario::kinds()).await.expect("the store is available");
    apply_one(store, open(1, "W")).await;
}

/// Submits and finishes jobs of one resource one after another; `numbers` are their request ids.
async fn run_jobs(
    harness: &impl Harness,
    name: &str,
    numbers: std::ops::Range<u128>,
) -> Vec<JobId> {
    let store = harness.store();
    let key = key("task", name);
    let mut done = Vec::new();
    for n in numbers {
        harness.clock().advance(10);
        apply_one(&*store, submit(&key, "work", 1_000 + n)).await;
        let (id, token) = claimed(&*store, claim("task", 2_000 + n, 1)).await[0];
        apply_one(&*store, ok(id, token)).await;
        done.push(id);
    }
    done
}

/// Invariant 9: a thousand concurrent submits give one execution and a thousand equal ids.
pub async fn a_thousand_concurrent_submits_make_one_job(harness: &mut impl Harness) {
    let store = harness.store();
    prepare(&*store).await;
    let committer = Committer::start(harness.store());
    let key = key("pipeline", "p1");
    let spawn_submit = |n: u128| {
        let (committer, command) = (committer.clone(), submit(&key, "run", 100 + n));
        tokio::spawn(
            async move { committer.submit(command).await.expect("the store is available") },
        )
    };
    let submits: Vec<_> = (0..1_000).map(spawn_submit).collect();
    let (mut ids, mut started) = (BTreeSet::new(), 0);
    for submit in submits {
        let Outcome::Submitted { verdict, job, .. } = submit.await.expect("no panic") else {
            panic!("a submit was refused")
        };
        ids.insert(job);
        started += usize::from(verdict == Verdict::Started);
    }
    assert_eq!((ids.len(), started), (1, 1));
    assert_eq!(claimed(&*store, claim("pipeline", 1, 9)).await.len(), 1);
    let view = store.reads().job(*ids.first().expect("one")).await.expect("the store is available");
    assert_eq!(view.expect("the job").job.joined, 999);
}

/// Invariant 10: claims visit ready resources only; a blocked lane does not delay the others.
pub async fn a_blocked_lane_delays_no_other_lane(harness: &mut impl Harness) {
    const RESOURCES: u128 = 10_000;
    let store = harness.store();
    prepare(&*store).await;
    let blocked = key("cluster", "blocked");
    apply_one(&*store, acquire("blocked", 1, 1, 0)).await;
    let mut batch: Vec<_> = vec![submit(&blocked, "create", 10)];
    for n in 0..RESOURCES {
        let key = ResourceKey::new("t", "cluster", &format!("c{n:05}")).expect("a valid name");
        batch.push(submit(&key, "create", 100 + n));
    }
    for chunk in batch.chunks(4_000) {
        store.apply(chunk.to_vec()).await.expect("the store is available");
    }
    let mut left = usize::try_from(RESOURCES).expect("it fits");
    let mut request = 100_000;
    while left > 0 {
        request += 1;
        let jobs = claimed(&*store, claim("cluster", request, limits::CLAIM_MAX)).await;
        assert_eq!(jobs.len(), left.min(limits::CLAIM_MAX), "a claim takes its maximum");
        left -= jobs.len();
    }
    assert!(claimed(&*store, claim("cluster", request + 1, 1)).await.is_empty());
}

/// A waiting claim is woken by a ready resource, and one resource wakes one claim.
pub async fn a_claim_waits_for_work(harness: &mut impl Harness) {
    let store = harness.store();
    prepare(&*store).await;
    let committer = Committer::start(harness.store());
    let wait = |request: u128| {
        let committer = committer.clone();
        let claim = claim("task", request, 1);
        tokio::spawn(async move {
            committer.claim(&claim, Duration::from_secs(30)).await.expect("the store is available")
        })
    };
    let (first, second) = (wait(1), wait(2));
    for n in 0..2 {
        let command = submit(&key("task", &format!("t{n}")), "work", 10 + n);
        committer.submit(command).await.expect("the store is available");
    }
    for claim in [first, second] {
        let outcome = claim.await.expect("no panic");
        assert!(matches!(outcome, Outcome::Claimed(jobs) if jobs.len() == 1));
    }
    let nothing = committer.claim(&claim("task", 3, 1), Duration::from_millis(20)).await;
    assert_eq!(nothing.expect("the store is available"), Outcome::Claimed(Vec::new()));
}

/// Sends a command that submits a job, and checks that the job in the outcome is the one that is
/// read afterwards. Returns its id, and whether the outcome contains it.
async fn submit_and_read(store: &dyn Store, command: Command) -> (JobId, bool) {
    let outcome = apply_one(store, command).await;
    let Outcome::Submitted { job: id, snapshot, .. } = outcome else { panic!("{outcome:?}") };
    let view = store.reads().job(id).await.expect("the store is available").expect("a job");
    let contained = snapshot.is_some();
    assert!(snapshot.is_none_or(|job| job == view.job), "{:?}", view.job);
    (id, contained)
}

/// The outcome of a submit has the job that a read returns, unless it has left the lane.
pub async fn a_submit_returns_the_job_that_a_read_returns(harness: &mut impl Harness) {
    let store = harness.store();
    prepare(&*store).await;
    let first = submit(&key("task", "t1"), "work", 1);
    let (id, contained) = submit_and_read(&*store, first.clone()).await;
    assert!(contained);
    let [(claimed_id, token)] = claimed(&*store, claim("task", 2, 1)).await[..] else {
        panic!("nothing claimed")
    };
    assert_eq!(claimed_id, id);
    // Repeated while it runs, and after it has ended.
    assert_eq!(submit_and_read(&*store, first.clone()).await, (id, true));
    apply_one(&*store, ok(id, token)).await;
    assert_eq!(submit_and_read(&*store, first).await, (id, false));
    let action = JobAction::Retry { request: RequestId(3), by: "A".into(), reason: "so".into() };
    let (retried, contained) = submit_and_read(&*store, Command::Job { id, action }).await;
    assert!(contained && retried != id);
    let run = |request| submit(&key("pipeline", "p1"), "run", request);
    let (present, _) = submit_and_read(&*store, run(4)).await;
    assert_eq!(submit_and_read(&*store, run(5)).await, (present, true), "attached");
}

/// Live and finished jobs are listed newest first in pages without gaps, also for one resource.
pub async fn jobs_are_listed_in_pages_without_gaps(harness: &mut impl Harness) {
    let store = harness.store();
    prepare(&*store).await;
    let mut all = run_jobs(harness, "t1", 0..12).await;
    for n in 0..5 {
        harness.clock().advance(10);
        let command = submit(&key("task", "t1"), "work", 50 + n);
        let Outcome::Submitted { job, .. } = apply_one(&*store, command).await else {
            panic!("refused")
        };
        all.push(job);
    }
    all.reverse();
    let of_resource = JobQuery {
        tenant: Some("t".into()),
        kind: Some("task".into()),
        name: Some("t1".into()),
        ..JobQuery::default()
    };
    for query in [JobQuery::default(), of_resource] {
        let (mut ids, mut after) = (Vec::new(), None);
        loop {
            let query = JobQuery { after, limit: 4, ..query.clone() };
            let page = store.reads().jobs(query).await.expect("the store is available");
            ids.extend(page.items.iter().map(|view| view.job.id));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(ids, all);
    }
    for (state, count) in [(JobState::Succeeded, 12), (JobState::Queued, 5), (JobState::Dead, 0)] {
        let query = JobQuery { state: Some(state), limit: 100, ..JobQuery::default() };
        let page = store.reads().jobs(query).await.expect("the store is available");
        assert_eq!(page.items.len(), count, "{state:?}");
    }
    let foreign = JobQuery { tenant: Some("u".into()), limit: 9, ..JobQuery::default() };
    assert!(store.reads().jobs(foreign).await.expect("the store is available").items.is_empty());
}

/// Resources are listed by key, with their current state.
pub async fn resources_with_a_state_are_listed(harness: &mut impl Harness) {
    let store = harness.store();
    prepare(&*store).await;
    apply_one(&*store, acquire("only-locked", 1, 1, 0)).await;
    for n in 0..5 {
        apply_one(&*store, submit(&key("cluster", &format!("c{n}")), "create", 10 + n)).await;
    }
    claimed(&*store, claim("cluster", 1, 2)).await;
    let query = |state: Option<&str>, kind: &str, after| ResourceQuery {
        tenant: Some("t".into()),
        kind: Some(kind.into()),
        state: state.map(Into::into),
        after,
        limit: 2,
        group: None,
    };
    let (mut names, mut after) = (Vec::new(), None);
    loop {
        let page = store.reads().resources(query(None, "cluster", after)).await;
        let page = page.expect("the store is available");
        names.extend(page.items.iter().map(|view| view.key.name().to_owned()));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(names, ["c0", "c1", "c2", "c3", "c4"]);
    let creating = store.reads().resources(query(Some("CREATING"), "cluster", None)).await;
    assert_eq!(creating.expect("the store is available").items.len(), 2);
    let none = store.reads().resources(query(None, "clust", None)).await;
    assert!(none.expect("the store is available").items.is_empty(), "a kind is not a prefix");
}

/// Logs are ordered, fenced by the token, and bounded.
pub async fn logs_are_fenced_and_bounded(harness: &mut impl Harness) {
    let store = harness.store();
    prepare(&*store).await;
    apply_one(&*store, submit(&key("task", "t1"), "work", 10)).await;
    let (id, token) = claimed(&*store, claim("task", 1, 1)).await[0];
    let log = |token, text: &str| Command::Job {
        id,
        action: JobAction::Log { token, text: text.into() },
    };
    apply_one(&*store, log(token, "one\n")).await;
    apply_one(&*store, log(token, "two\n")).await;
    assert!(matches!(apply_one(&*store, log(Token(9), "x\n")).await, Outcome::Refused(_)));
    let query = |after| LogQuery { job: id, after, limit: 100 };
    let lines = store.reads().logs(query(0)).await.expect("the store is available");
    let texts: Vec<_> = lines.iter().map(|line| &*line.text).collect();
    assert_eq!(texts, ["one\n", "two\n"]);
    let second =
        store.reads().logs(query(lines[0].position)).await.expect("the store is available");
    assert_eq!(second.len(), 1);
    let piece = "x".repeat(limits::LOG_CHUNK_BYTES_MAX);
    for _ in 0..20 {
        apply_one(&*store, log(token, &piece)).await;
    }
    let lines = store.reads().logs(query(0)).await.expect("the store is available");
    let bytes: usize = lines.iter().map(|line| line.text.len()).sum();
    assert!(bytes as u64 <= limits::LOG_BYTES_MAX + 100, "{bytes} bytes are stored");
    assert!(lines.last().is_some_and(|line| line.text.contains("the log is full")));
}

/// Expired rows are pruned in steps, and the remaining history still verifies.
pub async fn pruning_leaves_what_verify_needs(harness: &mut impl Harness) {
    let store = harness.store();
    prepare(&*store).await;
    let old = run_jobs(harness, "t1", 0..10).await;
    apply_one(&*store, submit(&key("cluster", "held"), "create", 5)).await;
    claimed(&*store, claim("cluster", 5, 1)).await;
    // A store may write rows back later than history; idle sweeps catch up.
    for _ in 0..3 {
        harness.clock().advance(1_000);
        apply_one(&*store, Command::Heartbeat { session: SessionId(1), seen: 0, tenant: None })
            .await;
        store.sweep().await.expect("the store is available");
    }
    let new = run_jobs(harness, "t1", 10..13).await;
    let retention = Retention { jobs_ms: 2_000, dead_ms: 2_000, history_ms: 2_000, rows_max: 7 };
    let (mut jobs, mut lines) = (0, 0);
    loop {
        let pruned = store.prune(retention).await.expect("the store is available");
        assert!(pruned.jobs <= 7 && pruned.lines <= 7, "{pruned:?} exceeds rows_max");
        if pruned.jobs + pruned.lines == 0 {
            break;
        }
        (jobs, lines) = (jobs + pruned.jobs, lines + pruned.lines);
    }
    assert_eq!(jobs, 10);
    // Three lines per job and one for the creation of the resource, plus those of the other.
    assert_eq!(lines, 34);
    for (id, exists) in [(old[9], false), (new[0], true)] {
        let view = store.reads().job(id).await.expect("the store is available");
        assert_eq!(view.is_some(), exists);
    }
    let report = verify(&*store).await.expect("the store is available");
    assert_eq!(report.problems, []);
    let query = HistoryQuery::Of { key: key("task", "t1"), before: None, limit: PAGE_MAX };
    assert_eq!(store.reads().history(query).await.expect("the store is available").len(), 9);
    let of_resource = JobQuery {
        tenant: Some("t".into()),
        kind: Some("task".into()),
        name: Some("t1".into()),
        limit: 100,
        ..JobQuery::default()
    };
    let page = store.reads().jobs(of_resource).await.expect("the store is available");
    assert_eq!(page.items.len(), 3);
}

/// Workers are listed with their kinds and jobs.
pub async fn workers_are_listed_with_their_jobs(harness: &mut impl Harness) {
    let store = harness.store();
    prepare(&*store).await;
    assert!(store.reads().workers().await.expect("the store is available").is_empty());
    apply_one(&*store, submit(&key("task", "t1"), "work", 10)).await;
    let (id, _) = claimed(&*store, claim("task", 1, 1)).await[0];
    let workers = store.reads().workers().await.expect("the store is available");
    assert_eq!(workers.len(), 1);
    assert_eq!((&*workers[0].name, workers[0].kinds.len()), ("W", 1));
    assert_eq!(workers[0].jobs, [(key("task", "t1"), id)]);
}

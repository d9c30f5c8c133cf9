//! Cases about jobs that no scenario can tell: many at once, pages, logs, retention.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure_core::{
    Claim, Command, Finish, JobAction, JobId, JobState, Outcome, RequestId, ResourceAction,
    ResourceKey, SessionId, Submit, Token, Verdict, limits,
};

use super::{Harness, acquire, one, open};
use crate::committer::Committer;
use crate::scenario;
use crate::store::{HistoryQuery, JobQuery, LogQuery, PAGE_MAX, ResourceQuery, Retention, Store};
use crate::verify::verify;

pub(super) fn key(kind: &str, name: &str) -> ResourceKey {
    ResourceKey::new("t", kind, name).expect("a good name")
}

pub(super) fn submit(key: &ResourceKey, operation: &str, request: u128) -> Command {
    let submit = Submit {
        request: RequestId(request),
        operation: operation.into(),
        args: None,
        priority: 0,
        run_at: None,
        by: "A".into(),
    };
    Command::Resource { key: key.clone(), action: ResourceAction::Submit(submit) }
}

pub(super) fn claim(kind: &str, request: u128, max: usize) -> Claim {
    let (session, request) = (SessionId(1), RequestId(request));
    Claim { session, request, kinds: vec![kind.into()], max }
}

fn ok(id: JobId, token: Token) -> Command {
    let finish = Finish::Ok { state: None, result: None };
    Command::Job { id, action: JobAction::Finish { token, finish } }
}

pub(super) async fn claimed(store: &dyn Store, claim: Claim) -> Vec<(JobId, Token)> {
    match one(store, Command::Claim(claim)).await {
        Outcome::Claimed(jobs) => jobs.iter().map(|a| (a.job.id, a.tenure.token)).collect(),
        other => panic!("{other:?} answers no claim"),
    }
}

/// Declares the kinds of scenarios and opens a session for the worker.
pub(super) async fn prepare(store: &dyn Store) {
    store.declare(scenario::kinds()).await.expect("the store is there");
    one(store, open(1, "W")).await;
}

/// Submits and works jobs of one resource, one after the other; `numbers` are their requests.
async fn work_through(
    harness: &impl Harness,
    name: &str,
    numbers: std::ops::Range<u128>,
) -> Vec<JobId> {
    let store = harness.store();
    let key = key("task", name);
    let mut done = Vec::new();
    for n in numbers {
        harness.clock().advance(10);
        one(&*store, submit(&key, "work", 1_000 + n)).await;
        let (id, token) = claimed(&*store, claim("task", 2_000 + n, 1)).await[0];
        one(&*store, ok(id, token)).await;
        done.push(id);
    }
    done
}

/// Invariant 9: a thousand triggers at once give one execution and a thousand equal ids.
pub async fn a_thousand_submits_make_one_flight(harness: &mut impl Harness) {
    let store = harness.store();
    prepare(&*store).await;
    let committer = Committer::start(harness.store());
    let key = key("pipeline", "p1");
    let trigger = |n: u128| {
        let (committer, command) = (committer.clone(), submit(&key, "run", 100 + n));
        tokio::spawn(async move { committer.submit(command).await.expect("the store is there") })
    };
    let triggers: Vec<_> = (0..1_000).map(trigger).collect();
    let (mut ids, mut started) = (BTreeSet::new(), 0);
    for trigger in triggers {
        let Outcome::Submitted { verdict, job } = trigger.await.expect("no panic") else {
            panic!("a trigger was refused")
        };
        ids.insert(job);
        started += usize::from(verdict == Verdict::Started);
    }
    assert_eq!((ids.len(), started), (1, 1));
    assert_eq!(claimed(&*store, claim("pipeline", 1, 9)).await.len(), 1);
    let shown = store.reads().job(*ids.first().expect("one")).await.expect("the store is there");
    assert_eq!(shown.expect("the flight").job.joined, 999);
}

/// Invariant 10: claims walk ready resources; one blocked lane costs the others nothing.
pub async fn a_blocked_lane_delays_nobody(harness: &mut impl Harness) {
    const RESOURCES: u128 = 10_000;
    let store = harness.store();
    prepare(&*store).await;
    let blocked = key("cluster", "blocked");
    one(&*store, acquire("blocked", 1, 1, 0)).await;
    let mut batch: Vec<_> = vec![submit(&blocked, "create", 10)];
    for n in 0..RESOURCES {
        let key = ResourceKey::new("t", "cluster", &format!("c{n:05}")).expect("a good name");
        batch.push(submit(&key, "create", 100 + n));
    }
    for part in batch.chunks(4_000) {
        store.apply(part.to_vec()).await.expect("the store is there");
    }
    let mut left = usize::try_from(RESOURCES).expect("it fits");
    let mut request = 100_000;
    while left > 0 {
        request += 1;
        let got = claimed(&*store, claim("cluster", request, limits::CLAIM_MAX)).await;
        assert_eq!(got.len(), left.min(limits::CLAIM_MAX), "a claim takes all it may");
        left -= got.len();
    }
    assert!(claimed(&*store, claim("cluster", request + 1, 1)).await.is_empty());
}

/// A claim that waits is woken by what becomes ready, and one resource wakes one claim.
pub async fn a_claim_waits_for_work(harness: &mut impl Harness) {
    let store = harness.store();
    prepare(&*store).await;
    let committer = Committer::start(harness.store());
    let wait = |request: u128| {
        let committer = committer.clone();
        let claim = claim("task", request, 1);
        tokio::spawn(async move {
            committer.claim(&claim, Duration::from_secs(30)).await.expect("the store is there")
        })
    };
    let (first, second) = (wait(1), wait(2));
    for n in 0..2 {
        let command = submit(&key("task", &format!("t{n}")), "work", 10 + n);
        committer.submit(command).await.expect("the store is there");
    }
    for claim in [first, second] {
        let outcome = claim.await.expect("no panic");
        assert!(matches!(outcome, Outcome::Claimed(jobs) if jobs.len() == 1));
    }
    let nothing = committer.claim(&claim("task", 3, 1), Duration::from_millis(20)).await;
    assert_eq!(nothing.expect("the store is there"), Outcome::Claimed(Vec::new()));
}

/// Jobs are listed newest first, over or not, in pages without gaps; those of one resource too.
pub async fn jobs_come_in_pages_without_gaps(harness: &mut impl Harness) {
    let store = harness.store();
    prepare(&*store).await;
    let mut all = work_through(harness, "t1", 0..12).await;
    for n in 0..5 {
        harness.clock().advance(10);
        let command = submit(&key("task", "t1"), "work", 50 + n);
        let Outcome::Submitted { job, .. } = one(&*store, command).await else { panic!("refused") };
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
            let page = store.reads().jobs(query).await.expect("the store is there");
            ids.extend(page.items.iter().map(|shown| shown.job.id));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(ids, all);
    }
    for (state, count) in [(JobState::Succeeded, 12), (JobState::Queued, 5), (JobState::Dead, 0)] {
        let query = JobQuery { state: Some(state), limit: 100, ..JobQuery::default() };
        let page = store.reads().jobs(query).await.expect("the store is there");
        assert_eq!(page.items.len(), count, "{state:?}");
    }
    let foreign = JobQuery { tenant: Some("u".into()), limit: 9, ..JobQuery::default() };
    assert!(store.reads().jobs(foreign).await.expect("the store is there").items.is_empty());
}

/// Resources are listed by key, with the state that they are in now.
pub async fn worked_resources_are_listed(harness: &mut impl Harness) {
    let store = harness.store();
    prepare(&*store).await;
    one(&*store, acquire("only-locked", 1, 1, 0)).await;
    for n in 0..5 {
        one(&*store, submit(&key("cluster", &format!("c{n}")), "create", 10 + n)).await;
    }
    claimed(&*store, claim("cluster", 1, 2)).await;
    let query = |state: Option<&str>, kind: &str, after| ResourceQuery {
        tenant: Some("t".into()),
        kind: Some(kind.into()),
        state: state.map(Into::into),
        after,
        limit: 2,
    };
    let (mut names, mut after) = (Vec::new(), None);
    loop {
        let page = store.reads().resources(query(None, "cluster", after)).await;
        let page = page.expect("the store is there");
        names.extend(page.items.iter().map(|shown| shown.key.name().to_owned()));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(names, ["c0", "c1", "c2", "c3", "c4"]);
    let creating = store.reads().resources(query(Some("CREATING"), "cluster", None)).await;
    assert_eq!(creating.expect("the store is there").items.len(), 2);
    let none = store.reads().resources(query(None, "clust", None)).await;
    assert!(none.expect("the store is there").items.is_empty(), "a kind is not a prefix");
}

/// Logs are kept in order, belong to the holder of the token, and have a bound.
pub async fn logs_are_fenced_and_bounded(harness: &mut impl Harness) {
    let store = harness.store();
    prepare(&*store).await;
    one(&*store, submit(&key("task", "t1"), "work", 10)).await;
    let (id, token) = claimed(&*store, claim("task", 1, 1)).await[0];
    let log = |token, text: &str| Command::Job {
        id,
        action: JobAction::Log { token, text: text.into() },
    };
    one(&*store, log(token, "one\n")).await;
    one(&*store, log(token, "two\n")).await;
    assert!(matches!(one(&*store, log(Token(9), "x\n")).await, Outcome::Refused(_)));
    let query = |after| LogQuery { job: id, after, limit: 100 };
    let lines = store.reads().logs(query(0)).await.expect("the store is there");
    let texts: Vec<_> = lines.iter().map(|line| &*line.text).collect();
    assert_eq!(texts, ["one\n", "two\n"]);
    let rest = store.reads().logs(query(lines[0].position)).await.expect("the store is there");
    assert_eq!(rest.len(), 1);
    let piece = "x".repeat(limits::LOG_CHUNK_BYTES_MAX);
    for _ in 0..20 {
        one(&*store, log(token, &piece)).await;
    }
    let lines = store.reads().logs(query(0)).await.expect("the store is there");
    let bytes: usize = lines.iter().map(|line| line.text.len()).sum();
    assert!(bytes as u64 <= limits::LOG_BYTES_MAX + 100, "{bytes} bytes were kept");
    assert!(lines.last().is_some_and(|line| line.text.contains("the log is full")));
}

/// What is old is dropped, in parts; what is left still proves itself.
pub async fn pruning_leaves_what_verify_needs(harness: &mut impl Harness) {
    let store = harness.store();
    prepare(&*store).await;
    let old = work_through(harness, "t1", 0..10).await;
    one(&*store, submit(&key("cluster", "held"), "create", 5)).await;
    claimed(&*store, claim("cluster", 5, 1)).await;
    // Twice: a store may write its rows behind its history, and a quiet sweep catches up.
    for _ in 0..3 {
        harness.clock().advance(1_000);
        one(&*store, Command::Heartbeat { session: SessionId(1), seen: 0 }).await;
        store.sweep().await.expect("the store is there");
    }
    let new = work_through(harness, "t1", 10..13).await;
    let keep = Retention { jobs_ms: 2_000, dead_ms: 2_000, history_ms: 2_000, rows_max: 7 };
    let (mut jobs, mut lines) = (0, 0);
    loop {
        let pruned = store.prune(keep).await.expect("the store is there");
        assert!(pruned.jobs <= 7 && pruned.lines <= 7, "{pruned:?} is more than allowed at once");
        if pruned.jobs + pruned.lines == 0 {
            break;
        }
        (jobs, lines) = (jobs + pruned.jobs, lines + pruned.lines);
    }
    assert_eq!(jobs, 10);
    // One line more than three for each job: the resource was made known. And those of the other.
    assert_eq!(lines, 34);
    for (id, there) in [(old[9], false), (new[0], true)] {
        let shown = store.reads().job(id).await.expect("the store is there");
        assert_eq!(shown.is_some(), there);
    }
    let report = verify(&*store).await.expect("the store is there");
    assert_eq!(report.problems, []);
    let query = HistoryQuery::Of { key: key("task", "t1"), before: None, limit: PAGE_MAX };
    assert_eq!(store.reads().history(query).await.expect("the store is there").len(), 9);
    let of_resource = JobQuery {
        tenant: Some("t".into()),
        kind: Some("task".into()),
        name: Some("t1".into()),
        limit: 100,
        ..JobQuery::default()
    };
    let page = store.reads().jobs(of_resource).await.expect("the store is there");
    assert_eq!(page.items.len(), 3);
}

/// Workers are listed with what they have.
pub async fn workers_are_shown_with_their_jobs(harness: &mut impl Harness) {
    let store = harness.store();
    prepare(&*store).await;
    assert!(store.reads().workers().await.expect("the store is there").is_empty());
    one(&*store, submit(&key("task", "t1"), "work", 10)).await;
    let (id, _) = claimed(&*store, claim("task", 1, 1)).await[0];
    let workers = store.reads().workers().await.expect("the store is there");
    assert_eq!(workers.len(), 1);
    assert_eq!((&*workers[0].name, workers[0].kinds.len()), ("W", 1));
    assert_eq!(workers[0].jobs, [(key("task", "t1"), id)]);
}

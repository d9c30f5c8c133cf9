//! A store that the previous format wrote, after its migration: everything in it can be read,
//! verified and changed.
//!
//! At store time 50 it has two sessions, `w1` and `w2`, and
//!
//! - `cluster/l1`: locked by `w1` with token 5 after four other tenures; `w2` waits
//! - `cluster/c1`: `create` runs on `w2` at 50 percent, `destroy` is queued
//! - `task/t1`, `t2`, `t3`: a finished job with a log, a cancelled one, one in backoff
//! - `shoot/s1` at generation 2, with a reconciling job; `report/r1`, paused; `task/gone`, deleted.

use tenure_core::{
    Assignment, Claim, ClaimScope, Command, Finish, JobAction, JobState, LockAction, Outcome, Put,
    RequestId, ResourceAction, ResourceKey, SessionId, StatusUpdate, Submit, TimerChange,
    TimerSetting, Token,
};
use tenure_store::Store;
use tenure_store::store::{JobQuery, LogQuery, ResourceDetail, ResourceQuery};
use tenure_store::verify::incremental::IncrementalVerifier;
use tenure_store::verify::verify;

/// Store time at which the previous version stopped.
pub(crate) const STOPPED_MS: u64 = 60;

fn key(text: &str) -> ResourceKey {
    text.parse().expect("a valid key")
}

async fn apply(store: &dyn Store, command: Command) -> Outcome {
    let outcome = store.apply(vec![command.clone()]).await.expect("available").remove(0);
    assert!(!matches!(outcome, Outcome::Refused(_)), "{command:?}: {outcome:?}");
    outcome
}

async fn show(store: &dyn Store, resource: &str) -> ResourceDetail {
    store.reads().show(&key(resource)).await.expect("available").expect("a record")
}

async fn claim(store: &dyn Store, session: u128, request: u128, kind: &str) -> Vec<Assignment> {
    let claim = Claim {
        session: SessionId(session),
        request: RequestId(request),
        kinds: vec![kind.into()],
        max: 9,
        tenant: None,
        only: None,
    };
    match apply(store, Command::Claim(claim)).await {
        Outcome::Claimed(jobs) => jobs,
        other => panic!("not claimed: {other:?}"),
    }
}

fn resource(resource: &str, action: ResourceAction) -> Command {
    Command::Resource { key: key(resource), action }
}

fn finish(assignment: &Assignment, merge: Option<&str>) -> Command {
    let update = StatusUpdate { merge: merge.map(Into::into), timers: Vec::new() };
    let action = JobAction::Finish {
        token: assignment.tenure.token,
        finish: Finish::Ok { state: None, result: None },
        update: merge.map(|_| Box::new(update)),
    };
    Command::Job { id: assignment.job.id, action }
}

/// Verifies all that is new, and compares all records.
async fn catch_up(verifier: &mut IncrementalVerifier, store: &dyn Store) -> usize {
    verifier.check_incarnation(store).await.expect("available");
    let mut entries = 0;
    loop {
        let step = verifier.check_page(store).await.expect("available");
        entries += step.entries;
        if !step.has_more {
            break;
        }
    }
    while verifier.compare_records(store, 100).await.expect("available").has_more {}
    assert_eq!(verifier.take_problems(), []);
    assert_eq!(verify(store).await.expect("available").problems, []);
    entries
}

/// Checks a migrated store that was opened for the first time, and changes it in all new ways.
/// [`check_reopened`] checks that this lasts. The history has `entries` entries.
pub(crate) async fn check_and_use(store: &dyn Store, entries: usize) {
    let incarnation = store.status().await.expect("available").incarnation;
    assert_eq!(incarnation.0, 0, "a migration is no restore");
    let mut verifier = IncrementalVerifier::default();
    assert_eq!(catch_up(&mut verifier, store).await, entries);
    check_content(store).await;
    use_locks_and_jobs(store).await;
    use_new_features(store).await;
    assert!(catch_up(&mut verifier, store).await > 10);
}

async fn check_content(store: &dyn Store) {
    let locked = show(store, "t/cluster/l1").await;
    assert_eq!((locked.tenures[0].token, locked.queue.len()), (Token(5), 1));
    let running = show(store, "t/cluster/c1").await.record;
    let states: Vec<JobState> = running.lane().iter().map(|job| job.state).collect();
    assert_eq!(states, [JobState::Running, JobState::Queued]);
    let shoot = show(store, "t/shoot/s1").await.record.resource.expect("it was put");
    assert_eq!((shoot.generation, shoot.observed, shoot.lane.len()), (2, 0, 1));
    let report = show(store, "t/report/r1").await.record.resource.expect("it was put");
    assert!(report.paused.is_some() && report.status.is_none() && report.timers.is_empty());
    assert!(show(store, "t/task/gone").await.record.resource.is_none());
    let query = JobQuery { kind: Some("task".into()), limit: 9, ..JobQuery::default() };
    let jobs = store.reads().jobs(query).await.expect("available").items;
    let states = ["t1", "t2", "t3"].map(|name| {
        let view = jobs.iter().find(|view| view.key.name() == name).expect("a job");
        (view.job.state, view.job.result.as_deref(), view.job.deferrals)
    });
    let expected = [
        (JobState::Succeeded, Some("7"), 0),
        (JobState::Cancelled, None, 0),
        (JobState::Backoff, None, 0),
    ];
    assert_eq!(states, expected);
    let done = jobs.iter().find(|view| view.key.name() == "t1").expect("a job").job.id;
    let query = LogQuery { job: done, after: 0, limit: 9 };
    let log = store.reads().logs(query).await.expect("available");
    assert_eq!(log.iter().map(|line| &*line.text).collect::<Vec<_>>(), ["a line\n"]);
    // The requests of the previous version are remembered.
    let submit = Submit {
        args: Some("{\"n\":1}".into()),
        ..Submit::new(RequestId(30), "work", "ann".into())
    };
    match apply(store, resource("t/task/t1", ResourceAction::Submit(submit))).await {
        Outcome::Submitted { job, .. } => assert_eq!(job, done),
        other => panic!("not submitted: {other:?}"),
    }
}

async fn use_locks_and_jobs(store: &dyn Store) {
    let action = LockAction::Release { token: Token(5), locks: None, to: Some("w2".into()) };
    apply(store, Command::Lock { key: key("t/cluster/l1"), action }).await;
    let locked = show(store, "t/cluster/l1").await;
    assert_eq!((locked.tenures[0].token, locked.tenures[0].session), (Token(6), SessionId(2)));

    let running = show(store, "t/cluster/c1").await.record;
    let (job, token) = (running.lane()[0].id, running.tenures[0].token);
    let update =
        Box::new(StatusUpdate { merge: Some(r#"{"infra":"i-1"}"#.into()), timers: Vec::new() });
    apply(store, Command::Job { id: job, action: JobAction::Status { token, update } }).await;
    let finished = Finish::Ok { state: None, result: None };
    let action = JobAction::Finish { token, finish: finished, update: None };
    apply(store, Command::Job { id: job, action }).await;
    let next = claim(store, 1, 100, "cluster").await;
    assert_eq!((next.len(), &*next[0].job.operation), (1, "destroy"));
    assert_eq!(next[0].status.as_deref(), Some(r#"{"infra":"i-1"}"#));
    apply(store, finish(&next[0], Some(r#"{"infra":null,"gone":true}"#))).await;

    let synced = claim(store, 1, 101, "shoot").await;
    assert_eq!(synced[0].spec.as_deref(), Some(r#"{"n":2}"#));
    apply(store, finish(&synced[0], None)).await;
    let shoot = show(store, "t/shoot/s1").await.record.resource.expect("it was put");
    assert_eq!((shoot.generation, shoot.observed), (2, 2));
}

async fn use_new_features(store: &dyn Store) {
    let reason = || "so".into();
    let resume = ResourceAction::Resume { by: "ann".into(), reason: reason() };
    apply(store, resource("t/report/r1", resume).once(RequestId(110))).await;
    let change =
        TimerChange { operation: "build".into(), setting: TimerSetting::After(86_400_000) };
    let (by, timers) = ("ann".into(), vec![change]);
    let timers = ResourceAction::SetTimers { timers, by, precondition: None };
    apply(store, resource("t/report/r1", timers)).await;
    apply(store, resource("t/task/gone", put("2"))).await;
    for (n, name) in ["b1:t1", "b2:t1"].into_iter().enumerate() {
        let submit = Submit::new(RequestId(120 + n as u128), "run", "ann".into());
        let command = resource(&format!("t/check/{name}"), ResourceAction::Submit(submit));
        apply(store, command).await;
    }
    let only = ClaimScope::Group { tenant: "t".into(), group: "b2".into() };
    let claim = Claim {
        session: SessionId(1),
        request: RequestId(130),
        kinds: vec!["check".into()],
        max: 9,
        tenant: None,
        only: Some(only),
    };
    let Outcome::Claimed(jobs) = apply(store, Command::Claim(claim)).await else {
        panic!("not claimed")
    };
    assert_eq!(jobs.iter().map(|a| a.tenure.key.name()).collect::<Vec<_>>(), ["b2:t1"]);
    let (delay_ms, code, message) = (86_400_000, "NOT_YET".into(), "it waits".into());
    let finish = Finish::Deferred { delay_ms, code, message };
    let action = JobAction::Finish { token: jobs[0].tenure.token, finish, update: None };
    apply(store, Command::Job { id: jobs[0].job.id, action }).await;
}

fn put(spec: &str) -> ResourceAction {
    ResourceAction::Put(Put::new(spec.into(), "ann".into()))
}

/// Checks what [`check_and_use`] wrote after the store was opened again.
pub(crate) async fn check_reopened(store: &dyn Store) {
    let mut verifier = IncrementalVerifier::default();
    assert!(catch_up(&mut verifier, store).await > 40);
    let cluster = show(store, "t/cluster/c1").await.record.resource.expect("it has a state");
    let status = cluster.status.expect("it was written");
    assert_eq!((&*status.document, status.token), (r#"{"gone":true}"#, Token(2)));
    let report = show(store, "t/report/r1").await.record;
    assert_eq!(report.recent_answers.len(), 1);
    let report = report.resource.expect("it was put");
    assert_eq!((report.timers.len(), report.paused.is_none()), (1, true));
    let group = |group: &str| {
        let (kind, group) = (Some("check".into()), Some(group.into()));
        let query = ResourceQuery { kind, group, limit: 9, ..ResourceQuery::default() };
        store.reads().resources(query)
    };
    for (name, deferrals) in [("b1", 0), ("b2", 1)] {
        let items = group(name).await.expect("available").items;
        assert_eq!(items.len(), 1, "{name}");
        assert_eq!(items[0].resource.lane[0].deferrals, deferrals, "{name}");
    }
}

//! The committer: claims whose caller disconnects, commands on busy resources, calls of several
//! commands, and groups of calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::{
    Claim, Command, Finish, JobAction, Kinds, Outcome, Put, Refusal, RequestId, ResourceAction,
    SessionId, Submit,
};
use tenure_store::audit::{AuditFilter, AuditRetention, AuditRow, SharedAudit};
use tenure_store::clock::stopwatch;
use tenure_store::committer::{CommandGroup, POLL_INTERVAL};
use tenure_store::observer::Observer;
use tenure_store::store::{
    BATCH_MAX, Hint, Pruned, Reads, Result, Retention, Status, Store, Swept,
};
use tenure_store::{Committer, KeyRing, Memory, scenario};
use tokio::sync::{Semaphore, broadcast, mpsc};
use tokio::task::JoinHandle;

/// Store that reports the size of each batch and applies it when the test adds a permit.
struct GatedStore {
    inner: Memory,
    /// Number of batches to refuse as busy.
    busy: AtomicUsize,
    /// Whether others can use the store, so that resources can be busy.
    shared: AtomicBool,
    gate: Semaphore,
    arrived: mpsc::UnboundedSender<usize>,
}

#[async_trait]
impl Store for GatedStore {
    async fn apply(&self, commands: Vec<Command>) -> Result<Vec<Outcome>> {
        self.arrived.send(commands.len()).expect("the test listens");
        self.gate.acquire().await.expect("the gate is never closed").forget();
        let decrement = |left: usize| left.checked_sub(1);
        if self.busy.fetch_update(Ordering::SeqCst, Ordering::SeqCst, decrement).is_ok() {
            return Ok(vec![Outcome::Refused(Refusal::Busy); commands.len()]);
        }
        self.inner.apply(commands).await
    }
    async fn sweep(&self) -> Result<Swept> {
        self.inner.sweep().await
    }
    async fn prune(&self, retention: Retention) -> Result<Pruned> {
        self.inner.prune(retention).await
    }
    async fn declare(&self, kinds: Arc<Kinds>) -> Result<()> {
        self.inner.declare(kinds).await
    }
    fn watch(&self) -> broadcast::Receiver<Hint> {
        self.inner.watch()
    }
    fn observe(&self, observer: &Arc<dyn Observer>) {
        self.inner.observe(observer);
    }
    async fn status(&self) -> Result<Status> {
        self.inner.status().await
    }
    fn reads(&self) -> &dyn Reads {
        self.inner.reads()
    }

    fn key_ring(&self) -> &dyn KeyRing {
        self.inner.key_ring()
    }

    fn shared_audit(&self) -> Option<&dyn SharedAudit> {
        self.shared.load(Ordering::SeqCst).then_some(&EmptyAudit)
    }
}

struct EmptyAudit;

#[async_trait]
impl SharedAudit for EmptyAudit {
    async fn append(&self, _: &[AuditRow]) -> Result<()> {
        Ok(())
    }
    async fn newest(&self, _: &AuditFilter) -> Result<Vec<String>> {
        Ok(Vec::new())
    }
    async fn prune(&self, _: &str, _: AuditRetention) -> Result<usize> {
        Ok(0)
    }
}

fn close() -> Command {
    Command::Close { session: SessionId(9), tenant: None }
}

fn claim(request: u128) -> Claim {
    let kinds = vec!["task".into()];
    Claim {
        session: SessionId(1),
        request: RequestId(request),
        kinds,
        max: 1,
        tenant: None,
        only: None,
    }
}

fn submit() -> Command {
    submit_to("t1", 10)
}

fn submit_to(name: &str, request: u128) -> Command {
    let submit = Submit {
        request: RequestId(request),
        operation: "work".into(),
        args: None,
        priority: 0,
        run_at: None,
        by: "A".into(),
        precondition: None,
    };
    let key = format!("t/task/{name}").parse().expect("a valid key");
    Command::Resource { key, action: ResourceAction::Submit(submit) }
}

async fn store() -> (Arc<GatedStore>, BatchSizes) {
    let (arrived, batches) = mpsc::unbounded_channel();
    let (busy, shared, gate) = (AtomicUsize::new(0), AtomicBool::new(false), Semaphore::new(0));
    let store = GatedStore { inner: Memory::new(), busy, shared, gate, arrived };
    store.declare(scenario::kinds()).await.expect("memory is available");
    let (session, tenant) = (SessionId(1), "t".into());
    let open = Command::Open { session, tenant, name: "W".into(), ttl_ms: 60_000 };
    store.inner.apply(vec![open]).await.expect("memory is available");
    (Arc::new(store), batches)
}

type BatchSizes = mpsc::UnboundedReceiver<usize>;

fn spawn_claim(committer: &Committer, request: u128) -> JoinHandle<Result<Outcome>> {
    let committer = committer.clone();
    tokio::spawn(async move { committer.claim(&claim(request), Duration::from_secs(60)).await })
}

/// Starts a waiting claim and a submit; returns when both are at the gate in one batch.
async fn claim_and_submit(
    store: &GatedStore,
    batches: &mut BatchSizes,
    committer: &Committer,
) -> JoinHandle<Result<Outcome>> {
    let claim = spawn_claim(committer, 1);
    assert_eq!(batches.recv().await, Some(1));
    store.gate.add_permits(1);
    let submitting = committer.clone();
    tokio::spawn(async move { submitting.submit(submit()).await });
    // The waiting claim may poll in between.
    while batches.recv().await != Some(2) {
        store.gate.add_permits(1);
    }
    claim
}

#[tokio::test]
async fn a_waiting_claim_joins_the_batch_of_the_submit() {
    let (store, mut batches) = store().await;
    let committer = Committer::start(Arc::clone(&store) as Arc<dyn Store>);
    let waiting = claim_and_submit(&store, &mut batches, &committer).await;
    store.gate.add_permits(1);
    let claimed = waiting.await.expect("no panic").expect("memory is available");
    assert!(matches!(claimed, Outcome::Claimed(jobs) if jobs.len() == 1));
}

#[tokio::test]
async fn a_job_claimed_for_a_disconnected_caller_is_handed_back() {
    let (store, mut batches) = store().await;
    let committer = Committer::start(Arc::clone(&store) as Arc<dyn Store>);
    let aborted = claim_and_submit(&store, &mut batches, &committer).await;
    // The batch with submit and claim is in flight when the caller of the claim disconnects.
    aborted.abort();
    assert!(aborted.await.is_err_and(|error| error.is_cancelled()));
    store.gate.add_permits(1_000);
    let claimed = committer.claim(&claim(2), Duration::from_secs(60)).await;
    let Outcome::Claimed(jobs) = claimed.expect("memory is available") else { panic!("refused") };
    assert_eq!(jobs.len(), 1);
    assert_eq!(jobs[0].job.attempt, 1, "the undelivered attempt does not count");
}

#[tokio::test]
async fn a_job_of_an_unread_reply_is_handed_back() {
    let (store, mut batches) = store().await;
    store.inner.apply(vec![submit()]).await.expect("memory is available");
    let committer = Committer::start(Arc::clone(&store) as Arc<dyn Store>);
    let first = claim(1);
    let mut unread = Box::pin(committer.claim(&first, Duration::from_secs(60)));
    assert!(std::future::poll_fn(|cx| Poll::Ready(unread.as_mut().poll(cx).is_pending())).await);
    assert_eq!(batches.recv().await, Some(1));
    store.gate.add_permits(1);
    // The second batch starts after the reply to the first was sent, which is not read.
    let other = tokio::spawn({
        let committer = committer.clone();
        async move { committer.submit(close()).await }
    });
    batches.recv().await;
    drop(unread);
    store.gate.add_permits(1_000);
    other.await.expect("no panic").expect("memory is available");
    let claimed = committer.claim(&claim(2), Duration::from_secs(60)).await;
    let Outcome::Claimed(jobs) = claimed.expect("memory is available") else { panic!("refused") };
    assert_eq!((jobs.len(), jobs[0].job.attempt), (1, 1));
}

#[tokio::test]
async fn a_repeated_claim_keeps_its_jobs_when_the_first_caller_disconnects() {
    let (store, mut batches) = store().await;
    store.inner.apply(vec![submit()]).await.expect("memory is available");
    let committer = Committer::start(Arc::clone(&store) as Arc<dyn Store>);
    // A batch is in flight, so that both claims are in the next one.
    let busy = tokio::spawn({
        let committer = committer.clone();
        async move { committer.submit(close()).await }
    });
    assert_eq!(batches.recv().await, Some(1));
    let (first, again) = (claim(1), claim(1));
    let mut dropped = Box::pin(committer.claim(&first, Duration::from_secs(60)));
    assert!(std::future::poll_fn(|cx| Poll::Ready(dropped.as_mut().poll(cx).is_pending())).await);
    drop(dropped);
    store.gate.add_permits(1_000);
    let claimed = committer.claim(&again, Duration::from_secs(60)).await;
    let Outcome::Claimed(jobs) = claimed.expect("memory is available") else { panic!("refused") };
    busy.await.expect("no panic").expect("memory is available");
    let finish = Finish::Ok { state: None, result: None };
    let action = JobAction::Finish { token: jobs[0].tenure.token, finish, update: None };
    let done = committer.submit(Command::Job { id: jobs[0].job.id, action }).await;
    let done = done.expect("memory is available");
    assert!(matches!(done, Outcome::Finished { already: false, .. }), "{done:?}");
}

#[tokio::test]
async fn a_hint_does_not_wake_a_claim_whose_caller_disconnected() {
    let (store, mut batches) = store().await;
    store.gate.add_permits(1_000);
    let committer = Committer::start(Arc::clone(&store) as Arc<dyn Store>);
    let aborted = spawn_claim(&committer, 1);
    assert_eq!(batches.recv().await, Some(1));
    let waiting = spawn_claim(&committer, 2);
    // After both were in one poll, the next poll is a whole interval away.
    while batches.recv().await != Some(2) {}
    let polled = stopwatch();
    aborted.abort();
    assert!(aborted.await.is_err_and(|error| error.is_cancelled()));
    store.inner.apply(vec![submit()]).await.expect("memory is available");
    let claimed = waiting.await.expect("no panic").expect("memory is available");
    assert!(matches!(claimed, Outcome::Claimed(jobs) if jobs.len() == 1));
    assert!(polled.elapsed() < POLL_INTERVAL / 2, "found by polling only: {:?}", polled.elapsed());
}

#[tokio::test]
async fn a_command_on_a_busy_resource_is_retried() {
    let (store, mut batches) = store().await;
    store.gate.add_permits(1_000);
    store.busy.store(3, Ordering::SeqCst);
    let committer = Committer::start(Arc::clone(&store) as Arc<dyn Store>);
    let done = committer.submit(submit()).await.expect("memory is available");
    assert!(matches!(done, Outcome::Submitted { .. }), "{done:?}");
    for _ in 0..4 {
        assert_eq!(batches.try_recv(), Ok(1));
    }
    assert!(batches.try_recv().is_err());
}

#[tokio::test]
async fn commands_of_one_call_share_a_batch_and_are_answered_in_order() {
    let (store, mut batches) = store().await;
    let committer = Committer::start(Arc::clone(&store) as Arc<dyn Store>);
    // A batch is in flight, so that all commands are in the next one.
    let busy = tokio::spawn({
        let committer = committer.clone();
        async move { committer.submit(close()).await }
    });
    assert_eq!(batches.recv().await, Some(1));
    let calling = tokio::spawn({
        let committer = committer.clone();
        let unknown_job = Command::Job {
            id: tenure_core::JobId(1),
            action: JobAction::Discard { by: "A".into(), reason: "odd".into() },
        };
        let call = vec![submit_to("t1", 10), unknown_job, submit_to("t2", 11), submit_to("t1", 10)];
        async move { committer.submit_all(call).await }
    });
    store.gate.add_permits(1_000);
    let replies = calling.await.expect("no panic");
    busy.await.expect("no panic").expect("memory is available");
    let jobs: Vec<_> = replies
        .iter()
        .map(|reply| match reply {
            Ok(Outcome::Submitted { job, .. }) => Some(*job),
            Ok(Outcome::Refused(Refusal::NoSuchJob)) => None,
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(jobs[1].is_none() && jobs[0].is_some() && jobs[2].is_some(), "{jobs:?}");
    assert_eq!(jobs[0], jobs[3], "the same request");
    assert_ne!(jobs[0], jobs[2]);
    assert!(committer.submit_all(Vec::new()).await.is_empty());
}

#[tokio::test]
async fn commands_of_a_call_on_busy_resources_are_retried() {
    let (store, _batches) = store().await;
    store.gate.add_permits(1_000);
    store.busy.store(1, Ordering::SeqCst);
    let committer = Committer::start(Arc::clone(&store) as Arc<dyn Store>);
    let replies = committer.submit_all(vec![submit_to("t1", 10), submit_to("t2", 11)]).await;
    for reply in replies {
        assert!(matches!(reply, Ok(Outcome::Submitted { .. })), "{reply:?}");
    }
}

fn put(name: &str, spec: &str) -> Command {
    let key = format!("t/task/{name}").parse().expect("a valid key");
    Command::Resource { key, action: ResourceAction::Put(Put::new(spec.into(), "A".into())) }
}

fn delete(name: &str) -> Command {
    let key = format!("t/task/{name}").parse().expect("a valid key");
    let action = ResourceAction::Delete { by: "A".into(), precondition: None };
    Command::Resource { key, action }
}

/// Sends commands as one group, in lanes of their resources.
fn spawn_group(committer: &Committer, commands: Vec<Command>) -> JoinHandle<Vec<Result<Outcome>>> {
    let committer = committer.clone();
    tokio::spawn(async move {
        let mut group = CommandGroup::new(&committer, commands.len());
        let mut calls = Vec::new();
        for command in commands {
            let lane = command.key().map(ToString::to_string);
            calls.push(tokio::spawn({
                let committer = committer.clone();
                group.call(lane.as_deref(), false, async move { committer.submit(command).await })
            }));
        }
        let mut outcomes = Vec::new();
        for call in calls {
            outcomes.push(call.await.expect("no panic"));
        }
        outcomes
    })
}

#[tokio::test]
async fn the_commands_of_a_group_are_enqueued_together() {
    let (store, mut batches) = store().await;
    let committer = Committer::start(Arc::clone(&store) as Arc<dyn Store>);
    let commands = (0..500).map(|n| put(&format!("t{}", n % 50), &n.to_string())).collect();
    let group = spawn_group(&committer, commands);
    assert_eq!(batches.recv().await, Some(500));
    store.gate.add_permits(1_000);
    for (n, outcome) in group.await.expect("no panic").into_iter().enumerate() {
        let Ok(Outcome::Put { generation, .. }) = outcome else { panic!("{outcome:?}") };
        assert_eq!(generation, n as u64 / 50 + 1, "in the order of the group");
    }
}

#[tokio::test]
async fn a_group_keeps_its_order_although_holders_take_precedence() {
    let (store, _batches) = store().await;
    let committer = Committer::start(Arc::clone(&store) as Arc<dyn Store>);
    // More new work than fits into a batch is ahead of the put, and none ahead of the delete.
    let mut commands: Vec<_> = (0..2 * BATCH_MAX).map(|n| put(&format!("t{n}"), "1")).collect();
    commands.extend([put("last", "1"), delete("last")]);
    store.gate.add_permits(1_000);
    let outcomes = spawn_group(&committer, commands).await.expect("no panic");
    let deleted = outcomes.last().expect("many");
    assert!(matches!(deleted, Ok(Outcome::Deleted)), "{deleted:?}");
    assert!(outcomes.iter().all(Result::is_ok));
}

#[tokio::test]
async fn a_group_keeps_its_order_although_a_resource_is_busy() {
    let (store, mut batches) = store().await;
    store.gate.add_permits(1_000);
    store.busy.store(1, Ordering::SeqCst);
    store.shared.store(true, Ordering::SeqCst);
    let committer = Committer::start(Arc::clone(&store) as Arc<dyn Store>);
    let commands = vec![put("t1", "1"), put("t1", "2")];
    let outcomes = spawn_group(&committer, commands).await.expect("no panic");
    for (outcome, expected) in outcomes.into_iter().zip(1..) {
        let Ok(Outcome::Put { generation, .. }) = outcome else { panic!("{outcome:?}") };
        assert_eq!(generation, expected);
    }
    // The second put does not overtake the first, which is repeated.
    let sizes: Vec<_> = std::iter::from_fn(|| batches.try_recv().ok()).collect();
    assert_eq!(sizes, [1, 1, 1]);
}

#[tokio::test]
async fn a_call_without_a_command_does_not_break_the_order() {
    let (store, mut batches) = store().await;
    let committer = Committer::start(Arc::clone(&store) as Arc<dyn Store>);
    let key = "t/task/t1".parse().expect("a valid key");
    let mut group = CommandGroup::new(&committer, 5);
    let lane = Some("t1");
    let first = group.call(lane, false, committer.submit(put("t1", "1")));
    let refused = group.call(lane, false, std::future::ready(()));
    let read = group.call(lane, true, store.reads().show(&key));
    let last = group.call(lane, false, committer.submit(delete("t1")));
    drop(group.call(lane, false, committer.submit(put("t1", "2"))));
    let all = async { tokio::join!(first, refused, read, last) };
    let applied = async {
        assert_eq!(batches.recv().await, Some(1), "only the put");
        store.gate.add_permits(1_000);
    };
    let ((first, (), read, last), ()) = tokio::join!(all, applied);
    assert!(matches!(first, Ok(Outcome::Put { .. })), "{first:?}");
    let resource = read.expect("memory is available").and_then(|shown| shown.record.resource);
    assert!(resource.is_some(), "it reads after the put and before the delete");
    assert!(matches!(last, Ok(Outcome::Deleted)), "{last:?}");
}

//! The committer: what becomes of claims whose caller goes away at the worst moment, and of
//! commands whose resource is busy.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::{
    Claim, Command, Finish, JobAction, Kinds, Outcome, Refusal, RequestId, ResourceAction,
    SessionId, Submit,
};
use tenure_store::clock::stopwatch;
use tenure_store::committer::POLL_FLOOR;
use tenure_store::observer::Observer;
use tenure_store::store::{Hint, Pruned, Reads, Result, Retention, Status, Store, Swept};
use tenure_store::{Committer, KeyRing, Memory, scenario};
use tokio::sync::{Semaphore, broadcast, mpsc};
use tokio::task::JoinHandle;

/// A store that applies a batch only when the test lets it, and says that one has come.
struct Gated {
    inner: Memory,
    /// How many batches find all their resources busy.
    busy: AtomicUsize,
    gate: Semaphore,
    came: mpsc::UnboundedSender<usize>,
}

#[async_trait]
impl Store for Gated {
    async fn apply(&self, commands: Vec<Command>) -> Result<Vec<Outcome>> {
        self.came.send(commands.len()).expect("the test listens");
        self.gate.acquire().await.expect("the gate is never closed").forget();
        let one_less = |left: usize| left.checked_sub(1);
        if self.busy.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok() {
            return Ok(vec![Outcome::Refused(Refusal::Busy); commands.len()]);
        }
        self.inner.apply(commands).await
    }
    async fn sweep(&self) -> Result<Swept> {
        self.inner.sweep().await
    }
    async fn prune(&self, keep: Retention) -> Result<Pruned> {
        self.inner.prune(keep).await
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
}

fn claim(request: u128) -> Claim {
    let kinds = vec!["task".into()];
    Claim { session: SessionId(1), request: RequestId(request), kinds, max: 1 }
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
    };
    let key = format!("t/task/{name}").parse().expect("a good name");
    Command::Resource { key, action: ResourceAction::Submit(submit) }
}

async fn store() -> (Arc<Gated>, Comes) {
    let (came, comes) = mpsc::unbounded_channel();
    let store =
        Gated { inner: Memory::new(), busy: AtomicUsize::new(0), gate: Semaphore::new(0), came };
    store.declare(scenario::kinds()).await.expect("memory is there");
    let (session, tenant) = (SessionId(1), "t".into());
    let open = Command::Open { session, tenant, name: "W".into(), ttl_ms: 60_000 };
    store.inner.apply(vec![open]).await.expect("memory is there");
    (Arc::new(store), comes)
}

type Comes = mpsc::UnboundedReceiver<usize>;

fn wait_for_work(committer: &Committer, request: u128) -> JoinHandle<Result<Outcome>> {
    let committer = committer.clone();
    tokio::spawn(async move { committer.claim(&claim(request), Duration::from_secs(60)).await })
}

/// A claim waits, and a submit for it has come to the gate in one batch with it.
async fn claim_and_submit(
    store: &Gated,
    comes: &mut Comes,
    committer: &Committer,
) -> JoinHandle<Result<Outcome>> {
    let waits = wait_for_work(committer, 1);
    assert_eq!(comes.recv().await, Some(1));
    store.gate.add_permits(1);
    let submitting = committer.clone();
    tokio::spawn(async move { submitting.submit(submit()).await });
    // A poll of the waiting claim may come between.
    while comes.recv().await != Some(2) {
        store.gate.add_permits(1);
    }
    waits
}

#[tokio::test]
async fn a_claim_rides_along_with_the_submit_that_it_waits_for() {
    let (store, mut comes) = store().await;
    let committer = Committer::start(Arc::clone(&store) as Arc<dyn Store>);
    let waits = claim_and_submit(&store, &mut comes, &committer).await;
    store.gate.add_permits(1);
    let claimed = waits.await.expect("no panic").expect("memory is there");
    assert!(matches!(claimed, Outcome::Claimed(jobs) if jobs.len() == 1));
}

#[tokio::test]
async fn what_is_claimed_for_somebody_who_left_goes_back() {
    let (store, mut comes) = store().await;
    let committer = Committer::start(Arc::clone(&store) as Arc<dyn Store>);
    let leaves = claim_and_submit(&store, &mut comes, &committer).await;
    // The batch with submit and claim is on its way when its caller leaves.
    leaves.abort();
    assert!(leaves.await.is_err_and(|error| error.is_cancelled()));
    store.gate.add_permits(1_000);
    let claimed = committer.claim(&claim(2), Duration::from_secs(60)).await;
    let Outcome::Claimed(jobs) = claimed.expect("memory is there") else { panic!("refused") };
    assert_eq!(jobs.len(), 1);
    assert_eq!(jobs[0].job.attempt, 1, "the attempt that nobody worked does not count");
}

#[tokio::test]
async fn what_was_answered_to_somebody_who_left_before_reading_it_goes_back() {
    let (store, mut comes) = store().await;
    store.inner.apply(vec![submit()]).await.expect("memory is there");
    let committer = Committer::start(Arc::clone(&store) as Arc<dyn Store>);
    let mine = claim(1);
    let mut leaves = Box::pin(committer.claim(&mine, Duration::from_secs(60)));
    assert!(std::future::poll_fn(|cx| Poll::Ready(leaves.as_mut().poll(cx).is_pending())).await);
    assert_eq!(comes.recv().await, Some(1));
    store.gate.add_permits(1);
    // The second batch begins when the first is answered, and nobody has looked at the answer.
    let other = tokio::spawn({
        let committer = committer.clone();
        async move { committer.submit(Command::Close { session: SessionId(9) }).await }
    });
    comes.recv().await;
    drop(leaves);
    store.gate.add_permits(1_000);
    other.await.expect("no panic").expect("memory is there");
    let claimed = committer.claim(&claim(2), Duration::from_secs(60)).await;
    let Outcome::Claimed(jobs) = claimed.expect("memory is there") else { panic!("refused") };
    assert_eq!((jobs.len(), jobs[0].job.attempt), (1, 1));
}

#[tokio::test]
async fn who_sends_a_claim_again_keeps_what_it_got_although_the_first_sending_left() {
    let (store, mut comes) = store().await;
    store.inner.apply(vec![submit()]).await.expect("memory is there");
    let committer = Committer::start(Arc::clone(&store) as Arc<dyn Store>);
    // Something is on its way, so that both sendings come in one batch.
    let busy = tokio::spawn({
        let committer = committer.clone();
        async move { committer.submit(Command::Close { session: SessionId(9) }).await }
    });
    assert_eq!(comes.recv().await, Some(1));
    let (first, again) = (claim(1), claim(1));
    let mut leaves = Box::pin(committer.claim(&first, Duration::from_secs(60)));
    assert!(std::future::poll_fn(|cx| Poll::Ready(leaves.as_mut().poll(cx).is_pending())).await);
    drop(leaves);
    store.gate.add_permits(1_000);
    let claimed = committer.claim(&again, Duration::from_secs(60)).await;
    let Outcome::Claimed(jobs) = claimed.expect("memory is there") else { panic!("refused") };
    busy.await.expect("no panic").expect("memory is there");
    let finish = Finish::Ok { state: None, result: None };
    let action = JobAction::Finish { token: jobs[0].tenure.token, finish };
    let done = committer.submit(Command::Job { id: jobs[0].job.id, action }).await;
    let done = done.expect("memory is there");
    assert!(matches!(done, Outcome::Finished { already: false, .. }), "{done:?}");
}

#[tokio::test]
async fn a_wake_up_is_not_spent_on_a_claim_whose_caller_has_left() {
    let (store, mut comes) = store().await;
    store.gate.add_permits(1_000);
    let committer = Committer::start(Arc::clone(&store) as Arc<dyn Store>);
    let leaves = wait_for_work(&committer, 1);
    assert_eq!(comes.recv().await, Some(1));
    let stays = wait_for_work(&committer, 2);
    // When both have asked in one poll, the next poll is a whole floor away.
    while comes.recv().await != Some(2) {}
    let polled = stopwatch();
    leaves.abort();
    assert!(leaves.await.is_err_and(|error| error.is_cancelled()));
    store.inner.apply(vec![submit()]).await.expect("memory is there");
    let claimed = stays.await.expect("no panic").expect("memory is there");
    assert!(matches!(claimed, Outcome::Claimed(jobs) if jobs.len() == 1));
    assert!(polled.elapsed() < POLL_FLOOR / 2, "only the poll found it: {:?}", polled.elapsed());
}

#[tokio::test]
async fn a_command_whose_resource_is_busy_is_sent_again() {
    let (store, mut comes) = store().await;
    store.gate.add_permits(1_000);
    store.busy.store(3, Ordering::SeqCst);
    let committer = Committer::start(Arc::clone(&store) as Arc<dyn Store>);
    let done = committer.submit(submit()).await.expect("memory is there");
    assert!(matches!(done, Outcome::Submitted { .. }), "{done:?}");
    for _ in 0..4 {
        assert_eq!(comes.try_recv(), Ok(1));
    }
    assert!(comes.try_recv().is_err());
}

#[tokio::test]
async fn commands_of_one_call_come_in_one_batch_and_are_answered_in_their_order() {
    let (store, mut comes) = store().await;
    let committer = Committer::start(Arc::clone(&store) as Arc<dyn Store>);
    // Something is on its way, so that all of them wait for the next batch.
    let busy = tokio::spawn({
        let committer = committer.clone();
        async move { committer.submit(Command::Close { session: SessionId(9) }).await }
    });
    assert_eq!(comes.recv().await, Some(1));
    let calling = tokio::spawn({
        let committer = committer.clone();
        let odd = Command::Job {
            id: tenure_core::JobId(1),
            action: JobAction::Discard { by: "A".into(), reason: "odd".into() },
        };
        let call = vec![submit_to("t1", 10), odd, submit_to("t2", 11), submit_to("t1", 10)];
        async move { committer.submit_all(call).await }
    });
    store.gate.add_permits(1_000);
    let answers = calling.await.expect("no panic");
    busy.await.expect("no panic").expect("memory is there");
    let jobs: Vec<_> = answers
        .iter()
        .map(|answer| match answer {
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
async fn those_of_a_call_whose_resource_is_busy_are_sent_again() {
    let (store, _comes) = store().await;
    store.gate.add_permits(1_000);
    store.busy.store(1, Ordering::SeqCst);
    let committer = Committer::start(Arc::clone(&store) as Arc<dyn Store>);
    let answers = committer.submit_all(vec![submit_to("t1", 10), submit_to("t2", 11)]).await;
    for answer in answers {
        assert!(matches!(answer, Ok(Outcome::Submitted { .. })), "{answer:?}");
    }
}

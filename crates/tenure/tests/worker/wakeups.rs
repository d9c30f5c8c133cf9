//! Workers that claim jobs when another system wakes them.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tenure::clock::BootInstant;
use tenure::worker::{Wakeup, Wakeups};
use tenure::{Client, Context, Done, Worker};
use tenure_core::{JobState, Kind, Operation};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{Mutex, oneshot};

use crate::testbed::{RunningWorker, TTL, TestBed, kind, wait_until};
use crate::{Gate, done, ms};

/// Long enough that faults of a test do not end a session.
const LONG_TTL: Duration = Duration::from_secs(60);

/// Wake-ups that the test sends.
struct Source {
    sender: UnboundedSender<Wakeup>,
    wakeups: Mutex<UnboundedReceiver<Wakeup>>,
    asked: AtomicUsize,
}

impl Source {
    fn new() -> Arc<Self> {
        let (sender, receiver) = unbounded_channel();
        Arc::new(Self { sender, wakeups: Mutex::new(receiver), asked: AtomicUsize::new(0) })
    }

    /// Wakes the worker, for one resource or for all.
    fn wake(&self, resource: Option<&str>) -> oneshot::Receiver<()> {
        let (claimed, answered) = oneshot::channel();
        let resource = resource.map(|resource| resource.parse().expect("a name"));
        self.sender.send(Wakeup { resource, claimed: Some(claimed) }).expect("the source lives");
        answered
    }

    /// Waits until the worker has asked for a wake-up this often.
    async fn asked(&self, times: usize) {
        wait_until("the worker waits", || async { self.asked.load(Ordering::SeqCst) >= times })
            .await;
    }

    async fn left(&self) -> usize {
        self.wakeups.lock().await.len()
    }
}

#[async_trait]
impl Wakeups for Source {
    async fn next(&self) -> Wakeup {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let mut wakeups = self.wakeups.lock().await;
        wakeups.recv().await.expect("the source lives")
    }
}

fn things() -> [Kind; 1] {
    [kind(Operation::new("work"))]
}

/// Waits until a wake-up is answered.
async fn answered(answer: oneshot::Receiver<()>) {
    let answer = tokio::time::timeout(Duration::from_secs(30), answer).await;
    answer.expect("the worker answers").expect("the store has answered");
}

/// Waits long enough for a worker that is not held back.
async fn hold_back() {
    let later = BootInstant::now() + ms(400);
    wait_until("a worker could have claimed", || async { later.has_passed() }).await;
}

#[tokio::test]
async fn a_worker_with_wakeups_claims_only_after_one() {
    for bed in TestBed::each(things()).await {
        let source = Source::new();
        let worker = Worker::new(&bed.client, "w").handle("thing", done).wakeups(source.clone());
        let worker = RunningWorker::start(worker);
        source.asked(1).await;
        let job = bed.submit("thing/t", "work").await;
        hold_back().await;
        assert_eq!(bed.job(job).await.state, JobState::Queued);
        answered(source.wake(None)).await;
        assert_eq!(bed.wait_finished(job).await.state, JobState::Succeeded);
        // It waits for the next one.
        let next = bed.submit("thing/t", "work").await;
        hold_back().await;
        assert_eq!(bed.job(next).await.state, JobState::Queued);
        assert_eq!(worker.stop().await.succeeded, 1);
    }
}

#[tokio::test]
async fn a_wakeup_for_a_resource_claims_only_its_jobs() {
    let other = Kind::new("other").operation(Operation::new("work"));
    let bed = TestBed::memory(things().into_iter().chain([other])).await;
    let (source, gate) = (Source::new(), Gate::default());
    let worker = Worker::new(&bed.client, "w").slots(4).wakeups(source.clone());
    let worker = worker.handle("thing", gate.handler()).handle("other", gate.handler());
    let mut jobs = Vec::new();
    for resource in ["thing/a", "thing/b", "other/a", "other/b"] {
        jobs.push((resource, bed.submit(resource, "work").await));
    }
    let worker = RunningWorker::start(worker);
    answered(source.wake(Some("default/other/a"))).await;
    gate.wait_started(1).await;
    hold_back().await;
    for (resource, job) in &jobs {
        let expected = if *resource == "other/a" { JobState::Running } else { JobState::Queued };
        assert_eq!(bed.job(*job).await.state, expected, "{resource}");
    }
    // The end of its job wakes it, too.
    gate.open.notify_one();
    gate.wait_started(4).await;
    worker.abort();
}

#[tokio::test]
async fn a_wakeup_without_a_job_is_answered() {
    for bed in TestBed::each(things()).await {
        let source = Source::new();
        let worker = Worker::new(&bed.client, "w").handle("thing", done).wakeups(source.clone());
        let worker = RunningWorker::start(worker);
        for resource in [Some("default/thing/never-seen"), None, Some("default/thing/t")] {
            answered(source.wake(resource)).await;
        }
        assert_eq!(worker.stop().await.reported, 0);
    }
}

#[tokio::test]
async fn what_the_worker_does_not_serve_is_answered_without_a_claim() {
    let bed = TestBed::memory(things()).await;
    let globex = Client::with_committer(bed.committer.clone(), "globex");
    let foreign = globex.submit("thing/t", "work").send().await.unwrap().job.id();
    let source = Source::new();
    let worker = Worker::new(&bed.client, "w").handle("thing", done).wakeups(source.clone());
    let worker = RunningWorker::start(worker.only_resource("thing", "mine"));
    let other = bed.submit("thing/other", "work").await;
    for resource in ["globex/thing/t", "default/unknown/t", "default/thing/other"] {
        answered(source.wake(Some(resource))).await;
    }
    for job in [foreign, other] {
        assert_eq!(bed.job(job).await.state, JobState::Queued);
    }
    let mine = bed.submit("thing/mine", "work").await;
    answered(source.wake(Some("default/thing/mine"))).await;
    assert_eq!(bed.wait_finished(mine).await.state, JobState::Succeeded);
    let summary = worker.stop().await;
    assert_eq!((summary.sessions, summary.succeeded), (1, 1), "its session was not lost");
}

#[tokio::test]
async fn a_wakeup_is_answered_when_the_store_is_available_again() {
    for bed in TestBed::each(things()).await {
        let (client, faults) = bed.faulty_client();
        let (source, runs) = (Source::new(), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&runs);
        let handler = move |_: Context| {
            let count = Arc::clone(&count);
            async move {
                count.fetch_add(1, Ordering::SeqCst);
                Ok(Done::default())
            }
        };
        let worker = Worker::new(&client, "w").ttl(LONG_TTL).handle("thing", handler);
        let worker = RunningWorker::start(worker.wakeups(source.clone()));
        source.asked(1).await;
        let job = bed.submit("thing/t", "work").await;
        // The store applies the claim, but its answers are lost.
        faults.drop_responses.store(true, Ordering::SeqCst);
        let mut answered = source.wake(Some("default/thing/t"));
        bed.wait_running(job).await;
        hold_back().await;
        assert_eq!(answered.try_recv(), Err(TryRecvError::Empty));
        assert_eq!(source.asked.load(Ordering::SeqCst), 1, "it waits for the store");
        faults.drop_responses.store(false, Ordering::SeqCst);
        super::wakeups::answered(answered).await;
        let job = bed.wait_finished(job).await;
        assert_eq!((job.state, job.attempt), (JobState::Succeeded, 1));
        assert_eq!(runs.load(Ordering::SeqCst), 1);
        assert_eq!(worker.stop().await.sessions, 1);
    }
}

#[tokio::test]
async fn a_wakeup_is_dropped_when_the_session_is_lost_before() {
    let bed = TestBed::memory(things()).await;
    let (client, faults) = bed.faulty_client();
    let source = Source::new();
    let worker = Worker::new(&client, "w").ttl(TTL).handle("thing", done).wakeups(source.clone());
    let worker = RunningWorker::start(worker);
    source.asked(1).await;
    let job = bed.submit("thing/t", "work").await;
    faults.drop_requests.store(true, Ordering::SeqCst);
    source.wake(Some("default/thing/t")).await.expect_err("the store has not answered");
    assert_eq!(bed.job(job).await.state, JobState::Queued);
    faults.drop_requests.store(false, Ordering::SeqCst);
    answered(source.wake(Some("default/thing/t"))).await;
    assert_eq!(bed.wait_finished(job).await.state, JobState::Succeeded);
    assert_eq!(worker.stop().await.sessions, 2);
}

#[tokio::test]
async fn no_wakeup_is_taken_while_all_slots_are_busy() {
    let bed = TestBed::memory(things()).await;
    let (source, gate) = (Source::new(), Gate::default());
    let worker = Worker::new(&bed.client, "w").slots(2).handle("thing", gate.handler());
    let worker = RunningWorker::start(worker.wakeups(source.clone()));
    let mut jobs = HashSet::new();
    for resource in ["thing/a", "thing/b", "thing/c"] {
        jobs.insert(bed.submit(resource, "work").await);
    }
    answered(source.wake(Some("default/thing/a"))).await;
    answered(source.wake(Some("default/thing/b"))).await;
    gate.wait_started(2).await;
    let mut third = source.wake(Some("default/thing/c"));
    hold_back().await;
    assert_eq!((source.left().await, third.try_recv()), (1, Err(TryRecvError::Empty)));
    // One slot becomes free: its job is claimed because of that, and the wake-up waits on.
    gate.open.notify_one();
    gate.wait_started(3).await;
    hold_back().await;
    assert_eq!((source.left().await, third.try_recv()), (1, Err(TryRecvError::Empty)));
    gate.open.notify_one();
    answered(third).await;
    gate.open.notify_one();
    for job in jobs {
        assert_eq!(bed.wait_finished(job).await.state, JobState::Succeeded);
    }
    worker.stop().await;
}

#[tokio::test]
async fn a_wakeup_during_the_shutdown_is_dropped() {
    let bed = TestBed::memory(things()).await;
    let (client, faults) = bed.faulty_client();
    let source = Source::new();
    let worker =
        Worker::new(&client, "w").ttl(LONG_TTL).handle("thing", done).wakeups(source.clone());
    let mut worker = RunningWorker::start(worker);
    source.asked(1).await;
    faults.drop_requests.store(true, Ordering::SeqCst);
    let answered = source.wake(Some("default/thing/t"));
    wait_until("it is taken", || async { source.left().await == 0 }).await;
    worker.request_stop();
    faults.drop_requests.store(false, Ordering::SeqCst);
    worker.stop().await;
    // The job, if there was one, was handed back: another worker has to be woken.
    answered.await.expect_err("it is not answered");
}

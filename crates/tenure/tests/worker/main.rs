//! Workers and handlers on embedded stores: each job runs once, and one at a time per resource.

mod loss;
mod outcomes;
mod reporting;
mod shutdown;
#[path = "../testbed/mod.rs"]
mod testbed;
mod wakeups;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::clock::BootInstant;
use tenure::worker::CancelReason;
use tenure::{Client, Context, Done, Failure, Worker};
use tenure_core::{Code, JobId, JobState, Operation, Token};
use testbed::{RunningWorker, TestBed, kind, wait_until};
use tokio::sync::Notify;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

async fn done(_: Context) -> Result<Done, Failure> {
    Ok(Done::default())
}

/// Handler that waits to be released, and records the reason if it is asked to stop.
#[derive(Clone, Default)]
struct Gate {
    started: Arc<AtomicUsize>,
    open: Arc<Notify>,
    cancel_reasons: Arc<Mutex<Vec<CancelReason>>>,
    dropped: Arc<AtomicUsize>,
}

/// Counts dropped futures.
struct Dropped(Arc<AtomicUsize>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Gate {
    fn handler(&self) -> impl tenure::Handler {
        let gate = self.clone();
        move |job: Context| {
            let gate = gate.clone();
            async move {
                let _dropped = Dropped(Arc::clone(&gate.dropped));
                gate.started.fetch_add(1, Ordering::SeqCst);
                tokio::select! {
                    () = gate.open.notified() => Ok(Done::default()),
                    reason = job.cancelled() => {
                        gate.cancel_reasons.lock().expect("no panic").push(reason);
                        Err(Failure::new("STOP_REQUESTED", reason))
                    }
                }
            }
        }
    }

    /// Returns a handler that never completes, not even when asked to stop.
    fn ignoring_stop(&self) -> impl tenure::Handler {
        let started = Arc::clone(&self.started);
        move |_: Context| {
            started.fetch_add(1, Ordering::SeqCst);
            std::future::pending()
        }
    }

    /// Waits until `count` handlers were called: the store knows of a job before its worker does.
    async fn wait_started(&self, count: usize) {
        wait_until("the handlers run", || async { self.started.load(Ordering::SeqCst) == count })
            .await;
    }

    fn cancel_reasons(&self) -> Vec<CancelReason> {
        self.cancel_reasons.lock().expect("no panic").clone()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_workers_never_overlap_on_one_resource() {
    for bed in TestBed::each([kind(Operation::new("work"))]).await {
        let inside: Arc<Mutex<HashMap<String, u64>>> = Arc::default();
        let overlaps = Arc::new(AtomicUsize::new(0));
        let tokens: Arc<Mutex<HashMap<String, Vec<Token>>>> = Arc::default();
        let handler = || {
            let (inside, overlaps) = (Arc::clone(&inside), Arc::clone(&overlaps));
            let tokens = Arc::clone(&tokens);
            move |job: Context| {
                let (inside, overlaps) = (Arc::clone(&inside), Arc::clone(&overlaps));
                let tokens = Arc::clone(&tokens);
                async move {
                    let name = job.key().name().to_owned();
                    if inside.lock().unwrap().insert(name.clone(), job.token().0).is_some() {
                        overlaps.fetch_add(1, Ordering::SeqCst);
                    }
                    tokens.lock().unwrap().entry(name.clone()).or_default().push(job.token());
                    tokio::time::sleep(ms(1)).await;
                    inside.lock().unwrap().remove(&name);
                    Ok(Done::default())
                }
            }
        };
        let mut jobs = Vec::new();
        for n in 0..120 {
            jobs.push(bed.submit(&format!("thing/t{}", n % 3), "work").await);
        }
        let worker = |name| Worker::new(&bed.client, name).slots(4).handle("thing", handler());
        let (a, b) = (RunningWorker::start(worker("a")), RunningWorker::start(worker("b")));
        for job in jobs {
            assert_eq!(bed.wait_finished(job).await.state, JobState::Succeeded);
        }
        let (a, b) = (a.stop().await, b.stop().await);
        assert_eq!(overlaps.load(Ordering::SeqCst), 0);
        assert_eq!(a.succeeded + b.succeeded, 120);
        for tokens in tokens.lock().unwrap().values() {
            assert!(tokens.is_sorted() && tokens.len() == 40, "{tokens:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_jobs_on_eight_slots_run_exactly_once() {
    let bed = TestBed::memory([kind(Operation::new("work"))]).await;
    let mut jobs = HashSet::new();
    for n in 0..1_000 {
        jobs.insert(bed.submit(&format!("thing/t{n}"), "work").await);
    }
    let runs: Arc<Mutex<Vec<JobId>>> = Arc::default();
    let most = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
    let (log, count) = (Arc::clone(&runs), Arc::clone(&most));
    let handler = move |job: Context| {
        let (log, count) = (Arc::clone(&log), Arc::clone(&count));
        async move {
            let now = count.0.fetch_add(1, Ordering::SeqCst) + 1;
            count.1.fetch_max(now, Ordering::SeqCst);
            log.lock().unwrap().push(job.id());
            tokio::task::yield_now().await;
            count.0.fetch_sub(1, Ordering::SeqCst);
            Ok(Done::default())
        }
    };
    let worker = Worker::new(&bed.client, "w").slots(8).handle("thing", handler);
    let worker = RunningWorker::start(worker);
    wait_until("all have run", || async { runs.lock().unwrap().len() >= 1_000 }).await;
    let summary = worker.stop().await;
    assert_eq!(summary.succeeded, 1_000);
    assert_eq!(most.1.load(Ordering::SeqCst).max(8), 8, "never more than there are slots");
    let runs = runs.lock().unwrap();
    assert_eq!((runs.len(), runs.iter().copied().collect::<HashSet<_>>()), (1_000, jobs));
}

#[tokio::test]
async fn a_job_without_a_handler_is_handed_back_for_another_worker() {
    let kinds = [kind(Operation::new("mine")).operation(Operation::new("yours"))];
    let bed = TestBed::memory(kinds).await;
    let mine = Worker::new(&bed.client, "mine").handle_operation("thing", "mine", done);
    let mine = RunningWorker::start(mine);
    let job = bed.submit("thing/t", "yours").await;
    wait_until("it was handed back", || async { !bed.job(job).await.attempts.is_empty() }).await;
    let later = BootInstant::now() + ms(800);
    wait_until("it could have been claimed often", || async { later.has_passed() }).await;
    assert_eq!(bed.job(job).await.attempts.len(), 1, "the worker backs off from the kind");
    let yours = Worker::new(&bed.client, "yours").handle_operation("thing", "yours", done);
    let yours = RunningWorker::start(yours);
    let job = bed.wait_finished(job).await;
    assert_eq!((job.state, job.attempt), (JobState::Succeeded, 1));
    assert_eq!(&*job.attempts.last().unwrap().worker, "yours");
    mine.stop().await;
    yours.stop().await;
}

#[tokio::test]
async fn a_worker_of_all_tenants_serves_each() {
    let bed = TestBed::memory([kind(Operation::new("work"))]).await;
    let all = Client::with_committer(bed.committer.clone(), "*");
    let handler = |job: Context| async move { Ok(Done::with(&job.key().tenant())?) };
    let worker = RunningWorker::start(Worker::new(&all, "w").handle("thing", handler));
    for tenant in ["acme", "globex"] {
        let client = Client::with_committer(bed.committer.clone(), tenant);
        let submitted = client.submit("thing/t", "work").send().await.unwrap();
        let result = bed.wait_finished(submitted.job.id()).await.result;
        assert_eq!(result.as_deref(), Some(format!("{tenant:?}").as_str()));
    }
    worker.stop().await;
}

#[tokio::test]
async fn a_misconfigured_worker_is_refused() {
    let bed = TestBed::memory([kind(Operation::new("work"))]).await;
    let worker = || Worker::new(&bed.client, "w").handle("thing", done);
    let command = || tenure::worker::Command::new(["true"]);
    for (worker, what) in [
        (Worker::new(&bed.client, "w"), "0 kinds"),
        (worker().slots(0), "0 slots"),
        (worker().slots(tenure::worker::SLOTS_MAX + 1), "4097 slots"),
        (worker().ttl(ms(2_999)).handle("thing", command()), "ttl of at least 3s"),
        (worker().ttl(ms(999)), "ttl_ms is 999"),
    ] {
        let error = worker.run(async {}).await;
        // An immediate shutdown must not hide the error, unless only the store can detect it.
        if what.starts_with("ttl_ms") {
            continue;
        }
        let error = error.expect_err(what);
        assert_eq!(error.code(), Some(Code::Invalid), "{what}");
        assert!(error.to_string().contains(what), "{error}");
    }
    let error = worker().ttl(ms(999)).run(std::future::pending()).await.expect_err("too short");
    assert!(error.to_string().contains("ttl_ms is 999"), "{error}");
}

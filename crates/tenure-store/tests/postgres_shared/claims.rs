//! Concurrent claims through two servers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tenure_core::{Assignment, Command, JobId, Outcome, RequestId, ResourceKey};
use tenure_store::Store;
use tenure_store::postgres::Postgres;
use tokio::sync::watch;

use crate::common::*;

const TENANTS: [&str; 4] = ["t", "u", "v", "w"];
const RESOURCES_PER_TENANT: usize = 6;

/// Claims and finishes jobs until none is left. Counts running jobs independently of the store. No
/// job finishes before another server has `observed` a running one.
async fn work(
    store: Arc<Postgres>,
    worker: u128,
    running: Arc<[AtomicUsize; 5]>,
    left: Arc<AtomicUsize>,
    mut observed: watch::Receiver<bool>,
) {
    for round in 0.. {
        if left.load(Ordering::SeqCst) == 0 {
            return;
        }
        let claim = claim_request(worker, worker * 10_000 + round, "capped", 3);
        let claimed = assignments(apply_one(&*store, Command::Claim(claim)).await);
        for Assignment { tenure, job, .. } in claimed {
            let at = TENANTS.iter().position(|t| *t == tenure.key.tenant()).expect("known tenant");
            assert!(running[at].fetch_add(1, Ordering::SeqCst) < 1, "{} runs twice", TENANTS[at]);
            assert!(running[4].fetch_add(1, Ordering::SeqCst) < 2, "three run at once");
            observed.wait_for(|observed| *observed).await.expect("the watcher runs");
            running[at].fetch_sub(1, Ordering::SeqCst);
            running[4].fetch_sub(1, Ordering::SeqCst);
            let finished = apply_one(&*store, finish(job.id, tenure.token)).await;
            assert!(matches!(finished, Outcome::Finished { already: false, .. }), "{finished:?}");
            left.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn caps_hold_across_two_servers() {
    let url = new_database();
    let (a, b) = (open(&url).await, open(&url).await);
    for n in 1..=6 {
        apply_one(&*a, open_session_of(n, "*", 60_000)).await;
    }
    for (at, tenant) in TENANTS.iter().enumerate() {
        for n in 0..RESOURCES_PER_TENANT {
            let key = format!("{tenant}/capped/r{n}");
            apply_one(&*a, submit(&key, "work", (at * RESOURCES_PER_TENANT + n) as u128 + 1)).await;
        }
    }
    let running = Arc::new(std::array::from_fn(|_| AtomicUsize::new(0)));
    let left = Arc::new(AtomicUsize::new(TENANTS.len() * RESOURCES_PER_TENANT));
    let watching = Arc::new(AtomicBool::new(true));
    let (seen, observed) = watch::channel(false);
    let maximum = tokio::spawn(watch_running(open(&url).await, Arc::clone(&watching), seen));
    let workers: Vec<_> = (1..=6)
        .map(|n| {
            let store = if n % 2 == 0 { &a } else { &b };
            let (running, left) = (Arc::clone(&running), Arc::clone(&left));
            tokio::spawn(work(Arc::clone(store), n, running, left, observed.clone()))
        })
        .collect();
    for worker in workers {
        worker.await.expect("task does not panic");
    }
    watching.store(false, Ordering::SeqCst);
    let (all, of_one) = maximum.await.expect("task does not panic");
    assert!(all <= 2 && of_one <= 1, "{all} ran at once, {of_one} of one tenant");
    assert_valid_history(&[&a, &b]).await;
}

/// Returns the maximum number of concurrently running jobs that another server observes, in total
/// and of one tenant.
async fn watch_running(
    store: Arc<Postgres>,
    watching: Arc<AtomicBool>,
    observed: watch::Sender<bool>,
) -> (usize, usize) {
    let mut maximum = (0, 0);
    while watching.load(Ordering::SeqCst) {
        for tenant in TENANTS {
            let key = format!("{tenant}/capped/r0").parse().expect("valid key");
            let shown =
                store.reads().show(&key).await.expect("read succeeds").expect("resource exists");
            let (all, of_one) = shown.context.running;
            maximum = (maximum.0.max(all), maximum.1.max(of_one));
            observed.send_if_modified(|observed| all > 0 && !std::mem::replace(observed, true));
        }
    }
    maximum
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_duplicates_of_a_claim_get_the_same_jobs() {
    let url = new_database();
    let (a, b) = (open(&url).await, open(&url).await);
    apply_one(&*a, open_session(1)).await;
    let mut all = BTreeSet::new();
    for round in 0..30_u128 {
        for n in 0..4 {
            apply_one(&*a, submit(&format!("t/task/r{n}"), "work", round * 10 + n + 1)).await;
        }
        let claim = Command::Claim(claim_request(1, 1_000 + round, "task", 2));
        let send = |store: &Arc<Postgres>| {
            let (store, claim) = (Arc::clone(store), claim.clone());
            tokio::spawn(async move { apply_one(&*store, claim).await })
        };
        let (first, second) = (send(&a), send(&b));
        let (first, second) =
            (assignments(first.await.unwrap()), assignments(second.await.unwrap()));
        let ids = |jobs: &[Assignment]| jobs.iter().map(|a| a.job.id).collect::<BTreeSet<JobId>>();
        assert_eq!(ids(&first), ids(&second), "duplicates get the same jobs");
        assert_eq!(first.len(), 2);
        let page = a.reads().workers().await.expect("read succeeds");
        assert_eq!(page.iter().map(|worker| worker.jobs.len()).sum::<usize>(), first.len());
        for Assignment { tenure, job, .. } in &first {
            assert_eq!(tenure.request, RequestId(1_000 + round));
            assert!(all.insert(job.id), "{} was taken twice", job.id);
            apply_one(&*b, finish(job.id, tenure.token)).await;
        }
    }
    assert_valid_history(&[&a, &b]).await;
}

#[tokio::test]
async fn late_duplicate_of_a_claim_through_another_server_gets_no_new_jobs() {
    let url = new_database();
    let (a, b) = (open(&url).await, open(&url).await);
    apply_one(&*a, open_session(1)).await;
    // The session already is a worker, so the second claim must be journaled as a change by itself.
    assert_eq!(
        assignments(apply_one(&*a, Command::Claim(claim_request(1, 9, "task", 1))).await),
        []
    );
    apply_one(&*a, submit("t/task/r1", "work", 10)).await;
    let claim = Command::Claim(claim_request(1, 11, "task", 1));
    let jobs = assignments(apply_one(&*a, claim.clone()).await);
    apply_one(&*a, finish(jobs[0].job.id, jobs[0].tenure.token)).await;
    apply_one(&*a, submit("t/task/r2", "work", 12)).await;
    assert_eq!(assignments(apply_one(&*b, claim).await), []);
}

#[tokio::test]
async fn worker_of_all_tenants_serves_each_of_a_hundred_tenants() {
    const COUNT: usize = 100;
    let url = new_database();
    let store = open(&url).await;
    let key = |n: usize| format!("t{n:03}/task/r");
    let mut batch = vec![open_session_of(1, "*", 600_000)];
    batch.extend((0..COUNT).map(|n| submit(&key(n), "work", 1)));
    store.apply(batch).await.expect("database is up");
    let mut served = BTreeSet::new();
    // A served tenant gets a new job at once, so no tenant runs out of work.
    let mut claims = 0;
    while served.len() < COUNT {
        claims += 1;
        assert!(claims <= 3 * COUNT as u128, "only {} of {COUNT} were served", served.len());
        let claim = claim_request(1, 10_000 + claims, "task", 1);
        let claimed = assignments(apply_one(&*store, Command::Claim(claim)).await);
        for Assignment { tenure, job, .. } in claimed {
            let key: ResourceKey = tenure.key;
            served.insert(key.tenant().to_owned());
            let next = submit(key.as_str(), "work", 100 + claims);
            let batch = vec![finish(job.id, tenure.token), next];
            store.apply(batch).await.expect("database is up");
        }
    }
}

#[tokio::test]
async fn claim_sees_the_session_that_the_same_batch_opens() {
    let store = open(&new_database()).await;
    apply_one(&*store, submit("t/task/r", "work", 1)).await;
    let batch = vec![open_session(1), Command::Claim(claim_request(1, 2, "task", 1))];
    let mut outcomes = store.apply(batch).await.expect("database is up");
    assert_eq!(assignments(outcomes.remove(1)).len(), 1);
}

//! Claims through two servers at once.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tenure_core::{Assignment, Command, JobId, Outcome, RequestId, ResourceKey};
use tenure_store::Store;
use tenure_store::postgres::Postgres;

use crate::bed::*;

const TENANTS: [&str; 4] = ["t", "u", "v", "w"];
const EACH: usize = 6;

/// Works until nothing is left, and counts beside the store what runs at once.
async fn work(
    store: Arc<Postgres>,
    me: u128,
    running: Arc<[AtomicUsize; 5]>,
    left: Arc<AtomicUsize>,
) {
    for round in 0.. {
        if left.load(Ordering::SeqCst) == 0 {
            return;
        }
        let ask = claim(me, me * 10_000 + round, "capped", 3);
        for Assignment { tenure, job, .. } in claimed(one(&*store, Command::Claim(ask)).await) {
            let at = TENANTS.iter().position(|t| *t == tenure.key.tenant()).expect("one of ours");
            assert!(running[at].fetch_add(1, Ordering::SeqCst) < 1, "{} runs twice", TENANTS[at]);
            assert!(running[4].fetch_add(1, Ordering::SeqCst) < 2, "three run at once");
            tokio::task::yield_now().await;
            running[at].fetch_sub(1, Ordering::SeqCst);
            running[4].fetch_sub(1, Ordering::SeqCst);
            let finished = one(&*store, finish(job.id, tenure.token)).await;
            assert!(matches!(finished, Outcome::Finished { already: false, .. }), "{finished:?}");
            left.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn through_two_servers_caps_are_never_exceeded() {
    let url = database();
    let (a, b) = (open(&url).await, open(&url).await);
    for n in 1..=6 {
        one(&*a, session_of(n, "*", 60_000)).await;
    }
    for (at, tenant) in TENANTS.iter().enumerate() {
        for n in 0..EACH {
            let key = format!("{tenant}/capped/r{n}");
            one(&*a, submit(&key, "work", (at * EACH + n) as u128 + 1)).await;
        }
    }
    let running = Arc::new(std::array::from_fn(|_| AtomicUsize::new(0)));
    let left = Arc::new(AtomicUsize::new(TENANTS.len() * EACH));
    let watching = Arc::new(AtomicBool::new(true));
    let watch = tokio::spawn(watch(open(&url).await, Arc::clone(&watching)));
    let workers: Vec<_> = (1..=6)
        .map(|n| {
            let store = if n % 2 == 0 { &a } else { &b };
            tokio::spawn(work(Arc::clone(store), n, Arc::clone(&running), Arc::clone(&left)))
        })
        .collect();
    for worker in workers {
        worker.await.expect("no worker panics");
    }
    watching.store(false, Ordering::SeqCst);
    let (all, of_one) = watch.await.expect("no panic");
    assert!(all <= 2 && of_one <= 1, "{all} ran at once, {of_one} of one tenant");
    assert!(all > 0, "nobody watched");
    verified(&[&a, &b]).await;
}

/// The most that a server beside ever sees running at once, in all and of one tenant.
async fn watch(store: Arc<Postgres>, watching: Arc<AtomicBool>) -> (usize, usize) {
    let mut most = (0, 0);
    while watching.load(Ordering::SeqCst) {
        for tenant in TENANTS {
            let key = format!("{tenant}/capped/r0").parse().expect("a good name");
            let shown = store.reads().show(&key).await.expect("it reads").expect("it is known");
            let (all, of_one) = shown.around.running;
            most = (most.0.max(all), most.1.max(of_one));
        }
    }
    most
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_comes_twice_at_once_takes_jobs_once() {
    let url = database();
    let (a, b) = (open(&url).await, open(&url).await);
    one(&*a, session(1)).await;
    let mut all = BTreeSet::new();
    for round in 0..30_u128 {
        for n in 0..4 {
            one(&*a, submit(&format!("t/task/r{n}"), "work", round * 10 + n + 1)).await;
        }
        let ask = Command::Claim(claim(1, 1_000 + round, "task", 2));
        let send = |store: &Arc<Postgres>| {
            let (store, ask) = (Arc::clone(store), ask.clone());
            tokio::spawn(async move { one(&*store, ask).await })
        };
        let (first, second) = (send(&a), send(&b));
        let (first, second) = (claimed(first.await.unwrap()), claimed(second.await.unwrap()));
        let ids = |jobs: &[Assignment]| jobs.iter().map(|a| a.job.id).collect::<BTreeSet<JobId>>();
        assert_eq!(ids(&first), ids(&second), "both sendings get the same");
        assert_eq!(first.len(), 2);
        let page = a.reads().workers().await.expect("it reads");
        assert_eq!(page.iter().map(|worker| worker.jobs.len()).sum::<usize>(), first.len());
        for Assignment { tenure, job, .. } in &first {
            assert_eq!(tenure.request, RequestId(1_000 + round));
            assert!(all.insert(job.id), "{} was taken twice", job.id);
            one(&*b, finish(job.id, tenure.token)).await;
        }
    }
    verified(&[&a, &b]).await;
}

#[tokio::test]
async fn a_late_repetition_of_a_claim_takes_nothing_more_from_another_server() {
    let url = database();
    let (a, b) = (open(&url).await, open(&url).await);
    one(&*a, session(1)).await;
    // It is known as a worker before: what the second claim adds must be told by itself.
    assert_eq!(claimed(one(&*a, Command::Claim(claim(1, 9, "task", 1))).await), []);
    one(&*a, submit("t/task/r1", "work", 10)).await;
    let ask = Command::Claim(claim(1, 11, "task", 1));
    let jobs = claimed(one(&*a, ask.clone()).await);
    one(&*a, finish(jobs[0].job.id, jobs[0].tenure.token)).await;
    one(&*a, submit("t/task/r2", "work", 12)).await;
    assert_eq!(claimed(one(&*b, ask).await), []);
}

#[tokio::test]
async fn a_worker_for_all_gets_round_to_every_one_of_a_hundred_tenants() {
    const COUNT: usize = 100;
    let url = database();
    let store = open(&url).await;
    let key = |n: usize| format!("t{n:03}/task/r");
    let mut batch = vec![session_of(1, "*", 600_000)];
    batch.extend((0..COUNT).map(|n| submit(&key(n), "work", 1)));
    store.apply(batch).await.expect("the server is there");
    let mut served = BTreeSet::new();
    // Whoever was served has more to do at once, so that nobody ever runs out of work.
    let mut claims = 0;
    while served.len() < COUNT {
        claims += 1;
        assert!(claims <= 3 * COUNT as u128, "only {} of {COUNT} were served", served.len());
        let ask = claim(1, 10_000 + claims, "task", 1);
        for Assignment { tenure, job, .. } in claimed(one(&*store, Command::Claim(ask)).await) {
            let key: ResourceKey = tenure.key;
            served.insert(key.tenant().to_owned());
            let again = submit(key.as_str(), "work", 100 + claims);
            let done = vec![finish(job.id, tenure.token), again];
            store.apply(done).await.expect("the server is there");
        }
    }
}

#[tokio::test]
async fn a_claim_sees_the_session_that_its_batch_opens() {
    let store = open(&database()).await;
    one(&*store, submit("t/task/r", "work", 1)).await;
    let batch = vec![session(1), Command::Claim(claim(1, 2, "task", 1))];
    let mut outcomes = store.apply(batch).await.expect("the server is there");
    assert_eq!(claimed(outcomes.remove(1)).len(), 1);
}

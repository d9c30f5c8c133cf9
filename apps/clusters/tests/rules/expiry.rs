//! The time to live against extensions, workers and users, in every order: a cluster is never
//! destroyed before the time that the last extension was answered with, and a destroy that a user
//! was promised is never dropped.

use serde_json::{Value, json};
use tenure_clusters::status::AtExpiry;
use tenure_core::Millis;

use crate::bed::{Bed, Claimed, HOUR_MS, MINUTE_MS, Worker};

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Action {
    /// The time to live elapses, and the timer fires.
    Elapse,
    /// A user asks for this time to live; `0` stands for none.
    Extend(u64),
    /// A worker claims a job and decides.
    Claim,
    /// It finishes.
    Finish,
    /// A user destroys the cluster.
    Destroy,
}

use Action::{Claim, Destroy, Elapse, Extend, Finish};

const SHORT: Action = Extend(20 * MINUTE_MS);
const LONG: Action = Extend(5 * HOUR_MS);
const NONE: Action = Extend(0);

/// Maximum number of steps until nothing is left to do.
const STEPS_MAX: usize = 20;

/// One cluster, and what was promised to its users.
struct Run<'a> {
    bed: &'a Bed,
    worker: &'a Worker<'a>,
    name: String,
    order: Vec<Action>,
    claimed: Option<(Claimed, AtExpiry)>,
    /// Earliest time at which it may be destroyed by itself.
    promised: Option<Millis>,
    /// Job of the last destroy that a user was promised.
    destroy: Option<Value>,
}

impl<'a> Run<'a> {
    async fn start(bed: &'a Bed, worker: &'a Worker<'a>, name: String, order: &[Action]) -> Self {
        worker.beat().await;
        bed.ready(worker, &name, json!({ "ttl_ms": HOUR_MS })).await;
        let promised = Some(bed.now().plus(HOUR_MS));
        let order = order.to_vec();
        Self { bed, worker, name, order, claimed: None, promised, destroy: None }
    }

    async fn step(&mut self, action: Action) {
        match action {
            Elapse => {
                let left = self.promised.map_or(0, |at| at.since(self.bed.now()));
                self.bed.skip(left).await;
            }
            Extend(ttl_ms) => self.extend(ttl_ms).await,
            Claim if self.claimed.is_none() => self.claim().await,
            Claim => {}
            Finish => self.finish().await,
            Destroy => {
                let (status, answer) = self.bed.destroy(&self.name).await;
                assert_eq!(status, 202, "{self}: {answer}");
                self.destroy = Some(answer["job"]["id"].clone());
            }
        }
    }

    async fn extend(&mut self, ttl_ms: u64) {
        let (status, answer) = self.bed.extend(&self.name, ttl_ms).await;
        let destroys = matches!(&self.claimed, Some((_, AtExpiry::Destroy)));
        let gone = self.bed.state(&self.name).await == "DESTROYED";
        // While a worker decides, the answer may be either.
        let decides = self.claimed.is_some();
        if status == 200 {
            assert!(!destroys && !gone && self.destroy.is_none(), "{self}: a false promise");
            let at = (ttl_ms > 0).then(|| self.bed.now().plus(ttl_ms));
            assert_eq!(answer["expires_at"], json!(at.map(tenure_wire::instant)), "{self}");
            self.promised = at;
        } else {
            assert_eq!(status, 409, "{self}: {answer}");
            assert!(decides || gone || self.destroy.is_some(), "{self}: refused without a reason");
        }
    }

    async fn claim(&mut self) {
        let Some(job) = self.worker.claim(&self.name).await else { return };
        let decision = match job.operation() {
            "JANITOR_DESTROY" => job.decide(),
            _ => AtExpiry::Destroy,
        };
        if decision == AtExpiry::Destroy {
            let is_due = self.promised.is_some_and(|at| at <= self.bed.now());
            let by_user = job.operation() == "DESTROY";
            assert!(is_due || by_user, "{self}: destroyed although it was extended");
            assert_eq!(self.worker.begin_destroy(&job).await, 200);
        }
        self.claimed = Some((job, decision));
    }

    async fn finish(&mut self) {
        match self.claimed.take() {
            None => {}
            Some((job, AtExpiry::Destroy)) => {
                assert_eq!(self.worker.finish_destroy(&job).await, "succeeded", "{self}");
            }
            Some((job, AtExpiry::Extended(next))) => {
                self.worker.skip(&job, next).await;
            }
            Some((_, AtExpiry::Kept)) => panic!("{self}: nothing is kept"),
        }
    }

    /// Lets everything happen that is left, and checks what has become of the cluster.
    async fn end(mut self) {
        for _ in 0..STEPS_MAX {
            self.step(Claim).await;
            self.step(Finish).await;
            let is_idle = self.bed.lane(&self.name).await.is_empty();
            if is_idle && self.bed.state(&self.name).await == "DESTROYED" {
                break;
            }
            if is_idle && self.promised.is_none() {
                break;
            }
            self.step(Elapse).await;
        }
        let state = self.bed.state(&self.name).await;
        let lane = self.bed.lane(&self.name).await;
        assert_eq!(lane, [], "{self}: it does not come to rest");
        if let Some(job) = &self.destroy {
            let job = self.bed.job(job).await;
            assert_eq!(job["state"], "succeeded", "{self}: the destroy of the user was dropped");
            assert_eq!(state, "DESTROYED", "{self}");
        } else if self.promised.is_some() {
            assert_eq!(state, "DESTROYED", "{self}: it outlives its time to live");
        } else {
            assert_eq!(state, "READY", "{self}");
        }
    }
}

impl std::fmt::Display for Run<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.order)
    }
}

/// Calls `visit` with every order of the actions once.
fn orders(mut left: Vec<Action>) -> Vec<Vec<Action>> {
    fn extend(prefix: &mut Vec<Action>, left: &mut Vec<Action>, all: &mut Vec<Vec<Action>>) {
        if left.is_empty() {
            all.push(prefix.clone());
        }
        for at in 0..left.len() {
            if at > 0 && left[at] == left[at - 1] {
                continue;
            }
            let action = left.remove(at);
            prefix.push(action);
            extend(prefix, left, all);
            prefix.pop();
            left.insert(at, action);
        }
    }
    left.sort();
    let mut all = Vec::new();
    extend(&mut Vec::new(), &mut left, &mut all);
    all
}

async fn in_every_order(actions: &[Action], expected: usize) {
    let bed = Bed::start().await;
    let worker = bed.worker("a").await;
    let orders = orders(actions.to_vec());
    assert_eq!(orders.len(), expected);
    for (n, order) in orders.iter().enumerate() {
        let mut run = Run::start(&bed, &worker, format!("c{n}"), order).await;
        for action in order {
            run.step(*action).await;
        }
        run.end().await;
    }
}

#[tokio::test]
async fn a_user_who_destroys_and_two_extensions() {
    in_every_order(&[Elapse, SHORT, LONG, Claim, Finish, Destroy], 720).await;
}

#[tokio::test]
async fn an_extension_that_is_taken_back_while_the_job_waits() {
    in_every_order(&[Elapse, Elapse, LONG, SHORT, Claim, Finish], 360).await;
}

#[tokio::test]
async fn an_extension_without_an_end_and_one_with_an_end() {
    in_every_order(&[Elapse, Elapse, NONE, SHORT, Claim, Finish], 360).await;
}

#[tokio::test]
async fn an_extension_between_two_claims() {
    in_every_order(&[Elapse, SHORT, Claim, Claim, Finish, Finish], 180).await;
}

#[tokio::test]
async fn an_extension_counts_from_the_first_attempt_to_the_destroy_that_has_begun() {
    let bed = Bed::start().await;
    let worker = bed.worker("a").await;
    bed.ready(&worker, "a", json!({ "ttl_ms": HOUR_MS })).await;
    bed.skip(HOUR_MS).await;
    let job = worker.claim("a").await.unwrap();
    assert_eq!(job.decide(), AtExpiry::Destroy);
    // An attempt that has removed nothing yet gives up.
    assert_eq!(worker.fail(&job, true).await, "backoff");
    assert_eq!(bed.extend("a", HOUR_MS).await.0, 200);
    bed.skip(10 * MINUTE_MS).await;
    let job = worker.claim("a").await.unwrap();
    assert!(matches!(job.decide(), AtExpiry::Extended(Some(_))));
    assert_eq!(worker.skip(&job, None).await, "succeeded");
    // One that has removed something is continued.
    bed.extend("a", HOUR_MS).await;
    bed.skip(HOUR_MS).await;
    let job = worker.claim("a").await.unwrap();
    worker.begin_destroy(&job).await;
    assert_eq!(worker.fail(&job, true).await, "backoff");
    assert_eq!(bed.extend("a", HOUR_MS).await.0, 409);
    bed.skip(10 * MINUTE_MS).await;
    assert_eq!(worker.claim("a").await.unwrap().decide(), AtExpiry::Destroy);
}

#[tokio::test]
async fn an_extension_belongs_to_one_life_of_the_cluster() {
    let bed = Bed::start().await;
    let worker = bed.worker("a").await;
    bed.ready(&worker, "a", json!({ "ttl_ms": HOUR_MS })).await;
    bed.extend("a", 30 * 24 * HOUR_MS - HOUR_MS).await;
    bed.destroy("a").await;
    let job = worker.claim("a").await.unwrap();
    worker.finish_destroy(&job).await;
    bed.ready(&worker, "a", json!({ "ttl_ms": HOUR_MS })).await;
    bed.skip(HOUR_MS).await;
    let job = worker.claim("a").await.unwrap();
    assert_eq!((job.operation(), job.decide()), ("JANITOR_DESTROY", AtExpiry::Destroy));
}

#[tokio::test]
async fn a_create_that_waits_is_not_extended_because_its_life_has_not_begun() {
    let bed = Bed::start().await;
    let worker = bed.worker("a").await;
    bed.bring(&worker, "a", "FAILED").await;
    assert_eq!(bed.extend("a", HOUR_MS).await.0, 200, "what has failed expires, too");
    bed.create_with("a", json!({ "ttl_ms": HOUR_MS })).await;
    let (status, problem) = bed.extend("a", 5 * HOUR_MS).await;
    assert_eq!((status, &problem["code"]), (409, &json!("conflict")), "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("extend it later"), "{problem}");
    let job = worker.claim("a").await.unwrap();
    worker.begin_create(&job).await;
    assert_eq!(bed.extend("a", 5 * HOUR_MS).await.0, 200);
    worker.finish_create(&job).await;
    bed.skip(2 * HOUR_MS).await;
    assert_eq!(bed.lane("a").await, []);
    bed.skip(3 * HOUR_MS).await;
    assert_eq!(bed.lane("a").await[0].0, "JANITOR_DESTROY");
}

#[tokio::test]
async fn extensions_are_bounded_by_the_profile_from_the_request_for_the_cluster() {
    let bed = Bed::start().await;
    let worker = bed.worker("a").await;
    bed.ready(&worker, "a", json!({ "ttl_ms": HOUR_MS })).await;
    let day = 24 * HOUR_MS;
    for _ in 0..29 {
        bed.skip(day - HOUR_MS).await;
        let (status, answer) = bed.extend("a", day).await;
        if status == 422 {
            assert!(answer["detail"].as_str().unwrap().contains("30d"), "{answer}");
            return;
        }
        // The clock passed the time to live before.
        assert!([200, 409].contains(&status), "{answer}");
    }
    let (status, answer) = bed.extend("a", 5 * day).await;
    assert_eq!(status, 422, "{answer}");
}

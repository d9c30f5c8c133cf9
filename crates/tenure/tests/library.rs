//! Sessions and tenures of the client library on an embedded store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tenure::clock::BootInstant;
use tenure::lease::LeaseState;
use tenure::transport::Queries;
use tenure::{Client, Error, Lost, Transport};
use tenure_core::{Code, Command, LockAction, Outcome, ResourceKey, Token};
use tenure_store::committer::Sweep;
use tenure_store::store::HistoryQuery;
use tenure_store::{Committer, Memory, Store};

const TTL: Duration = Duration::from_secs(2);

#[test]
fn the_default_build_has_no_database_driver() {
    let drivers = ["libsqlite3-sys", "rusqlite", "tokio-postgres"];
    let tree = |features: &str| {
        let args = ["tree", "--package", "tenure", "--edges", "normal", "--prefix", "none"];
        let cargo = std::process::Command::new(env!("CARGO"))
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .args(args)
            .args(["--offline", "--features", features])
            .output()
            .expect("cargo runs");
        assert!(cargo.status.success(), "{}", String::from_utf8_lossy(&cargo.stderr));
        let tree = String::from_utf8_lossy(&cargo.stdout).into_owned();
        assert!(tree.contains("reqwest "), "{tree}");
        drivers.map(|name| tree.lines().any(|line| line.starts_with(&format!("{name} "))))
    };
    assert_eq!(tree(""), [false; 3]);
    assert_eq!(tree("exec,worker"), [false; 3]);
    assert_eq!(tree("local"), [true, true, false]);
}

/// Transport with injected faults: requests are dropped, or applied and their responses dropped.
struct FaultyTransport {
    committer: Committer,
    drop_requests: Arc<AtomicBool>,
    drop_responses: Arc<AtomicBool>,
}

#[async_trait]
impl Transport for FaultyTransport {
    async fn send(&self, command: Command, max_wait: Duration) -> Result<Outcome, Error> {
        let fault = || Error::Unavailable("injected fault".to_owned());
        if self.drop_requests.load(Ordering::SeqCst) {
            return Err(fault());
        }
        let outcome = self.committer.send(command, max_wait).await?;
        if self.drop_responses.load(Ordering::SeqCst) { Err(fault()) } else { Ok(outcome) }
    }

    fn queries(&self) -> &dyn Queries {
        &self.committer
    }

    fn open_dedicated(&self) -> Result<Box<dyn Transport>, Error> {
        let (committer, drop_requests) = (self.committer.clone(), Arc::clone(&self.drop_requests));
        Ok(Box::new(Self {
            committer,
            drop_requests,
            drop_responses: Arc::clone(&self.drop_responses),
        }))
    }
}

struct TestBed {
    client: Client,
    store: Arc<Memory>,
    drop_requests: Arc<AtomicBool>,
    drop_responses: Arc<AtomicBool>,
}

fn bed() -> TestBed {
    let store = Arc::new(Memory::new());
    let committer = Committer::start(Arc::clone(&store) as Arc<dyn Store>);
    let (drop_requests, drop_responses) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let transport = FaultyTransport {
        committer,
        drop_requests: Arc::clone(&drop_requests),
        drop_responses: Arc::clone(&drop_responses),
    };
    TestBed {
        client: Client::with_transport(Arc::new(transport), "default"),
        store,
        drop_requests,
        drop_responses,
    }
}

impl TestBed {
    async fn holders(&self, name: &str) -> Vec<String> {
        let view = self.store.reads().show(&key(name)).await.expect("the store is available");
        let tenures = view.map(|view| view.tenures).unwrap_or_default();
        tenures.iter().map(|tenure| tenure.holder.to_string()).collect()
    }

    async fn waiters(&self, name: &str) -> usize {
        let view = self.store.reads().show(&key(name)).await.expect("the store is available");
        view.map_or(0, |view| view.queue.len())
    }
}

fn key(name: &str) -> ResourceKey {
    ResourceKey::new("default", "cluster", name).expect("a valid name")
}

/// Waits for a condition, at most twenty seconds.
async fn wait_until<F: Future<Output = bool>>(condition: impl Fn() -> F) {
    let poll = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), poll).await.expect("condition not met in time");
}

#[tokio::test]
async fn a_heartbeat_keeps_the_lock_for_longer_than_its_time_to_live() {
    let bed = bed();
    let session = bed.client.session("a", TTL).await.unwrap();
    let tenure = session.lock("cluster/c1").unwrap().acquire().await.unwrap();
    let first = tenure.deadline();
    wait_until(|| async { BootInstant::now() > first + TTL / 2 }).await;
    assert_eq!(tenure.check(), Ok(()));
    assert_eq!(tenure.token(), Token(1));
    assert_eq!(bed.holders("c1").await, ["a"]);
    tenure.release().await.unwrap();
    assert!(bed.holders("c1").await.is_empty());
}

/// Shorter than the stall that a store tolerates without granting a grace period.
const SHORT: Duration = Duration::from_secs(1);

/// Transport that delays a number of open commands by their time to live.
struct SlowOpen {
    committer: Committer,
    openings: AtomicUsize,
    delayed: Delayed,
}

/// Whether the request or the response is delayed.
#[derive(PartialEq)]
enum Delayed {
    Request,
    Response,
}

#[async_trait]
impl Transport for SlowOpen {
    async fn send(&self, command: Command, max_wait: Duration) -> Result<Outcome, Error> {
        let decrement = |left: usize| left.checked_sub(1);
        let delay = matches!(command, Command::Open { .. })
            && self.openings.fetch_update(Ordering::SeqCst, Ordering::SeqCst, decrement).is_ok();
        if delay && self.delayed == Delayed::Request {
            tokio::time::sleep(SHORT).await;
        }
        let response = self.committer.send(command, max_wait).await;
        if delay && self.delayed == Delayed::Response {
            tokio::time::sleep(SHORT).await;
        }
        response
    }

    fn queries(&self) -> &dyn Queries {
        &self.committer
    }

    fn open_dedicated(&self) -> Result<Box<dyn Transport>, Error> {
        self.committer.open_dedicated()
    }
}

fn slow_client(openings: usize, delayed: Delayed) -> Client {
    // Without a sweep, a session is found to be expired by the next command that names it.
    let committer = Committer::start_with(Arc::new(Memory::new()), Sweep::External);
    let openings = AtomicUsize::new(openings);
    Client::with_transport(Arc::new(SlowOpen { committer, openings, delayed }), "default")
}

#[tokio::test]
async fn a_session_that_opens_slowly_is_renewed_or_reported_unavailable() {
    let session = slow_client(1, Delayed::Request)
        .session("a", SHORT)
        .await
        .expect("the second open command is in time");
    assert_eq!(session.state(), LeaseState::Safe);
    let tenure = session.lock("cluster/c1").unwrap().acquire().await.unwrap();
    assert_eq!(tenure.check(), Ok(()));
    for (openings, delayed) in [(2, Delayed::Request), (1, Delayed::Response)] {
        let error = slow_client(openings, delayed)
            .session("a", SHORT)
            .await
            .expect_err("no response is in time");
        assert!(error.is_unavailable(), "the caller may retry: {error}");
        assert!(error.to_string().contains("took longer than its ttl"), "{error}");
    }
}

#[tokio::test]
async fn a_blocked_runtime_does_not_starve_the_heartbeat() {
    let bed = bed();
    let session = bed.client.session("a", TTL).await.unwrap();
    let tenure = session.lock("cluster/c1").unwrap().acquire().await.unwrap();
    // This is the only thread of the runtime: nothing else in the test can run meanwhile.
    let until = BootInstant::now() + TTL * 3;
    while !until.has_passed() {
        std::hint::spin_loop();
    }
    assert_eq!(tenure.check(), Ok(()));
    assert_eq!(bed.holders("c1").await, ["a"]);
}

#[tokio::test]
async fn a_lost_connection_puts_the_session_in_danger_then_lost_before_the_store_releases_the_lock()
{
    let bed = bed();
    let session = bed.client.session("a", TTL).await.unwrap();
    let tenure = session.lock("cluster/c1").unwrap().acquire().await.unwrap();
    let mut states = session.watch_state();
    bed.drop_requests.store(true, Ordering::SeqCst);
    states.wait_for(|state| *state == LeaseState::InDanger).await.unwrap();
    assert_eq!(tenure.check(), Ok(()));
    assert_eq!(tenure.lost().await, Lost::Session);
    assert_eq!(tenure.check(), Err(Lost::Session));
    assert_eq!(
        bed.holders("c1").await,
        ["a"],
        "the holder knows before the store releases the lock"
    );
    wait_until(|| async { bed.holders("c1").await.is_empty() }).await;
    // The connection recovers, the session does not.
    bed.drop_requests.store(false, Ordering::SeqCst);
    let late = session.lock("cluster/c1").unwrap().acquire().await;
    assert_eq!(late.err().and_then(|error| error.code()), Some(Code::Lost));
}

#[tokio::test]
async fn a_dropped_tenure_is_released_even_if_the_first_attempt_fails() {
    let bed = bed();
    let session = bed.client.session("a", Duration::from_secs(10)).await.unwrap();
    let tenure = session.lock("cluster/c1").unwrap().acquire().await.unwrap();
    bed.drop_requests.store(true, Ordering::SeqCst);
    drop(tenure);
    tokio::task::yield_now().await;
    assert_eq!(bed.holders("c1").await, ["a"]);
    bed.drop_requests.store(false, Ordering::SeqCst);
    wait_until(|| async { bed.holders("c1").await.is_empty() }).await;
    assert_eq!(session.state(), LeaseState::Safe);
}

#[tokio::test]
async fn dropping_the_session_releases_everything_at_once() {
    let bed = bed();
    let session = bed.client.session("a", Duration::from_secs(3_600)).await.unwrap();
    let tenure = session.lock("cluster/c1").unwrap().acquire().await.unwrap();
    drop(tenure);
    drop(session);
    assert!(bed.holders("c1").await.is_empty(), "the session is closed in the store");
    assert_eq!(bed.store.status().await.unwrap().sessions, 0);
}

#[tokio::test]
async fn a_lost_response_does_not_create_a_second_tenure() {
    let bed = bed();
    let session = bed.client.session("a", Duration::from_secs(30)).await.unwrap();
    bed.drop_responses.store(true, Ordering::SeqCst);
    let request = session.lock("cluster/c1").unwrap().acquire();
    let restore = async {
        wait_until(|| async { !bed.holders("c1").await.is_empty() }).await;
        bed.drop_responses.store(false, Ordering::SeqCst);
    };
    let (tenure, ()) = tokio::join!(request, restore);
    let tenure = tenure.unwrap();
    assert_eq!(tenure.token(), Token(1));
    let query = HistoryQuery::Of { key: key("c1"), before: None, limit: 10 };
    assert_eq!(bed.store.reads().history(query).await.unwrap().len(), 1);
    drop(tenure);
}

#[tokio::test]
async fn a_cancelled_wait_leaves_the_queue() {
    let bed = bed();
    let holder = bed.client.session("a", Duration::from_secs(30)).await.unwrap();
    let held = holder.lock("cluster/c1").unwrap().acquire().await.unwrap();
    let session = bed.client.session("b", Duration::from_secs(30)).await.unwrap();
    let request = session.lock("cluster/c1").unwrap().wait(Duration::from_secs(60));
    let waiting = tokio::spawn(request.acquire());
    wait_until(|| async { bed.waiters("c1").await == 1 }).await;
    waiting.abort();
    wait_until(|| async { bed.waiters("c1").await == 0 }).await;
    drop(held);
    wait_until(|| async { bed.holders("c1").await.is_empty() }).await;
}

#[tokio::test]
async fn a_wait_cancelled_during_the_grant_leaks_no_tenure() {
    let bed = bed();
    let holder = bed.client.session("a", Duration::from_secs(30)).await.unwrap();
    let held = holder.lock("cluster/c1").unwrap().acquire().await.unwrap();
    let session = bed.client.session("b", Duration::from_secs(30)).await.unwrap();
    let request = session.lock("cluster/c1").unwrap().wait(Duration::from_secs(60));
    let waiting = tokio::spawn(request.acquire());
    wait_until(|| async { bed.waiters("c1").await == 1 }).await;
    // The lock is granted and the response is lost; then the caller gives up.
    bed.drop_responses.store(true, Ordering::SeqCst);
    drop(held);
    wait_until(|| async { bed.holders("c1").await == ["b"] }).await;
    waiting.abort();
    bed.drop_responses.store(false, Ordering::SeqCst);
    wait_until(|| async { bed.holders("c1").await.is_empty() }).await;
    assert_eq!(session.state(), LeaseState::Safe);
}

#[tokio::test]
async fn a_holder_observes_a_broken_lock_and_keeps_its_others() {
    let bed = bed();
    let session = bed.client.session("a", TTL).await.unwrap();
    let broken = session.lock("cluster/c1").unwrap().acquire().await.unwrap();
    let kept = session.lock("cluster/c2").unwrap().acquire().await.unwrap();
    let action = LockAction::Break {
        token: broken.token(),
        locks: None,
        by: "ann".into(),
        reason: "stuck".into(),
        end_job: false,
    };
    bed.store.apply(vec![Command::Lock { key: key("c1"), action }]).await.unwrap();
    assert_eq!(broken.lost().await, Lost::Broken);
    assert_eq!(kept.check(), Ok(()));
    assert_eq!(broken.release().await.err().and_then(|e| e.code()), Some(Code::Lost));
}

#[tokio::test]
async fn a_refused_acquire_names_the_holder() {
    let bed = bed();
    let a = bed.client.session("a", TTL).await.unwrap();
    let _held = a.lock("cluster/c1").unwrap().acquire().await.unwrap();
    let b = bed.client.session("b", TTL).await.unwrap();
    match b.lock("cluster/c1").unwrap().acquire().await {
        Err(Error::Refused(refusal)) => assert_eq!(&*refusal.tenure().unwrap().holder, "a"),
        other => panic!("{:?} is not a refusal", other.map(|tenure| tenure.token())),
    }
    let request = b.lock("cluster/c1").unwrap().wait(Duration::from_millis(300));
    assert_eq!(request.acquire().await.err().and_then(|e| e.code()), Some(Code::Held));
    assert_eq!(bed.waiters("c1").await, 0);
}

#[tokio::test]
async fn invalid_names_and_ttls_are_refused() {
    let bed = bed();
    let session = bed.client.session("a", TTL).await.unwrap();
    assert!(session.lock("no-slash").is_err());
    let short = bed.client.session("a", Duration::from_millis(10)).await;
    assert_eq!(short.err().and_then(|error| error.code()), Some(Code::Invalid));
}

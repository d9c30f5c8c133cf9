//! Sessions and tenures of the library, on a store in this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tenure::clock::BootInstant;
use tenure::lease::Standing;
use tenure::{Client, Error, Link, Lost};
use tenure_core::{Code, Command, LockAction, Outcome, ResourceKey, Token};
use tenure_store::committer::Sweep;
use tenure_store::store::HistoryQuery;
use tenure_store::{Committer, Memory, Store};

const TTL: Duration = Duration::from_secs(2);

/// A link that can be cut: then requests get no answer, or are applied and the answer is lost.
struct Cable {
    committer: Committer,
    cut: Arc<AtomicBool>,
    mute: Arc<AtomicBool>,
}

#[async_trait]
impl Link for Cable {
    async fn send(&self, command: Command, patience: Duration) -> Result<Outcome, Error> {
        let lost = || Error::Unavailable("the cable is cut".to_owned());
        if self.cut.load(Ordering::SeqCst) {
            return Err(lost());
        }
        let outcome = self.committer.send(command, patience).await?;
        if self.mute.load(Ordering::SeqCst) { Err(lost()) } else { Ok(outcome) }
    }

    fn twin(&self) -> Result<Box<dyn Link>, Error> {
        let (committer, cut) = (self.committer.clone(), Arc::clone(&self.cut));
        Ok(Box::new(Self { committer, cut, mute: Arc::clone(&self.mute) }))
    }
}

struct Bed {
    client: Client,
    store: Arc<Memory>,
    cut: Arc<AtomicBool>,
    mute: Arc<AtomicBool>,
}

fn bed() -> Bed {
    let store = Arc::new(Memory::new());
    let committer = Committer::start(Arc::clone(&store) as Arc<dyn Store>);
    let (cut, mute) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let cable = Cable { committer, cut: Arc::clone(&cut), mute: Arc::clone(&mute) };
    Bed { client: Client::over(Arc::new(cable), "default"), store, cut, mute }
}

impl Bed {
    async fn holders(&self, name: &str) -> Vec<String> {
        let shown = self.store.reads().show(&key(name)).await.expect("the store is there");
        let tenures = shown.map(|shown| shown.tenures).unwrap_or_default();
        tenures.iter().map(|tenure| tenure.holder.to_string()).collect()
    }

    async fn waiters(&self, name: &str) -> usize {
        let shown = self.store.reads().show(&key(name)).await.expect("the store is there");
        shown.map_or(0, |shown| shown.queue.len())
    }
}

fn key(name: &str) -> ResourceKey {
    ResourceKey::new("default", "cluster", name).expect("a good name")
}

/// Waits for a condition, at most twenty seconds.
async fn until<F: Future<Output = bool>>(condition: impl Fn() -> F) {
    let patient = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), patient).await.expect("it never happened");
}

#[tokio::test]
async fn a_heartbeat_keeps_the_lock_for_longer_than_its_time_to_live() {
    let bed = bed();
    let session = bed.client.session("a", TTL).await.unwrap();
    let tenure = session.lock("cluster/c1").unwrap().acquire().await.unwrap();
    let first = tenure.deadline();
    until(|| async { BootInstant::now() > first + TTL / 2 }).await;
    assert_eq!(tenure.check(), Ok(()));
    assert_eq!(tenure.token(), Token(1));
    assert_eq!(bed.holders("c1").await, ["a"]);
    tenure.release().await.unwrap();
    assert!(bed.holders("c1").await.is_empty());
}

/// Shorter than what a store takes for a stop of its own.
const SHORT: Duration = Duration::from_secs(1);

/// A link on which so many openings of sessions take as long as their time to live.
struct Late {
    committer: Committer,
    openings: AtomicUsize,
    way: Way,
}

/// On which way they do.
#[derive(PartialEq)]
enum Way {
    There,
    Back,
}

#[async_trait]
impl Link for Late {
    async fn send(&self, command: Command, patience: Duration) -> Result<Outcome, Error> {
        let take = |left: usize| left.checked_sub(1);
        let late = matches!(command, Command::Open { .. })
            && self.openings.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok();
        if late && self.way == Way::There {
            tokio::time::sleep(SHORT).await;
        }
        let answer = self.committer.send(command, patience).await;
        if late && self.way == Way::Back {
            tokio::time::sleep(SHORT).await;
        }
        answer
    }

    fn twin(&self) -> Result<Box<dyn Link>, Error> {
        self.committer.twin()
    }
}

fn late(openings: usize, way: Way) -> Client {
    // Nobody sweeps: what has lapsed is found to have by whoever names it.
    let committer = Committer::start_with(Arc::new(Memory::new()), Sweep::Elsewhere);
    let openings = AtomicUsize::new(openings);
    Client::over(Arc::new(Late { committer, openings, way }), "default")
}

#[tokio::test]
async fn a_session_that_was_long_in_opening_is_no_lost_one() {
    let session =
        late(1, Way::There).session("a", SHORT).await.expect("the second opening is in time");
    assert_eq!(session.standing(), Standing::Safe);
    let tenure = session.lock("cluster/c1").unwrap().acquire().await.unwrap();
    assert_eq!(tenure.check(), Ok(()));
    for (openings, way) in [(2, Way::There), (1, Way::Back)] {
        let error = late(openings, way).session("a", SHORT).await.err().expect("none is in time");
        assert!(error.is_unavailable(), "whoever opens one may try again: {error}");
        assert!(error.to_string().contains("takes longer to open a session than"), "{error}");
    }
}

#[tokio::test]
async fn a_blocked_runtime_does_not_starve_the_heartbeat() {
    let bed = bed();
    let session = bed.client.session("a", TTL).await.unwrap();
    let tenure = session.lock("cluster/c1").unwrap().acquire().await.unwrap();
    // This is the only thread of the runtime: nothing else of the test can run meanwhile.
    let until = BootInstant::now() + TTL * 3;
    while !until.has_passed() {
        std::hint::spin_loop();
    }
    assert_eq!(tenure.check(), Ok(()));
    assert_eq!(bed.holders("c1").await, ["a"]);
}

#[tokio::test]
async fn a_cut_connection_is_danger_then_loss_before_the_store_gives_the_lock_away() {
    let bed = bed();
    let session = bed.client.session("a", TTL).await.unwrap();
    let tenure = session.lock("cluster/c1").unwrap().acquire().await.unwrap();
    let mut standings = session.standings();
    bed.cut.store(true, Ordering::SeqCst);
    standings.wait_for(|standing| *standing == Standing::InDanger).await.unwrap();
    assert_eq!(tenure.check(), Ok(()));
    assert_eq!(tenure.lost().await, Lost::Session);
    assert_eq!(tenure.check(), Err(Lost::Session));
    assert_eq!(bed.holders("c1").await, ["a"], "the holder knew before the store let go");
    until(|| async { bed.holders("c1").await.is_empty() }).await;
    // The connection comes back, the session does not.
    bed.cut.store(false, Ordering::SeqCst);
    let late = session.lock("cluster/c1").unwrap().acquire().await;
    assert_eq!(late.err().and_then(|error| error.code()), Some(Code::Lost));
}

#[tokio::test]
async fn a_dropped_tenure_is_released_even_when_the_first_try_fails() {
    let bed = bed();
    let session = bed.client.session("a", Duration::from_secs(10)).await.unwrap();
    let tenure = session.lock("cluster/c1").unwrap().acquire().await.unwrap();
    bed.cut.store(true, Ordering::SeqCst);
    drop(tenure);
    tokio::task::yield_now().await;
    assert_eq!(bed.holders("c1").await, ["a"]);
    bed.cut.store(false, Ordering::SeqCst);
    until(|| async { bed.holders("c1").await.is_empty() }).await;
    assert_eq!(session.standing(), Standing::Safe);
}

#[tokio::test]
async fn dropping_the_session_gives_everything_back_at_once() {
    let bed = bed();
    let session = bed.client.session("a", Duration::from_secs(3_600)).await.unwrap();
    let tenure = session.lock("cluster/c1").unwrap().acquire().await.unwrap();
    drop(tenure);
    drop(session);
    assert!(bed.holders("c1").await.is_empty(), "the goodbye reached the store");
    assert_eq!(bed.store.status().await.unwrap().sessions, 0);
}

#[tokio::test]
async fn an_answer_that_was_lost_does_not_make_a_second_tenure() {
    let bed = bed();
    let session = bed.client.session("a", Duration::from_secs(30)).await.unwrap();
    bed.mute.store(true, Ordering::SeqCst);
    let ask = session.lock("cluster/c1").unwrap().acquire();
    let unmute = async {
        until(|| async { !bed.holders("c1").await.is_empty() }).await;
        bed.mute.store(false, Ordering::SeqCst);
    };
    let (tenure, ()) = tokio::join!(ask, unmute);
    let tenure = tenure.unwrap();
    assert_eq!(tenure.token(), Token(1));
    let query = HistoryQuery::Of { key: key("c1"), before: None, limit: 10 };
    assert_eq!(bed.store.reads().history(query).await.unwrap().len(), 1);
    drop(tenure);
}

#[tokio::test]
async fn a_wait_that_is_cancelled_leaves_the_queue() {
    let bed = bed();
    let holder = bed.client.session("a", Duration::from_secs(30)).await.unwrap();
    let held = holder.lock("cluster/c1").unwrap().acquire().await.unwrap();
    let session = bed.client.session("b", Duration::from_secs(30)).await.unwrap();
    let ask = session.lock("cluster/c1").unwrap().wait(Duration::from_secs(60));
    let waiting = tokio::spawn(ask.acquire());
    until(|| async { bed.waiters("c1").await == 1 }).await;
    waiting.abort();
    until(|| async { bed.waiters("c1").await == 0 }).await;
    drop(held);
    until(|| async { bed.holders("c1").await.is_empty() }).await;
}

#[tokio::test]
async fn a_wait_that_is_cancelled_at_the_moment_of_the_grant_leaks_nothing() {
    let bed = bed();
    let holder = bed.client.session("a", Duration::from_secs(30)).await.unwrap();
    let held = holder.lock("cluster/c1").unwrap().acquire().await.unwrap();
    let session = bed.client.session("b", Duration::from_secs(30)).await.unwrap();
    let ask = session.lock("cluster/c1").unwrap().wait(Duration::from_secs(60));
    let waiting = tokio::spawn(ask.acquire());
    until(|| async { bed.waiters("c1").await == 1 }).await;
    // The grant happens, and its news is lost; then nobody wants it any more.
    bed.mute.store(true, Ordering::SeqCst);
    drop(held);
    until(|| async { bed.holders("c1").await == ["b"] }).await;
    waiting.abort();
    bed.mute.store(false, Ordering::SeqCst);
    until(|| async { bed.holders("c1").await.is_empty() }).await;
    assert_eq!(session.standing(), Standing::Safe);
}

#[tokio::test]
async fn a_holder_learns_that_its_lock_was_broken_and_keeps_the_others() {
    let bed = bed();
    let session = bed.client.session("a", TTL).await.unwrap();
    let broken = session.lock("cluster/c1").unwrap().acquire().await.unwrap();
    let kept = session.lock("cluster/c2").unwrap().acquire().await.unwrap();
    let action = LockAction::Break {
        token: broken.token(),
        locks: None,
        by: "ann".into(),
        reason: "stuck".into(),
    };
    bed.store.apply(vec![Command::Lock { key: key("c1"), action }]).await.unwrap();
    assert_eq!(broken.lost().await, Lost::Broken);
    assert_eq!(kept.check(), Ok(()));
    assert_eq!(broken.release().await.err().and_then(|e| e.code()), Some(Code::Lost));
}

#[tokio::test]
async fn who_does_not_wait_is_told_who_holds_it() {
    let bed = bed();
    let a = bed.client.session("a", TTL).await.unwrap();
    let _held = a.lock("cluster/c1").unwrap().acquire().await.unwrap();
    let b = bed.client.session("b", TTL).await.unwrap();
    match b.lock("cluster/c1").unwrap().acquire().await {
        Err(Error::Refused(refusal)) => assert_eq!(&*refusal.tenure().unwrap().holder, "a"),
        other => panic!("{:?} is not a refusal", other.map(|tenure| tenure.token())),
    }
    let ask = b.lock("cluster/c1").unwrap().wait(Duration::from_millis(300));
    assert_eq!(ask.acquire().await.err().and_then(|e| e.code()), Some(Code::Held));
    assert_eq!(bed.waiters("c1").await, 0);
}

#[tokio::test]
async fn bad_names_and_times_are_refused_before_anything_happens() {
    let bed = bed();
    let session = bed.client.session("a", TTL).await.unwrap();
    assert!(session.lock("no-slash").is_err());
    let short = bed.client.session("a", Duration::from_millis(10)).await;
    assert_eq!(short.err().and_then(|error| error.code()), Some(Code::Invalid));
}

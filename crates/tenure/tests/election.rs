//! Elections of the client library: one leader, terms that rise without a gap, and leaders that
//! learn of their loss before the next term begins.

mod testbed;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tenure::clock::BootInstant;
use tenure::election::{CampaignUpdate, ElectionStatus, Term};
use tenure::lease::LeaseState;
use tenure::transport::Queries;
use tenure::worker::Done;
use tenure::{
    Client, Context, Election, Error, Leadership, Lost, SessionOptions, Token, Transport, Worker,
};
use tenure_core::{Code, Command, Outcome, Refusal};
use tenure_store::Committer;
use testbed::{TestBed, wait_until};
use tokio::task::JoinHandle;

const NAME: &str = "service/billing";
const TTL: Duration = Duration::from_secs(2);

fn election(client: &Client, candidate: &str) -> Election {
    let election = client.election(NAME).expect("a name").candidate(candidate).ttl(TTL);
    election.poll_interval(Duration::from_millis(20))
}

async fn lead(client: &Client, candidate: &str) -> Leadership {
    election(client, candidate).campaign().await.expect("nobody leads")
}

/// Starts a campaign and waits until the candidate is in the queue.
async fn start_campaign(bed: &TestBed, client: &Client, candidate: &str) -> JoinHandle<Leadership> {
    let standing = election(client, candidate);
    let campaign = tokio::spawn(async move { standing.campaign().await.expect("it is elected") });
    wait_for_candidate(bed, candidate, true).await;
    campaign
}

async fn wait_for_candidate(bed: &TestBed, candidate: &str, is_waiting: bool) {
    let what = format!("{candidate} waits: {is_waiting}");
    let waits = || async {
        status(bed).await.candidates.iter().any(|one| one.name == candidate) == is_waiting
    };
    wait_until(&what, waits).await;
}

async fn status(bed: &TestBed) -> ElectionStatus {
    election(&bed.client, "observer").status().await.expect("the store is available")
}

/// Returns name and term of the leader.
async fn leader(bed: &TestBed) -> Option<(String, Token)> {
    status(bed).await.leader.map(|leader| (leader.name, leader.term))
}

/// Returns all terms, oldest first.
async fn terms(bed: &TestBed) -> Vec<Term> {
    let mut stream = election(&bed.client, "observer").terms();
    let mut terms = Vec::new();
    while let Some(term) = stream.next().await {
        terms.push(term.expect("the store is available"));
    }
    terms.reverse();
    terms
}

fn leaders(terms: &[Term]) -> Vec<(u64, &str)> {
    terms.iter().map(|term| (term.term.0, &*term.leader)).collect()
}

#[tokio::test]
async fn five_contenders_have_one_leader_at_a_time_and_terms_without_a_gap() {
    for bed in TestBed::each([]).await {
        let leading = Arc::new(AtomicUsize::new(0));
        let contend = |n: usize| {
            let (election, leading) =
                (election(&bed.client, &format!("c{n}")), Arc::clone(&leading));
            tokio::spawn(async move {
                for _ in 0..4 {
                    let leadership = election.campaign().await.expect("it is elected");
                    assert_eq!(leading.fetch_add(1, Ordering::SeqCst), 0, "another one leads");
                    tokio::task::yield_now().await;
                    leadership.check().expect("it leads");
                    leading.fetch_sub(1, Ordering::SeqCst);
                    leadership.resign().await.expect("it leads");
                }
            })
        };
        for contender in (0..5).map(contend).collect::<Vec<_>>() {
            contender.await.expect("no assertion fails");
        }
        let numbers: Vec<_> = terms(&bed).await.iter().map(|term| term.term.0).collect();
        assert_eq!(numbers, (1..=20).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn a_transfer_begins_the_next_term_in_the_same_step() {
    for bed in TestBed::each([]).await {
        let old = lead(&bed.client, "a").await;
        let other = start_campaign(&bed, &bed.client, "b").await;
        let named = start_campaign(&bed, &bed.client, "c").await;
        old.transfer_to("c").await.expect("c waits");
        assert_eq!((old.check(), old.lost().await), (Err(Lost::Transferred), Lost::Transferred));
        let new = named.await.expect("it is elected");
        assert_eq!((old.term(), new.term()), (Token(1), Token(2)));
        new.check().expect("it leads");
        let repeated = old.transfer_to("b").await.expect_err("it no longer leads");
        assert_eq!(repeated.code(), Some(Code::Lost));
        drop(old);
        assert_eq!(leader(&bed).await, Some(("c".to_owned(), Token(2))));

        let terms = terms(&bed).await;
        assert_eq!(leaders(&terms), [(1, "a"), (2, "c")]);
        assert_eq!(terms[0].until.as_ref(), Some(&terms[1].since), "nobody leads between them");
        assert_eq!((terms[0].ended.as_deref(), &terms[1].ended), (Some("released"), &None));
        new.resign().await.expect("it leads");
        assert_eq!(other.await.expect("b still waited").term(), Token(3));
    }
}

#[tokio::test]
async fn a_transfer_to_one_that_does_not_wait_is_refused_and_the_leader_stays() {
    let bed = TestBed::memory([]).await;
    let leadership = lead(&bed.client, "a").await;
    let waiting = start_campaign(&bed, &bed.client, "b").await;
    let refused = leadership.transfer_to("nobody").await.expect_err("it does not wait");
    assert!(matches!(refused, Error::Refused(Refusal::NotWaiting { .. })), "{refused}");
    leadership.check().expect("it still leads");
    assert_eq!(leader(&bed).await, Some(("a".to_owned(), Token(1))));
    leadership.transfer_to("b").await.expect("b waits");
    assert_eq!(waiting.await.expect("it is elected").term(), Token(2));
}

#[tokio::test]
async fn a_leader_whose_transfer_is_not_answered_does_not_act() {
    let bed = TestBed::memory([]).await;
    let (client, faults) = bed.faulty_client();
    let leadership = Arc::new(lead(&client, "a").await);
    let waiting = start_campaign(&bed, &bed.client, "b").await;
    faults.drop_responses.store(true, Ordering::SeqCst);
    let transferring = Arc::clone(&leadership);
    let transfer = tokio::spawn(async move { transferring.transfer_to("b").await });
    // The new leader leads while the old one does not know it.
    assert_eq!(waiting.await.expect("it is elected").term(), Token(2));
    assert_eq!(leadership.check(), Err(Lost::Transferred));
    faults.drop_responses.store(false, Ordering::SeqCst);
    transfer.await.expect("it ends").expect("the repeated request is answered");
    assert_eq!(leadership.lost().await, Lost::Transferred);
}

#[tokio::test]
async fn a_refusal_after_an_unanswered_transfer_ends_the_leadership_too() {
    let bed = TestBed::memory([]).await;
    let (client, faults) = bed.faulty_client();
    let leadership = Arc::new(lead(&client, "a").await);
    faults.drop_requests.store(true, Ordering::SeqCst);
    let transferring = Arc::clone(&leadership);
    let transfer = tokio::spawn(async move { transferring.transfer_to("nobody").await });
    wait_until("the transfer is undecided", || async { leadership.check().is_err() }).await;
    faults.drop_requests.store(false, Ordering::SeqCst);
    let refused = transfer.await.expect("it ends").expect_err("nobody waits");
    assert_eq!(refused.code(), Some(Code::Conflict), "{refused}");
    // A copy of the request may be on its way.
    assert_eq!(
        (leadership.check(), leadership.lost().await),
        (Err(Lost::Transferred), Lost::Transferred)
    );
    drop(leadership);
    wait_until("the leader has resigned", || async { leader(&bed).await.is_none() }).await;
}

#[tokio::test]
async fn a_dropped_leadership_resigns_and_a_dropped_campaign_leaves_the_queue() {
    let bed = TestBed::memory([]).await;
    let leadership = lead(&bed.client, "a").await;
    let gone = start_campaign(&bed, &bed.client, "b").await;
    let next = start_campaign(&bed, &bed.client, "c").await;
    gone.abort();
    wait_for_candidate(&bed, "b", false).await;
    drop(leadership);
    let leadership = next.await.expect("it is elected");
    assert_eq!(leader(&bed).await, Some(("c".to_owned(), leadership.term())));
    assert_eq!(leaders(&terms(&bed).await), [(1, "a"), (2, "c")]);
}

#[tokio::test]
async fn a_candidate_that_dies_while_it_waits_is_skipped() {
    let bed = TestBed::memory([]).await;
    let (dying, faults) = bed.faulty_client();
    let leadership = lead(&bed.client, "a").await;
    let _dead = start_campaign(&bed, &dying, "b").await;
    let next = start_campaign(&bed, &bed.client, "c").await;
    faults.drop_requests.store(true, Ordering::SeqCst);
    wait_for_candidate(&bed, "b", false).await;
    let refused = leadership.transfer_to("b").await.expect_err("it is dead");
    assert_eq!(refused.code(), Some(Code::Conflict), "{refused}");
    leadership.resign().await.expect("it leads");
    assert_eq!(next.await.expect("it is elected").term(), Token(2));
    assert_eq!(leaders(&terms(&bed).await), [(1, "a"), (2, "c")]);
}

#[tokio::test]
async fn a_leader_without_the_store_knows_it_before_the_next_term_begins() {
    let bed = TestBed::memory([]).await;
    let (client, faults) = bed.faulty_client();
    let isolated = lead(&client, "a").await;
    let next = start_campaign(&bed, &bed.client, "b").await;
    faults.drop_requests.store(true, Ordering::SeqCst);
    assert_eq!(isolated.lost().await, Lost::Session);
    assert_eq!(isolated.check(), Err(Lost::Session));
    assert_eq!(leader(&bed).await, Some(("a".to_owned(), Token(1))), "the store still waits");
    let next = next.await.expect("it is elected");
    assert_eq!(next.term(), Token(2));
    faults.drop_requests.store(false, Ordering::SeqCst);
    let refused = isolated.transfer_to("b").await.expect_err("it no longer leads");
    assert_eq!(refused.code(), Some(Code::Lost), "{refused}");
    assert_eq!(leader(&bed).await, Some(("b".to_owned(), Token(2))));
}

#[tokio::test]
async fn a_campaign_continues_with_a_new_session_after_an_outage() {
    let bed = TestBed::memory([]).await;
    let (client, faults) = bed.faulty_client();
    let leadership = lead(&bed.client, "a").await;
    let standing = election(&client, "b");
    let interruptions = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&interruptions);
    let campaign = tokio::spawn(async move {
        let on_update = |update: CampaignUpdate<'_>| {
            if matches!(update, CampaignUpdate::Interrupted(_)) {
                counter.fetch_add(1, Ordering::SeqCst);
            }
        };
        standing.campaign_with_updates(on_update).await.expect("it is elected")
    });
    wait_for_candidate(&bed, "b", true).await;
    faults.drop_requests.store(true, Ordering::SeqCst);
    wait_until("its session is lost", || async { interruptions.load(Ordering::SeqCst) > 0 }).await;
    wait_for_candidate(&bed, "b", false).await;
    faults.drop_requests.store(false, Ordering::SeqCst);
    wait_for_candidate(&bed, "b", true).await;
    leadership.resign().await.expect("it leads");
    assert_eq!(campaign.await.expect("it is elected").term(), Token(2));
}

#[tokio::test]
async fn a_lost_leader_stands_again_while_the_store_is_away() {
    let bed = TestBed::memory([]).await;
    let (client, faults) = bed.faulty_client();
    let standing = election(&client, "a");
    let leadership = standing.campaign().await.expect("nobody leads");
    faults.drop_requests.store(true, Ordering::SeqCst);
    assert_eq!(leadership.lost().await, Lost::Session);
    drop(leadership);
    let (interrupted, mut first) = tokio::sync::oneshot::channel();
    let mut interrupted = Some(interrupted);
    let campaign = tokio::spawn(async move {
        let on_update = |update: CampaignUpdate<'_>| {
            if matches!(update, CampaignUpdate::Interrupted(_)) {
                interrupted.take().map(|signal| signal.send(()));
            }
        };
        standing.campaign_with_updates(on_update).await.expect("it waits for the store")
    });
    (&mut first).await.expect("it waits");
    faults.drop_requests.store(false, Ordering::SeqCst);
    assert_eq!(campaign.await.expect("it is elected").term(), Token(2));
}

#[tokio::test]
async fn a_limited_wait_ends_and_an_unreachable_store_is_reported_at_the_start() {
    let bed = TestBed::memory([]).await;
    let _leadership = lead(&bed.client, "a").await;
    let limited = election(&bed.client, "b").wait(Duration::from_millis(50));
    let refused = limited.campaign().await.expect_err("another one leads");
    assert_eq!(refused.code(), Some(Code::Held), "{refused}");
    let (client, faults) = bed.faulty_client();
    faults.drop_requests.store(true, Ordering::SeqCst);
    let unavailable = election(&client, "c").campaign().await.expect_err("no store");
    assert!(unavailable.is_unavailable(), "{unavailable}");
}

#[tokio::test]
async fn observers_see_the_leader_the_candidates_and_every_change() {
    let bed = TestBed::memory([]).await;
    let mut changes = election(&bed.client, "observer").observe();
    let mut next = async || changes.next().await.expect("no end").expect("the store is there");
    let first = next().await;
    assert!(first.leader.is_none() && first.candidates.is_empty() && first.term == Token(0));

    let leadership = lead(&bed.client, "a").await;
    let seen = next().await;
    let shown = seen.leader.expect("a leads");
    assert_eq!(
        (&*shown.name, shown.term, shown.session),
        ("a", Token(1), leadership.session().id())
    );
    assert!(shown.expires_in_ms > 0 && shown.heartbeat_age_ms <= 2_000, "{shown:?}");

    let waiting = start_campaign(&bed, &bed.client, "b").await;
    let seen = next().await;
    assert_eq!(seen.candidates.iter().map(|one| &*one.name).collect::<Vec<_>>(), ["b"]);
    leadership.transfer_to("b").await.expect("b waits");
    let seen = next().await;
    assert_eq!(seen.leader.map(|leader| (leader.name, leader.term)), Some(("b".into(), Token(2))));
    drop(waiting.await);
    let seen = next().await;
    assert!(seen.leader.is_none() && seen.term == Token(2), "{seen:?}");
}

/// Transport whose heartbeats are counted, and block their thread on request.
struct Stalling {
    committer: Committer,
    heartbeats: Arc<AtomicUsize>,
    is_stalled: Arc<AtomicBool>,
}

#[async_trait]
impl Transport for Stalling {
    async fn send(&self, command: Command, max_wait: Duration) -> Result<Outcome, Error> {
        if matches!(command, Command::Heartbeat { .. }) {
            self.heartbeats.fetch_add(1, Ordering::SeqCst);
            while self.is_stalled.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        }
        self.committer.send(command, max_wait).await
    }

    fn queries(&self) -> &dyn Queries {
        &self.committer
    }

    fn open_dedicated(&self) -> Result<Box<dyn Transport>, Error> {
        let (heartbeats, is_stalled) = (Arc::clone(&self.heartbeats), Arc::clone(&self.is_stalled));
        Ok(Box::new(Self { committer: self.committer.clone(), heartbeats, is_stalled }))
    }
}

fn stalling_client(bed: &TestBed) -> (Client, Arc<AtomicUsize>, Arc<AtomicBool>) {
    let (heartbeats, is_stalled) = (Arc::default(), Arc::default());
    let transport = Stalling {
        committer: bed.committer.clone(),
        heartbeats: Arc::clone(&heartbeats),
        is_stalled: Arc::clone(&is_stalled),
    };
    (Client::with_transport(Arc::new(transport), "default"), heartbeats, is_stalled)
}

#[tokio::test]
async fn a_stalled_heartbeat_thread_ends_the_leadership_by_its_own_deadline() {
    let bed = TestBed::memory([]).await;
    let (client, heartbeats, is_stalled) = stalling_client(&bed);
    let interval = TTL / 5;
    let leadership = election(&client, "a").heartbeat(interval).campaign().await.expect("no other");
    let next = start_campaign(&bed, &bed.client, "b").await;
    wait_until("it sends heartbeats", || async { heartbeats.load(Ordering::SeqCst) > 2 }).await;
    is_stalled.store(true, Ordering::SeqCst);
    assert_eq!(leadership.lost().await, Lost::Session);
    assert_eq!(leadership.session().state(), LeaseState::Lost);
    assert_eq!(leader(&bed).await, Some(("a".to_owned(), Token(1))), "the store still waits");
    assert_eq!(next.await.expect("it is elected").term(), Token(2));
    is_stalled.store(false, Ordering::SeqCst);
}

#[tokio::test]
async fn heartbeats_are_sent_at_the_interval_of_the_session() {
    let bed = TestBed::memory([]).await;
    let (client, heartbeats, _) = stalling_client(&bed);
    // By default the first heartbeat is sent after 20 minutes.
    let hour = Duration::from_secs(3_600);
    let options = SessionOptions::new("s", hour).heartbeat(Duration::from_millis(100));
    let session = client.open_session(&options).await.expect("the store is there");
    wait_until("there are some", || async { heartbeats.load(Ordering::SeqCst) >= 3 }).await;
    session.close().await;

    heartbeats.store(0, Ordering::SeqCst);
    let worker = Worker::new(&client, "w").ttl(hour).heartbeat(Duration::from_millis(100));
    let run = |_: Context| async { Ok(Done::default()) };
    let worker = tokio::spawn(worker.handle("thing", run).run(std::future::pending()));
    wait_until("there are some", || async { heartbeats.load(Ordering::SeqCst) >= 3 }).await;
    worker.abort();
}

#[tokio::test]
async fn an_interval_that_could_not_survive_a_lost_heartbeat_is_refused() {
    let bed = TestBed::memory([]).await;
    for (interval_ms, is_valid) in [(99, false), (100, true), (1_000, true), (1_001, false)] {
        let interval = Duration::from_millis(interval_ms);
        let options = SessionOptions::new("s", TTL).heartbeat(interval);
        let opened = bed.client.open_session(&options).await;
        assert_eq!(opened.is_ok(), is_valid, "{interval:?}");
        if let Err(error) = opened {
            assert!(error.to_string().contains("between 100ms and 1s"), "{error}");
        }
        let worker = Worker::new(&bed.client, "w").ttl(TTL).heartbeat(interval);
        let run = |_: Context| async { Ok(Done::default()) };
        let ran = worker.handle("thing", run).run(std::future::ready(())).await;
        assert_eq!(ran.is_ok(), is_valid, "{interval:?}: {ran:?}");
    }
}

#[tokio::test]
async fn a_slow_leader_that_sends_heartbeats_is_never_replaced() {
    let bed = TestBed::memory([]).await;
    let ttl = Duration::from_secs(1);
    let slow = election(&bed.client, "a").ttl(ttl).campaign().await.expect("nobody leads");
    let challenger = start_campaign(&bed, &bed.client, "b").await;
    // This is the only thread of the runtime: the leader does nothing else meanwhile.
    let until = BootInstant::now() + ttl * 10;
    while !until.has_passed() {
        std::hint::spin_loop();
    }
    slow.check().expect("it leads");
    let shown = status(&bed).await.leader.expect("it leads");
    assert!(shown.name == "a" && shown.age_ms >= 10_000, "{shown:?}");
    assert!(shown.heartbeat_age_ms < 1_000, "{shown:?}");
    assert!(!challenger.is_finished());
    slow.resign().await.expect("it leads");
    assert_eq!(challenger.await.expect("it is elected").term(), Token(2));
}

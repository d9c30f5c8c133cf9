//! Connections that break at the worst moment: nothing acknowledged is lost, nothing happens twice.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tenure_core::history::Entry;
use tenure_core::{Command, JobAction, JobId, Outcome, SessionId, Token};
use tenure_store::postgres::Postgres;
use tenure_store::store::{HistoryQuery, LogQuery, PAGE_MAX, StoreError};
use tenure_store::{Committer, Store};
use tenure_testbed::{Fault, Proxy};

use crate::bed::*;

/// A store behind a proxy, and the database for us to look at.
struct Cut {
    store: Arc<Postgres>,
    proxy: Proxy,
    user: tokio_postgres::Client,
}

impl Cut {
    async fn new() -> Self {
        let server = tenure_testbed::shared();
        let proxy = Proxy::start(server.port()).expect("a free port");
        let name = server.new_database().expect("a new database");
        let store = open(&format!("postgres://postgres@127.0.0.1:{}/{name}", proxy.port())).await;
        Self { store, proxy, user: raw(&server.url(&name)).await }
    }

    /// Says how many batches were committed.
    async fn batches(&self) -> i64 {
        let sql = "SELECT max(id) FROM tenure.journal";
        self.user.query_one(sql, &[]).await.expect("it is there").get(0)
    }

    /// Applies a command, with a fault that waits for its commit.
    async fn begin(&self, fault: &Fault, command: Command) -> Answer {
        let (cuts, batches) = (self.proxy.triggered(), self.batches().await);
        self.proxy.set_fault(fault.clone());
        let store = Arc::clone(&self.store);
        let answer = tokio::spawn(async move { store.apply(vec![command]).await });
        until("the fault happens", async || self.proxy.triggered() > cuts).await;
        if matches!(fault, Fault::DropResponsesAfter(_)) {
            until("it is committed", async || self.batches().await > batches).await;
        }
        answer
    }

    /// The same; then the connection is cut, and a new one is good.
    async fn apply(&self, fault: &Fault, command: Command) -> Outcome {
        let answer = self.begin(fault, command).await;
        self.proxy.set_fault(Fault::None);
        if matches!(fault, Fault::DropResponsesAfter(_)) {
            self.proxy.disconnect_all();
        }
        answer.await.expect("no panic").expect("the caller sees no error").remove(0)
    }
}

/// What becomes of a batch.
type Answer = tokio::task::JoinHandle<Result<Vec<Outcome>, StoreError>>;

fn log(id: JobId, token: Token, text: &str) -> Command {
    Command::Job { id, action: JobAction::Log { token, text: text.into() } }
}

async fn pieces(store: &Postgres, job: JobId) -> Vec<String> {
    let query = LogQuery { job, after: 0, limit: PAGE_MAX };
    let lines = store.reads().logs(query).await.expect("it reads");
    lines.iter().map(|line| line.text.to_string()).collect()
}

/// A whole story in which every single commit is cut.
async fn everything_happens_once(fault: Fault) {
    let cut = Cut::new().await;
    let opened = cut.apply(&fault, session(1)).await;
    assert!(matches!(opened, Outcome::Alive { .. }), "{opened:?}");
    for round in 1..4 {
        let granted = cut.apply(&fault, acquire("c1", 1, 10 + round)).await;
        assert_eq!(u128::from(token(&granted).0), round);
        let released = cut.apply(&fault, release("c1", token(&granted))).await;
        assert_eq!(released, Outcome::Released { already: false });
    }
    let submitted = cut.apply(&fault, submit("t/task/r", "work", 20)).await;
    let Outcome::Submitted { job: id, .. } = submitted else { panic!("{submitted:?}") };
    let ask = Command::Claim(claim(1, 21, "task", 5));
    let jobs = claimed(cut.apply(&fault, ask).await);
    assert_eq!(jobs.iter().map(|job| job.job.id).collect::<Vec<_>>(), [id]);
    let token = jobs[0].tenure.token;
    for text in ["one\n", "two\n"] {
        let noted = cut.apply(&fault, log(id, token, text)).await;
        assert_eq!(noted, Outcome::Noted { cancelling: false });
    }
    assert_eq!(pieces(&cut.store, id).await, ["one\n", "two\n"]);
    let finished = cut.apply(&fault, finish(id, token)).await;
    assert!(matches!(finished, Outcome::Finished { already: false, .. }), "{finished:?}");
    let closed = cut.apply(&fault, Command::Close { session: SessionId(1) }).await;
    assert_eq!(closed, Outcome::Closed);
    verified(&[&cut.store]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_answer_is_lost_happens_once() {
    everything_happens_once(Fault::DropResponsesAfter(b"COMMIT".to_vec())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_of_a_connection_that_is_cut_happens_once() {
    everything_happens_once(Fault::DisconnectAfter(b"COMMIT".to_vec())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_is_lost_itself_happens_once() {
    everything_happens_once(Fault::DisconnectBefore(b"COMMIT".to_vec())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_nobody_knew_of_is_not_taken_for_the_next_one() {
    let cut = Cut::new().await;
    one(&*cut.store, session(1)).await;
    // It is committed, but the answer is lost, and the database stays away for too long.
    let mute = Fault::DropResponsesAfter(b"COMMIT".to_vec());
    let unknown = cut.begin(&mute, acquire("c1", 1, 10)).await;
    cut.proxy.set_fault(Fault::Down);
    let unknown = unknown.await.expect("no panic");
    assert!(matches!(unknown, Err(StoreError::Unavailable(_))), "{unknown:?}");
    cut.proxy.set_fault(Fault::None);
    // The next one is not committed at first.
    let before = Fault::DisconnectBefore(b"COMMIT".to_vec());
    token(&cut.apply(&before, acquire("c2", 1, 20)).await);
    for name in ["c1", "c2"] {
        let shown = cut.store.reads().show(&key(name)).await.expect("it reads");
        let held = shown.map_or(0, |shown| shown.tenures.len());
        assert_eq!(held, 1, "{name} is held, as was answered");
    }
    verified(&[&cut.store]).await;
}

/// What one task was told.
#[derive(Default)]
struct Told {
    grants: BTreeSet<(String, u64)>,
    pieces: Vec<String>,
    failures: usize,
}

impl Told {
    /// An answer, unless nobody knows; then it must say so.
    fn answer(&mut self, result: Result<Outcome, StoreError>) -> Option<Outcome> {
        match result {
            Ok(outcome) => Some(outcome),
            Err(StoreError::Unavailable(_)) => {
                self.failures += 1;
                None
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// What goes on while connections are ended.
#[derive(Default)]
struct Fire {
    over: AtomicBool,
    granted: AtomicUsize,
}

async fn under_fire(
    committer: Committer,
    task: u128,
    (job, token): (JobId, Token),
    fire: Arc<Fire>,
) -> Told {
    let mut told = Told::default();
    let name = format!("c{task}");
    for round in 0.. {
        if fire.over.load(Ordering::SeqCst) && told.grants.len() > 20 {
            break;
        }
        let ask = acquire(&name, 1, task * 10_000 + round);
        let Some(granted) = told.answer(committer.submit(ask).await) else { continue };
        if let Outcome::Granted(view) = granted {
            told.grants.insert((view.key.to_string(), view.token.0));
            fire.granted.fetch_add(1, Ordering::SeqCst);
            let released = committer.submit(release(&name, view.token)).await;
            match told.answer(released) {
                Some(outcome) => assert_eq!(outcome, Outcome::Released { already: false }),
                // Nobody knows; asking again gets it there.
                None => {
                    while told.answer(committer.submit(release(&name, view.token)).await).is_none()
                    {
                    }
                }
            }
        }
        let text = format!("{task} {round}\n");
        if told.answer(committer.submit(log(job, token, &text)).await).is_some() {
            told.pieces.push(text);
        }
    }
    told
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_the_database_ends_lose_nothing() {
    const TASKS: u128 = 6;
    let url = database();
    let (a, b) = (open(&url).await, open(&url).await);
    one(&*a, session(1)).await;
    one(&*a, submit("t/task/r", "work", 1)).await;
    let job = claimed(one(&*a, Command::Claim(claim(1, 2, "task", 1))).await).remove(0);
    let (id, token) = (job.job.id, job.tenure.token);
    let committers = [&a, &b].map(|store| Committer::start(Arc::clone(store) as Arc<dyn Store>));
    let fire = Arc::new(Fire::default());
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let committer = committers[usize::from(task % 2 == 1)].clone();
            tokio::spawn(under_fire(committer, task, (id, token), Arc::clone(&fire)))
        })
        .collect();
    let user = raw(&url).await;
    let mut ended = 0;
    while ended < 40 {
        let shoot = "SELECT count(pg_terminate_backend(pid)) FROM \
                     (SELECT pid FROM pg_stat_activity \
                      WHERE datname = current_database() AND pid <> pg_backend_pid() \
                      AND backend_type = 'client backend' ORDER BY random() LIMIT 1) AS one";
        ended += user.query_one(shoot, &[]).await.expect("it is there").get::<_, i64>(0);
        let seen = fire.granted.load(Ordering::SeqCst);
        until("they get on", async || fire.granted.load(Ordering::SeqCst) > seen + 3).await;
    }
    fire.over.store(true, Ordering::SeqCst);
    let mut told = Vec::new();
    for task in tasks {
        told.push(task.await.expect("no task panics"));
    }
    verified(&[&a, &b]).await;
    let written = pieces(&a, id).await;
    for told in told {
        assert_eq!(told.failures, 0, "a broken connection is made anew without the caller");
        for (key, token) in &told.grants {
            assert!(granted(&a, key).await.contains(token), "{key} was granted with {token}");
        }
        for piece in &told.pieces {
            let times = written.iter().filter(|text| text.contains(&**piece)).count();
            assert_eq!(times, 1, "{piece:?}");
        }
    }
}

/// The tokens that were granted on a resource, as its history says.
async fn granted(store: &Postgres, key: &str) -> BTreeSet<u64> {
    let mut tokens = BTreeSet::new();
    let mut before = None;
    loop {
        let key = key.parse().expect("a good name");
        let query = HistoryQuery::Of { key, before, limit: PAGE_MAX };
        let lines = store.reads().history(query).await.expect("it reads");
        let Some(last) = lines.last() else { return tokens };
        before = Some(last.position);
        for line in &lines {
            let entry = Entry::parse(&line.text).expect("our line");
            if let tenure_core::history::Event::Granted { token, .. } = entry.event {
                tokens.insert(token.0);
            }
        }
    }
}

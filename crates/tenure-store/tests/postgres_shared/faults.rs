//! Connections that break at commit: acknowledged writes survive, and nothing happens twice.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tenure_core::history::Entry;
use tenure_core::{Command, JobAction, JobId, Outcome, SessionId, Token};
use tenure_store::postgres::Postgres;
use tenure_store::store::{HistoryQuery, LogQuery, PAGE_MAX, StoreError};
use tenure_store::{Committer, Store};
use tenure_testbed::{Fault, PgBouncer, Proxy};

use crate::common::*;

/// A store behind a fault-injecting proxy, and a direct connection to its database.
pub(crate) struct ProxiedStore {
    pub(crate) store: Arc<Postgres>,
    pub(crate) proxy: Proxy,
    user: tokio_postgres::Client,
    /// The pooler between store and proxy, if there is one.
    pub(crate) pooler: Option<PgBouncer>,
}

impl ProxiedStore {
    pub(crate) async fn new() -> Self {
        Self::start(false).await
    }

    /// A store behind PgBouncer, which is behind the proxy.
    pub(crate) async fn pooled() -> Self {
        Self::start(true).await
    }

    async fn start(pooled: bool) -> Self {
        let server = tenure_testbed::shared();
        let proxy = Proxy::start(server.port()).expect("free port");
        let name = server.new_database().expect("new database");
        let pooler = pooled.then(|| PgBouncer::start_on_port(proxy.port()).expect("it starts"));
        let direct = || format!("postgres://postgres@127.0.0.1:{}/{name}", proxy.port());
        let url = |pooler: &PgBouncer| pooler.url_with_listen_port(proxy.port(), &name);
        let store = open(&pooler.as_ref().map_or_else(direct, url)).await;
        let user = user_connection(&server.url(&name)).await;
        Self { store, proxy, user, pooler }
    }

    /// Returns the head of the journal.
    async fn journal_head(&self) -> i64 {
        let sql = "SELECT max(id) FROM tenure.journal";
        self.user.query_one(sql, &[]).await.expect("database is up").get(0)
    }

    /// Starts to apply a command and waits for the fault at its commit.
    async fn begin(&self, fault: &Fault, command: Command) -> PendingBatch {
        let (cuts, head) = (self.proxy.triggered(), self.journal_head().await);
        self.proxy.set_fault(fault.clone());
        let start = || {
            let (store, command) = (Arc::clone(&self.store), command.clone());
            tokio::spawn(async move { store.apply(vec![command]).await })
        };
        let mut pending = start();
        wait_until("the fault occurs", async || {
            // After an outage the breaker stays open until its next probe, and nothing is sent.
            if pending.is_finished() && self.proxy.triggered() == cuts {
                pending = start();
            }
            self.proxy.triggered() > cuts
        })
        .await;
        if matches!(fault, Fault::DropResponsesAfter(_)) {
            wait_until("the batch commits", async || self.journal_head().await > head).await;
        }
        pending
    }

    /// Applies a command with a fault at its commit. The connection is cut; reconnecting works.
    async fn apply(&self, fault: &Fault, command: Command) -> Outcome {
        let pending = self.begin(fault, command).await;
        self.proxy.set_fault(Fault::None);
        if matches!(fault, Fault::DropResponsesAfter(_)) {
            self.proxy.disconnect_all();
        }
        pending.await.expect("task does not panic").expect("retried without an error").remove(0)
    }
}

type PendingBatch = tokio::task::JoinHandle<Result<Vec<Outcome>, StoreError>>;

fn log(id: JobId, token: Token, text: &str) -> Command {
    Command::Job { id, action: JobAction::Log { token, text: text.into() } }
}

async fn log_pieces(store: &Postgres, job: JobId) -> Vec<String> {
    let query = LogQuery { job, after: 0, limit: PAGE_MAX };
    let lines = store.reads().logs(query).await.expect("read succeeds");
    lines.iter().map(|line| line.text.to_string()).collect()
}

/// Runs a session, locks and a job through their lifecycle with a fault at every commit.
async fn assert_every_commit_happens_once(fault: Fault) {
    let proxied = ProxiedStore::new().await;
    let opened = proxied.apply(&fault, open_session(1)).await;
    assert!(matches!(opened, Outcome::Alive { .. }), "{opened:?}");
    for round in 1..4 {
        let granted = proxied.apply(&fault, acquire("c1", 1, 10 + round)).await;
        assert_eq!(u128::from(granted_token(&granted).0), round);
        let released = proxied.apply(&fault, release("c1", granted_token(&granted))).await;
        assert_eq!(released, Outcome::Released { already: false });
    }
    let submitted = proxied.apply(&fault, submit("t/task/r", "work", 20)).await;
    let Outcome::Submitted { job: id, .. } = submitted else { panic!("{submitted:?}") };
    let claim = Command::Claim(claim_request(1, 21, "task", 5));
    let jobs = assignments(proxied.apply(&fault, claim).await);
    assert_eq!(jobs.iter().map(|job| job.job.id).collect::<Vec<_>>(), [id]);
    let token = jobs[0].tenure.token;
    for text in ["one\n", "two\n"] {
        let noted = proxied.apply(&fault, log(id, token, text)).await;
        assert_eq!(noted, Outcome::Noted { cancelling: false });
    }
    assert_eq!(log_pieces(&proxied.store, id).await, ["one\n", "two\n"]);
    let finished = proxied.apply(&fault, finish(id, token)).await;
    assert!(matches!(finished, Outcome::Finished { already: false, .. }), "{finished:?}");
    let closed =
        proxied.apply(&fault, Command::Close { session: SessionId(1), tenant: None }).await;
    assert_eq!(closed, Outcome::Closed);
    assert_valid_history(&[&proxied.store]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commit_with_a_lost_response_happens_once() {
    assert_every_commit_happens_once(Fault::DropResponsesAfter(b"COMMIT".to_vec())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commit_on_a_connection_that_closes_happens_once() {
    assert_every_commit_happens_once(Fault::DisconnectAfter(b"COMMIT".to_vec())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_commit_happens_once() {
    assert_every_commit_happens_once(Fault::DisconnectBefore(b"COMMIT".to_vec())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_doubt_commit_is_not_mistaken_for_the_next_one() {
    let proxied = ProxiedStore::new().await;
    apply_one(&*proxied.store, open_session(1)).await;
    // Committed, but the response is lost, and the database is down for longer than the retries.
    let mute = Fault::DropResponsesAfter(b"COMMIT".to_vec());
    let pending = proxied.begin(&mute, acquire("c1", 1, 10)).await;
    proxied.proxy.set_fault(Fault::Down);
    let result = pending.await.expect("task does not panic");
    assert!(matches!(result, Err(StoreError::Unavailable(_))), "{result:?}");
    proxied.proxy.set_fault(Fault::None);
    // The first attempt of the next batch is not committed.
    let before = Fault::DisconnectBefore(b"COMMIT".to_vec());
    granted_token(&proxied.apply(&before, acquire("c2", 1, 20)).await);
    for name in ["c1", "c2"] {
        let shown = proxied.store.reads().show(&key(name)).await.expect("read succeeds");
        let held = shown.map_or(0, |shown| shown.tenures.len());
        assert_eq!(held, 1, "{name} is held");
    }
    assert_valid_history(&[&proxied.store]).await;
}

/// What one task got acknowledged.
#[derive(Default)]
struct Acknowledged {
    grants: BTreeSet<(String, u64)>,
    log_pieces: Vec<String>,
    failures: usize,
}

impl Acknowledged {
    /// Returns the outcome, or counts a failure. Only `Unavailable` is an acceptable error.
    fn check(&mut self, result: Result<Outcome, StoreError>) -> Option<Outcome> {
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

/// Progress of the tasks while connections are terminated.
#[derive(Default)]
struct Progress {
    stop: AtomicBool,
    granted: AtomicUsize,
}

/// Acquires, releases and logs while connections are terminated.
async fn run_workload(
    committer: Committer,
    task: u128,
    (job, token): (JobId, Token),
    progress: Arc<Progress>,
) -> Acknowledged {
    let mut acknowledged = Acknowledged::default();
    let name = format!("c{task}");
    for round in 0.. {
        if progress.stop.load(Ordering::SeqCst) && acknowledged.grants.len() > 20 {
            break;
        }
        let command = acquire(&name, 1, task * 10_000 + round);
        let result = committer.submit(command).await;
        let Some(granted) = acknowledged.check(result) else { continue };
        if let Outcome::Granted(view) = granted {
            acknowledged.grants.insert((view.key.to_string(), view.token.0));
            progress.granted.fetch_add(1, Ordering::SeqCst);
            let submit_release = async || committer.submit(release(&name, view.token)).await;
            match acknowledged.check(submit_release().await) {
                Some(outcome) => assert_eq!(outcome, Outcome::Released { already: false }),
                // Unknown outcome: repeat the release, which is idempotent.
                None => while acknowledged.check(submit_release().await).is_none() {},
            }
        }
        let text = format!("{task} {round}\n");
        if acknowledged.check(committer.submit(log(job, token, &text)).await).is_some() {
            acknowledged.log_pieces.push(text);
        }
    }
    acknowledged
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_terminated_by_the_database_lose_nothing() {
    const TASKS: u128 = 6;
    let url = new_database();
    let (a, b) = (open(&url).await, open(&url).await);
    apply_one(&*a, open_session(1)).await;
    apply_one(&*a, submit("t/task/r", "work", 1)).await;
    let job =
        assignments(apply_one(&*a, Command::Claim(claim_request(1, 2, "task", 1))).await).remove(0);
    let (id, token) = (job.job.id, job.tenure.token);
    let committers = [&a, &b].map(|store| Committer::start(Arc::clone(store) as Arc<dyn Store>));
    let progress = Arc::new(Progress::default());
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let committer = committers[usize::from(task % 2 == 1)].clone();
            tokio::spawn(run_workload(committer, task, (id, token), Arc::clone(&progress)))
        })
        .collect();
    let user = user_connection(&url).await;
    let mut terminated = 0;
    while terminated < 40 {
        let terminate = "SELECT count(pg_terminate_backend(pid)) FROM \
                     (SELECT pid FROM pg_stat_activity \
                      WHERE datname = current_database() AND pid <> pg_backend_pid() \
                      AND backend_type = 'client backend' ORDER BY random() LIMIT 1) AS one";
        terminated +=
            user.query_one(terminate, &[]).await.expect("database is up").get::<_, i64>(0);
        let granted = || progress.granted.load(Ordering::SeqCst);
        let before = granted();
        wait_until("the tasks make progress", async || granted() > before + 3).await;
    }
    progress.stop.store(true, Ordering::SeqCst);
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.expect("task does not panic"));
    }
    assert_valid_history(&[&a, &b]).await;
    let written = log_pieces(&a, id).await;
    for acknowledged in results {
        assert_eq!(acknowledged.failures, 0, "reconnects are invisible to the caller");
        for (key, token) in &acknowledged.grants {
            let tokens = granted_tokens(&a, key).await;
            assert!(tokens.contains(token), "{key} was granted with {token}");
        }
        for piece in &acknowledged.log_pieces {
            let times = written.iter().filter(|text| text.contains(&**piece)).count();
            assert_eq!(times, 1, "{piece:?}");
        }
    }
}

/// Returns the tokens that were granted on a resource, from its history.
pub(crate) async fn granted_tokens(store: &Postgres, key: &str) -> BTreeSet<u64> {
    let mut tokens = BTreeSet::new();
    let mut before = None;
    loop {
        let key = key.parse().expect("valid key");
        let query = HistoryQuery::Of { key, before, limit: PAGE_MAX };
        let lines = store.reads().history(query).await.expect("read succeeds");
        let Some(last) = lines.last() else { return tokens };
        before = Some(last.position);
        for line in &lines {
            let entry = Entry::parse(&line.text).expect("event parses");
            if let tenure_core::history::Event::Granted { token, .. } = entry.event {
                tokens.insert(token.0);
            }
        }
    }
}

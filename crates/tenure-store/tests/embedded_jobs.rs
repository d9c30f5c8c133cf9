//! Jobs in a file that was damaged, restored, or written by an older version.

#[path = "previous_format/mod.rs"]
mod previous_format;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;
use tenure_core::history::Entry;
use tenure_core::retry::LOCK_STATE_LOST;
use tenure_core::{
    Acquire, Claim, Claimant, Command, Finish, JobAction, JobId, JobState, LockAction, LockName,
    Outcome, RequestId, ResourceAction, ResourceKey, SessionId, Submit, Token,
};
use tenure_store::clock::ManualClock;
use tenure_store::embedded::Options;
use tenure_store::scenario;
use tenure_store::store::{HistoryQuery, JobQuery, PAGE_MAX, TenureQuery};
use tenure_store::verify::verify;
use tenure_store::{Embedded, Store};

fn key() -> ResourceKey {
    "t/cluster/c1".parse().expect("a valid key")
}

async fn open(path: &Path) -> Embedded {
    let store = Embedded::open(path).expect("a valid file");
    store.declare(scenario::kinds()).await.expect("the store is available");
    store
}

async fn apply_one(store: &Embedded, command: Command) -> Outcome {
    store.apply(vec![command]).await.expect("the store is available").remove(0)
}

/// Starts a job with session 1.
async fn start_job(store: &Embedded) -> (JobId, Token) {
    let (session, tenant) = (SessionId(1), "t".into());
    apply_one(store, Command::Open { session, tenant, name: "W".into(), ttl_ms: 3_600_000 }).await;
    let submit = Submit {
        request: RequestId(2),
        operation: "create".into(),
        args: None,
        priority: 0,
        run_at: None,
        by: "A".into(),
        precondition: None,
    };
    apply_one(store, Command::Resource { key: key(), action: ResourceAction::Submit(submit) })
        .await;
    let kinds = vec!["cluster".into()];
    let claim = Claim { session, request: RequestId(3), kinds, max: 1, tenant: None, only: None };
    match apply_one(store, Command::Claim(claim)).await {
        Outcome::Claimed(jobs) => (jobs[0].job.id, jobs[0].tenure.token),
        other => panic!("unexpected reply to a claim: {other:?}"),
    }
}

fn ok(id: JobId, token: Token) -> Command {
    let finish = Finish::Ok { state: None, result: None };
    Command::Job { id, action: JobAction::Finish { token, finish, update: None } }
}

async fn settle(store: &Embedded) {
    apply_one(store, Command::Lock { key: key(), action: LockAction::Settle }).await;
}

/// Asserts that the job failed with `LOCK_STATE_LOST` and its resource is in its failed state.
async fn assert_lost(store: &Embedded, id: JobId) {
    let job = store.reads().job(id).await.expect("the store is available").expect("a row").job;
    assert_eq!(job.state, JobState::Failed);
    assert_eq!(&*job.error.as_ref().expect("it failed").code, LOCK_STATE_LOST);
    let detail = store.reads().show(&key()).await.expect("the store is available").expect("a row");
    assert_eq!(&*detail.record.resource.expect("a state").state, "FAILED");
    assert!(detail.record.tenures.is_empty());
}

async fn event_words(store: &Embedded) -> Vec<&'static str> {
    let query = HistoryQuery::Of { key: key(), before: None, limit: PAGE_MAX };
    let lines = store.reads().history(query).await.expect("the store is available");
    let word = |line: &tenure_store::store::HistoryRow| {
        Entry::parse(&line.text).expect("a valid line").event.as_str()
    };
    lines.iter().rev().map(word).collect()
}

#[tokio::test]
async fn a_running_job_without_its_tenure_is_an_incident() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("tenure.db");
    let store = open(&path).await;
    let (id, token) = start_job(&store).await;
    drop(store);
    let sql = "UPDATE resources SET body = json_remove(body, '$.tenures')";
    rusqlite::Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    let store = open(&path).await;
    settle(&store).await;
    assert_lost(&store, id).await;
    assert!(matches!(apply_one(&store, ok(id, token)).await, Outcome::Refused(_)));
    assert_eq!(
        event_words(&store).await,
        ["created", "submitted", "started", "incident", "fenced"]
    );
    let report = verify(&store).await.unwrap();
    assert_eq!((report.problems, report.incidents), (Vec::new(), 1));
}

#[tokio::test]
async fn a_tenure_without_its_job_is_ended() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("tenure.db");
    let store = open(&path).await;
    start_job(&store).await;
    drop(store);
    let sql = "UPDATE resources SET body = json_remove(body, '$.resource.lane')";
    rusqlite::Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    let store = open(&path).await;
    settle(&store).await;
    let held =
        store.reads().tenures(TenureQuery { limit: 9, ..TenureQuery::default() }).await.unwrap();
    assert!(held.items.is_empty());
    // The job vanished without an end event, which verify reports.
    assert!(!verify(&store).await.unwrap().problems.is_empty());
}

/// Takes a backup while a job runs and restores it after the job has finished.
async fn restore_backup(dir: &TempDir) -> (PathBuf, JobId, Token) {
    let (path, backup) = (dir.path().join("tenure.db"), dir.path().join("backup.db"));
    let store = open(&path).await;
    let (id, token) = start_job(&store).await;
    let sql = format!("VACUUM INTO '{}'", backup.display());
    let connection = rusqlite::Connection::open(&path).expect("an existing file");
    connection.execute_batch(&sql).expect("a backup");
    assert!(matches!(apply_one(&store, ok(id, token)).await, Outcome::Finished { .. }));
    drop(store);
    for extension in ["-wal", "-shm"] {
        fs::remove_file(format!("{}{extension}", path.display())).ok();
    }
    fs::rename(&backup, &path).expect("the same directory");
    (path, id, token)
}

#[tokio::test]
async fn jobs_that_run_in_a_backup_are_lost_when_it_is_restored() {
    let dir = TempDir::new().unwrap();
    let (path, id, token) = restore_backup(&dir).await;
    let store = open(&path).await;
    store.sweep().await.unwrap();
    assert_lost(&store, id).await;
    // The worker is alive and sends heartbeats, but its session was ended by the restore.
    let heartbeat =
        apply_one(&store, Command::Heartbeat { session: SessionId(1), seen: 0, tenant: None })
            .await;
    assert!(matches!(heartbeat, Outcome::Refused(_)), "{heartbeat:?}");
    assert!(matches!(apply_one(&store, ok(id, token)).await, Outcome::Refused(_)));
    assert_eq!(verify(&store).await.unwrap().problems, []);
}

#[tokio::test]
async fn a_file_of_the_first_format_is_migrated() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("tenure.db");
    let schema = include_str!("../src/embedded/schema.sql");
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.execute_batch(schema).unwrap();
    connection
        .execute_batch(&format!(
            "PRAGMA application_id = {}; PRAGMA user_version = 1;
             INSERT INTO resources (id, key, live, last, body) VALUES (1, 't/cluster/old', 0, 0,
             '{{\"token\":7,\"chain\":{{\"n\":0,\"head\":\"{}\"}}}}');",
            0x5445_4e55,
            tenure_core::history::Chain::genesis(&"t/cluster/old".parse().unwrap()).head
        ))
        .unwrap();
    drop(connection);
    let store = open(&path).await;
    let acquire = Acquire {
        locks: LockName::main().into(),
        claimant: Claimant::Solo { name: "A".into(), ttl_ms: 60_000 },
        request: RequestId(1),
        wait_ms: 0,
        purpose: None,
        max_age_ms: None,
        tenant: None,
    };
    let old = "t/cluster/old".parse().unwrap();
    let command = Command::Lock { key: old, action: LockAction::Acquire(acquire) };
    match apply_one(&store, command).await {
        Outcome::Granted(view) => assert!(view.token > Token(7)),
        other => panic!("{other:?} is not a grant"),
    }
    let (id, token) = start_job(&store).await;
    assert!(matches!(apply_one(&store, ok(id, token)).await, Outcome::Finished { .. }));
    let all = store.reads().jobs(JobQuery { limit: 9, ..JobQuery::default() }).await.unwrap();
    assert_eq!(all.items.len(), 1);
}

/// Opens a store on a manual clock.
async fn open_at(path: &Path, clock: &ManualClock) -> Embedded {
    let options = Options { clock: Some(Arc::new(clock.clone())), ..Options::default() };
    let store = Embedded::open_with(path, options).expect("a valid file");
    store.declare(scenario::kinds()).await.expect("the store is available");
    store
}

#[tokio::test]
async fn a_file_of_format_3_is_migrated_and_used() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("tenure.db");
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.execute_batch(include_str!("fixtures/embedded_3.sql")).unwrap();
    let sql = "SELECT count(*) FROM history";
    let entries: i64 = connection.query_row(sql, [], |row| row.get(0)).unwrap();
    // The file next to the database is that of its last start.
    let sql = "SELECT value FROM meta WHERE key = 'life'";
    let life: String = connection.query_row(sql, [], |row| row.get(0)).unwrap();
    fs::write(dir.path().join("tenure.db.life"), life).unwrap();
    drop(connection);
    let clock = ManualClock::default();
    clock.advance(previous_format::STOPPED_MS);
    let store = open_at(&path, &clock).await;
    previous_format::check_and_use(&store, usize::try_from(entries).unwrap()).await;
    drop(store);
    let format: i64 = rusqlite::Connection::open(&path)
        .unwrap()
        .query_row("PRAGMA user_version", [], |row| row.get(0))
        .unwrap();
    assert_eq!(format, 4);
    previous_format::check_reopened(&open_at(&path, &clock).await).await;
}

/// Copies all files of a store as they are on disk, as if its process had crashed at this moment.
fn crash_copy(from: &Path) -> TempDir {
    let copy = TempDir::new().expect("a directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        fs::copy(entry.path(), copy.path().join(entry.file_name())).expect("a copy");
    }
    copy
}

#[tokio::test]
async fn a_crash_around_a_break_that_ends_the_job_never_leaves_a_retry() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir.path().join("tenure.db")).await;
    let (id, token) = start_job(&store).await;
    let before = crash_copy(dir.path());
    let (by, reason) = ("ann".into(), "stuck".into());
    let action = LockAction::Break { token, locks: None, by, reason, end_job: true };
    assert_eq!(apply_one(&store, Command::Lock { key: key(), action }).await, Outcome::Broken);
    let after = crash_copy(dir.path());
    let state = async |dir: &TempDir| {
        let store = open(&dir.path().join("tenure.db")).await;
        let job = store.reads().job(id).await.unwrap().expect("a row").job;
        let tenures = store.reads().show(&key()).await.unwrap().expect("a row").tenures.len();
        (job.state, tenures)
    };
    // Both or neither: a job in backoff without a tenure would be started again.
    assert_eq!(state(&before).await, (JobState::Running, 1));
    assert_eq!(state(&after).await, (JobState::Cancelled, 0));
}

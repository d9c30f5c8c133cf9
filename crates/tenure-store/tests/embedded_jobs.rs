//! Jobs in a file that was damaged, restored, or written by an earlier version.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tenure_core::history::Entry;
use tenure_core::retry::LOCK_STATE_LOST;
use tenure_core::{
    Acquire, Claim, Claimant, Command, Finish, JobAction, JobId, JobState, LockAction, LockName,
    Outcome, RequestId, ResourceAction, ResourceKey, SessionId, Submit, Token,
};
use tenure_store::scenario;
use tenure_store::store::{HistoryQuery, JobQuery, ListQuery, PAGE_MAX};
use tenure_store::verify::verify;
use tenure_store::{Embedded, Store};

fn key() -> ResourceKey {
    "t/cluster/c1".parse().expect("a good name")
}

async fn open(path: &Path) -> Embedded {
    let store = Embedded::open(path).expect("the file is good");
    store.declare(scenario::kinds()).await.expect("the store is there");
    store
}

async fn one(store: &Embedded, command: Command) -> Outcome {
    store.apply(vec![command]).await.expect("the store is there").remove(0)
}

/// A job that runs in the hands of session 1.
async fn running(store: &Embedded) -> (JobId, Token) {
    let (session, tenant) = (SessionId(1), "t".into());
    one(store, Command::Open { session, tenant, name: "W".into(), ttl_ms: 3_600_000 }).await;
    let submit = Submit {
        request: RequestId(2),
        operation: "create".into(),
        args: None,
        priority: 0,
        run_at: None,
        by: "A".into(),
    };
    one(store, Command::Resource { key: key(), action: ResourceAction::Submit(submit) }).await;
    let kinds = vec!["cluster".into()];
    let claim = Claim { session, request: RequestId(3), kinds, max: 1 };
    match one(store, Command::Claim(claim)).await {
        Outcome::Claimed(jobs) => (jobs[0].job.id, jobs[0].tenure.token),
        other => panic!("{other:?} answers no claim"),
    }
}

fn ok(id: JobId, token: Token) -> Command {
    let finish = Finish::Ok { state: None, result: None };
    Command::Job { id, action: JobAction::Finish { token, finish } }
}

async fn settle(store: &Embedded) {
    one(store, Command::Lock { key: key(), action: LockAction::Settle }).await;
}

/// The job is over with `LOCK_STATE_LOST`, its resource is in its failed state.
async fn assert_lost(store: &Embedded, id: JobId) {
    let job = store.reads().job(id).await.expect("the store is there").expect("it is kept").job;
    assert_eq!(job.state, JobState::Failed);
    assert_eq!(&*job.error.as_ref().expect("it failed").code, LOCK_STATE_LOST);
    let shown = store.reads().show(&key()).await.expect("the store is there").expect("it is kept");
    assert_eq!(&*shown.record.resource.expect("it was worked").state, "FAILED");
    assert!(shown.record.tenures.is_empty());
}

async fn words(store: &Embedded) -> Vec<&'static str> {
    let query = HistoryQuery::Of { key: key(), before: None, limit: PAGE_MAX };
    let lines = store.reads().history(query).await.expect("the store is there");
    let word = |line: &tenure_store::store::Line| {
        Entry::parse(&line.text).expect("our own line").event.as_str()
    };
    lines.iter().rev().map(word).collect()
}

#[tokio::test]
async fn a_running_job_without_its_tenure_is_an_incident() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("tenure.db");
    let store = open(&path).await;
    let (id, token) = running(&store).await;
    drop(store);
    let sql = "UPDATE resources SET body = json_remove(body, '$.tenures')";
    rusqlite::Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    let store = open(&path).await;
    settle(&store).await;
    assert_lost(&store, id).await;
    assert!(matches!(one(&store, ok(id, token)).await, Outcome::Refused(_)));
    assert_eq!(words(&store).await, ["created", "submitted", "started", "incident", "fenced"]);
    let report = verify(&store).await.unwrap();
    assert_eq!((report.problems, report.incidents), (Vec::new(), 1));
}

#[tokio::test]
async fn a_tenure_without_its_job_is_ended() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("tenure.db");
    let store = open(&path).await;
    running(&store).await;
    drop(store);
    let sql = "UPDATE resources SET body = json_remove(body, '$.resource.lane')";
    rusqlite::Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    let store = open(&path).await;
    settle(&store).await;
    let held = store.reads().list(ListQuery { limit: 9, ..ListQuery::default() }).await.unwrap();
    assert!(held.items.is_empty());
    // The job is gone without an end: that is for verify to say.
    assert!(!verify(&store).await.unwrap().problems.is_empty());
}

/// A backup that was made while the job ran, restored after it was over.
async fn restored(dir: &TempDir) -> (PathBuf, JobId, Token) {
    let (path, backup) = (dir.path().join("tenure.db"), dir.path().join("backup.db"));
    let store = open(&path).await;
    let (id, token) = running(&store).await;
    let sql = format!("VACUUM INTO '{}'", backup.display());
    let connection = rusqlite::Connection::open(&path).expect("the file is there");
    connection.execute_batch(&sql).expect("a copy can be made");
    assert!(matches!(one(&store, ok(id, token)).await, Outcome::Finished { .. }));
    drop(store);
    for extension in ["-wal", "-shm"] {
        fs::remove_file(format!("{}{extension}", path.display())).ok();
    }
    fs::rename(&backup, &path).expect("both are in one directory");
    (path, id, token)
}

#[tokio::test]
async fn what_ran_when_a_backup_was_made_is_lost_when_it_is_restored() {
    let dir = TempDir::new().unwrap();
    let (path, id, token) = restored(&dir).await;
    let store = open(&path).await;
    store.sweep().await.unwrap();
    assert_lost(&store, id).await;
    // The worker still lives and still beats; here it is over.
    let beat = one(&store, Command::Heartbeat { session: SessionId(1), seen: 0 }).await;
    assert!(matches!(beat, Outcome::Refused(_)), "{beat:?}");
    assert!(matches!(one(&store, ok(id, token)).await, Outcome::Refused(_)));
    assert_eq!(verify(&store).await.unwrap().problems, []);
}

#[tokio::test]
async fn a_file_of_the_first_format_is_brought_up_to_date() {
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
    };
    let old = "t/cluster/old".parse().unwrap();
    let command = Command::Lock { key: old, action: LockAction::Acquire(acquire) };
    match one(&store, command).await {
        Outcome::Granted(view) => assert!(view.token > Token(7)),
        other => panic!("{other:?} is not a grant"),
    }
    let (id, token) = running(&store).await;
    assert!(matches!(one(&store, ok(id, token)).await, Outcome::Finished { .. }));
    let all = store.reads().jobs(JobQuery { limit: 9, ..JobQuery::default() }).await.unwrap();
    assert_eq!(all.items.len(), 1);
}

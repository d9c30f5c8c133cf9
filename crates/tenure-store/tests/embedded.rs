//! The file of the embedded store: errors when opening it, and recovery.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;
use tenure_core::{
    Acquire, Claimant, Command, LockAction, LockName, Outcome, RequestId, ResourceKey, Token,
};
use tenure_store::embedded::{Error, FreeBytes, Options};
use tenure_store::store::TenureQuery;
use tenure_store::verify::verify;
use tenure_store::{Embedded, Store, StoreError};

fn acquire(name: &str, request: u128) -> Command {
    let acquire = Acquire {
        locks: LockName::main().into(),
        claimant: Claimant::Solo { name: "A".into(), ttl_ms: 60_000 },
        request: RequestId(request),
        wait_ms: 0,
        purpose: None,
        max_age_ms: None,
        tenant: None,
    };
    let key = ResourceKey::new("t", "cluster", name).expect("a valid name");
    Command::Lock { key, action: LockAction::Acquire(acquire) }
}

fn release(name: &str, token: Token) -> Command {
    let key = ResourceKey::new("t", "cluster", name).expect("a valid name");
    Command::Lock { key, action: LockAction::Release { token, locks: None, to: None } }
}

async fn grant(store: &Embedded, name: &str, request: u128) -> Result<Token, StoreError> {
    match store.apply(vec![acquire(name, request)]).await?.remove(0) {
        Outcome::Granted(view) => Ok(view.token),
        other => panic!("{other:?} is not a grant"),
    }
}

#[test]
fn a_second_server_on_one_file_gets_a_clear_error() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("tenure.db");
    let first = Embedded::open(&path).unwrap();
    let error = Embedded::open(&path).err().expect("it is in use");
    assert!(matches!(error, Error::InUse(_)));
    assert!(error.to_string().contains("in use by another server; stop that one"));
    let link = dir.path().join("link.db");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(matches!(Embedded::open(&link).err(), Some(Error::InUse(_))), "through a link");
    drop(first);
    Embedded::open(&path).unwrap();
}

#[test]
fn a_file_of_another_program_is_rejected_and_not_modified() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("notes.txt");
    let text =
        "these are my notes, longer than the header of a database file would be. ".repeat(20);
    fs::write(&path, &text).unwrap();
    assert!(matches!(Embedded::open(&path).err(), Some(Error::Foreign(_))));
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
    let other = dir.path().join("other.db");
    let connection = rusqlite::Connection::open(&other).unwrap();
    connection.execute_batch("CREATE TABLE people (name TEXT)").unwrap();
    drop(connection);
    assert!(matches!(Embedded::open(&other).err(), Some(Error::Foreign(_))));
}

#[test]
fn a_file_of_a_newer_version_is_rejected() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("tenure.db");
    drop(Embedded::open(&path).unwrap());
    rusqlite::Connection::open(&path).unwrap().execute_batch("PRAGMA user_version = 99").unwrap();
    let error = Embedded::open(&path).err().unwrap().to_string();
    assert!(error.contains("use a newer tenure"), "{error}");
}

/// Returns the files of a directory with their modes.
fn modes(dir: &Path) -> Vec<(u32, PathBuf)> {
    let files = fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("readable"));
    let mode = |path: &Path| fs::metadata(path).expect("a file").permissions().mode() & 0o777;
    files.map(|entry| (mode(&entry.path()), entry.path())).collect()
}

#[tokio::test]
async fn other_users_cannot_access_the_files() {
    let dir = TempDir::new().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = dir.path().join("tenure.db");
    let store = Embedded::open(&path).unwrap();
    grant(&store, "c1", 1).await.unwrap();
    let new = modes(dir.path());
    assert!(new.len() >= 5, "{new:?}");
    assert!(new.iter().all(|(mode, _)| *mode == 0o600), "{new:?}");

    // The files that a crash leaves, of a version that left the mode to the umask.
    let copy = TempDir::new().unwrap();
    for (_, path) in &new {
        let to = copy.path().join(path.file_name().unwrap());
        fs::copy(path, &to).unwrap();
        fs::set_permissions(&to, fs::Permissions::from_mode(0o666)).unwrap();
    }
    let existing = Embedded::open(&copy.path().join("tenure.db")).unwrap();
    grant(&existing, "c2", 2).await.unwrap();
    let old = modes(copy.path());
    assert!(old.iter().all(|(mode, _)| *mode == 0o600), "{old:?}");
}

#[test]
fn a_file_of_another_program_keeps_its_mode() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("other.db");
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.execute_batch("CREATE TABLE people (name TEXT)").unwrap();
    drop(connection);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(matches!(Embedded::open(&path).err(), Some(Error::Foreign(_))));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
}

#[tokio::test]
async fn a_damaged_file_is_rejected() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("tenure.db");
    let store = Embedded::open(&path).unwrap();
    grant(&store, "c1", 1).await.unwrap();
    drop(store);
    let sql = "UPDATE resources SET body = 'garbage'";
    rusqlite::Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    let error = Embedded::open(&path).err().unwrap();
    assert!(matches!(error, Error::Damaged { .. }), "{error}");
    assert!(error.to_string().contains("restore it from a backup"));
}

#[tokio::test]
async fn an_edited_history_is_found_by_verify() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("tenure.db");
    let store = Embedded::open(&path).unwrap();
    for n in 1..=3 {
        let token = grant(&store, "c1", n).await.unwrap();
        store.apply(vec![release("c1", token)]).await.unwrap();
    }
    assert_eq!(verify(&store).await.unwrap().problems, []);
    drop(store);
    let sql = "UPDATE history SET line = replace(line, '\"token\":2', '\"token\":9') WHERE id = 3";
    rusqlite::Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    let store = Embedded::open(&path).unwrap();
    let problems = verify(&store).await.unwrap().problems;
    assert!(problems.iter().any(|p| p.what.contains("edited")), "{problems:?}");
}

#[tokio::test]
async fn a_removed_history_is_found_by_verify() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("tenure.db");
    let store = Embedded::open(&path).unwrap();
    grant(&store, "c1", 1).await.unwrap();
    drop(store);
    rusqlite::Connection::open(&path).unwrap().execute_batch("DELETE FROM history").unwrap();
    let store = Embedded::open(&path).unwrap();
    let problems = verify(&store).await.unwrap().problems;
    assert!(problems.iter().any(|p| p.what.contains("missing")), "{problems:?}");
}

#[test]
fn an_unusable_path_gets_a_clear_error() {
    let missing = Path::new("/nonexistent-tenure-dir/tenure.db");
    let error = Embedded::open(missing).err().unwrap().to_string();
    assert!(error.contains("check that the directory exists and is writable"), "{error}");
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("tenure.db");
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    assert!(Embedded::open(&path).is_err());
}

#[tokio::test]
async fn a_full_disk_refuses_and_loses_nothing() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("tenure.db");
    let options = Options { pages_max: Some(40), ..Options::default() };
    let store = Embedded::open_with(&path, options).unwrap();
    let mut granted = Vec::new();
    let error = loop {
        let n = granted.len() as u128 + 1;
        match grant(&store, &format!("c{n}"), n).await {
            Ok(token) => granted.push((n, token)),
            Err(error) => break error,
        }
    };
    assert!(granted.len() > 20, "only {} locks fit", granted.len());
    assert!(error.to_string().contains("make room on the disk"), "{error}");
    // The failed command had no effect; the acknowledged ones are stored.
    let refused = granted.len() as u128 + 1;
    let key = ResourceKey::new("t", "cluster", &format!("c{refused}")).unwrap();
    assert!(store.reads().show(&key).await.unwrap().is_none());
    let held = store
        .reads()
        .tenures(TenureQuery { limit: 1_000, ..TenureQuery::default() })
        .await
        .unwrap();
    assert_eq!(held.items.len(), granted.len());
    // It is not ready while it cannot write.
    assert!(store.status().await.is_err());
    drop(store);
    // Without the limit, writes succeed again.
    let store = Embedded::open(&path).unwrap();
    for (n, token) in granted {
        assert_eq!(grant(&store, &format!("c{n}"), n).await.unwrap(), token);
    }
    assert_eq!(grant(&store, &format!("c{refused}"), refused).await.unwrap(), Token(1));
    assert_eq!(verify(&store).await.unwrap().problems, []);
}

/// Opens a store with this number of free bytes on its disk.
fn open_with_room(path: &Path, free: u64) -> Result<Embedded, Error> {
    let free_bytes: FreeBytes = Arc::new(move || free);
    let (preallocate_wal, free_bytes) = (true, Some(free_bytes));
    Embedded::open_with(path, Options { preallocate_wal, free_bytes, ..Options::default() })
}

/// Returns the files of a directory with their contents.
fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = fs::read_dir(dir).expect("the directory is readable");
    let paths = entries.map(|entry| entry.expect("the directory is readable").path());
    paths.map(|path| (path.clone(), fs::read(&path).expect("the file is readable"))).collect()
}

fn bytes(dir: &Path) -> u64 {
    contents(dir).values().map(|content| content.len() as u64).sum()
}

/// Applies batches of grants until the files have grown by `growth` bytes. Returns the number of
/// locks.
async fn fill(store: &Embedded, dir: &Path, growth: u64) -> u128 {
    let (before, mut locks) = (bytes(dir), 0);
    while bytes(dir) < before + growth {
        for _ in 0..8 {
            let batch = (locks + 1..=locks + 64).map(|n| acquire(&format!("c{n}"), n));
            store.apply(batch.collect()).await.expect("there is room");
            locks += 64;
        }
    }
    locks
}

#[tokio::test]
async fn a_store_opens_on_a_disk_that_is_full_but_for_a_megabyte() {
    const FREE: u64 = 1024 * 1024;
    let dir = TempDir::new().unwrap();
    let (full, crashed) = (dir.path().join("full"), dir.path().join("crashed"));
    fs::create_dir(&full).unwrap();
    fs::create_dir(&crashed).unwrap();
    // Without room for checkpoints, all pages stay in the log.
    let store = open_with_room(&full.join("tenure.db"), FREE).unwrap();
    assert!(bytes(&full) < FREE, "the log was preallocated: {} bytes", bytes(&full));
    let locks = fill(&store, &full, 4 * FREE).await;
    for (path, content) in contents(&full) {
        if path.extension().is_none_or(|extension| extension != "lock") {
            fs::write(crashed.join(path.file_name().unwrap()), content).unwrap();
        }
    }
    drop(store);
    let path = crashed.join("tenure.db");

    let before = contents(&crashed);
    let error = open_with_room(&path, 100_000).err().expect("there is no room").to_string();
    assert!(error.contains("100000 bytes left and 524288 are needed; make room"), "{error}");
    assert_eq!(contents(&crashed), before, "something was written");

    let before = bytes(&crashed);
    let store = open_with_room(&path, FREE).unwrap();
    assert_eq!(grant(&store, "c1", 1).await.unwrap(), Token(1));
    assert_eq!(grant(&store, &format!("c{locks}"), locks).await.unwrap(), Token(1));
    grant(&store, "another", locks + 1).await.unwrap();
    let after = bytes(&crashed);
    assert!(after < before + FREE / 2, "grew from {before} to {after} bytes");
    drop(store);

    // With room, the pages move to the file and the log is used again from its start.
    let store = open_with_room(&path, u64::MAX).unwrap();
    let log = path.with_file_name("tenure.db-wal").metadata().unwrap().len();
    grant(&store, "last", locks + 2).await.unwrap();
    assert_eq!(path.with_file_name("tenure.db-wal").metadata().unwrap().len(), log);
    assert_eq!(verify(&store).await.unwrap().problems, []);
}

#[tokio::test]
async fn a_restored_backup_never_gives_an_old_token_again() {
    let dir = TempDir::new().unwrap();
    let (path, backup) = (dir.path().join("tenure.db"), dir.path().join("backup.db"));
    let store = Embedded::open(&path).unwrap();
    let first = grant(&store, "c1", 1).await.unwrap();
    store.apply(vec![release("c1", first)]).await.unwrap();
    drop(store);
    fs::copy(&path, &backup).unwrap();
    let store = Embedded::open(&path).unwrap();
    let forgotten = grant(&store, "c1", 2).await.unwrap();
    assert_eq!((first, forgotten), (Token(1), Token(2)));
    drop(store);
    fs::copy(&backup, &path).unwrap();
    let store = Embedded::open(&path).unwrap();
    assert_eq!(store.incarnation().0, 1);
    let token = grant(&store, "c1", 3).await.unwrap();
    assert!(token > forgotten, "{token} was issued twice");
    assert_eq!(verify(&store).await.unwrap().problems, []);
}

#[tokio::test]
async fn a_backup_of_the_running_store_never_gives_an_old_token_again() {
    let dir = TempDir::new().unwrap();
    let (path, backup) = (dir.path().join("tenure.db"), dir.path().join("backup.db"));
    let store = Embedded::open(&path).unwrap();
    let first = grant(&store, "c1", 1).await.unwrap();
    store.apply(vec![release("c1", first)]).await.unwrap();
    let live = rusqlite::Connection::open(&path).unwrap();
    live.execute("VACUUM INTO ?1", [backup.to_str().unwrap()]).unwrap();
    drop(live);
    let forgotten = grant(&store, "c1", 2).await.unwrap();
    drop(store);
    fs::copy(&backup, &path).unwrap();
    let store = Embedded::open(&path).unwrap();
    let token = grant(&store, "c1", 3).await.unwrap();
    assert!(token > forgotten, "{token} was issued twice");
}

#[tokio::test]
async fn records_that_were_not_written_back_are_rebuilt_from_history() {
    let dir = TempDir::new().unwrap();
    let (path, copy) = (dir.path().join("tenure.db"), dir.path().join("copy"));
    let store = Embedded::open(&path).unwrap();
    let first = grant(&store, "c1", 1).await.unwrap();
    store.apply(vec![release("c1", first)]).await.unwrap();
    let second = grant(&store, "c1", 2).await.unwrap();
    let held = store
        .reads()
        .show(&ResourceKey::new("t", "cluster", "c1").unwrap())
        .await
        .unwrap()
        .unwrap();
    // The state that a crash would leave now.
    fs::create_dir(&copy).unwrap();
    for extension in ["", "-wal", ".life"] {
        let name = format!("tenure.db{extension}");
        fs::copy(dir.path().join(&name), copy.join(&name)).unwrap();
    }
    let stale: String = rusqlite::Connection::open(copy.join("tenure.db"))
        .unwrap()
        .query_row("SELECT body FROM resources", [], |row| row.get(0))
        .unwrap();
    assert!(!stale.contains("\"token\":2"), "the row is up to date: {stale}");
    let crashed = Embedded::open(&copy.join("tenure.db")).unwrap();
    let key = ResourceKey::new("t", "cluster", "c1").unwrap();
    assert_eq!(crashed.reads().show(&key).await.unwrap().unwrap().record, held.record);
    assert_eq!(grant(&crashed, "c1", 2).await.unwrap(), second);
    assert_eq!(verify(&crashed).await.unwrap().problems, []);
}

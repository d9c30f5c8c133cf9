//! Verification of a growing history: what it reads, what it finds, and what it survives.

#[path = "incremental/switched.rs"]
mod switched;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use switched::{Interference, SwitchedStore};
use tempfile::TempDir;
use tenure_core::limits::RECENT_TTL_MS;
use tenure_core::verify::Problem;
use tenure_core::{
    Acquire, Claimant, Command, Incarnation, LockAction, LockName, Outcome, RequestId, ResourceKey,
    Token,
};
use tenure_store::clock::ManualClock;
use tenure_store::store::{PAGE_MAX, Result, Retention};
use tenure_store::verify::incremental::{IncrementalVerifier, REPORTED_MAX};
use tenure_store::verify::verify;
use tenure_store::{Embedded, Memory, Store};

fn key(name: &str) -> ResourceKey {
    ResourceKey::new("t", "cluster", name).expect("a valid name")
}

fn acquire(name: &str, request: u128) -> Command {
    let acquire = Acquire {
        locks: LockName::main().into(),
        claimant: Claimant::Solo { name: "A".into(), ttl_ms: 86_400_000 },
        request: RequestId(request),
        wait_ms: 0,
        purpose: None,
        max_age_ms: None,
        tenant: None,
    };
    Command::Lock { key: key(name), action: LockAction::Acquire(acquire) }
}

fn release(name: &str, token: Token) -> Command {
    Command::Lock { key: key(name), action: LockAction::Release { token, locks: None, to: None } }
}

/// Acquires and releases each lock once: two entries each.
async fn cycle(store: &dyn Store, names: &[String], request: u128) {
    let acquires = (request..).zip(names).map(|(request, name)| acquire(name, request));
    let outcomes = store.apply(acquires.collect()).await.expect("the store is available");
    let token = |outcome: &Outcome| match outcome {
        Outcome::Granted(view) => view.token,
        other => panic!("{other:?} is not a grant"),
    };
    let releases = outcomes.iter().zip(names).map(|(outcome, name)| release(name, token(outcome)));
    store.apply(releases.collect()).await.expect("the store is available");
}

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{prefix}{n}")).collect()
}

/// Verifies all that is new, and compares all records. Returns the number of entries.
async fn try_catch_up(verifier: &mut IncrementalVerifier, store: &dyn Store) -> Result<usize> {
    verifier.check_incarnation(store).await?;
    let mut entries = 0;
    loop {
        let step = verifier.check_page(store).await?;
        entries += step.entries;
        if !step.has_more {
            break;
        }
    }
    while verifier.compare_records(store, PAGE_MAX).await?.has_more {}
    Ok(entries)
}

async fn catch_up(verifier: &mut IncrementalVerifier, store: &dyn Store) -> usize {
    try_catch_up(verifier, store).await.expect("the store is available")
}

/// Returns entry numbers and texts.
fn texts(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}

// ----- what is read -----

#[tokio::test]
async fn growth_is_verified_without_reading_old_entries_again() {
    let store = SwitchedStore::new(Arc::new(Memory::new()));
    let mut verifier = IncrementalVerifier::default();
    let all = names("c", 600);
    cycle(&store, &all, 1_000).await;
    assert_eq!(catch_up(&mut verifier, &store).await, 1_200);
    assert_eq!((store.take_rows_read(), store.take_chains_read()), (1_200, 0));
    // The records are compared again, but no history is read.
    assert_eq!(catch_up(&mut verifier, &store).await, 0);
    assert_eq!((store.take_rows_read(), store.take_chains_read()), (0, 0));
    for round in 0..5 {
        cycle(&store, &all[..10], 10_000 + 100 * round).await;
        assert_eq!(catch_up(&mut verifier, &store).await, 20);
        assert_eq!((store.take_rows_read(), store.take_chains_read()), (20, 0));
    }
    assert_eq!(verifier.take_problems(), []);
}

#[tokio::test]
async fn a_chain_that_is_no_longer_remembered_is_read_again_and_only_that() {
    let store = SwitchedStore::new(Arc::new(Memory::new()));
    let mut verifier = IncrementalVerifier::with_chains_max(10);
    let all = names("c", 11);
    for n in 0..all.len() {
        cycle(&store, &all[n..=n], 1_000 + n as u128).await;
    }
    while verifier.check_page(&store).await.expect("the store is available").has_more {}
    store.take_rows_read();
    assert_eq!(store.take_chains_read(), 0);
    // The chain of c0 was dropped for that of c10.
    cycle(&store, &all[10..], 2_000).await;
    verifier.check_page(&store).await.expect("the store is available");
    assert_eq!(store.take_chains_read(), 0);
    cycle(&store, &all[..1], 3_000).await;
    let step = verifier.check_page(&store).await.expect("the store is available");
    assert_eq!((step.entries, store.take_chains_read()), (2, 1));
    assert_eq!(verifier.take_problems(), []);
}

#[tokio::test]
async fn a_chain_of_several_pages_is_read_again_in_order() {
    let store = Memory::new();
    let long = names("long", 1);
    let cycles = PAGE_MAX + PAGE_MAX / 2;
    for n in 0..cycles {
        cycle(&store, &long, 1_000 + n as u128).await;
    }
    let mut verifier = IncrementalVerifier::with_chains_max(1);
    assert_eq!(catch_up(&mut verifier, &store).await, 2 * cycles);
    cycle(&store, &names("other", 1), 1).await;
    cycle(&store, &long, 2).await;
    assert_eq!(catch_up(&mut verifier, &store).await, 4);
    assert_eq!(verifier.take_problems(), []);
}

// ----- what is found -----

fn new_file() -> (TempDir, PathBuf) {
    let dir = TempDir::new().expect("a temporary directory");
    let path = dir.path().join("tenure.db");
    (dir, path)
}

/// Changes the file while the store uses it.
fn tamper(path: &Path, sql: &str) -> usize {
    let file = rusqlite::Connection::open(path).expect("it is a database");
    file.busy_timeout(std::time::Duration::from_secs(10)).expect("it is open");
    file.execute(sql, []).expect("the statement succeeds")
}

#[tokio::test]
async fn an_edited_entry_is_reported_once() {
    let (_dir, path) = new_file();
    let store = Embedded::open(&path).expect("it opens");
    let mut verifier = IncrementalVerifier::default();
    cycle(&store, &names("c", 2), 10).await;
    catch_up(&mut verifier, &store).await;
    assert_eq!(verifier.take_problems(), []);
    cycle(&store, &names("c", 2), 20).await;
    let sql = "UPDATE history SET line = replace(line, '\"A\"', '\"B\"') WHERE id = 5";
    assert_eq!(tamper(&path, sql), 1);
    catch_up(&mut verifier, &store).await;
    assert_eq!(
        texts(&verifier.take_problems()),
        ["t/cluster/c0 entry 3: its hash does not follow from the entry before: it was edited"]
    );
    for round in 3..6 {
        cycle(&store, &names("c", 2), 10 * round).await;
        assert_eq!(catch_up(&mut verifier, &store).await, 4);
        assert_eq!(verifier.take_problems(), []);
    }
    // The full verification finds the same.
    assert_eq!(verify(&store).await.expect("the store is available").problems.len(), 1);
}

#[tokio::test]
async fn two_holders_at_once_and_a_token_that_does_not_rise_are_reported() {
    let (_dir, path) = new_file();
    let store = Embedded::open(&path).expect("it opens");
    let mut verifier = IncrementalVerifier::default();
    cycle(&store, &names("c", 1), 10).await;
    catch_up(&mut verifier, &store).await;
    // A second grant in place of the release, of the same token, with hashes that fit.
    let file = rusqlite::Connection::open(&path).expect("it is a database");
    cycle(&store, &names("c", 1), 20).await;
    let (before, line): (Vec<u8>, String) = file
        .query_row(
            "SELECT a.hash, replace(b.line, '\"n\":3', '\"n\":4') FROM history a, history b \
             WHERE a.id = 3 AND b.id = 3",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .expect("they exist");
    let before = tenure_core::history::Hash(before.try_into().expect("32 bytes"));
    let hash = tenure_core::history::chain_hash(before, &line);
    let sql = "UPDATE history SET line = ?1, hash = ?2 WHERE id = 4";
    file.execute(sql, rusqlite::params![line, hash.0]).expect("the statement succeeds");
    catch_up(&mut verifier, &store).await;
    let found = texts(&verifier.take_problems()).join("\n");
    for what in ["two tenures at once", "does not exceed the earlier token", "no entry ends it"] {
        assert!(found.contains(what), "{found}");
    }
}

#[tokio::test]
async fn a_second_continuation_of_a_chain_is_reported() {
    let (_dir, path) = new_file();
    let store = Embedded::open(&path).expect("it opens");
    let mut verifier = IncrementalVerifier::default();
    for round in 1..3 {
        cycle(&store, &names("c", 1), 10 * round).await;
    }
    catch_up(&mut verifier, &store).await;
    // Another entry 3, which follows entry 2 as the one before it does.
    let file = rusqlite::Connection::open(&path).expect("it is a database");
    let sql = "SELECT a.hash, replace(b.line, '\"A\"', '\"B\"') FROM history a, history b \
               WHERE a.id = 2 AND b.id = 3";
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let (before, line): (Vec<u8>, String) = file.query_row(sql, [], read).expect("they exist");
    let before = tenure_core::history::Hash(before.try_into().expect("32 bytes"));
    let hash = tenure_core::history::chain_hash(before, &line);
    let sql = "INSERT INTO history SELECT 100, resource, 2, ?1, ?2 FROM history WHERE id = 3";
    file.execute(sql, rusqlite::params![line, hash.0]).expect("the statement succeeds");
    catch_up(&mut verifier, &store).await;
    let found = texts(&verifier.take_problems()).join("\n");
    assert!(found.contains("c0 entry 3: follows entry 4"), "{found}");
}

#[tokio::test]
async fn removed_and_inserted_entries_are_reported() {
    let (_dir, path) = new_file();
    let store = Embedded::open(&path).expect("it opens");
    let mut verifier = IncrementalVerifier::default();
    cycle(&store, &names("c", 4), 10).await;
    catch_up(&mut verifier, &store).await;
    cycle(&store, &names("c", 4), 20).await;
    // Entry 3 of c0, the last entry of c1, and a copy of the first entry of c2.
    assert_eq!(tamper(&path, "DELETE FROM history WHERE id IN (9, 14)"), 2);
    let copy = "INSERT INTO history SELECT 100, resource, prev, line, hash FROM history \
                WHERE id = 3";
    assert_eq!(tamper(&path, copy), 1);
    catch_up(&mut verifier, &store).await;
    let found = texts(&verifier.take_problems());
    let has = |of: &str, what: &str| found.iter().any(|it| it.contains(of) && it.contains(what));
    assert!(has("c0 entry 4", "entries are missing"), "{found:?}");
    assert!(has("c1 entry 3", "the record says its history ends with entry 4"), "{found:?}");
    assert!(has("c2 entry 1", "out of order"), "{found:?}");
    assert!(!found.iter().any(|it| it.contains("c3")), "{found:?}");
    catch_up(&mut verifier, &store).await;
    assert_eq!(verifier.take_problems(), []);
}

#[tokio::test]
async fn the_tokens_of_a_forgotten_resource_have_to_rise_when_it_is_used_again() {
    let lock = names("c", 1);
    for (earlier_cycles, found) in [(0, 0), (1, 1)] {
        let before: Arc<dyn Store> = Arc::new(Memory::new());
        cycle(&*before, &names("other", 1), 1).await;
        for n in 0..earlier_cycles {
            cycle(&*before, &lock, 10 + n).await;
        }
        // A store that has forgotten both, and the floor of their tokens.
        let after: Arc<dyn Store> = Arc::new(Memory::new());
        cycle(&*after, &names("x", 2), 1).await;
        cycle(&*after, &lock, 10).await;
        let store = SwitchedStore::new(before);
        let mut verifier = IncrementalVerifier::default();
        catch_up(&mut verifier, &store).await;
        store.restore(after, Incarnation(0));
        catch_up(&mut verifier, &store).await;
        let problems = texts(&verifier.take_problems());
        assert_eq!(problems.len(), found, "{problems:?}");
        for problem in problems {
            assert!(problem.contains("does not exceed the earlier token 1"), "{problem}");
        }
    }
}

#[tokio::test]
async fn problems_are_found_up_to_a_maximum() {
    let (_dir, path) = new_file();
    let store = Embedded::open(&path).expect("it opens");
    let mut verifier = IncrementalVerifier::default();
    cycle(&store, &names("c", REPORTED_MAX + 1), 10).await;
    let sql = "UPDATE history SET line = replace(line, '\"A\"', '\"B\"')";
    assert_eq!(tamper(&path, sql), 2 * (REPORTED_MAX + 1));
    catch_up(&mut verifier, &store).await;
    assert_eq!(verifier.take_problems().len(), REPORTED_MAX);
    assert!(verifier.is_full());
}

// ----- what is survived -----

#[tokio::test]
async fn verification_continues_after_errors_of_the_store() {
    let (_dir, path) = new_file();
    let store = SwitchedStore::new(Arc::new(Embedded::open(&path).expect("it opens")));
    // Chains are read again, so that each kind of read can fail.
    let mut verifier = IncrementalVerifier::with_chains_max(2);
    let (mut entries, mut errors, mut found) = (0, 0, Vec::new());
    for round in 1..=10_u64 {
        cycle(&store, &names("c", 5), 100 * u128::from(round)).await;
        if round == 5 {
            let sql = "UPDATE history SET line = replace(line, '\"A\"', '\"B\"') WHERE id = 43";
            assert_eq!(tamper(&path, sql), 1);
        }
        store.fail_read(round);
        let mut verified = false;
        while !verified {
            verifier.check_incarnation(&store).await.expect("the store is available");
            match verifier.check_page(&store).await {
                Ok(step) => {
                    entries += step.entries;
                    verified = verifier.unverified(&store).await.is_ok_and(|count| count == 0);
                }
                Err(_) => errors += 1,
            }
        }
        found.extend(texts(&verifier.take_problems()));
    }
    assert!(errors >= 5, "{errors} errors");
    assert!(entries <= 100, "{entries} entries: some were counted twice");
    assert_eq!(
        found,
        ["t/cluster/c2 entry 9: its hash does not follow from the entry before: it was edited"]
    );
}

#[tokio::test]
async fn a_restored_store_is_verified_from_the_beginning() {
    let backup: Arc<dyn Store> = Arc::new(Memory::new());
    cycle(&*backup, &names("c", 3), 10).await;
    let original: Arc<dyn Store> = Arc::new(Memory::new());
    cycle(&*original, &names("c", 20), 10).await;
    let store = SwitchedStore::new(original);
    let mut verifier = IncrementalVerifier::default();
    assert_eq!(catch_up(&mut verifier, &store).await, 40);
    store.restore(Arc::clone(&backup), Incarnation(1));
    cycle(&*backup, &names("c", 30), 100).await;
    // 6 entries of the backup, and those since.
    assert_eq!(catch_up(&mut verifier, &store).await, 66);
    assert_eq!(verifier.take_problems(), []);
}

#[tokio::test]
async fn a_store_that_is_restored_during_a_step_gives_no_false_alarm() {
    let backup: Arc<dyn Store> = Arc::new(Memory::new());
    cycle(&*backup, &names("c", 3), 10).await;
    let original: Arc<dyn Store> = Arc::new(Memory::new());
    cycle(&*original, &names("c", 3), 10).await;
    let store = SwitchedStore::new(original);
    let mut verifier = IncrementalVerifier::default();
    assert_eq!(catch_up(&mut verifier, &store).await, 6);
    for round in 1..5 {
        cycle(&*backup, &names("c", 3), 100 * round).await;
    }
    // After the incarnation was checked.
    store.restore(Arc::clone(&backup), Incarnation(1));
    verifier.check_page(&store).await.expect("the store is available");
    verifier.compare_records(&store, PAGE_MAX).await.expect("the store is available");
    assert_eq!(verifier.take_problems(), []);
    assert_eq!(catch_up(&mut verifier, &store).await, 30);
    assert_eq!(verifier.take_problems(), []);
}

/// Runs a verification of `all` whose read number `read` is preceded by an interference. Returns
/// `false` if there are fewer reads.
async fn is_valid_despite(
    interference: Interference,
    read: u64,
    inner: Arc<dyn Store>,
    clock: &ManualClock,
) -> bool {
    let all = names("c", 3);
    let store = SwitchedStore::new(inner);
    // Most chains are read again.
    let mut verifier = IncrementalVerifier::with_chains_max(1);
    for round in 1..3 {
        cycle(&store, &all, 100 * round).await;
    }
    catch_up(&mut verifier, &store).await;
    cycle(&store, &all, 300).await;
    clock.advance(RECENT_TTL_MS + 2_000);
    store.interfere_before_read(read, interference);
    catch_up(&mut verifier, &store).await;
    let has_interfered = store.has_interfered();
    cycle(&store, &all, 400).await;
    catch_up(&mut verifier, &store).await;
    let found = texts(&verifier.take_problems());
    assert!(found.is_empty(), "interference before read {read}: {found:?}");
    has_interfered
}

#[tokio::test]
async fn pruning_and_forgetting_before_any_read_give_no_false_alarm() {
    // One entry, some entries, or all of them with their resources.
    for rows_max in [1, 4, 7, 13, 1_000] {
        let mut read = 1;
        loop {
            let clock = ManualClock::default();
            let retention =
                Retention { jobs_ms: 1_000, dead_ms: 1_000, history_ms: 1_000, rows_max };
            let store = Arc::new(Memory::with_clock(clock.clone()));
            if !is_valid_despite(Interference::Prune(retention), read, store, &clock).await {
                break;
            }
            read += 1;
        }
        assert!(read > 10, "only {read} reads");
    }
}

#[tokio::test]
async fn a_restore_before_any_read_gives_no_false_alarm() {
    let mut read = 1;
    loop {
        let clock = ManualClock::default();
        let backup: Arc<dyn Store> = Arc::new(Memory::with_clock(clock.clone()));
        for round in 1..8 {
            cycle(&*backup, &names("c", 2), 1_000 * round).await;
        }
        let restore = Interference::Restore(backup, Incarnation(1));
        let store = Arc::new(Memory::with_clock(clock.clone()));
        if !is_valid_despite(restore, read, store, &clock).await {
            break;
        }
        read += 1;
    }
    assert!(read > 10, "only {read} reads");
}

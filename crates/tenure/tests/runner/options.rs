//! The working directory, the line observer and the output file of a command.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use tenure::worker::{Command, Stream};
use tenure_core::job::AttemptOutcome;
use tenure_core::{Job, JobState, Operation, RunOptions, limits};

use crate::testbed::RunningWorker;
use crate::testbed::processes::PRELUDE;
use crate::{CommandTest, ENDLESS, error, ms, script, stubborn};

/// Runs the command of an operation with these options to its end.
async fn run_with(operation: Operation, adapt: impl Fn(Command) -> Command) -> (Job, String) {
    let test = CommandTest::with(operation, adapt).await;
    let id = test.submit("work").await;
    let worker = RunningWorker::start(test.worker);
    let job = test.bed.wait_finished(id).await;
    let log = test.bed.log(id).await;
    worker.stop().await;
    (job, log)
}

#[tokio::test]
async fn declared_options_apply() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let mut operation =
        script("work", &format!("{PRELUDE} pwd; trap '' TERM; id command; exec sleep 60"));
    operation.run_options = RunOptions {
        dir: Some(text(&dir)),
        cancel_grace_ms: Some(1),
        output_file: Some(text(&dir.join("{job}.log"))),
        output_bytes_max: Some(1),
    };
    let test = CommandTest::with(operation, |command| command.grace(ENDLESS)).await;
    let id = test.submit("work").await;
    let worker = RunningWorker::start(test.worker);
    test.markers.wait_for("command").await;
    test.bed.client.job(id).by("ann").cancel("enough").await.unwrap();
    assert_eq!(test.bed.wait_finished(id).await.state, JobState::Cancelled);
    assert_eq!(test.bed.log(id).await, format!("{}\n", dir.display()));
    let written = fs::read_to_string(dir.join(format!("{id}.log"))).unwrap();
    assert_eq!(written, "[the file is full: what follows is dropped]\n");
    worker.stop().await;
}

// ---- Working directory ----

#[tokio::test]
async fn a_command_runs_in_its_directory_and_so_does_what_it_starts() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    fs::write(dir.join("tool"), "#!/bin/sh\npwd; sh -c pwd\n").unwrap();
    fs::set_permissions(dir.join("tool"), fs::Permissions::from_mode(0o755)).unwrap();
    let mut operation = Operation::new("work");
    operation.run = vec!["./tool".to_owned()];
    let (job, log) = run_with(operation, |command| command.dir(&dir)).await;
    assert_eq!(job.state, JobState::Succeeded, "{log}");
    let dir = dir.display();
    assert_eq!(log, format!("{dir}\n{dir}\n"));
}

#[tokio::test]
async fn a_helper_with_a_relative_path_is_not_looked_up_in_the_directory_of_the_command() {
    let up = "../".repeat(std::env::current_dir().unwrap().components().count());
    let helper = Path::new(&up).join(crate::HELPER.trim_start_matches('/'));
    let dir = tempfile::tempdir().unwrap();
    let adapt = |command: Command| command.dir(dir.path()).helper(&helper);
    let (job, log) = run_with(script("work", "echo ran"), adapt).await;
    assert_eq!((job.state, log.as_str()), (JobState::Succeeded, "ran\n"), "{:?}", job.error);
}

#[tokio::test]
async fn a_directory_that_cannot_be_used_is_named_and_nothing_runs() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    for bad in [dir.path().join("missing"), file] {
        let (job, log) = run_with(script("work", "echo ran"), |command| command.dir(&bad)).await;
        let (code, message) = error(&job);
        assert_eq!((code.as_str(), log.as_str()), ("CANNOT_START", ""));
        let expected = format!("cannot run in the directory {}; create it", bad.display());
        assert!(message.starts_with(&expected), "{message}");
    }
}

// ---- Line observer ----

#[tokio::test]
async fn an_observer_gets_every_line_of_both_streams_before_it_is_redacted() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let observed = Arc::clone(&seen);
    let adapt = move |command: Command| {
        let observed = Arc::clone(&observed);
        command.on_line(move |line| observed.lock().unwrap().push(line.clone()))
    };
    let text = "echo ::progress 40 copying; echo password=qwertyuiop; printf open >&2";
    let (job, log) = run_with(script("work", text), adapt).await;
    assert!(log.contains("password=[redacted]\n"), "{log}");
    let seen = seen.lock().unwrap();
    let of = |stream| {
        let lines = seen.iter().filter(move |line| line.stream == stream);
        lines.map(|line| line.text.as_str()).collect::<Vec<_>>()
    };
    assert_eq!(of(Stream::Stdout), ["::progress 40 copying", "password=qwertyuiop"]);
    assert_eq!(of(Stream::Stderr), ["open"]);
    assert!(seen.iter().all(|line| line.job == job.id && line.missed == 0 && !line.truncated));
}

#[tokio::test]
async fn a_blocked_observer_delays_neither_command_nor_log_nor_cancel() {
    let (release, released) = mpsc::channel::<()>();
    let released = Arc::new(Mutex::new(released));
    let adapt = |command: Command| {
        let released = Arc::clone(&released);
        command.cancel_grace(ms(100)).on_line(move |_| {
            // Until the test ends.
            released.lock().unwrap().recv().ok();
        })
    };
    let text = format!("{PRELUDE} echo one; echo two; trap '' TERM; id command; sleep 60");
    let test = CommandTest::with(script("work", &text), adapt).await;
    let id = test.submit("work").await;
    let command = test.markers.process("command");
    let bed = &test.bed;
    let worker = RunningWorker::start(test.worker);
    let command = command.await;
    crate::wait_until("the log is there", || async { bed.log(id).await == "one\ntwo\n" }).await;
    bed.client.job(id).by("ann").cancel("enough").await.unwrap();
    assert_eq!(bed.wait_finished(id).await.state, JobState::Cancelled);
    assert!(command.is_dead());
    assert_eq!(worker.stop().await.abandoned, 0);
    drop(release);
}

#[tokio::test]
async fn an_observer_that_is_too_slow_learns_how_many_lines_it_missed() {
    let (release, released) = mpsc::channel::<()>();
    let released = Arc::new(Mutex::new(released));
    let (seen, missed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let adapt = |command: Command| {
        let (released, seen, missed) =
            (Arc::clone(&released), Arc::clone(&seen), Arc::clone(&missed));
        command.on_line(move |line| {
            if seen.fetch_add(1, Ordering::SeqCst) == 0 {
                released.lock().unwrap().recv().ok();
            }
            missed.fetch_add(line.missed, Ordering::SeqCst);
        })
    };
    // The last line is printed when the observer has seen what was queued.
    let text = format!(
        "{PRELUDE} head -c 6000000 /dev/zero | tr '\\0' x | fold -w 60000; echo; id command
        while [ ! -e $D/go ]; do sleep 0.05; done; echo last"
    );
    let test = CommandTest::with(script("work", &text), adapt).await;
    let id = test.submit("work").await;
    let worker = RunningWorker::start(test.worker);
    test.markers.wait_for("command").await;
    let is_read = || async { test.bed.log(id).await.lines().count() == 100 };
    crate::wait_until("all lines are read", is_read).await;
    drop(release);
    let has_caught_up = || async { seen.load(Ordering::SeqCst) > 1 };
    crate::wait_until("the observer sees lines", has_caught_up).await;
    fs::write(test.markers.path("go"), "").unwrap();
    assert_eq!(test.bed.wait_finished(id).await.state, JobState::Succeeded);
    worker.stop().await;
    let (seen, missed) = (seen.load(Ordering::SeqCst), missed.load(Ordering::SeqCst));
    assert_eq!(seen + missed, 101, "100 long lines and the last");
    assert!(missed > 0 && seen > 50, "{seen} seen, {missed} missed");
}

#[tokio::test]
async fn a_panicking_observer_gets_no_more_lines_and_the_command_succeeds() {
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let adapt = move |command: Command| {
        let calls = Arc::clone(&counted);
        command.on_line(move |line| {
            calls.fetch_add(1, Ordering::SeqCst);
            panic!("cannot observe {:?}", line.text);
        })
    };
    let (job, log) = run_with(script("work", "echo one; echo two; echo three"), adapt).await;
    assert_eq!((job.state, log.as_str()), (JobState::Succeeded, "one\ntwo\nthree\n"));
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

// ---- Output file ----

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it exists").permissions().mode() & 0o777
}

#[tokio::test]
async fn the_output_file_has_what_exceeds_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("{job}-{attempt}.log");
    let text = "head -c 3000000 /dev/zero | tr '\\0' x | fold -w 100; echo
        echo ::progress 50; echo password=qwertyuiop; echo the end";
    let adapt = |command: Command| command.output_file(&path, None);
    let (job, log) = run_with(script("work", text), adapt).await;
    assert_eq!(job.state, JobState::Succeeded, "{:?}", job.error);
    assert!(log.len() < usize::try_from(limits::LOG_BYTES_MAX).unwrap() + 200);
    let path = dir.path().join(format!("{}-1.log", job.id));
    let written = fs::read_to_string(&path).unwrap();
    let lines = format!("{}\n", "x".repeat(100)).repeat(30_000);
    let end = "::progress 50\npassword=[redacted]\nthe end\n";
    assert_eq!(written.len(), lines.len() + end.len());
    assert!(written.starts_with(&lines) && written.ends_with(end));
    assert_eq!(mode(&path), 0o600);
}

#[tokio::test]
async fn each_attempt_empties_the_output_file_and_takes_it_from_others() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("output");
    fs::write(&path, "x".repeat(1000)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    let operation = script("work", "echo attempt $TENURE_ATTEMPT; echo failed >&2; exit 1");
    let operation = operation.retry(crate::retries(2));
    let (job, _) = run_with(operation, |command| command.output_file(&path, None)).await;
    assert_eq!(job.attempt, 2);
    let written = fs::read_to_string(&path).unwrap();
    let mut lines: Vec<&str> = written.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["attempt 2", "failed"]);
    assert_eq!(mode(&path), 0o600);
}

#[tokio::test]
async fn an_output_file_at_its_limit_ends_with_a_notice_and_the_command_succeeds() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("output");
    let text = "for n in 1 2 3 4 5; do echo line $n; done";
    let adapt = |command: Command| command.output_file(&path, Some(15));
    let (job, log) = run_with(script("work", text), adapt).await;
    assert_eq!(job.state, JobState::Succeeded);
    assert!(log.ends_with("line 5\n"), "{log}");
    let notice = "[the file is full: what follows is dropped]\n";
    assert_eq!(fs::read_to_string(&path).unwrap(), format!("line 1\nline 2\n{notice}"));
}

#[tokio::test]
async fn an_output_file_that_cannot_be_created_is_named_and_nothing_runs() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("missing/output");
    let adapt = |command: Command| command.output_file(&path, None);
    let (job, log) = run_with(stubborn(), adapt).await;
    let (code, message) = error(&job);
    assert_eq!((code.as_str(), log.as_str()), ("CANNOT_START", ""));
    assert!(message.contains(&path.display().to_string()), "{message}");
    assert!(message.contains("create its directory"), "{message}");
}

// ---- Status ----

#[tokio::test]
async fn a_command_writes_status_and_timers_and_defers() {
    let text = "\
        if [ $TENURE_TOKEN = 1 ]; then \
            echo '::status {\"infra\": \"i-1\", \"draft\": 1}'; \
            echo '::status {\"draft\": null}'; \
            echo '::timers {\"work\": {\"after_ms\": 3600000}}'; \
            echo '::defer 0 QUOTA not yet'; exit 1; \
        fi";
    let test = CommandTest::with(script("work", text), |command| command).await;
    let id = test.submit("work").await;
    let worker = RunningWorker::start(test.worker);
    let job = test.bed.wait_finished(id).await;
    assert_eq!((job.state, job.attempt), (JobState::Succeeded, 1), "{job:?}");
    let first = &job.attempts[0];
    assert_eq!(first.outcome, Some(AttemptOutcome::Deferred));
    assert_eq!(&*first.error.as_ref().unwrap().code, "QUOTA");
    let key = "default/thing/t".parse().unwrap();
    let shown = test.bed.store.reads().show(&key).await.unwrap().unwrap();
    let resource = shown.record.resource.unwrap();
    assert_eq!(&*resource.status.unwrap().document, r#"{"infra":"i-1"}"#);
    assert_eq!(resource.timers.len(), 1);
    worker.stop().await;
}

//! Commands as jobs with real processes: input, output, and that none outlives its tenure.

mod cancel_grace;
mod exit;
mod options;
#[path = "../testbed/mod.rs"]
mod testbed;

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure::clock::BootInstant;
use tenure::worker::Command;
use tenure::{Context, Done, Worker};
use tenure_core::job::AttemptOutcome;
use tenure_core::retry::{TIME_LIMIT, WORKER_TIMEOUT};
use tenure_core::{Job, JobId, JobState, Kind, Kinds, Operation, limits};
use testbed::processes::{MarkerDir, PRELUDE, Process};
use testbed::{Faults, RunningWorker, TTL, TestBed, retries, wait_until};

/// Hosts the watchdog and the launcher.
const HELPER: &str = env!("CARGO_BIN_EXE_tenure-helper");
/// Time from TERM to KILL.
const GRACE: Duration = ms(300);
/// Longer than any test waits.
const ENDLESS: Duration = Duration::from_secs(600);

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// An operation that runs a shell script.
fn script(name: &str, script: &str) -> Operation {
    let mut operation = Operation::new(name);
    operation.run = ["sh", "-c", script].map(str::to_owned).to_vec();
    operation
}

/// Worker that runs the commands of a kind, with its test bed.
struct CommandTest {
    bed: TestBed,
    worker: Worker,
    markers: MarkerDir,
}

impl CommandTest {
    async fn new(operation: Operation) -> Self {
        Self::with(operation, |command| command).await
    }

    /// Passes the command through `adapt`.
    async fn with(operation: Operation, adapt: impl Fn(Command) -> Command) -> Self {
        Self::start(operation, adapt).await.0
    }

    /// Also returns the faults of the worker's connection.
    async fn start(operation: Operation, adapt: impl Fn(Command) -> Command) -> (Self, Faults) {
        let kind = Kind::new("thing").operation(operation);
        let bed = TestBed::memory([kind.clone()]).await;
        let kinds = Kinds::new([kind]).expect("a valid kind");
        let (client, faults) = bed.faulty_client();
        let worker = Worker::new(&client, "w").ttl(TTL).drain(ms(50));
        let adapt =
            |command: Command| adapt(command.helper(HELPER).grace(GRACE).pass_env(["PASSED_*"]));
        let worker = worker.commands_with(&kinds, adapt);
        (Self { bed, worker, markers: MarkerDir::new() }, faults)
    }

    /// Starts the worker of a stubborn command. Returns its job and its two processes.
    async fn start_stubborn(&mut self) -> (RunningWorker, JobId, [Process; 2]) {
        let idle = Worker::new(&self.bed.client, "idle");
        let worker = std::mem::replace(&mut self.worker, idle);
        let id = self.submit("work").await;
        let worker = RunningWorker::start(worker);
        let processes = [self.markers.process("command").await, self.markers.process("far").await];
        (worker, id, processes)
    }

    async fn cancel(&self, id: JobId) {
        self.bed.client.job(id).by("ann").cancel("enough").await.expect("it is running");
    }

    async fn submit(&self, operation: &str) -> JobId {
        let dir: &Path = self.markers.dir();
        let submitted = self.bed.client.submit("thing/t", operation).args(&dir).send().await;
        submitted.expect("the job is accepted").job.id()
    }
}

/// Runs a script with these arguments to its end.
async fn run_with(operation: Operation, args: &serde_json::Value) -> (Job, String) {
    let CommandTest { bed, worker, .. } = CommandTest::new(operation).await;
    let worker = RunningWorker::start(worker);
    let submitted =
        bed.client.submit("thing/t", "work").args(args).send().await.expect("the job is accepted");
    let job = bed.wait_finished(submitted.job.id()).await;
    let log = bed.log(submitted.job.id()).await;
    worker.stop().await;
    (job, log)
}

async fn run(operation: Operation) -> (Job, String) {
    run_with(operation, &serde_json::Value::Null).await
}

fn error(job: &Job) -> (String, String) {
    let error = job.error.clone().expect("it failed");
    (error.code.to_string(), error.message.to_string())
}

// ---- Input and output ----

#[tokio::test]
async fn a_command_gets_its_job_in_the_environment_and_its_arguments_on_stdin() {
    let text = r#"
        [ "$(cat)" = "$TENURE_ARGS" ] && echo same args
        echo "$TENURE_JOB $TENURE_RESOURCE $TENURE_ATTEMPT $TENURE_TENANT $TENURE_LOCK"
        echo "$TENURE_SESSION"; echo "fence $TENURE_TOKEN"; echo "$TENURE_DEADLINE"
        [ -n "$PATH" ] && echo inherited"#;
    let (job, log) = run_with(script("work", text).limit_ms(60_000), &"some text".into()).await;
    assert_eq!(job.state, JobState::Succeeded, "{log}");
    let lines: Vec<_> = log.lines().collect();
    assert_eq!(lines[0], "same args");
    assert_eq!(lines[1], format!("{} thing/t 1 default thing/t", job.id));
    assert_eq!(lines[2], job.attempts[0].session.to_string());
    assert_eq!(lines[3], format!("fence {}", job.attempts[0].token));
    assert!(lines[4].parse::<jiff::Timestamp>().is_ok(), "{}", lines[4]);
    assert_eq!(lines[5], "inherited");
}

#[tokio::test]
async fn directives_set_progress_state_and_result() {
    let mut operation = script(
        "work",
        r#"echo ::progress 40 copying rows; echo plain; echo oops >&2
           D=$(printf %s "$TENURE_ARGS" | tr -d '"')
           while [ ! -e $D/go ]; do sleep 0.01; done
           echo '::result {"rows": 3}'; echo ::state SMALL; echo last"#,
    );
    operation = operation.path(&["NEW"], "DOING", "READY", "BROKEN");
    operation.ends = vec!["SMALL".into()];
    let states = ["NEW", "DOING", "READY", "BROKEN", "SMALL"];
    let kind = Kind::new("thing").states(&states).operation(operation);
    let kinds = Kinds::new([kind.clone()]).unwrap();
    for bed in TestBed::each([kind]).await {
        let markers = MarkerDir::new();
        let worker = Worker::new(&bed.client, "w").ttl(TTL);
        let worker = worker.commands_with(&kinds, |command| command.helper(HELPER));
        let worker = RunningWorker::start(worker);
        let submitted = bed.client.submit("thing/t", "work").args(&markers.dir()).send().await;
        let id = submitted.unwrap().job.id();
        wait_until("the progress and log arrive", || async {
            let progress = bed.job(id).await.progress;
            let log = bed.log(id).await;
            progress.is_some_and(|p| (p.percent, &*p.message) == (40, "copying rows"))
                && log.contains("plain\n")
                && log.contains("oops\n")
        })
        .await;
        fs::write(markers.path("go"), "").unwrap();
        let job = bed.wait_finished(id).await;
        assert_eq!(
            (job.state, job.result.as_deref()),
            (JobState::Succeeded, Some("{\"rows\": 3}"))
        );
        let key = "default/thing/t".parse().unwrap();
        let view = bed.store.reads().show(&key).await.unwrap().unwrap();
        assert_eq!(&*view.record.resource.unwrap().state, "SMALL");
        let log = bed.log(id).await;
        assert!(log.ends_with("::state SMALL\nlast\n"), "{log}");
        assert!(!log.contains("progress") && !log.contains("result"), "{log}");
        worker.stop().await;
    }
}

#[tokio::test]
async fn exit_codes_and_error_directives_determine_the_failure() {
    let (job, _) = run(script("work", "echo broken pipes >&2; exit 3").retry(retries(2))).await;
    assert_eq!(error(&job), ("EXIT_3".into(), "exited with code 3: broken pipes".into()));
    assert_eq!((job.state, job.attempt), (JobState::Dead, 2), "the retry rule applies");
    let (job, _) = run(script("work", "echo ::error QUOTA too many rows; exit 1")).await;
    assert_eq!(error(&job), ("QUOTA".into(), "too many rows".into()));
    assert_eq!((job.state, job.attempt), (JobState::Failed, 1), "there is no retry rule");
    let (job, _) = run(script("work", "exit 75")).await;
    assert_eq!((job.state, error(&job).0), (JobState::Dead, "EXIT_75".into()), "transient");
    let (job, _) = run(script("work", "kill -KILL $$")).await;
    assert_eq!(error(&job).0, "SIGNAL_9");
}

#[tokio::test]
async fn a_command_that_cannot_be_executed_fails_with_a_message() {
    let mut operation = Operation::new("work");
    operation.run = vec!["./no-such-program".to_owned()];
    let (job, log) = run(operation).await;
    let (code, message) = error(&job);
    assert_eq!(code, "EXIT_127");
    assert!(message.contains("cannot run ./no-such-program"), "{message}");
    assert!(log.contains("cannot run ./no-such-program"), "{log}");
}

#[tokio::test]
async fn arguments_at_their_limit_are_passed_whole_even_if_not_read() {
    let args = "x".repeat(limits::ARGS_BYTES_MAX - 2);
    let text = "echo ${#TENURE_ARGS} $(wc -c)";
    let (job, log) = run_with(script("work", text), &args.clone().into()).await;
    assert_eq!(job.state, JobState::Succeeded);
    let max = limits::ARGS_BYTES_MAX;
    assert_eq!(log, format!("{max} {max}\n"));
    let (job, _) = run_with(script("work", "exec <&-; exit 0"), &args.into()).await;
    assert_eq!(job.state, JobState::Succeeded);
}

#[tokio::test]
async fn excess_output_is_dropped_and_the_command_still_succeeds() {
    let text = "head -c 6000000 /dev/zero | tr '\\0' x | fold -w 100; echo; echo the end >&2";
    let (job, log) = run(script("work", text)).await;
    assert_eq!(job.state, JobState::Succeeded);
    let max = usize::try_from(limits::LOG_BYTES_MAX).unwrap();
    assert!(log.len() <= max + 200, "{} bytes", log.len());
    assert!(log.len() > max / 2, "{} bytes", log.len());
    assert!(log.contains("[the log is full: what follows is dropped]\n"));
}

#[tokio::test]
async fn an_overlong_line_is_truncated() {
    let text = "head -c 200000 /dev/zero | tr '\\0' x; echo; echo next";
    let (_, log) = run(script("work", text)).await;
    assert_eq!(log, " [line truncated]\nnext\n");
}

#[tokio::test]
async fn secrets_of_a_command_are_redacted_in_its_log() {
    let text = r#"
        env | grep -v PATH; echo "$TENURE_ARGS"; echo "$TENURE_ARGS" >&2
        echo 'password=qwert Authorization: Basic zuiop'
        echo 'AKIAIOSFODNN7EXAMPLE at postgres://me:pw@host/db' >&2
        printf -- '-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\n'
        printf -- '-----END RSA PRIVATE KEY-----\nsafe\n'
        echo "the value is hunter2hunter2"
        echo ::progress 1 hunter2hunter2; echo ::error BAD hunter2hunter2; exit 1"#;
    let args = serde_json::json!({ "name": "orders", "db": { "password": "hunter2hunter2" } });
    let (job, log) = run_with(script("work", text), &args).await;
    for secret in ["hunter2", "qwert", "zuiop", "AKIA", "me:pw", "MIIE", "orders"] {
        assert!(!log.contains(secret), "{secret} in\n{log}");
        assert!(!error(&job).1.contains(secret), "{:?}", error(&job));
    }
    for kept in ["TENURE_ARGS=[redacted]", "safe", "the value is [redacted]", "@host/db"] {
        assert!(log.contains(kept), "{kept} not in\n{log}");
    }
    assert_eq!(error(&job), ("BAD".into(), "[redacted]".into()));
}

/// The variables must be set before this process starts, so the test re-executes itself.
#[tokio::test]
async fn commands_get_a_minimum_of_the_environment_and_what_is_passed_or_declared() {
    let text = r#"[ -z "${TENURE_KEY+x}${PGPASSWORD+x}${OTHER+x}" ] || exit 3
        [ "$PASSED_ON $DECLARED $TZ" = "passed declared UTC" ] || exit 4
        # Nor does the watchdog, whose environment others of the same user can read.
        tr '\0' '\n' < /proc/$PPID/environ | grep -q PGPASSWORD && exit 5
        exit 0"#;
    if std::env::var_os("TENURE_KEY").is_some() {
        let mut operation = script("work", text);
        operation.env.insert("DECLARED".to_owned(), "declared".to_owned());
        let (job, log) = run(operation).await;
        assert_eq!(job.state, JobState::Succeeded, "{:?} {log}", job.error);
        return;
    }
    let name = "commands_get_a_minimum_of_the_environment_and_what_is_passed_or_declared";
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", name]).env("TENURE_KEY", "a key").env("OTHER", "there");
    again.env("PGPASSWORD", "secret").env("PASSED_ON", "passed").env("TZ", "UTC");
    let status = again.stdout(Stdio::null()).status().expect("this test can be started");
    assert!(status.success());
}

// ---- Termination ----

/// Starts a process that ignores TERM in a session of its own, and ignores TERM itself.
const STUBBORN: &str = r#"
(setsid sh -c 'trap "" TERM; echo $$ > $D/far.new; mv $D/far.new $D/far; exec sleep 60' &)
trap "" TERM; id command; while :; do sleep 0.05; done
"#;

fn stubborn() -> Operation {
    script("work", &format!("{PRELUDE}{STUBBORN}"))
}

#[tokio::test]
async fn a_command_over_its_time_limit_is_dead_before_the_report() {
    let test = CommandTest::new(stubborn().limit_ms(500)).await;
    let id = test.submit("work").await;
    let worker = RunningWorker::start(test.worker.grace(ms(1)));
    let (command, far) = (test.markers.process("command").await, test.markers.process("far").await);
    let job = test.bed.wait_finished(id).await;
    assert!(command.is_dead() && far.is_dead(), "the next attempt could overlap");
    assert_eq!(error(&job).0, TIME_LIMIT);
    worker.stop().await;
}

#[tokio::test]
async fn a_cancelled_command_is_killed_and_its_job_cancelled() {
    let test = CommandTest::new(stubborn()).await;
    let id = test.submit("work").await;
    let worker = RunningWorker::start(test.worker);
    let (command, far) = (test.markers.process("command").await, test.markers.process("far").await);
    test.bed.client.job(id).by("ann").cancel("enough").await.unwrap();
    let job = test.bed.wait_finished(id).await;
    assert!(command.is_dead() && far.is_dead());
    assert_eq!(job.state, JobState::Cancelled);
    assert_eq!(job.attempts[0].outcome, Some(AttemptOutcome::Cancelled));
    worker.stop().await;
}

#[tokio::test]
async fn a_cancelled_command_may_clean_up_and_its_last_output_is_logged() {
    let text = format!(
        "{PRELUDE} trap 'echo cleaned; exit 0' TERM; id command;
        while :; do sleep 0.01; done"
    );
    let test = CommandTest::new(script("work", &text)).await;
    let id = test.submit("work").await;
    let worker = RunningWorker::start(test.worker);
    test.markers.wait_for("command").await;
    test.bed.client.job(id).by("ann").cancel("enough").await.unwrap();
    assert_eq!(test.bed.wait_finished(id).await.state, JobState::Cancelled);
    let log = test.bed.log(id).await;
    assert!(log.contains("cleaned\n"), "{log}");
    worker.stop().await;
}

#[tokio::test]
async fn a_command_is_dead_before_it_is_handed_back_on_shutdown() {
    let test = CommandTest::new(stubborn()).await;
    let id = test.submit("work").await;
    let worker = RunningWorker::start(test.worker);
    let (command, far) = (test.markers.process("command").await, test.markers.process("far").await);
    let summary = worker.stop().await;
    assert_eq!((summary.handed_back, summary.abandoned), (1, 0));
    assert!(command.is_dead() && far.is_dead());
    assert_eq!(test.bed.job(id).await.state, JobState::Queued);
}

#[tokio::test]
async fn the_command_of_a_dropped_worker_is_dead_before_the_next_attempt() {
    let test = CommandTest::new(stubborn().retry(retries(2))).await;
    let id = test.submit("work").await;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.spawn(test.worker.run(std::future::pending()));
    let (command, far) = (test.markers.process("command").await, test.markers.process("far").await);
    let processes = (command.clone(), far.clone());
    let handler = move |_: Context| {
        let (command, far) = processes.clone();
        async move { Ok(Done::with(&(command.is_dead() && far.is_dead()))?) }
    };
    let next = RunningWorker::start(Worker::new(&test.bed.client, "next").handle("thing", handler));
    // Drops the whole runtime while the command runs.
    tokio::task::spawn_blocking(move || drop(runtime)).await.unwrap();
    let job = test.bed.wait_finished(id).await;
    assert_eq!(job.result.as_deref(), Some("true"), "the next attempt overlapped");
    assert!(command.is_dead() && far.is_dead());
    next.stop().await;
}

#[tokio::test]
async fn a_killed_command_and_a_killed_watchdog_are_reported_as_such() {
    for (watchdog, code) in [(false, "SIGNAL_9"), (true, "WATCHDOG_DIED")] {
        let test = CommandTest::new(stubborn()).await;
        let id = test.submit("work").await;
        let worker = RunningWorker::start(test.worker);
        let (command, far) =
            (test.markers.process("command").await, test.markers.process("far").await);
        if watchdog {
            command.parent().kill();
        } else {
            command.kill();
        }
        let job = test.bed.wait_finished(id).await;
        assert_eq!(error(&job).0, code);
        assert!(command.is_dead() && far.is_dead());
        worker.stop().await;
    }
}

#[tokio::test]
async fn a_command_of_a_frozen_session_is_dead_before_the_next_attempt() {
    let (test, faults) = CommandTest::start(stubborn().retry(retries(2)), |command| command).await;
    let id = test.submit("work").await;
    let frozen = RunningWorker::start(test.worker);
    let (command, far) = (test.markers.process("command").await, test.markers.process("far").await);
    let processes = (command.clone(), far.clone());
    let handler = move |_: Context| {
        let (command, far) = processes.clone();
        async move { Ok(Done::with(&(command.is_dead() && far.is_dead()))?) }
    };
    let next = RunningWorker::start(Worker::new(&test.bed.client, "next").handle("thing", handler));
    faults.drop_requests.store(true, Ordering::SeqCst);
    let job = test.bed.wait_finished(id).await;
    assert_eq!(job.result.as_deref(), Some("true"), "the next attempt overlapped");
    assert_eq!(&*job.attempts[0].error.as_ref().unwrap().code, WORKER_TIMEOUT);
    assert_eq!(&*job.attempts[1].worker, "next");
    next.stop().await;
    faults.drop_requests.store(false, Ordering::SeqCst);
    let summary = frozen.stop().await;
    assert_eq!((summary.lost, summary.reported), (1, 0), "the late worker reports nothing");
}

#[tokio::test]
async fn a_runtime_blocked_for_three_ttls_does_not_kill_its_command() {
    let text = format!("{PRELUDE} id command; while [ ! -e $D/go ]; do sleep 0.05; done");
    let test = CommandTest::new(script("work", &text)).await;
    let id = test.submit("work").await;
    let worker = RunningWorker::start(test.worker);
    test.markers.wait_for("command").await;
    // This is the only thread of the runtime: nothing but the heartbeat can run meanwhile.
    let until = BootInstant::now() + TTL * 3;
    while !until.has_passed() {
        std::hint::spin_loop();
    }
    fs::write(test.markers.path("go"), "").unwrap();
    let job = test.bed.wait_finished(id).await;
    assert_eq!((job.state, job.attempt), (JobState::Succeeded, 1));
    assert_eq!(worker.stop().await.sessions, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_run_concurrently_but_one_at_a_time_per_resource() {
    let text = format!(
        "{PRELUDE} mkdir $D/$(basename $TENURE_RESOURCE) || exit 9
        sleep 0.05; rmdir $D/$(basename $TENURE_RESOURCE)"
    );
    let test = CommandTest::new(script("work", &text)).await;
    let mut jobs = Vec::new();
    let dir: &Path = test.markers.dir();
    for n in 0..12 {
        let resource = format!("thing/t{}", n % 3);
        let submitted = test.bed.client.submit(&resource, "work").args(&dir).send().await;
        jobs.push(submitted.unwrap().job.id());
    }
    let worker = RunningWorker::start(test.worker.slots(4));
    for job in jobs {
        let job = test.bed.wait_finished(job).await;
        assert_eq!(job.state, JobState::Succeeded, "{:?}", job.error);
    }
    assert_eq!(worker.stop().await.succeeded, 12);
}

#[tokio::test]
async fn a_command_can_be_set_as_handler_explicitly() {
    let bed = TestBed::memory([testbed::kind(Operation::new("work"))]).await;
    let command = Command::new(["sh", "-c", "echo hand made"]).helper(HELPER);
    let worker = RunningWorker::start(Worker::new(&bed.client, "w").handle("thing", command));
    let id = bed.submit("thing/t", "work").await;
    assert_eq!(bed.wait_finished(id).await.state, JobState::Succeeded);
    assert_eq!(bed.log(id).await, "hand made\n");
    worker.stop().await;
}

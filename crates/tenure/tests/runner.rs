//! Commands as jobs, with real processes: what they see and say, and that none outlives its tenure.

mod bed;

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bed::processes::{PRELUDE, Traces};
use bed::{Bed, Running, TTL, retries, until};
use tenure::clock::BootInstant;
use tenure::worker::Command;
use tenure::{Context, Done, Worker};
use tenure_core::job::AttemptOutcome;
use tenure_core::retry::{TIME_LIMIT, WORKER_TIMEOUT};
use tenure_core::{Job, JobId, JobState, Kind, Kinds, Operation, limits};

/// Hosts the watchdog and the launcher.
const HELPER: &str = env!("CARGO_BIN_EXE_tenure-helper");

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// An operation that runs a shell script.
fn script(name: &str, script: &str) -> Operation {
    let mut operation = Operation::new(name);
    operation.run = ["sh", "-c", script].map(str::to_owned).to_vec();
    operation
}

/// A worker of the commands of a kind, and what it works.
struct Stage {
    bed: Bed,
    worker: Worker,
    traces: Traces,
}

impl Stage {
    async fn new(operation: Operation) -> Self {
        Self::over(operation, |bed| bed.client.clone()).await
    }

    async fn over(operation: Operation, client: impl Fn(&Bed) -> tenure::Client) -> Self {
        let kind = Kind::new("thing").operation(operation);
        let bed = Bed::memory([kind.clone()]).await;
        let kinds = Kinds::new([kind]).expect("a kind that makes sense");
        let worker = Worker::new(&client(&bed), "w").ttl(TTL).drain(ms(50));
        let worker = worker.commands_with(&kinds, |command| command.helper(HELPER).grace(ms(300)));
        Self { bed, worker, traces: Traces::new() }
    }

    async fn submit(&self, operation: &str) -> JobId {
        let dir: &Path = self.traces.dir();
        let asked = self.bed.client.submit("thing/t", operation).args(&dir).send().await;
        asked.expect("it is taken").job
    }
}

/// Runs a script to its end, with some arguments.
async fn run_with(operation: Operation, args: &serde_json::Value) -> (Job, String) {
    let Stage { bed, worker, .. } = Stage::new(operation).await;
    let worker = Running::start(worker);
    let asked = bed.client.submit("thing/t", "work").args(args).send().await.expect("taken");
    let job = bed.over(asked.job).await;
    let log = bed.log(asked.job).await;
    worker.end().await;
    (job, log)
}

async fn run(operation: Operation) -> (Job, String) {
    run_with(operation, &serde_json::Value::Null).await
}

fn error(job: &Job) -> (String, String) {
    let error = job.error.clone().expect("it failed");
    (error.code.to_string(), error.message.to_string())
}

// ---- What a command sees and says ----

#[tokio::test]
async fn a_command_finds_its_job_in_its_environment_and_its_arguments_on_its_input() {
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
async fn lines_set_progress_state_and_result() {
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
    for bed in Bed::each([kind]).await {
        let traces = Traces::new();
        let worker = Worker::new(&bed.client, "w").ttl(TTL);
        let worker = worker.commands_with(&kinds, |command| command.helper(HELPER));
        let worker = Running::start(worker);
        let asked = bed.client.submit("thing/t", "work").args(&traces.dir()).send().await;
        let id = asked.unwrap().job;
        until("it says so", || async {
            let progress = bed.job(id).await.progress;
            let log = bed.log(id).await;
            progress.is_some_and(|p| (p.percent, &*p.message) == (40, "copying rows"))
                && log.contains("plain\n")
                && log.contains("oops\n")
        })
        .await;
        fs::write(traces.path("go"), "").unwrap();
        let job = bed.over(id).await;
        assert_eq!(
            (job.state, job.result.as_deref()),
            (JobState::Succeeded, Some("{\"rows\": 3}"))
        );
        let key = "default/thing/t".parse().unwrap();
        let shown = bed.store.reads().show(&key).await.unwrap().unwrap();
        assert_eq!(&*shown.record.resource.unwrap().state, "SMALL");
        let log = bed.log(id).await;
        assert!(log.ends_with("::state SMALL\nlast\n"), "{log}");
        assert!(!log.contains("progress") && !log.contains("result"), "{log}");
        worker.end().await;
    }
}

#[tokio::test]
async fn exit_codes_and_error_lines_say_why_it_failed() {
    let (job, _) = run(script("work", "echo broken pipes >&2; exit 3").retry(retries(2))).await;
    assert_eq!(error(&job), ("EXIT_3".into(), "it ended with 3: broken pipes".into()));
    assert_eq!((job.state, job.attempt), (JobState::Dead, 2), "the rule says: try again");
    let (job, _) = run(script("work", "echo ::error QUOTA too many rows; exit 1")).await;
    assert_eq!(error(&job), ("QUOTA".into(), "too many rows".into()));
    assert_eq!((job.state, job.attempt), (JobState::Failed, 1), "there is no rule");
    let (job, _) = run(script("work", "exit 75")).await;
    assert_eq!((job.state, error(&job).0), (JobState::Dead, "EXIT_75".into()), "transient");
    let (job, _) = run(script("work", "kill -KILL $$")).await;
    assert_eq!(error(&job).0, "SIGNAL_9");
}

#[tokio::test]
async fn a_command_that_cannot_be_run_says_so() {
    let mut operation = Operation::new("work");
    operation.run = vec!["./no-such-program".to_owned()];
    let (job, log) = run(operation).await;
    let (code, message) = error(&job);
    assert_eq!(code, "EXIT_127");
    assert!(message.contains("cannot run ./no-such-program"), "{message}");
    assert!(log.contains("cannot run ./no-such-program"), "{log}");
}

#[tokio::test]
async fn arguments_at_their_bound_reach_the_command_whole_also_when_it_does_not_read_them() {
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
async fn a_flood_of_output_is_bounded_and_the_command_ends_all_the_same() {
    let text = "head -c 6000000 /dev/zero | tr '\\0' x | fold -w 100; echo; echo the end >&2";
    let (job, log) = run(script("work", text)).await;
    assert_eq!(job.state, JobState::Succeeded);
    let max = usize::try_from(limits::LOG_BYTES_MAX).unwrap();
    assert!(log.len() <= max + 200, "{} bytes", log.len());
    assert!(log.len() > max / 2, "{} bytes", log.len());
    assert!(log.contains("[the log is full: what follows is dropped]\n"));
}

#[tokio::test]
async fn a_line_without_end_is_cut() {
    let text = "head -c 200000 /dev/zero | tr '\\0' x; echo; echo next";
    let (_, log) = run(script("work", text)).await;
    assert_eq!(log, " [the rest of this line was dropped]\nnext\n");
}

#[tokio::test]
async fn secrets_of_a_command_are_not_in_its_log() {
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

/// The variable must be set before this process starts, so it starts itself again.
#[tokio::test]
async fn the_credential_of_the_worker_is_not_in_the_environment_of_its_commands() {
    let text = r#"[ -z "${TENURE_KEY+x}" ] && [ "$OTHER" = there ]"#;
    if std::env::var_os("TENURE_KEY").is_some() {
        let (job, log) = run(script("work", text)).await;
        assert_eq!(job.state, JobState::Succeeded, "{log}");
        return;
    }
    let name = "the_credential_of_the_worker_is_not_in_the_environment_of_its_commands";
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", name]).env("TENURE_KEY", "a key").env("OTHER", "there");
    let status = again.stdout(Stdio::null()).status().expect("this test can be started");
    assert!(status.success());
}

// ---- Its end ----

/// Starts a process that ignores TERM, in a session of its own, and stays.
const STUBBORN: &str = r#"
(setsid sh -c 'trap "" TERM; echo $$ > $D/far.new; mv $D/far.new $D/far; exec sleep 60' &)
trap "" TERM; id command; while :; do sleep 0.05; done
"#;

fn stubborn() -> Operation {
    script("work", &format!("{PRELUDE}{STUBBORN}"))
}

#[tokio::test]
async fn a_command_that_takes_too_long_is_dead_before_that_is_reported() {
    let stage = Stage::new(stubborn().limit_ms(500)).await;
    let id = stage.submit("work").await;
    let worker = Running::start(stage.worker.grace(ms(1)));
    let (command, far) = (stage.traces.process("command").await, stage.traces.process("far").await);
    let job = stage.bed.over(id).await;
    assert!(command.is_dead() && far.is_dead(), "the next could have begun beside it");
    assert_eq!(error(&job).0, TIME_LIMIT);
    worker.end().await;
}

#[tokio::test]
async fn a_cancelled_command_is_stopped_and_its_job_cancelled() {
    let stage = Stage::new(stubborn()).await;
    let id = stage.submit("work").await;
    let worker = Running::start(stage.worker);
    let (command, far) = (stage.traces.process("command").await, stage.traces.process("far").await);
    stage.bed.client.cancel(id, "ann", "enough").await.unwrap();
    let job = stage.bed.over(id).await;
    assert!(command.is_dead() && far.is_dead());
    assert_eq!(job.state, JobState::Cancelled);
    assert_eq!(job.attempts[0].outcome, Some(AttemptOutcome::Cancelled));
    worker.end().await;
}

#[tokio::test]
async fn a_command_may_clean_up_when_it_is_cancelled_and_its_last_words_are_logged() {
    let text = format!(
        "{PRELUDE} trap 'echo cleaned; exit 0' TERM; id command;
        while :; do sleep 0.01; done"
    );
    let stage = Stage::new(script("work", &text)).await;
    let id = stage.submit("work").await;
    let worker = Running::start(stage.worker);
    stage.traces.until("command").await;
    stage.bed.client.cancel(id, "ann", "enough").await.unwrap();
    assert_eq!(stage.bed.over(id).await.state, JobState::Cancelled);
    let log = stage.bed.log(id).await;
    assert!(log.contains("cleaned\n"), "{log}");
    worker.end().await;
}

#[tokio::test]
async fn a_command_is_handed_back_dead_when_its_worker_goes() {
    let stage = Stage::new(stubborn()).await;
    let id = stage.submit("work").await;
    let worker = Running::start(stage.worker);
    let (command, far) = (stage.traces.process("command").await, stage.traces.process("far").await);
    let summary = worker.end().await;
    assert_eq!((summary.handed_back, summary.abandoned), (1, 0));
    assert!(command.is_dead() && far.is_dead());
    assert_eq!(stage.bed.job(id).await.state, JobState::Queued);
}

#[tokio::test]
async fn a_worker_that_is_dropped_takes_its_command_along_before_the_next_may_begin() {
    let stage = Stage::new(stubborn().retry(retries(2))).await;
    let id = stage.submit("work").await;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.spawn(stage.worker.run(std::future::pending()));
    let (command, far) = (stage.traces.process("command").await, stage.traces.process("far").await);
    let processes = (command.clone(), far.clone());
    let handler = move |_: Context| {
        let (command, far) = processes.clone();
        async move { Ok(Done::with(&(command.is_dead() && far.is_dead()))?) }
    };
    let next = Running::start(Worker::new(&stage.bed.client, "next").handle("thing", handler));
    // The whole runtime goes, in the middle of everything.
    tokio::task::spawn_blocking(move || drop(runtime)).await.unwrap();
    let job = stage.bed.over(id).await;
    assert_eq!(job.result.as_deref(), Some("true"), "the next began beside it");
    assert!(command.is_dead() && far.is_dead());
    next.end().await;
}

#[tokio::test]
async fn a_killed_command_and_a_killed_watchdog_are_failures_that_say_so() {
    for (watchdog, code) in [(false, "SIGNAL_9"), (true, "WATCHDOG_DIED")] {
        let stage = Stage::new(stubborn()).await;
        let id = stage.submit("work").await;
        let worker = Running::start(stage.worker);
        let (command, far) =
            (stage.traces.process("command").await, stage.traces.process("far").await);
        if watchdog {
            command.parent().kill();
        } else {
            command.kill();
        }
        let job = stage.bed.over(id).await;
        assert_eq!(error(&job).0, code);
        assert!(command.is_dead() && far.is_dead());
        worker.end().await;
    }
}

#[tokio::test]
async fn a_command_whose_session_is_frozen_is_dead_before_the_next_one_begins() {
    let faults = std::sync::OnceLock::new();
    let stage = Stage::over(stubborn().retry(retries(2)), |bed| {
        let (client, cable) = bed.cable();
        faults.set(cable).ok().expect("once");
        client
    })
    .await;
    let id = stage.submit("work").await;
    let frozen = Running::start(stage.worker);
    let (command, far) = (stage.traces.process("command").await, stage.traces.process("far").await);
    let processes = (command.clone(), far.clone());
    let handler = move |_: Context| {
        let (command, far) = processes.clone();
        async move { Ok(Done::with(&(command.is_dead() && far.is_dead()))?) }
    };
    let next = Running::start(Worker::new(&stage.bed.client, "next").handle("thing", handler));
    faults.get().unwrap().cut.store(true, Ordering::SeqCst);
    let job = stage.bed.over(id).await;
    assert_eq!(job.result.as_deref(), Some("true"), "the next began beside it");
    assert_eq!(&*job.attempts[0].error.as_ref().unwrap().code, WORKER_TIMEOUT);
    assert_eq!(&*job.attempts[1].worker, "next");
    next.end().await;
    faults.get().unwrap().cut.store(false, Ordering::SeqCst);
    let summary = frozen.end().await;
    assert_eq!((summary.lost, summary.reported), (1, 0), "the late one says nothing");
}

#[tokio::test]
async fn a_runtime_that_is_blocked_for_three_times_to_live_kills_no_command() {
    let text = format!("{PRELUDE} id command; while [ ! -e $D/go ]; do sleep 0.05; done");
    let stage = Stage::new(script("work", &text)).await;
    let id = stage.submit("work").await;
    let worker = Running::start(stage.worker);
    stage.traces.until("command").await;
    // This is the only thread of the runtime: nothing but the heartbeat can run meanwhile.
    let until = BootInstant::now() + TTL * 3;
    while !until.has_passed() {
        std::hint::spin_loop();
    }
    fs::write(stage.traces.path("go"), "").unwrap();
    let job = stage.bed.over(id).await;
    assert_eq!((job.state, job.attempt), (JobState::Succeeded, 1));
    assert_eq!(worker.end().await.sessions, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_run_beside_each_other_and_one_at_a_time_on_a_resource() {
    let text = format!(
        "{PRELUDE} mkdir $D/$(basename $TENURE_RESOURCE) || exit 9
        sleep 0.05; rmdir $D/$(basename $TENURE_RESOURCE)"
    );
    let stage = Stage::new(script("work", &text)).await;
    let mut jobs = Vec::new();
    let dir: &Path = stage.traces.dir();
    for n in 0..12 {
        let resource = format!("thing/t{}", n % 3);
        let asked = stage.bed.client.submit(&resource, "work").args(&dir).send().await;
        jobs.push(asked.unwrap().job);
    }
    let worker = Running::start(stage.worker.slots(4));
    for job in jobs {
        let job = stage.bed.over(job).await;
        assert_eq!(job.state, JobState::Succeeded, "{:?}", job.error);
    }
    assert_eq!(worker.end().await.succeeded, 12);
}

#[tokio::test]
async fn a_command_that_is_no_operation_of_a_kind_can_be_given_by_hand() {
    let bed = Bed::memory([bed::kind(Operation::new("work"))]).await;
    let command = Command::new(["sh", "-c", "echo hand made"]).helper(HELPER);
    let worker = Running::start(Worker::new(&bed.client, "w").handle("thing", command));
    let id = bed.submit("thing/t", "work").await;
    assert_eq!(bed.over(id).await.state, JobState::Succeeded);
    assert_eq!(bed.log(id).await, "hand made\n");
    worker.end().await;
}

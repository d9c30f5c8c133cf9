//! Handlers that run a command and classify its end themselves.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure::exec::{EndReason, ExitKind, StopReason};
use tenure::worker::{CancelReason, Command, Exit, completing};
use tenure::{Context, Done, Failure, Worker};
use tenure_core::{Job, JobId, JobState, Operation};
use tokio::sync::mpsc;

use crate::cancel_grace::{CLEANING, break_lock};
use crate::testbed::processes::{MarkerDir, PRELUDE};
use crate::testbed::{Faults, RunningWorker, TTL, TestBed, kind};
use crate::{ENDLESS, GRACE, HELPER, STUBBORN, error, ms};

/// Time after which a failed test ends.
const ENDED_TIMEOUT: Duration = Duration::from_secs(30);

fn command(script: &str) -> Command {
    Command::new(["sh", "-c", script]).helper(HELPER).grace(GRACE)
}

/// Runs a job with this handler to its end.
async fn run<R: Future<Output = Result<Done, Failure>> + Send>(
    handler: impl Fn(Context) -> R + Send + Sync + 'static,
) -> Job {
    let bed = TestBed::memory([kind(Operation::new("work"))]).await;
    let worker = Worker::new(&bed.client, "w").ttl(TTL).handle("thing", completing(handler));
    let worker = RunningWorker::start(worker);
    let id = bed.submit("thing/t", "work").await;
    let job = bed.wait_finished(id).await;
    worker.stop().await;
    job
}

#[tokio::test]
async fn a_handler_classifies_the_exit_code() {
    let classify = |job: Context| async move {
        let exit = command("echo one; echo two >&2; exit 4").execute(&job).await?;
        assert_eq!((exit.status, exit.reason), (ExitKind::Code(4), EndReason::Exited));
        let mut tail: Vec<&str> = exit.output.tail.lines().collect();
        tail.sort_unstable();
        assert_eq!(tail, ["one", "two"]);
        match exit.status {
            ExitKind::Code(4) => Err(Failure::permanent("NO_SUCH_ZONE", "it does not exist")),
            _ => exit.into_result(),
        }
    };
    assert_eq!(error(&run(classify).await), ("NO_SUCH_ZONE".into(), "it does not exist".into()));
}

#[tokio::test]
async fn what_a_handler_does_not_classify_is_mapped_as_for_any_command() {
    let map = |job: Context| async move {
        let script = "echo '::result 3'; echo ::state READY; echo password=hunter2hunter2";
        let mut exit = command(script).execute(&job).await?;
        assert_eq!(exit.output.tail, "::state READY\npassword=[redacted]\n");
        // The handler may change what it passes on.
        assert_eq!(exit.output.state.take().as_deref(), Some("READY"));
        let failed = command("echo ::error QUOTA too many; exit 5").execute(&job).await?;
        let failure = failed.into_result().expect_err("it failed");
        assert_eq!(failure.to_string(), "QUOTA: too many");
        let killed = command("kill -9 $$").execute(&job).await?;
        assert_eq!((killed.status, killed.reason), (ExitKind::Signal(9), EndReason::Exited));
        exit.into_result()
    };
    let job = run(map).await;
    assert_eq!((job.state, job.result.as_deref()), (JobState::Succeeded, Some("3")));
}

#[tokio::test]
async fn a_command_over_its_own_limit_is_seen_as_such() {
    let limited = |job: Context| async move {
        let script = format!("D=/nonexistent; id() {{ :; }}; {STUBBORN}");
        let exit = command(&script).limit(Some(ms(100))).cancel_grace(ms(1)).execute(&job).await?;
        assert_eq!(exit.status, ExitKind::Signal(9));
        assert_eq!(exit.reason, EndReason::Stopped(StopReason::TimeLimit));
        assert_eq!(job.cancel_reason(), None, "the attempt has no limit");
        Ok(Done::default())
    };
    assert_eq!(run(limited).await.state, JobState::Succeeded);
}

/// A running job whose command does not end before it is killed.
struct Running {
    bed: TestBed,
    faults: Faults,
    markers: MarkerDir,
    id: JobId,
}

impl Running {
    async fn cancel(&self) {
        self.bed.client.job(self.id).by("ann").cancel("enough").await.expect("it is running");
    }
}

/// Applies `disturb` to a running command and returns how it ended.
async fn end_after(
    cancel_grace: Duration,
    disturb: impl AsyncFn(&Running),
) -> (Exit, Option<CancelReason>) {
    let bed = TestBed::memory([kind(Operation::new("work"))]).await;
    let (client, faults) = bed.faulty_client();
    let markers = MarkerDir::new();
    let (sender, mut exits) = mpsc::unbounded_channel();
    let handler = move |job: Context| {
        let sender = sender.clone();
        async move {
            let command = command(&format!("{PRELUDE}{CLEANING}")).cancel_grace(cancel_grace);
            let exit = command.execute(&job).await?;
            sender.send((exit.clone(), job.cancel_reason())).expect("the test waits");
            exit.into_result()
        }
    };
    let worker = Worker::new(&client, "w").ttl(TTL).handle("thing", completing(handler));
    let worker = RunningWorker::start(worker);
    let submitted = bed.client.submit("thing/t", "work").args(&markers.dir()).send().await;
    let id = submitted.expect("the job is accepted").job.id();
    let (command, far) = (markers.process("command").await, markers.process("far").await);
    let running = Running { bed, faults, markers, id };
    disturb(&running).await;
    let ended = tokio::time::timeout(ENDED_TIMEOUT, exits.recv()).await.expect("the command ends");
    let ended = ended.expect("the handler returns");
    assert!(command.is_dead() && far.is_dead());
    running.faults.drop_requests.store(false, Ordering::SeqCst);
    worker.stop().await;
    ended
}

#[tokio::test]
async fn a_cancelled_command_is_seen_as_such() {
    let (exit, reason) = end_after(ms(100), Running::cancel).await;
    assert_eq!(exit.reason, EndReason::Stopped(StopReason::Requested));
    assert_eq!(reason, Some(CancelReason::JobCancelled));
}

#[tokio::test]
async fn a_command_whose_tenure_is_lost_is_seen_as_such() {
    let freeze = async |running: &Running| {
        running.faults.drop_requests.store(true, Ordering::SeqCst);
    };
    assert_eq!(end_after(ENDLESS, freeze).await.0.reason, EndReason::Lost);
    let break_it = async |running: &Running| break_lock(&running.bed, running.id).await;
    assert_eq!(end_after(ENDLESS, break_it).await.0.reason, EndReason::Lost);
}

#[tokio::test]
async fn a_loss_is_seen_even_if_the_job_was_cancelled_before() {
    let lose_while_cancelling = async |running: &Running| {
        running.cancel().await;
        running.markers.wait_for("termed").await;
        break_lock(&running.bed, running.id).await;
    };
    let (exit, reason) = end_after(ENDLESS, lose_while_cancelling).await;
    assert_eq!((exit.reason, reason), (EndReason::Lost, Some(CancelReason::JobCancelled)));
}

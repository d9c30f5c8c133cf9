//! Schedules on a manual clock.

use std::cell::RefCell;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Once};

use crate::{KIND, slots};
use serde_json::json;
use tempfile::TempDir;
use tenure_core::{Claim, Finish, JobAction, SessionId};
use tenure_store::clock::ManualClock;
use tenure_store::committer::Sweep;
use tenure_store::{Committer, Memory, Store, random};
use tokio::sync::watch;

use tenure_app::{Apps, Live, LiveConfig};

use super::*;

const HOUR_MS: u64 = 60 * 60 * 1_000;
const STEP: &str = "[[steps]]\nname = \"a\"\ncommand = [\"true\"]\n";

struct Fixture {
    cx: DutyContext,
    live: watch::Sender<LiveConfig>,
    clock: ManualClock,
    dir: TempDir,
}

impl Fixture {
    /// Starts shortly after the full hour.
    async fn new() -> Self {
        let clock = ManualClock::default();
        clock.advance(500_000 * HOUR_MS + 500);
        let store: Arc<dyn Store> = Arc::new(Memory::with_clock(clock.clone()));
        let live = watch::Sender::new(LiveConfig::default());
        let committer = Committer::start_with(store, Sweep::External);
        let cx = DutyContext::new(committer, Live::new(&live));
        Self { cx, live, clock, dir: TempDir::new().unwrap() }
    }

    /// Declares a pipeline with a schedule.
    async fn declare(&self, cron: &str) {
        self.declare_as("billing", cron).await;
    }

    async fn declare_as(&self, name: &str, cron: &str) {
        let text = format!("schedule = {{ cron = \"{cron}\" }}\n{STEP}");
        let file = self.file().with_file_name(name).with_extension("toml");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
        self.reload().await;
    }

    /// Removes the file of the pipeline.
    async fn remove(&self) {
        std::fs::remove_file(self.file()).unwrap();
        self.reload().await;
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("acme/billing.toml")
    }

    async fn reload(&self) {
        let settings = format!("[pipelines]\ndir = {:?}", self.dir.path());
        let apps = Apps::new(vec![Arc::new(crate::Pipelines)]);
        let live = apps.parse(&settings, self.dir.path()).unwrap().live();
        self.cx.store().declare(Arc::clone(&live.kinds)).await.unwrap();
        self.live.send_replace(live);
    }

    /// Runs the duty of a server that has just started.
    async fn run_restarted(&self) -> usize {
        self.run(&mut Schedules::default()).await
    }

    /// Declares a pipeline, and starts when the store has known its schedule for an hour.
    async fn with_known_schedule(cron: &str) -> Self {
        let fixture = Self::new().await;
        fixture.declare(cron).await;
        assert_eq!(fixture.run_restarted().await, 0);
        fixture.clock.advance(HOUR_MS);
        fixture
    }

    /// Returns the arguments of the latest run.
    async fn latest_args(&self) -> serde_json::Value {
        let query = JobQuery { limit: 1, ..JobQuery::default() };
        let page = self.cx.store().reads().jobs(query).await.unwrap();
        tenure_wire::parse_optional_document(page.items[0].job.args.as_ref()).unwrap()
    }

    async fn run(&self, duty: &mut Schedules) -> usize {
        duty.run(&self.cx).await.unwrap().count
    }

    /// Claims and finishes the only run.
    async fn finish_run(&self) {
        let session = SessionId(1);
        let (tenant, name) = ("acme".into(), "w".into());
        self.send(Command::Open { session, tenant, name, ttl_ms: 60_000 }).await;
        let (request, kinds) = (random::request_id(), vec![KIND.into()]);
        let claim =
            Command::Claim(Claim { session, request, kinds, max: 1, tenant: None, only: None });
        let Outcome::Claimed(jobs) = self.send(claim).await else { panic!("not claimed") };
        let (id, token) = (jobs[0].job.id, jobs[0].tenure.token);
        let finish = Finish::Ok { state: None, result: None };
        self.send(Command::Job { id, action: JobAction::Finish { token, finish, update: None } })
            .await;
    }

    async fn send(&self, command: Command) -> Outcome {
        self.cx.committer.submit(command).await.unwrap()
    }
}

#[tokio::test]
async fn tick_has_one_run_across_servers() {
    let fixture = Fixture::with_known_schedule("0 * * * *").await;
    let (mut one, mut another) = (Schedules::default(), Schedules::default());
    assert_eq!(fixture.run(&mut one).await, 1);
    assert_eq!(fixture.latest_args().await, json!({ "run.scheduled_at": "2027-01-15T09:00:00Z" }));
    assert_eq!(fixture.run(&mut one).await, 0);
    assert_eq!(fixture.run(&mut another).await, 0, "another server gets the existing run");
    fixture.finish_run().await;
    assert_eq!(fixture.run_restarted().await, 0, "also after it has finished");
    fixture.clock.advance(HOUR_MS);
    assert_eq!(fixture.run(&mut another).await, 1);
    assert_eq!(fixture.run(&mut one).await, 0);
}

#[tokio::test]
async fn tick_that_is_too_late_is_skipped() {
    let fixture = Fixture::with_known_schedule("0 * * * *").await;
    fixture.clock.advance(TICK_DELAY_MAX_MS);
    let mut duty = Schedules::default();
    assert_eq!(fixture.run(&mut duty).await, 0);
    fixture.clock.advance(HOUR_MS - TICK_DELAY_MAX_MS);
    assert_eq!(fixture.run(&mut duty).await, 1);
}

#[tokio::test]
async fn tick_before_the_store_knew_the_schedule_does_not_run() {
    let fixture = Fixture::new().await;
    fixture.declare("0 * * * *").await;
    assert_eq!(fixture.run_restarted().await, 0, "a new pipeline on a new server");
    fixture.clock.advance(1_000);
    assert_eq!(fixture.run_restarted().await, 0, "nor after a restart or on another server");
    fixture.clock.advance(HOUR_MS - 1_000);
    assert_eq!(fixture.run_restarted().await, 1, "a tick during a restart");
}

#[tokio::test]
async fn tick_while_the_pipeline_was_removed_does_not_run() {
    for (restarted_without, restarted_with) in
        [(false, false), (true, false), (false, true), (true, true)]
    {
        let fixture = Fixture::with_known_schedule("0 * * * *").await;
        let mut duty = Schedules::default();
        assert_eq!(fixture.run(&mut duty).await, 1);
        fixture.finish_run().await;
        fixture.clock.advance(1_000);
        fixture.remove().await;
        if restarted_without {
            duty = Schedules::default();
        }
        assert_eq!(fixture.run(&mut duty).await, 0);
        fixture.clock.advance(HOUR_MS);
        fixture.declare("0 * * * *").await;
        if restarted_with {
            duty = Schedules::default();
        }
        assert_eq!(fixture.run(&mut duty).await, 0, "it was not declared at the tick");
        fixture.clock.advance(HOUR_MS - 1_000);
        assert_eq!(fixture.run(&mut duty).await, 1);
    }
}

/// A server that was the janitor before takes over again.
#[tokio::test]
async fn earlier_janitor_does_not_use_what_it_knew() {
    let fixture = Fixture::with_known_schedule("0 * * * *").await;
    let mut earlier = Schedules::default();
    assert_eq!(fixture.run(&mut earlier).await, 1);
    fixture.finish_run().await;
    fixture.remove().await;
    let mut another = Schedules::default();
    assert_eq!(fixture.run(&mut another).await, 0);
    fixture.clock.advance(HOUR_MS);
    fixture.declare("0 * * * *").await;
    assert_eq!(fixture.run(&mut another).await, 0);
    assert_eq!(fixture.run(&mut earlier).await, 0, "the pipeline was removed in between");
}

#[tokio::test]
async fn new_or_changed_schedule_starts_with_its_next_tick() {
    let fixture = Fixture::new().await;
    let mut duty = Schedules::default();
    assert_eq!(fixture.run(&mut duty).await, 0);
    fixture.declare("0 * * * *").await;
    assert_eq!(fixture.run(&mut duty).await, 0, "the tick precedes the declaration");
    fixture.clock.advance(HOUR_MS);
    assert_eq!(fixture.run(&mut duty).await, 1);
    fixture.finish_run().await;
    fixture.clock.advance(60_000);
    fixture.declare("* * * * *").await;
    assert_eq!(fixture.run(&mut duty).await, 0, "the tick precedes the change");
    fixture.clock.advance(60_000);
    assert_eq!(fixture.run(&mut duty).await, 1);
}

/// An operator deletes the resource of a pipeline, or puts another desired state on it.
#[tokio::test]
async fn lost_sighting_does_not_cost_a_tick() {
    let delete = ResourceAction::Delete { by: "ann".into(), precondition: None };
    let put = ResourceAction::Put(tenure_core::Put::new("{}".into(), "ann".into()));
    for action in [delete, put] {
        let fixture = Fixture::with_known_schedule("0 * * * *").await;
        start_log();
        let mut duty = Schedules::default();
        assert_eq!(fixture.run(&mut duty).await, 1);
        fixture.finish_run().await;
        let key = slots::key("acme", "billing", 1).unwrap();
        fixture.send(Command::Resource { key: key.clone(), action: action.clone() }).await;
        fixture.clock.advance(HOUR_MS);
        assert_eq!(fixture.run(&mut duty).await, 1, "{action:?}");
        assert!(has_logged("lost the schedule; restored"));
        assert!(!has_logged("skipped"));
        fixture.finish_run().await;
        fixture.send(Command::Resource { key, action: action.clone() }).await;
        fixture.clock.advance(HOUR_MS);
        assert_eq!(fixture.run_restarted().await, 0, "another process does not know the schedule");
        assert!(has_logged("did not know the schedule"));
    }
}

/// The schedule of the first pipeline is too long for the store.
#[tokio::test]
async fn failing_schedule_does_not_stop_the_others() {
    start_log();
    let fixture = Fixture::with_known_schedule("0 * * * *").await;
    fixture.declare_as("ahead", &format!("0{} * * * *", " ".repeat(70_000))).await;
    let mut duty = Schedules::default();
    assert_eq!(fixture.run(&mut duty).await, 1);
    assert!(has_logged("schedule not processed"));
    assert!(has_logged("pipeline_id=\"ahead\""));
}

#[tokio::test]
async fn outage_ends_the_run_of_the_duty() {
    let error = || ScheduleError::from(StoreError::unavailable("down"));
    assert!(skip_failed("acme", "billing", Err::<(), _>(error())).is_err());
    let corrupt = ScheduleError::from(StoreError::corrupt("one record"));
    assert!(skip_failed("acme", "billing", Err::<(), _>(corrupt)).is_ok());
}

#[tokio::test]
async fn attached_tick_is_repeated_after_its_defaults_have_changed() {
    start_log();
    let fixture = Fixture::with_known_schedule("0 * * * *").await;
    let key = slots::key("acme", "billing", 1).unwrap();
    let submit = Submit::new(random::request_id(), RUN, "ann".into());
    fixture.send(Command::Resource { key, action: ResourceAction::Submit(submit) }).await;
    assert_eq!(fixture.run_restarted().await, 0, "the tick attaches");
    assert!(has_logged("attached"));
    let text = std::fs::read_to_string(fixture.file()).unwrap();
    let parameters = "[parameters]\nrows = { type = \"integer\", default = 1 }\n";
    std::fs::write(fixture.file(), text.replacen("[[", &format!("{parameters}[["), 1)).unwrap();
    fixture.reload().await;
    assert_eq!(fixture.run_restarted().await, 0);
    assert!(!has_logged("tick failed"));
}

thread_local! {
    static LOG: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Appends to the log of the thread, that is of the test.
struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOG.with_borrow_mut(|log| log.write(bytes))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Starts an empty log. The subscriber is that of the process: tracing caches which events any
/// subscriber wants, and one of a thread misses events that other threads were first to reach.
fn start_log() {
    static SUBSCRIBER: Once = Once::new();
    SUBSCRIBER.call_once(|| {
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(|| LogWriter);
        tracing::subscriber::set_global_default(subscriber.finish()).expect("the only one");
        tracing::callsite::rebuild_interest_cache();
    });
    LOG.take();
}

/// Returns whether the test has logged a text since the start of its log.
fn has_logged(text: &str) -> bool {
    LOG.with_borrow(|log| String::from_utf8_lossy(log).contains(text))
}

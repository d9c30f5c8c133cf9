//! Schedules on a manual clock.

use std::path::PathBuf;
use std::sync::Arc;

use crate::KIND;
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
        let cx = DutyContext { committer, live: Live::new(&live) };
        Self { cx, live, clock, dir: TempDir::new().unwrap() }
    }

    /// Declares a pipeline with a schedule.
    async fn declare(&self, cron: &str) {
        let text = format!("schedule = {{ cron = \"{cron}\" }}\n{STEP}");
        let file = self.file();
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
        let claim = Command::Claim(Claim { session, request, kinds, max: 1, tenant: None });
        let Outcome::Claimed(jobs) = self.send(claim).await else { panic!("not claimed") };
        let (id, token) = (jobs[0].job.id, jobs[0].tenure.token);
        let finish = Finish::Ok { state: None, result: None };
        self.send(Command::Job { id, action: JobAction::Finish { token, finish } }).await;
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

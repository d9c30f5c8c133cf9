//! Schedules on a manual clock.

use std::sync::Arc;

use crate::KIND;
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
        let tenant = self.dir.path().join("acme");
        std::fs::create_dir_all(&tenant).unwrap();
        let text = format!("schedule = {{ cron = \"{cron}\" }}\n{STEP}");
        std::fs::write(tenant.join("billing.toml"), text).unwrap();
        let settings = format!("[pipelines]\ndir = {:?}", self.dir.path());
        let apps = Apps::new(vec![Arc::new(crate::Pipelines)]);
        let live = apps.parse(&settings, self.dir.path()).unwrap().live();
        self.cx.store().declare(Arc::clone(&live.kinds)).await.unwrap();
        self.live.send_replace(live);
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
    let fixture = Fixture::new().await;
    fixture.declare("0 * * * *").await;
    let (mut one, mut another) = (Schedules::default(), Schedules::default());
    assert_eq!(fixture.run(&mut one).await, 1);
    assert_eq!(fixture.run(&mut one).await, 0);
    assert_eq!(fixture.run(&mut another).await, 0, "another server gets the existing run");
    fixture.finish_run().await;
    assert_eq!(fixture.run(&mut Schedules::default()).await, 0, "also after it has finished");
    fixture.clock.advance(HOUR_MS);
    assert_eq!(fixture.run(&mut another).await, 1);
    assert_eq!(fixture.run(&mut one).await, 0);
}

#[tokio::test]
async fn tick_that_is_too_late_is_skipped() {
    let fixture = Fixture::new().await;
    fixture.declare("0 * * * *").await;
    fixture.clock.advance(TICK_DELAY_MAX_MS);
    let mut duty = Schedules::default();
    assert_eq!(fixture.run(&mut duty).await, 0);
    fixture.clock.advance(HOUR_MS - TICK_DELAY_MAX_MS);
    assert_eq!(fixture.run(&mut duty).await, 1);
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

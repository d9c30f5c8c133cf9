//! Ticks on a clock that is moved by hand.

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

struct World {
    cx: DutyContext,
    live: watch::Sender<LiveConfig>,
    clock: ManualClock,
    dir: TempDir,
}

impl World {
    /// It is a moment past the hour.
    async fn new() -> Self {
        let clock = ManualClock::default();
        clock.advance(500_000 * HOUR_MS + 500);
        let store: Arc<dyn Store> = Arc::new(Memory::with_clock(clock.clone()));
        let live = watch::Sender::new(LiveConfig::default());
        let committer = Committer::start_with(store, Sweep::External);
        let cx = DutyContext { committer, live: Live::new(&live) };
        Self { cx, live, clock, dir: TempDir::new().unwrap() }
    }

    /// Declares a pipeline that runs by itself.
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

    /// Works the one run that is there.
    async fn work(&self) {
        let session = SessionId(1);
        let (tenant, name) = ("acme".into(), "w".into());
        self.send(Command::Open { session, tenant, name, ttl_ms: 60_000 }).await;
        let (request, kinds) = (random::request_id(), vec![KIND.into()]);
        let claim = Command::Claim(Claim { session, request, kinds, max: 1 });
        let Outcome::Claimed(jobs) = self.send(claim).await else { panic!("no claim") };
        let (id, token) = (jobs[0].job.id, jobs[0].tenure.token);
        let finish = Finish::Ok { state: None, result: None };
        self.send(Command::Job { id, action: JobAction::Finish { token, finish } }).await;
    }

    async fn send(&self, command: Command) -> Outcome {
        self.cx.committer.submit(command).await.unwrap()
    }
}

#[tokio::test]
async fn a_tick_has_one_run_whoever_sees_to_it() {
    let world = World::new().await;
    world.declare("0 * * * *").await;
    let (mut one, mut another) = (Schedules::default(), Schedules::default());
    assert_eq!(world.run(&mut one).await, 1);
    assert_eq!(world.run(&mut one).await, 0);
    assert_eq!(world.run(&mut another).await, 0, "another server gets the run that is there");
    world.work().await;
    assert_eq!(world.run(&mut Schedules::default()).await, 0, "also when it is over");
    world.clock.advance(HOUR_MS);
    assert_eq!(world.run(&mut another).await, 1);
    assert_eq!(world.run(&mut one).await, 0);
}

#[tokio::test]
async fn a_tick_that_nobody_could_see_to_in_time_is_left_out() {
    let world = World::new().await;
    world.declare("0 * * * *").await;
    world.clock.advance(LATE_MAX_MS);
    let mut duty = Schedules::default();
    assert_eq!(world.run(&mut duty).await, 0);
    world.clock.advance(HOUR_MS - LATE_MAX_MS);
    assert_eq!(world.run(&mut duty).await, 1);
}

#[tokio::test]
async fn what_is_declared_or_changed_begins_with_its_next_tick() {
    let world = World::new().await;
    let mut duty = Schedules::default();
    assert_eq!(world.run(&mut duty).await, 0);
    world.declare("0 * * * *").await;
    assert_eq!(world.run(&mut duty).await, 0, "the hour struck before it was there");
    world.clock.advance(HOUR_MS);
    assert_eq!(world.run(&mut duty).await, 1);
    world.work().await;
    world.clock.advance(60_000);
    world.declare("* * * * *").await;
    assert_eq!(world.run(&mut duty).await, 0, "the minute struck before it said so");
    world.clock.advance(60_000);
    assert_eq!(world.run(&mut duty).await, 1);
}

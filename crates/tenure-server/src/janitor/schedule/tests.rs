//! Ticks on a clock that is moved by hand.

use std::sync::Arc;

use tempfile::TempDir;
use tenure::config::{Config, Keep};
use tenure_apps::pipelines::{Catalog, KIND};
use tenure_core::{Claim, Finish, JobAction, Kinds, SessionId};
use tenure_store::clock::ManualClock;
use tenure_store::committer::Sweep;
use tenure_store::{Committer, Memory, Store, random};
use tokio::sync::watch;

use super::super::board::Board;
use super::super::time::Time;
use super::*;
use crate::InForce;

const HOUR_MS: u64 = 60 * 60 * 1_000;
const STEP: &str = "[[steps]]\nname = \"a\"\ncommand = [\"true\"]\n";

struct World {
    on: Around,
    in_force: watch::Sender<InForce>,
    clock: ManualClock,
    dir: TempDir,
}

impl World {
    /// It is a moment past the hour.
    async fn new() -> Self {
        let clock = ManualClock::default();
        clock.advance(500_000 * HOUR_MS + 500);
        let store: Arc<dyn Store> = Arc::new(Memory::with_clock(clock.clone()));
        let in_force = watch::Sender::new(InForce {
            kinds: Arc::default(),
            pipelines: None,
            retention: Keep::default(),
        });
        let on = Around {
            committer: Committer::start_with(store, Sweep::Elsewhere),
            in_force: in_force.subscribe(),
            board: Arc::new(Board::new()),
            time: Time::default(),
            name: "test".to_owned(),
        };
        Self { on, in_force, clock, dir: TempDir::new().unwrap() }
    }

    /// Declares a pipeline that runs by itself.
    async fn declare(&self, cron: &str) {
        let tenant = self.dir.path().join("acme");
        std::fs::create_dir_all(&tenant).unwrap();
        let text = format!("schedule = {{ cron = \"{cron}\" }}\n{STEP}");
        std::fs::write(tenant.join("billing.toml"), text).unwrap();
        let settings = format!("[pipelines]\ndir = {:?}", self.dir.path());
        let settings = Config::parse(&settings, self.dir.path()).unwrap().pipelines.unwrap();
        let catalog = Catalog::load(&settings).unwrap();
        let kinds = Arc::new(catalog.declare(&Kinds::default()).unwrap());
        self.on.store().declare(Arc::clone(&kinds)).await.unwrap();
        self.in_force.send_modify(|in_force| in_force.pipelines = Some(Arc::new(catalog)));
    }

    async fn run(&self, duty: &mut Schedules) -> usize {
        duty.run(&self.on).await.unwrap().count
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
        self.on.committer.submit(command).await.unwrap()
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

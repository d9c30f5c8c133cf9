//! Each duty, run by hand on a clock that is moved by hand.

use std::path::Path;
use std::sync::Arc;

use tenure_config::Config;
use tenure_core::{
    Claim, Command, Finish, Job, JobAction, JobId, JobState, Outcome, ResourceAction, ResourceKey,
    SessionId, Submit, Token,
};
use tenure_store::clock::ManualClock;
use tenure_store::committer::Sweep;
use tenure_store::{Committer, Embedded, Memory, Store, random};

use super::board::Board;
use super::dead::Dead;
use super::expiry::Expiry;
use super::orphans::Orphans;
use super::overdue::Overdue;
use super::retention::Retain;
use tenure_app::{Duty, DutyContext, DutyReport, Live, LiveConfig};

const HOUR_MS: u64 = 60 * 60 * 1_000;
const CONFIG: &str = r#"
[kinds.db]
states = ["NEW", "MAKING", "READY", "BROKEN"]
[kinds.db.operations.make]
from = "NEW"
during = "MAKING"
ok = "READY"
failed = "BROKEN"
limit = "10m"
retry = { attempts = 2, initial = "1m" }
[retention]
jobs = "1d"
dead = "2d"
history = "1d"
"#;

struct World {
    cx: DutyContext,
    board: Arc<Board>,
    clock: ManualClock,
    session: SessionId,
}

impl World {
    async fn new() -> Self {
        let clock = ManualClock::default();
        clock.advance(1_000_000);
        Self::over(Arc::new(Memory::with_clock(clock.clone())), clock).await
    }

    async fn over(store: Arc<dyn Store>, clock: ManualClock) -> Self {
        let Config { kinds, retention, .. } =
            Config::parse(CONFIG, Path::new("/")).expect("it is right");
        store.declare(Arc::clone(&kinds)).await.expect("it answers");
        let live = LiveConfig { kinds, retention, ..LiveConfig::default() };
        let cx = DutyContext {
            committer: Committer::start_with(store, Sweep::External),
            live: Live::fixed(live),
        };
        let world =
            Self { cx, board: Arc::new(Board::new(&[])), clock, session: random::session_id() };
        world.open(world.session).await;
        world
    }

    async fn open(&self, session: SessionId) {
        let (tenant, name) = ("*".into(), "worker".into());
        self.send(Command::Open { session, tenant, name, ttl_ms: 86_400_000 }).await;
    }

    async fn send(&self, command: Command) -> Outcome {
        self.cx.committer.submit(command).await.expect("it answers")
    }

    /// Submits a job and has it claimed by the session.
    async fn running(&self, name: &str) -> (JobId, Token) {
        let submit = Submit {
            request: random::request_id(),
            operation: "make".into(),
            args: None,
            priority: 0,
            run_at: None,
            by: "ann".into(),
        };
        let action = ResourceAction::Submit(submit);
        let outcome = self.send(Command::Resource { key: key(name), action }).await;
        assert!(matches!(outcome, Outcome::Submitted { .. }), "{outcome:?}");
        self.claim().await.expect("it is ready")
    }

    async fn claim(&self) -> Option<(JobId, Token)> {
        let (request, kinds) = (random::request_id(), vec!["db".into()]);
        let claim = Claim { session: self.session, request, kinds, max: 1 };
        match self.send(Command::Claim(claim)).await {
            Outcome::Claimed(jobs) => jobs.first().map(|job| (job.job.id, job.tenure.token)),
            other => panic!("{other:?} answers no claim"),
        }
    }

    async fn fail(&self, (id, token): (JobId, Token)) -> JobState {
        let (code, message) = ("BUSY".into(), "later".into());
        let finish = Finish::Failed { code, message, class: None, state: None };
        match self.send(Command::Job { id, action: JobAction::Finish { token, finish } }).await {
            Outcome::Finished { state, .. } => state,
            other => panic!("{other:?} answers no finish"),
        }
    }

    /// Uses up both attempts.
    async fn dead(&self, name: &str) -> JobId {
        let job = self.running(name).await;
        assert_eq!(self.fail(job).await, JobState::Backoff);
        self.clock.advance(60_000);
        let job = self.claim().await.expect("its rest is over");
        assert_eq!(self.fail(job).await, JobState::Dead);
        job.0
    }

    async fn job(&self, id: JobId) -> Option<Box<Job>> {
        let shown = self.cx.store().reads().job(id).await.expect("it answers");
        shown.map(|shown| shown.job)
    }

    async fn run(&self, duty: &mut impl Duty) -> DutyReport {
        duty.run(&self.cx).await.expect("it answers")
    }

    fn expiry(&self) -> Expiry {
        Expiry { board: Arc::clone(&self.board), time: Arc::default() }
    }

    fn row(&self, duty: &str) -> tenure_wire::DutyAnswer {
        let duties = self.board.duties();
        duties.into_iter().find(|row| row.duty == duty).expect("there is such a duty")
    }
}

fn key(name: &str) -> ResourceKey {
    ResourceKey::new("acme", "db", name).expect("a good name")
}

#[tokio::test]
async fn expiry_settles_the_jobs_of_a_dead_worker() {
    let world = World::new().await;
    let (id, _) = world.running("a").await;
    assert_eq!(world.run(&mut world.expiry()).await.count, 0);
    world.clock.advance(86_400_000);
    // The store was not looking for a day: that is not the worker's fault.
    assert_eq!(world.run(&mut world.expiry()).await.count, 0);
    for _ in 0..86_400 {
        world.clock.advance(1_000);
        if world.run(&mut world.expiry()).await.count > 0 {
            break;
        }
    }
    let job = world.job(id).await.expect("it is kept");
    assert_eq!(job.state, JobState::Backoff);
    assert_eq!(job.error.expect("it says why").code.as_ref(), "WORKER_TIMEOUT");
}

#[tokio::test]
async fn what_came_due_is_counted_in_a_row_of_its_own() {
    let world = World::new().await;
    let job = world.running("a").await;
    assert_eq!(world.fail(job).await, JobState::Backoff);
    world.run(&mut world.expiry()).await;
    assert_eq!((world.row("retries").count, world.row("retries").total), (0, 0));
    world.clock.advance(60_000);
    world.run(&mut world.expiry()).await;
    assert_eq!((world.row("retries").count, world.row("retries").total), (1, 1));
    world.run(&mut world.expiry()).await;
    assert_eq!((world.row("retries").count, world.row("retries").total), (0, 1));
}

#[tokio::test]
async fn an_overdue_attempt_is_warned_of_once_and_lives_on() {
    let world = World::new().await;
    let (id, token) = world.running("a").await;
    let mut duty = Overdue::default();
    world.clock.advance(10 * 60_000);
    assert_eq!(world.run(&mut duty).await, DutyReport::default());
    world.clock.advance(1);
    assert_eq!(world.run(&mut duty).await, DutyReport { count: 1, new: 1, note: None });
    world.clock.advance(HOUR_MS);
    assert_eq!(world.run(&mut duty).await, DutyReport { count: 1, new: 0, note: None });
    let job = world.job(id).await.expect("it is there");
    assert_eq!((job.state, job.token()), (JobState::Running, Some(token)));
    assert_eq!(world.fail((id, token)).await, JobState::Backoff);
    assert_eq!(world.run(&mut duty).await, DutyReport::default());
    // Another attempt is another warning.
    world.clock.advance(60_000);
    world.claim().await.expect("its rest is over");
    world.clock.advance(11 * 60_000);
    assert_eq!(world.run(&mut duty).await, DutyReport { count: 1, new: 1, note: None });
}

#[tokio::test]
async fn an_attempt_that_was_asked_to_stop_and_does_not_is_overdue_too() {
    let world = World::new().await;
    let (id, _) = world.running("a").await;
    let action = JobAction::Cancel { by: "ann".into(), reason: "enough".into() };
    world.send(Command::Job { id, action }).await;
    world.clock.advance(11 * 60_000);
    assert_eq!(world.run(&mut Overdue::default()).await.count, 1);
    assert_eq!(world.job(id).await.expect("it is there").state, JobState::Cancelling);
}

#[tokio::test]
async fn more_overdue_attempts_than_a_page_has_are_all_found() {
    let world = World::new().await;
    for n in 0..tenure_store::store::PAGE_MAX + 1 {
        world.running(&format!("r{n}")).await;
    }
    world.clock.advance(11 * 60_000);
    let found = world.run(&mut Overdue::default()).await;
    assert_eq!(found.count, tenure_store::store::PAGE_MAX + 1);
    assert_eq!(world.run(&mut Orphans).await.count, 0);
}

#[tokio::test]
async fn the_age_of_the_oldest_dead_letter_is_told_and_an_old_one_is_warned_of_once() {
    let world = World::new().await;
    let mut duty = Dead::default();
    assert_eq!(world.run(&mut duty).await, DutyReport::default());
    world.dead("a").await;
    world.clock.advance(30 * 60_000);
    world.dead("b").await;
    let found = world.run(&mut duty).await;
    assert_eq!((found.count, found.new), (2, 0));
    let note = found.note.expect("it has something to tell");
    assert_eq!(note, "the oldest, make of acme/db/a, is dead for 31 minutes");
    world.clock.advance(HOUR_MS);
    assert_eq!(world.run(&mut duty).await.new, 1);
    assert_eq!(world.run(&mut duty).await.new, 0);
}

#[tokio::test]
async fn retention_drops_what_is_old_step_by_step_and_keeps_the_rest() {
    let world = World::new().await;
    let mut old = Vec::new();
    for n in 0..600 {
        let (id, token) = world.running(&format!("r{n}")).await;
        let finish = Finish::Ok { state: None, result: None };
        world.send(Command::Job { id, action: JobAction::Finish { token, finish } }).await;
        old.push(id);
    }
    let dead = world.dead("dead").await;
    assert_eq!(world.run(&mut Retain).await, DutyReport::default());
    world.clock.advance(25 * HOUR_MS);
    world.open(SessionId(7)).await;
    let found = world.run(&mut Retain).await;
    assert!(found.count > 600 + 500, "more than one step of jobs and of lines: {found:?}");
    for id in old {
        assert!(world.job(id).await.is_none());
    }
    assert!(world.job(dead).await.is_some(), "dead letters are kept for longer");
    world.clock.advance(24 * HOUR_MS);
    world.run(&mut Retain).await;
    assert!(world.job(dead).await.is_none());
    let verified = tenure_store::verify::verify(world.cx.store()).await.expect("it answers");
    assert!(verified.problems.is_empty(), "{:?}", verified.problems);
}

#[tokio::test]
async fn a_running_job_without_a_tenure_is_ended_as_an_incident() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("tenure.db");
    let id = {
        let store = Arc::new(Embedded::open(&path).expect("it opens"));
        let world = World::over(Arc::clone(&store) as Arc<dyn Store>, ManualClock::default()).await;
        let (id, _) = world.running("a").await;
        world.running("b").await;
        drop(world);
        // The committer's thread lets go of the store a moment later.
        while Arc::strong_count(&store) > 1 {
            tokio::task::yield_now().await;
        }
        id
    };
    damage(&path);
    let store = Arc::new(Embedded::open(&path).expect("it opens"));
    let world = World::over(store, ManualClock::default()).await;
    assert_eq!(world.job(id).await.expect("it is there").state, JobState::Running);
    assert_eq!(world.run(&mut Orphans).await, DutyReport::done(1));
    let job = world.job(id).await.expect("it is kept");
    assert_eq!(job.state, JobState::Failed);
    assert_eq!(job.error.expect("it says why").code.as_ref(), "LOCK_STATE_LOST");
    let shown = world.cx.store().reads().show(&key("a")).await.expect("it answers");
    let resource = shown.expect("it is known").record.resource.expect("it was worked");
    assert_eq!(&*resource.state, "BROKEN");
    assert_eq!(world.run(&mut Orphans).await, DutyReport::default());
}

/// Takes the tenure of `a` out of the file.
fn damage(path: &Path) {
    let file = rusqlite::Connection::open(path).expect("it is a database");
    let sql = "UPDATE resources SET body = json_remove(body, '$.tenures') WHERE key = 'acme/db/a'";
    assert_eq!(file.execute(sql, []).expect("it is a table"), 1);
}

//! Unit tests of the duties on a manual clock.

use std::path::Path;
use std::sync::{Arc, Mutex};

use tenure_config::Config;
use tenure_core::{
    Acquire, Claim, Claimant, Command, Finish, Job, JobAction, JobId, JobState, LockAction,
    LockName, Outcome, ResourceAction, ResourceKey, SessionId, Submit, Token,
};
use tenure_store::clock::ManualClock;
use tenure_store::committer::Sweep;
use tenure_store::{Committer, Embedded, Memory, Store, random};

use super::dead_letters::DeadLetters;
use super::expiry::Expiry;
use super::lock_age::LockAge;
use super::orphans::Orphans;
use super::overdue::Overdue;
use super::retention::RetentionDuty;
use super::status::JanitorStatus;
use super::verify::{HistoryStatus, Verify};
use tenure_app::{Duty, DutyContext, DutyReport, Live, LiveConfig};

const HOUR_MS: u64 = 60 * 60 * 1_000;
const CONFIG: &str = r#"
[kinds.db]
lock_max_age = "2h"
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

struct Fixture {
    cx: DutyContext,
    status: Arc<JanitorStatus>,
    clock: ManualClock,
    session: SessionId,
}

impl Fixture {
    async fn new() -> Self {
        let clock = ManualClock::default();
        clock.advance(1_000_000);
        Self::with_store(Arc::new(Memory::with_clock(clock.clone())), clock).await
    }

    async fn with_store(store: Arc<dyn Store>, clock: ManualClock) -> Self {
        let Config { kinds, retention, .. } = Config::parse(CONFIG, Path::new("/")).expect("valid");
        store.declare(Arc::clone(&kinds)).await.expect("a response");
        let live = LiveConfig { kinds, retention, ..LiveConfig::default() };
        let committer = Committer::start_with(store, Sweep::External);
        let cx = DutyContext::new(committer, Live::fixed(live));
        let fixture = Self {
            cx,
            status: Arc::new(JanitorStatus::new(&[], Arc::default())),
            clock,
            session: random::session_id(),
        };
        fixture.open(fixture.session).await;
        fixture
    }

    async fn open(&self, session: SessionId) {
        let (tenant, name) = ("*".into(), "worker".into());
        self.send(Command::Open { session, tenant, name, ttl_ms: 86_400_000 }).await;
    }

    async fn send(&self, command: Command) -> Outcome {
        self.cx.committer.submit(command).await.expect("a response")
    }

    /// Submits a job and claims it.
    async fn start_job(&self, name: &str) -> (JobId, Token) {
        let submit = Submit {
            request: random::request_id(),
            operation: "make".into(),
            args: None,
            priority: 0,
            run_at: None,
            by: "ann".into(),
            precondition: None,
        };
        let action = ResourceAction::Submit(submit);
        let outcome = self.send(Command::Resource { key: key(name), action }).await;
        assert!(matches!(outcome, Outcome::Submitted { .. }), "{outcome:?}");
        self.claim().await.expect("ready")
    }

    async fn claim(&self) -> Option<(JobId, Token)> {
        let (request, kinds) = (random::request_id(), vec!["db".into()]);
        let claim =
            Claim { session: self.session, request, kinds, max: 1, tenant: None, only: None };
        match self.send(Command::Claim(claim)).await {
            Outcome::Claimed(jobs) => jobs.first().map(|job| (job.job.id, job.tenure.token)),
            other => panic!("{other:?} is not the outcome of a claim"),
        }
    }

    async fn fail(&self, (id, token): (JobId, Token)) -> JobState {
        let (code, message) = ("BUSY".into(), "later".into());
        let finish = Finish::Failed { code, message, class: None, state: None, delay_ms: None };
        match self
            .send(Command::Job { id, action: JobAction::Finish { token, finish, update: None } })
            .await
        {
            Outcome::Finished { state, .. } => state,
            other => panic!("{other:?} is not the outcome of a finish"),
        }
    }

    /// Creates a dead job: uses up both attempts.
    async fn bury_job(&self, name: &str) -> JobId {
        let job = self.start_job(name).await;
        assert_eq!(self.fail(job).await, JobState::Backoff);
        self.clock.advance(60_000);
        let job = self.claim().await.expect("its backoff has passed");
        assert_eq!(self.fail(job).await, JobState::Dead);
        job.0
    }

    async fn job(&self, id: JobId) -> Option<Box<Job>> {
        let view = self.cx.store().reads().job(id).await.expect("a response");
        view.map(|view| view.job)
    }

    async fn run(&self, duty: &mut impl Duty) -> DutyReport {
        duty.run(&self.cx).await.expect("a response")
    }

    async fn lock_and_release(&self, session: SessionId, name: &str) {
        match self.send(acquire(session, name, None)).await {
            Outcome::Granted(view) => self.send(release(name, view.token)).await,
            other => panic!("{other:?} is not a grant"),
        };
    }

    fn expiry(&self) -> Expiry {
        Expiry { status: Arc::clone(&self.status), clock: Arc::default() }
    }

    fn row(&self, duty: &str) -> tenure_wire::DutyInfo {
        let duties = self.status.duties();
        duties.into_iter().find(|row| row.duty == duty).expect("there is such a duty")
    }
}

fn key(name: &str) -> ResourceKey {
    ResourceKey::new("acme", "db", name).expect("a valid name")
}

#[tokio::test]
async fn expiry_settles_the_jobs_of_a_dead_worker() {
    let fixture = Fixture::new().await;
    let (id, _) = fixture.start_job("a").await;
    assert_eq!(fixture.run(&mut fixture.expiry()).await.count, 0);
    fixture.clock.advance(86_400_000);
    // Time without sweeps does not count against a session.
    assert_eq!(fixture.run(&mut fixture.expiry()).await.count, 0);
    for _ in 0..86_400 {
        fixture.clock.advance(1_000);
        if fixture.run(&mut fixture.expiry()).await.count > 0 {
            break;
        }
    }
    let job = fixture.job(id).await.expect("it exists");
    assert_eq!(job.state, JobState::Backoff);
    assert_eq!(job.error.expect("an error").code.as_ref(), "WORKER_TIMEOUT");
}

#[tokio::test]
async fn due_jobs_are_reported_as_the_duty_retries() {
    let fixture = Fixture::new().await;
    let job = fixture.start_job("a").await;
    assert_eq!(fixture.fail(job).await, JobState::Backoff);
    fixture.run(&mut fixture.expiry()).await;
    assert_eq!((fixture.row("retries").count, fixture.row("retries").total), (0, 0));
    fixture.clock.advance(60_000);
    fixture.run(&mut fixture.expiry()).await;
    assert_eq!((fixture.row("retries").count, fixture.row("retries").total), (1, 1));
    fixture.run(&mut fixture.expiry()).await;
    assert_eq!((fixture.row("retries").count, fixture.row("retries").total), (0, 1));
}

#[tokio::test]
async fn an_overdue_attempt_is_warned_about_once_and_keeps_running() {
    let fixture = Fixture::new().await;
    let (id, token) = fixture.start_job("a").await;
    let mut duty = Overdue::default();
    fixture.clock.advance(10 * 60_000);
    assert_eq!(fixture.run(&mut duty).await, DutyReport::default());
    fixture.clock.advance(1);
    assert_eq!(fixture.run(&mut duty).await, DutyReport { count: 1, new: 1, note: None });
    fixture.clock.advance(HOUR_MS);
    assert_eq!(fixture.run(&mut duty).await, DutyReport { count: 1, new: 0, note: None });
    let job = fixture.job(id).await.expect("it exists");
    assert_eq!((job.state, job.token()), (JobState::Running, Some(token)));
    assert_eq!(fixture.fail((id, token)).await, JobState::Backoff);
    assert_eq!(fixture.run(&mut duty).await, DutyReport::default());
    // The next attempt is warned about again.
    fixture.clock.advance(60_000);
    fixture.claim().await.expect("its backoff has passed");
    fixture.clock.advance(11 * 60_000);
    assert_eq!(fixture.run(&mut duty).await, DutyReport { count: 1, new: 1, note: None });
}

fn acquire(session: SessionId, name: &str, max_age_ms: Option<u64>) -> Command {
    let action = LockAction::Acquire(Acquire {
        locks: LockName::main().into(),
        claimant: Claimant::Session(session),
        request: random::request_id(),
        wait_ms: 0,
        purpose: None,
        max_age_ms,
        tenant: None,
    });
    Command::Lock { key: key(name), action }
}

fn release(name: &str, token: Token) -> Command {
    let action = LockAction::Release { token, locks: None, to: None };
    Command::Lock { key: key(name), action }
}

#[tokio::test]
async fn a_lock_past_its_maximum_age_is_warned_about_once_and_stays_held() {
    let fixture = Fixture::new().await;
    let held = |outcome: &Outcome| matches!(outcome, Outcome::Granted(_));
    // The kind's maximum age is two hours.
    for (name, max_age_ms) in [("a", None), ("b", Some(HOUR_MS)), ("c", Some(9 * HOUR_MS))] {
        assert!(held(&fixture.send(acquire(fixture.session, name, max_age_ms)).await));
    }
    let mut duty = LockAge::default();
    fixture.clock.advance(HOUR_MS);
    assert_eq!(fixture.run(&mut duty).await, DutyReport::default());
    for (passed_ms, count, new) in [(1, 1, 1), (1, 1, 0), (HOUR_MS, 2, 1)] {
        fixture.clock.advance(passed_ms);
        assert_eq!(fixture.run(&mut duty).await, DutyReport { count, new, note: None });
    }
    for name in ["a", "b"] {
        assert_eq!(
            fixture.send(release(name, Token(1))).await,
            Outcome::Released { already: false }
        );
    }
    assert_eq!(fixture.run(&mut duty).await, DutyReport::default());
}

#[tokio::test]
async fn a_cancelling_attempt_that_does_not_stop_is_overdue() {
    let fixture = Fixture::new().await;
    let (id, _) = fixture.start_job("a").await;
    let action = JobAction::Cancel { by: "ann".into(), reason: "enough".into() };
    fixture.send(Command::Job { id, action }).await;
    fixture.clock.advance(11 * 60_000);
    assert_eq!(fixture.run(&mut Overdue::default()).await.count, 1);
    assert_eq!(fixture.job(id).await.expect("it exists").state, JobState::Cancelling);
}

#[tokio::test]
async fn overdue_attempts_beyond_one_page_are_found() {
    let fixture = Fixture::new().await;
    for n in 0..tenure_store::store::PAGE_MAX + 1 {
        fixture.start_job(&format!("r{n}")).await;
    }
    fixture.clock.advance(11 * 60_000);
    let report = fixture.run(&mut Overdue::default()).await;
    assert_eq!(report.count, tenure_store::store::PAGE_MAX + 1);
    assert_eq!(fixture.run(&mut Orphans).await.count, 0);
}

#[tokio::test]
async fn the_oldest_dead_letter_is_reported_and_warned_about_once() {
    let fixture = Fixture::new().await;
    let mut duty = DeadLetters::default();
    assert_eq!(fixture.run(&mut duty).await, DutyReport::default());
    fixture.bury_job("a").await;
    fixture.clock.advance(30 * 60_000);
    fixture.bury_job("b").await;
    let report = fixture.run(&mut duty).await;
    assert_eq!((report.count, report.new), (2, 0));
    let note = report.note.expect("a note");
    assert_eq!(note, "the oldest, make of acme/db/a, is 31 minutes old");
    fixture.clock.advance(HOUR_MS);
    assert_eq!(fixture.run(&mut duty).await.new, 1);
    assert_eq!(fixture.run(&mut duty).await.new, 0);
}

#[tokio::test]
async fn retention_prunes_old_jobs_and_events_in_several_steps() {
    let fixture = Fixture::new().await;
    let mut old = Vec::new();
    for n in 0..600 {
        let (id, token) = fixture.start_job(&format!("r{n}")).await;
        let finish = Finish::Ok { state: None, result: None };
        fixture
            .send(Command::Job { id, action: JobAction::Finish { token, finish, update: None } })
            .await;
        old.push(id);
    }
    let dead = fixture.bury_job("dead").await;
    assert_eq!(fixture.run(&mut RetentionDuty).await, DutyReport::default());
    fixture.clock.advance(25 * HOUR_MS);
    fixture.open(SessionId(7)).await;
    let report = fixture.run(&mut RetentionDuty).await;
    assert!(report.count > 600 + 500, "more than one step of jobs and of events: {report:?}");
    for id in old {
        assert!(fixture.job(id).await.is_none());
    }
    assert!(fixture.job(dead).await.is_some(), "dead letters are kept longer");
    fixture.clock.advance(24 * HOUR_MS);
    fixture.run(&mut RetentionDuty).await;
    assert!(fixture.job(dead).await.is_none());
    let verified = tenure_store::verify::verify(fixture.cx.store()).await.expect("a response");
    assert!(verified.problems.is_empty(), "{:?}", verified.problems);
}

#[tokio::test]
async fn an_orphaned_job_is_failed_and_counted_as_an_incident() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("tenure.db");
    let id = {
        let store = Arc::new(Embedded::open(&path).expect("it opens"));
        let fixture =
            Fixture::with_store(Arc::clone(&store) as Arc<dyn Store>, ManualClock::default()).await;
        let (id, _) = fixture.start_job("a").await;
        fixture.start_job("b").await;
        drop(fixture);
        // The committer's thread drops the store asynchronously.
        while Arc::strong_count(&store) > 1 {
            tokio::task::yield_now().await;
        }
        id
    };
    damage(&path);
    let store = Arc::new(Embedded::open(&path).expect("it opens"));
    let fixture = Fixture::with_store(store, ManualClock::default()).await;
    assert_eq!(fixture.job(id).await.expect("it exists").state, JobState::Running);
    assert_eq!(fixture.run(&mut Orphans).await, DutyReport::done(1));
    let job = fixture.job(id).await.expect("it exists");
    assert_eq!(job.state, JobState::Failed);
    assert_eq!(job.error.expect("an error").code.as_ref(), "LOCK_STATE_LOST");
    let view = fixture.cx.store().reads().show(&key("a")).await.expect("a response");
    let resource = view.expect("it exists").record.resource.expect("a resource");
    assert_eq!(&*resource.state, "BROKEN");
    assert_eq!(fixture.run(&mut Orphans).await, DutyReport::default());
}

/// Removes the tenure of `a` from the file.
fn damage(path: &Path) {
    let file = rusqlite::Connection::open(path).expect("it is a database");
    let sql = "UPDATE resources SET body = json_remove(body, '$.tenures') WHERE key = 'acme/db/a'";
    assert_eq!(file.execute(sql, []).expect("it is a table"), 1);
}

// ----- verify -----

/// Records the error messages of this thread, with their fields.
#[derive(Clone, Default)]
struct Errors(Arc<Mutex<Vec<String>>>);

impl Errors {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().expect("not poisoned"))
    }
}

impl tracing::Subscriber for Errors {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::ERROR
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = String::new();
        let mut field = |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            text += &format!("{field}={value:?} ");
        };
        event.record(&mut field);
        self.0.lock().expect("not poisoned").push(text);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test]
async fn a_violation_of_the_history_is_logged_and_counted_once() {
    let errors = Errors::default();
    let _guard = tracing::subscriber::set_default(errors.clone());
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("tenure.db");
    let store = Arc::new(Embedded::open(&path).expect("it opens"));
    let fixture = Fixture::with_store(store, ManualClock::default()).await;
    let status = Arc::<HistoryStatus>::default();
    let mut duty = Verify::new(Arc::clone(&status));
    assert_eq!((status.unverified(), fixture.run(&mut duty).await), (None, DutyReport::default()));
    fixture.start_job("a").await;
    // The resource, the job, and its attempt.
    assert_eq!(fixture.run(&mut duty).await, DutyReport::done(3));
    fixture.start_job("b").await;
    let file = rusqlite::Connection::open(&path).expect("it is a database");
    let sql = "UPDATE history SET line = replace(line, '\"ann\"', '\"bob\"') WHERE id = 5";
    assert_eq!(file.execute(sql, []).expect("it is a table"), 1);
    let report = fixture.run(&mut duty).await;
    let what = "its hash does not follow from the entry before: it was edited";
    let first = format!("contradictions of the history: 1, the first: acme/db/b entry 2: {what}");
    assert_eq!((report.count, report.note.as_ref()), (3, Some(&first)));
    let logged = errors.take();
    assert_eq!(logged.len(), 1, "{logged:?}");
    for part in ["resource=acme/db/b entry=2", what, "incident: "] {
        assert!(logged[0].contains(part), "{logged:?}");
    }
    assert_eq!((status.violations(), status.unverified()), (1, Some(0)));
    for name in ["c", "d"] {
        fixture.start_job(name).await;
        let report = fixture.run(&mut duty).await;
        assert_eq!((report.count, report.note.as_ref()), (3, Some(&first)));
    }
    assert_eq!((status.violations(), errors.take()), (1, Vec::new()));
    let warning = status.warning().expect("a warning");
    assert!(warning.contains("in 1 place,") && !warning.contains("acme"), "{warning}");
}

#[tokio::test]
async fn pruning_between_two_verifications_is_no_violation() {
    let fixture = Fixture::new().await;
    let status = Arc::<HistoryStatus>::default();
    let mut duty = Verify::new(Arc::clone(&status));
    for round in 0..5 {
        fixture.open(SessionId(100 + round)).await;
        for _ in 0..3 {
            fixture.lock_and_release(SessionId(100 + round), "a").await;
        }
        if round != 2 {
            assert!(fixture.run(&mut duty).await.count > 0);
        }
        fixture.clock.advance(25 * HOUR_MS);
        assert!(fixture.run(&mut RetentionDuty).await.count > 0);
    }
    fixture.run(&mut duty).await;
    assert_eq!((status.violations(), status.unverified()), (0, Some(0)));
}

//! The janitor: periodic housekeeping of the server.
//!
//! Each duty has its own file, its own interval and its own row in [`JanitorStatus`], which
//! `GET /v1/janitor` and `/readyz` show, so that a stuck janitor is noticed within a minute.
//!
//! One server of a fleet runs the duties: the holder of the lock `main` of the resource
//! `tenure/janitor/main`, which it acquires with an ordinary session. The others wait in the queue
//! of the lock and take over when it expires or is released. The lock only saves work. Safety does
//! not depend on it: each duty may run twice, or on two servers at once, since the rules are
//! enforced by the store.
//!
//! *Expiry* is the exception: every server runs it, with or without the lock. The lock belongs to a
//! session, and sessions end by being swept: if only the holder of the lock swept, the session of a
//! holder that died would never end. A sweep ends only what has expired by the store's clock, in a
//! guarded write, so concurrent sweeps are harmless, and one that finds nothing is cheap.
//!
//! The janitor has its own thread and runtime, so that load on the API does not delay it. It must
//! never end work because of its age: only an expired session is dead.
//!
//! Next: `status.rs` for its status, `expiry.rs` for the most important duty.

mod dead_letters;
mod expiry;
mod lock_age;
mod orphans;
mod overdue;
mod retention;
mod retries;
pub mod status;
mod store_clock;
#[cfg(test)]
mod tests;
pub mod verify;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tenure::{Client, Tenure};
use tenure_app::controller::SYSTEM_TENANT;
use tenure_app::{Apps, Duty, DutyContext, Live};
use tenure_core::ResourceKey;
use tenure_store::Committer;
use tokio::sync::oneshot;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

pub use status::JanitorStatus;
use store_clock::StoreClock;
pub use verify::HistoryStatus;

/// The lock of the janitor, of the tenant [`SYSTEM_TENANT`].
const LOCK: &str = "janitor/main";
/// Time after which another server takes over from one that died.
const TTL: Duration = Duration::from_secs(10);
/// Time that one request for the lock waits in its queue; then it is repeated.
const WAIT: Duration = Duration::from_secs(60 * 60);
/// Pause after the lock was lost or a request for it failed.
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum time that a shutdown waits for the janitor to release its lock.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// The janitor of this server, stopped on drop.
pub struct Janitor {
    stop: CancellationToken,
    status: Arc<JanitorStatus>,
    ended: oneshot::Receiver<()>,
}

impl Janitor {
    /// Starts the janitor's thread. `name` is the holder of its lock that others see.
    #[must_use]
    pub fn start(committer: Committer, live: Live, apps: &Apps, name: &str) -> Self {
        let stop = CancellationToken::new();
        let (ending, ended) = oneshot::channel();
        let runner = Runner::new(DutyContext::new(committer, live), apps, name);
        let (stopped, status) = (stop.clone(), Arc::clone(&runner.status));
        std::thread::Builder::new()
            .name("tenure-janitor".to_owned())
            .spawn(move || {
                // Drops the store before it signals its end.
                runner.run(&stopped);
                drop(ending);
            })
            .expect("a thread can be spawned at startup");
        Self { stop, status, ended }
    }

    /// Returns the status of the janitor.
    #[must_use]
    pub fn status(&self) -> &Arc<JanitorStatus> {
        &self.status
    }

    /// Stops the janitor and releases its lock, so that another server can take over at once.
    pub async fn stop(mut self) {
        self.stop.cancel();
        if tokio::time::timeout(STOP_TIMEOUT, &mut self.ended).await.is_err() {
            tracing::warn!("the janitor did not release its lock in time; it will expire");
        }
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Returns the resource whose lock elects the server that runs the duties.
#[must_use]
pub fn resource() -> ResourceKey {
    format!("{SYSTEM_TENANT}/{LOCK}").parse().expect("a valid name")
}

/// Runs the duties on the janitor's thread.
struct Runner {
    cx: DutyContext,
    status: Arc<JanitorStatus>,
    clock: Arc<StoreClock>,
    /// Runs on every server.
    expiry: expiry::Expiry,
    /// Run on the server that holds the lock.
    locked: Vec<Box<dyn Duty>>,
    name: String,
}

impl Runner {
    fn new(cx: DutyContext, apps: &Apps, name: &str) -> Self {
        let history = Arc::<HistoryStatus>::default();
        let mut locked: Vec<Box<dyn Duty>> = vec![
            Box::new(overdue::Overdue::default()),
            Box::new(lock_age::LockAge::default()),
            Box::new(orphans::Orphans),
            Box::new(retention::RetentionDuty),
            Box::new(dead_letters::DeadLetters::default()),
            Box::new(verify::Verify::new(Arc::clone(&history))),
        ];
        locked.extend(apps.iter().flat_map(|app| app.duties()));
        let status = Arc::new(JanitorStatus::new(&locked, history));
        let clock = Arc::<StoreClock>::default();
        let expiry = expiry::Expiry { status: Arc::clone(&status), clock: Arc::clone(&clock) };
        Self { cx, status, clock, expiry, locked, name: name.to_owned() }
    }

    fn run(self, stop: &CancellationToken) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime without I/O needs no resources");
        let Self { cx, status, clock, mut expiry, mut locked, name } = self;
        let scheduler = Scheduler { cx, status, clock, name };
        runtime.block_on(async {
            tokio::select! {
                () = stop.cancelled() => {}
                () = scheduler.run_expiry(&mut expiry) => {}
                () = scheduler.run_locked(&mut locked) => {}
            }
        });
    }
}

/// Repeats duties at their intervals. Separate from the duties, which are borrowed mutably.
struct Scheduler {
    cx: DutyContext,
    status: Arc<JanitorStatus>,
    clock: Arc<StoreClock>,
    name: String,
}

impl Scheduler {
    /// Runs the duty of every server.
    async fn run_expiry(&self, expiry: &mut expiry::Expiry) {
        self.status.expect_runs(&[expiry::NAME, retries::NAME]);
        self.repeat(expiry).await;
    }

    /// Acquires the lock and runs the duties while it is held, repeatedly.
    async fn run_locked(&self, duties: &mut [Box<dyn Duty>]) {
        let mut warned = false;
        loop {
            match self.acquire_lock().await {
                Ok(tenure) => {
                    warned = false;
                    self.run_under(&tenure, duties).await;
                }
                Err(error) if !warned => {
                    tracing::warn!(%error, "the janitor cannot acquire its lock; retrying");
                    warned = true;
                }
                Err(error) => tracing::debug!(%error, "the janitor cannot acquire its lock"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn acquire_lock(&self) -> Result<Tenure, tenure::Error> {
        let client = Client::with_transport(Arc::new(self.cx.committer.clone()), SYSTEM_TENANT);
        let session = client.session(&self.name, TTL).await?;
        session.lock(LOCK)?.wait(WAIT).purpose("janitor").acquire().await
    }

    async fn run_under(&self, tenure: &Tenure, duties: &mut [Box<dyn Duty>]) {
        tracing::debug!(token = %tenure.token(), "the janitor acquired its lock");
        let names: Vec<&'static str> = duties.iter().map(|duty| duty.name()).collect();
        let lock_held = self.status.mark_lock_held(&names);
        tokio::select! {
            why = tenure.lost() => tracing::warn!(%why, "the janitor lost its lock"),
            _ = join_all(duties.iter_mut().map(|duty| self.repeat(&mut **duty))) => {}
        }
        drop(lock_held);
    }

    /// Repeats a duty forever. A slow run delays only the next run of the same duty.
    async fn repeat(&self, duty: &mut dyn Duty) {
        let mut ticks = tokio::time::interval(duty.interval());
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let now = self.clock.now(self.cx.store()).await;
            let run = self.status.start_run(duty.name(), now);
            let result = duty.run(&self.cx).await;
            self.status.finish_run(&run, result);
        }
    }
}

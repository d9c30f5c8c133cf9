//! The janitor: what has to be done although nobody asks for it.
//!
//! Each duty has its own file, its own rhythm and its own row on the [`Board`], which
//! `GET /v1/janitor` and `/readyz` show: a janitor that has died must be seen within a minute, not
//! after weeks.
//!
//! One server at a time does the work, the one that holds the lock `main` of the resource
//! `tenure/janitor/main` through a session like anybody's. The others wait in the queue of that
//! lock and take over when it lapses or is given back. The lock saves work, it is not what makes
//! the duties safe: each of them may be done twice, or by two servers at once, without harm, since
//! the rules are in the steps of the store and not here.
//!
//! *Expiry* is the exception: it is done by every server, with or without the lock. The lock
//! belongs to a session, and a session ends by being swept: if only the holder of the lock swept,
//! nobody would end the session of a holder that died. A sweep ends only what has lapsed by the
//! store's clock, in a guarded write, so two sweepers do no harm, and one that finds nothing costs
//! a look at the head of a queue.
//!
//! The janitor has its own thread and runtime, so that no load on the API delays it. It must never
//! end work because it is old: only a session that has lapsed is dead.
//!
//! Next: `board.rs` for what is seen of it, `expiry.rs` for the most important duty.

pub mod board;
mod dead;
mod expiry;
mod orphans;
mod overdue;
mod retention;
mod retries;
#[cfg(test)]
mod tests;
mod time;

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

pub use board::Board;
use time::Time;

/// The lock of the janitor, within the tenant of Tenure itself.
const LOCK: &str = "janitor/main";
/// How long the work rests after the server that did it has died.
const TTL: Duration = Duration::from_secs(10);
/// How long one wait for the lock lasts; then it begins again.
const WAIT: Duration = Duration::from_secs(60 * 60);
/// Pause after the lock could not be asked for, or was lost.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a shutdown waits for the janitor to give its lock back.
const STOP_MAX: Duration = Duration::from_secs(3);

/// The janitor of this server. It stops when it is dropped.
pub struct Janitor {
    stop: CancellationToken,
    board: Arc<Board>,
    ended: oneshot::Receiver<()>,
}

impl Janitor {
    /// Starts its thread. `name` is the holder of its lock that others see.
    #[must_use]
    pub fn start(committer: Committer, live: Live, apps: &Apps, name: &str) -> Self {
        let stop = CancellationToken::new();
        let (ending, ended) = oneshot::channel();
        let runner = Runner::new(DutyContext { committer, live }, apps, name);
        let (until, board) = (stop.clone(), Arc::clone(&runner.board));
        std::thread::Builder::new()
            .name("tenure-janitor".to_owned())
            .spawn(move || {
                // Drops the store before the end is reported.
                runner.run(&until);
                drop(ending);
            })
            .expect("the system has a thread to spare at start");
        Self { stop, board, ended }
    }

    /// What is seen of it.
    #[must_use]
    pub fn board(&self) -> &Arc<Board> {
        &self.board
    }

    /// Stops it and gives its lock back, so that another server can go on at once.
    pub async fn stop(mut self) {
        self.stop.cancel();
        if tokio::time::timeout(STOP_MAX, &mut self.ended).await.is_err() {
            tracing::warn!("the janitor has not given its lock back; it will lapse");
        }
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// The resource whose lock says who does the work.
#[must_use]
pub fn resource() -> ResourceKey {
    format!("{SYSTEM_TENANT}/{LOCK}").parse().expect("it is a good name")
}

/// Runs the duties on the janitor's thread.
struct Runner {
    cx: DutyContext,
    board: Arc<Board>,
    time: Arc<Time>,
    /// Runs on every server.
    expiry: expiry::Expiry,
    /// Run on the server that holds the lock.
    held: Vec<Box<dyn Duty>>,
    name: String,
}

impl Runner {
    fn new(cx: DutyContext, apps: &Apps, name: &str) -> Self {
        let mut held: Vec<Box<dyn Duty>> = vec![
            Box::new(overdue::Overdue::default()),
            Box::new(orphans::Orphans),
            Box::new(retention::Retain),
            Box::new(dead::Dead::default()),
        ];
        held.extend(apps.iter().flat_map(|app| app.duties()));
        let (board, time) = (Arc::new(Board::new(&held)), Arc::new(Time::default()));
        let expiry = expiry::Expiry { board: Arc::clone(&board), time: Arc::clone(&time) };
        Self { cx, board, time, expiry, held, name: name.to_owned() }
    }

    fn run(self, stop: &CancellationToken) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime without I/O needs nothing that can fail");
        let Self { cx, board, time, mut expiry, mut held, name } = self;
        let duties = Duties { cx, board, time, name };
        runtime.block_on(async {
            tokio::select! {
                () = stop.cancelled() => {}
                () = duties.always(&mut expiry) => {}
                () = duties.lead(&mut held) => {}
            }
        });
    }
}

/// What running the duties needs, without the duties themselves.
struct Duties {
    cx: DutyContext,
    board: Arc<Board>,
    time: Arc<Time>,
    name: String,
}

impl Duties {
    /// Runs what every server does.
    async fn always(&self, expiry: &mut expiry::Expiry) {
        self.board.begin_to_count(&[expiry::NAME, retries::NAME]);
        self.repeat(expiry).await;
    }

    /// Waits for the lock and runs the duties while it is held; again and again.
    async fn lead(&self, held: &mut [Box<dyn Duty>]) {
        let mut said = false;
        loop {
            match self.take_lock().await {
                Ok(tenure) => {
                    said = false;
                    self.hold(&tenure, held).await;
                }
                Err(error) if !said => {
                    tracing::warn!(%error, "the janitor cannot ask for its lock");
                    said = true;
                }
                Err(error) => tracing::debug!(%error, "the janitor still has no lock"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn take_lock(&self) -> Result<Tenure, tenure::Error> {
        let client = Client::with_transport(Arc::new(self.cx.committer.clone()), SYSTEM_TENANT);
        let session = client.session(&self.name, TTL).await?;
        session.lock(LOCK)?.wait(WAIT).purpose("janitor").acquire().await
    }

    async fn hold(&self, tenure: &Tenure, held: &mut [Box<dyn Duty>]) {
        tracing::debug!(token = %tenure.token(), "the janitor works here");
        let names: Vec<&'static str> = held.iter().map(|duty| duty.name()).collect();
        let gone = self.board.work_here(&names);
        tokio::select! {
            why = tenure.lost() => tracing::warn!(%why, "the janitor has lost its lock"),
            _ = join_all(held.iter_mut().map(|duty| self.repeat(&mut **duty))) => {}
        }
        drop(gone);
    }

    /// Repeats a duty for as long as it is polled. A run that takes long delays the next one of the
    /// same duty only.
    async fn repeat(&self, duty: &mut dyn Duty) {
        let mut ticks = tokio::time::interval(duty.interval());
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let now = self.time.now(self.cx.store()).await;
            let begun = self.board.begin(duty.name(), now);
            let result = duty.run(&self.cx).await;
            self.board.end(&begun, result);
        }
    }
}

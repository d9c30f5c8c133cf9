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
mod duty;
mod expiry;
mod orphans;
mod overdue;
mod retention;
mod retries;
mod schedule;
#[cfg(test)]
mod tests;
mod time;

use std::sync::Arc;
use std::time::Duration;

use tenure::{Client, Tenure};
use tenure_core::ResourceKey;
use tenure_store::{Committer, Store};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

pub use board::Board;
use duty::keep;
use time::Time;

use crate::InForce;

/// The tenant of what Tenure keeps for itself.
const TENANT: &str = "tenure";
/// The lock of the janitor, within its tenant.
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
    /// Starts its thread. People see its lock held by `name`.
    #[must_use]
    pub fn start(committer: Committer, in_force: watch::Receiver<InForce>, name: &str) -> Self {
        let (stop, board) = (CancellationToken::new(), Arc::new(Board::new()));
        let (ending, ended) = oneshot::channel();
        let (time, until) = (Time::default(), stop.clone());
        let name = name.to_owned();
        let on = Around { committer, in_force, board: Arc::clone(&board), time, name };
        std::thread::Builder::new()
            .name("tenure-janitor".to_owned())
            .spawn(move || {
                on.run(&until);
                // Whoever waits for the end may count on the store being let go.
                drop(on);
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
    format!("{TENANT}/{LOCK}").parse().expect("it is a good name")
}

/// What the duties have at hand.
pub(crate) struct Around {
    committer: Committer,
    in_force: watch::Receiver<InForce>,
    board: Arc<Board>,
    time: Time,
    name: String,
}

impl Around {
    fn store(&self) -> &dyn Store {
        self.committer.store()
    }

    fn in_force(&self) -> InForce {
        self.in_force.borrow().clone()
    }

    fn run(&self, stop: &CancellationToken) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime without I/O needs nothing that can fail");
        runtime.block_on(async {
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.always() => {}
                () = self.lead() => {}
            }
        });
    }

    /// What every server does.
    async fn always(&self) {
        self.board.begin_to_count(&[expiry::NAME, retries::NAME]);
        keep(expiry::Expiry, self).await;
    }

    /// Waits for the lock and does the work while it is held; again and again.
    async fn lead(&self) {
        let mut said = false;
        loop {
            match self.take_lock().await {
                Ok(tenure) => {
                    said = false;
                    self.hold(&tenure).await;
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
        let client = Client::over(Arc::new(self.committer.clone()), TENANT);
        let session = client.session(&self.name, TTL).await?;
        session.lock(LOCK)?.wait(WAIT).purpose("janitor").acquire().await
    }

    async fn hold(&self, tenure: &Tenure) {
        tracing::debug!(token = %tenure.token(), "the janitor works here");
        let gone = self.board.work_here(&HELD);
        tokio::select! {
            why = tenure.lost() => tracing::warn!(%why, "the janitor has lost its lock"),
            () = self.duties() => {}
        }
        drop(gone);
    }

    /// What the holder of the lock does.
    async fn duties(&self) {
        tokio::join!(
            keep(overdue::Overdue::default(), self),
            keep(orphans::Orphans, self),
            keep(retention::Retain, self),
            keep(dead::Dead::default(), self),
            keep(schedule::Schedules::default(), self),
        );
    }
}

/// The duties of the holder of the lock.
const HELD: [&str; 5] = [overdue::NAME, orphans::NAME, retention::NAME, dead::NAME, schedule::NAME];

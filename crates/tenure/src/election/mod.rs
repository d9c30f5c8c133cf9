//! Elections: one leader among many candidates.
//!
//! An election is a lock. Its candidates wait in the lock's queue, the leader holds it, and its
//! token is the term: it rises with every leader and never returns. Whether a leader is alive, and
//! since when it is not, is decided by the store's clock; a leader that is locked out of the store
//! stops by a deadline of its own. A write of an earlier leader is refused wherever its term is
//! checked.
//!
//! This module has the candidates; `leadership.rs` has the leader, `observe.rs` what others see.

mod leadership;
mod observe;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_core::{LockPath, Refusal, ResourceKey, Text, limits};

use crate::client::Client;
use crate::clock::BootInstant;
use crate::error::Error;
use crate::session_options::SessionOptions;
use crate::tenure::Waiting;
use crate::transport::Transport;

pub use leadership::Leadership;
pub use observe::{Candidate, ElectionStatus, Leader, Term};

/// Default time to live of a candidate's session.
const TTL_DEFAULT: Duration = Duration::from_secs(15);
/// Default interval at which observers and waiting candidates look at the election.
const POLL_INTERVAL_DEFAULT: Duration = Duration::from_millis(500);
/// Maximum time of one wait in the queue; a candidate without a limit then queues again.
const WAIT_MAX: Duration = Duration::from_millis(limits::WAIT_MS_MAX);

/// What a candidate waits for.
#[derive(Debug)]
#[non_exhaustive]
pub enum CampaignUpdate<'a> {
    /// Another one leads, or is to lead first.
    Waiting(&'a Waiting),
    /// The server cannot be reached; the campaign continues when it can.
    Interrupted(&'a Error),
}

/// One election, as a candidate takes part in it or an observer watches it.
///
/// ```
/// # use tenure::Client;
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tenure::Error> {
/// # let client = Client::in_memory(Default::default()).await?;
/// let election = client.election("service/billing")?.candidate("node-1");
/// let leadership = election.campaign().await?; // waits until this candidate leads
/// let status = election.status().await?;
/// assert_eq!(status.leader.map(|leader| leader.term), Some(leadership.term()));
///
/// assert!(leadership.transfer_to("node-2").await.is_err(), "node-2 does not wait");
/// leadership.check().expect("so this candidate still leads");
/// leadership.resign().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Election {
    client: Client,
    transport: Arc<dyn Transport>,
    path: LockPath,
    key: ResourceKey,
    candidate: String,
    ttl: Duration,
    heartbeat: Option<Duration>,
    purpose: Option<Text>,
    max_age: Option<Duration>,
    wait: Option<Duration>,
    poll_interval: Duration,
    /// Set once the server has answered a candidate. Shared by clones.
    has_answered: Arc<AtomicBool>,
}

impl Election {
    pub(crate) fn new(client: &Client, tenant: &str, path: LockPath) -> Result<Self, Error> {
        Ok(Self {
            key: path.resource(tenant)?,
            client: client.clone(),
            transport: Arc::clone(client.transport()),
            path,
            candidate: format!("candidate/{}", std::process::id()),
            ttl: TTL_DEFAULT,
            heartbeat: None,
            purpose: None,
            max_age: None,
            wait: None,
            poll_interval: POLL_INTERVAL_DEFAULT,
            has_answered: Arc::default(),
        })
    }

    /// Sets the name of the candidate, which others see and [transfer](Leadership::transfer_to) to.
    /// Give each process its own. Two candidates with one name are still two candidates.
    #[must_use]
    pub fn candidate(mut self, name: &str) -> Self {
        name.clone_into(&mut self.candidate);
        self
    }

    /// Sets the time without a heartbeat after which the store replaces the leader. The default is
    /// 15 s.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Sets the interval between heartbeats, at most half the time to live. The default is a third
    /// of it.
    #[must_use]
    pub fn heartbeat(mut self, interval: Duration) -> Self {
        self.heartbeat = Some(interval);
        self
    }

    /// Sets the purpose, which is shown to others and recorded in history.
    #[must_use]
    pub fn purpose(mut self, purpose: &str) -> Self {
        self.purpose = Some(purpose.into());
        self
    }

    /// Sets the age above which the leadership is reported by metrics and a warning. It never ends
    /// it.
    #[must_use]
    pub fn max_age(mut self, age: Duration) -> Self {
        self.max_age = Some(age);
        self
    }

    /// Sets the maximum time to wait for the leadership, and for a server that is down. By default
    /// a candidate waits without a limit, once the server has answered.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Sets the interval at which observers and waiting candidates look at the election. A
    /// candidate gets the leadership when it is its turn, whatever the interval is.
    #[must_use]
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = interval;
        self
    }

    /// Waits until this candidate is the leader.
    ///
    /// Cancellation safe: when the future is dropped, the candidate leaves the queue.
    ///
    /// # Errors
    ///
    /// Fails with [`Error::Unavailable`] if the server has never answered this candidate, and with
    /// [`Refusal::Held`] if the maximum [wait](Election::wait) is over.
    pub async fn campaign(&self) -> Result<Leadership, Error> {
        self.campaign_with_updates(|_| ()).await
    }

    /// Waits like [`Election::campaign`], and calls `on_update` with what the candidate waits for.
    pub async fn campaign_with_updates(
        &self,
        mut on_update: impl FnMut(CampaignUpdate<'_>),
    ) -> Result<Leadership, Error> {
        let until = self.wait.map(|wait| BootInstant::now() + wait);
        loop {
            let left = until.map_or(WAIT_MAX, BootInstant::remaining);
            let error = match self.stand(left, &mut on_update).await {
                Err(error) if until.is_none_or(|until| !until.has_passed()) => error,
                ended => return ended,
            };
            if matches!(error, Error::Refused(Refusal::Held { .. })) && until.is_none() {
                continue;
            }
            let may_wait = self.wait.is_some() || self.has_answered.load(Ordering::Relaxed);
            if !may_wait || !is_interruption(&error) {
                return Err(error);
            }
            on_update(CampaignUpdate::Interrupted(&error));
            tokio::time::sleep(left.min(self.poll_interval)).await;
        }
    }

    /// Opens a session and waits in the queue for at most `wait`.
    async fn stand(
        &self,
        wait: Duration,
        on_update: &mut impl FnMut(CampaignUpdate<'_>),
    ) -> Result<Leadership, Error> {
        let mut options = SessionOptions::new(&self.candidate, self.ttl);
        if let Some(interval) = self.heartbeat {
            options = options.heartbeat(interval);
        }
        let session = self.client.open_session(&options).await?;
        self.has_answered.store(true, Ordering::Relaxed);
        let mut request = session.locks(self.key.clone(), self.path.lock.clone().into());
        request = request.wait(wait).poll_interval(self.poll_interval);
        if let Some(purpose) = &self.purpose {
            request = request.purpose(purpose);
        }
        if let Some(age) = self.max_age {
            request = request.max_age(age);
        }
        let show = |waiting: &Waiting| on_update(CampaignUpdate::Waiting(waiting));
        let tenure = request.acquire_with_updates(show).await?;
        Ok(Leadership::new(tenure))
    }
}

/// Returns whether the server was down for a while, so that another attempt may succeed.
fn is_interruption(error: &Error) -> bool {
    error.is_unavailable() || matches!(error, Error::Refused(Refusal::SessionExpired))
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election")
            .field("key", &self.key)
            .field("candidate", &self.candidate)
            .finish_non_exhaustive()
    }
}

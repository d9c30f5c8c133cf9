//! Jobs as their submitter sees them: wait, status, log, cancel, retry.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use serde_json::Value;
use tenure_core::{Command, JobAction, JobId, JobState, Outcome, Text};

use crate::error::Error;
use crate::items::Items;
use crate::random;
use crate::submit::Submitted;
use crate::transport::{Queries, RETRY_DELAY, Transport, query_with_retries};
use crate::wire::{JobInfo, LogChunkInfo, WhyResponse};

/// Principal of requests over a transport that does not authenticate, unless another is set.
pub(crate) const BY_DEFAULT: &str = "client";
/// Duration of one long poll for the end of a job, or for more of its log.
const POLL: Duration = Duration::from_secs(20);

/// A job, addressed by its id; see [`crate::Client::job`].
#[derive(Clone)]
pub struct JobHandle {
    transport: Arc<dyn Transport>,
    id: JobId,
    by: Text,
}

impl JobHandle {
    pub(crate) fn new(transport: Arc<dyn Transport>, id: JobId, by: Text) -> Self {
        Self { transport, id, by }
    }

    /// Sets the name of the caller. A server that authenticates the caller overrides it.
    #[must_use]
    pub fn by(mut self, by: &str) -> Self {
        self.by = by.into();
        self
    }

    /// Returns the id of the job.
    #[must_use]
    pub fn id(&self) -> JobId {
        self.id
    }

    /// Returns the job as it is now.
    pub async fn status(&self) -> Result<JobInfo, Error> {
        self.transport.queries().job(self.id, Duration::ZERO).await
    }

    /// Waits until the job has succeeded and returns its result; null if it has none.
    ///
    /// Waits for as long as it takes, across restarts of the server; limit it with
    /// `tokio::time::timeout`. Dropping the future does not affect the job.
    ///
    /// # Errors
    ///
    /// Fails with [`Error::JobFailed`] if the job failed, was cancelled or was superseded.
    pub async fn wait(&self) -> Result<Value, Error> {
        let job = self.wait_finished().await?;
        if job.state == JobState::Succeeded {
            Ok(job.result.unwrap_or_default())
        } else {
            Err(Error::JobFailed(Box::new(job)))
        }
    }

    /// Like [`JobHandle::wait`], but returns the finished job, whether it succeeded or not.
    pub async fn wait_finished(&self) -> Result<JobInfo, Error> {
        loop {
            let job = query_with_retries(|| self.transport.queries().job(self.id, POLL)).await?;
            if job.state.is_finished() {
                return Ok(job);
            }
        }
    }

    /// Streams the log from its beginning until the job has finished, across restarts of the
    /// server.
    #[must_use]
    pub fn logs(&self) -> Items<LogChunkInfo> {
        let follower = LogFollower {
            transport: Arc::clone(&self.transport),
            reader: LogReader::new(self.id, None),
            ready: VecDeque::new(),
        };
        Items::new(stream::try_unfold(follower, |mut follower| async move {
            Ok(follower.next().await?.map(|chunk| (chunk, follower)))
        }))
    }

    /// Explains what the job waits for.
    pub async fn why(&self) -> Result<WhyResponse, Error> {
        self.transport.queries().why_job(self.id).await
    }

    /// Cancels the job and returns its new state.
    ///
    /// A job that is waiting ends at once. A running job moves to `cancelling`, and its handler is
    /// asked to stop.
    pub async fn cancel(&self, reason: &str) -> Result<JobState, Error> {
        let action = JobAction::Cancel { by: self.by.clone(), reason: reason.into() };
        match self.transport.send(self.command(action), Duration::ZERO).await? {
            Outcome::Cancelled { state } => Ok(state),
            other => Err(Error::from_outcome("cancel", other)),
        }
    }

    /// Submits a finished job again as a new one, or ends the backoff of an unfinished one.
    ///
    /// # Errors
    ///
    /// After [`Error::Unavailable`] the retry may have happened: check [`JobHandle::status`], whose
    /// `followed_by` is the new job.
    pub async fn retry(&self, reason: &str) -> Result<Submitted, Error> {
        let (by, reason) = (self.by.clone(), reason.into());
        let action = JobAction::Retry { request: random::request_id(), by, reason };
        let outcome = self.transport.send(self.command(action), Duration::ZERO).await?;
        Submitted::from_outcome(&self.transport, outcome, &self.by)
    }

    fn command(&self, action: JobAction) -> Command {
        Command::Job { id: self.id, action }
    }
}

impl fmt::Debug for JobHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobHandle").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Reads the log of a job from its beginning, each chunk once.
pub struct LogReader {
    id: JobId,
    attempt: Option<u32>,
    after: u64,
}

impl LogReader {
    /// Creates a reader of the log of a job, or of one of its attempts.
    #[must_use]
    pub fn new(id: JobId, attempt: Option<u32>) -> Self {
        Self { id, attempt, after: 0 }
    }

    /// Returns the next chunks, waiting up to `wait` for the first; none if there are none yet, or
    /// if the job has finished.
    pub async fn next(
        &mut self,
        queries: &dyn Queries,
        wait: Duration,
    ) -> Result<Vec<LogChunkInfo>, Error> {
        loop {
            let page = queries.job_log(self.id, self.attempt, self.after, wait).await?;
            // A page may hold only chunks of other attempts, which the server leaves out.
            // Positions have no order for a caller that sees them encrypted.
            let advanced = page.next != self.after;
            self.after = page.next;
            if !page.items.is_empty() || !advanced {
                return Ok(page.items);
            }
        }
    }
}

/// State of [`JobHandle::logs`].
struct LogFollower {
    transport: Arc<dyn Transport>,
    reader: LogReader,
    ready: VecDeque<LogChunkInfo>,
}

impl LogFollower {
    async fn next(&mut self) -> Result<Option<LogChunkInfo>, Error> {
        let mut finished = false;
        loop {
            if let Some(chunk) = self.ready.pop_front() {
                return Ok(Some(chunk));
            }
            // After the end of the job, one more read returns what was written before it.
            let is_last = finished;
            self.read().await?;
            if self.ready.is_empty() {
                if is_last {
                    return Ok(None);
                }
                let id = self.reader.id;
                let job =
                    query_with_retries(|| self.transport.queries().job(id, Duration::ZERO)).await?;
                finished = job.state.is_finished();
            }
        }
    }

    async fn read(&mut self) -> Result<(), Error> {
        loop {
            match self.reader.next(self.transport.queries(), POLL).await {
                Err(error) if error.is_unavailable() => tokio::time::sleep(RETRY_DELAY).await,
                chunks => {
                    self.ready.extend(chunks?);
                    return Ok(());
                }
            }
        }
    }
}

//! Queries composed of the basic [`Reads`]: explanations, and logs by attempt.

use tenure_core::why::{self, Why};
use tenure_core::{JobId, ResourceKey};

use crate::store::{JobQuery, JobView, LogLine, LogQuery, Reads, Result};

/// Maximum number of pages read for one [`LogPage`] while filtering by attempt.
const PAGES_MAX: usize = 16;

/// Page of a job's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogPage {
    /// Chunks, oldest first. May be empty although more follow.
    pub chunks: Vec<LogLine>,
    /// Value of `after` for the next page.
    pub next: u64,
}

impl dyn Reads + '_ {
    /// Explains what a job waits for.
    pub async fn explain_job(&self, mut view: JobView) -> Result<Why> {
        let id = view.job.id;
        if !view.job.state.is_finished() {
            let detail = self.show(&view.key).await?;
            if let Some(detail) = detail.filter(|detail| detail.record.job(id).is_some()) {
                return Ok(why::explain_job(&detail.record, id, &detail.context));
            }
            // The job has finished meanwhile.
            view = self.job(id).await?.unwrap_or(view);
        }
        Ok(why::explain_finished_job(&view.job))
    }

    /// Explains what a resource waits for, and returns the explained job, if any. Returns `None`
    /// if no command ever changed the resource.
    pub async fn explain_resource(
        &self,
        key: &ResourceKey,
    ) -> Result<Option<(Option<JobId>, Why)>> {
        let Some(detail) = self.show(key).await? else { return Ok(None) };
        let explained = why::explain_resource(&detail.record, &detail.context);
        if explained.1 != Why::Idle {
            return Ok(Some(explained));
        }
        let last = self.last_job(key).await?;
        let (last, now) = (last.map(|view| view.job), detail.context.now);
        Ok(Some(why::explain_idle(&detail.record, last.as_deref(), now)))
    }

    /// Returns the job of a resource that was submitted last.
    async fn last_job(&self, key: &ResourceKey) -> Result<Option<JobView>> {
        let query = JobQuery {
            tenant: Some(key.tenant().into()),
            kind: Some(key.kind().into()),
            name: Some(key.name().into()),
            limit: 1,
            ..JobQuery::default()
        };
        Ok(self.jobs(query).await?.items.pop())
    }

    /// Returns a page of a job's log, with the chunks of one attempt or of all.
    pub async fn log_page(&self, query: LogQuery, attempt: Option<u32>) -> Result<LogPage> {
        let mut page = LogPage { chunks: Vec::new(), next: query.after };
        for _ in 0..PAGES_MAX {
            let lines = self.logs(LogQuery { after: page.next, ..query }).await?;
            let is_last = lines.len() < query.limit;
            for line in lines {
                if page.chunks.len() == query.limit {
                    return Ok(page);
                }
                page.next = line.position;
                if attempt.is_none_or(|attempt| attempt == line.attempt) {
                    page.chunks.push(line);
                }
            }
            if is_last || page.chunks.len() == query.limit {
                break;
            }
        }
        Ok(page)
    }
}

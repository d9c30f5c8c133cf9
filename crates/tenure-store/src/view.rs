//! Reading from a ledger: lists and single rows, as the API shows them. Nothing is changed here.

use std::cmp::Reverse;
use std::ops::Bound;

use tenure_core::why::EngineContext;
use tenure_core::{JobId, JobState, Millis, ResourceKey, Session, SessionId, TenureView, Text};

use crate::ledger::Ledger;
use crate::store::{
    JobPage, JobQuery, JobShown, ListQuery, Page, ResourceShown, Shown, WorkerShown, is,
};

impl Ledger {
    /// How many resources somebody holds, waits for, or has work for.
    #[must_use]
    pub fn live(&self) -> usize {
        self.live.len()
    }

    /// The tenures of the present.
    #[must_use]
    pub fn list(&self, query: &ListQuery, now: Millis) -> Page<TenureView> {
        let from = match &query.after {
            Some(key) => Bound::Excluded(key.clone()),
            None => Bound::Unbounded,
        };
        let mut page = Page { items: Vec::new(), next: None };
        let mut resources = 0;
        for key in self.live.range((from, Bound::Unbounded)) {
            let views = self.views(key, now);
            let wanted: Vec<_> = views.into_iter().filter(|view| query.wants(view)).collect();
            if wanted.is_empty() {
                continue;
            }
            if resources == query.limit {
                page.next = page.items.last().map(|view: &TenureView| view.key.clone());
                break;
            }
            resources += 1;
            page.items.extend(wanted);
        }
        page
    }

    fn views(&self, key: &ResourceKey, now: Millis) -> Vec<TenureView> {
        let Some(record) = self.world().records.get(key) else { return Vec::new() };
        let mut tokens: Vec<_> = record.tenures.iter().map(|tenure| tenure.token).collect();
        tokens.dedup();
        let view = |token| record.view(key, token, &self.world().sessions, now);
        tokens.into_iter().filter_map(view).collect()
    }

    /// One resource.
    #[must_use]
    pub fn show(&self, key: &ResourceKey, now: Millis) -> Option<Shown> {
        let record = self.world().records.get(key)?;
        let sessions = &self.world().sessions;
        let name = |id| sessions.get(id).map_or("unknown".into(), |s| s.name.clone());
        let queue = record.queue.iter().map(|waiter| (waiter.clone(), name(waiter.session)));
        Some(Shown {
            record: (**record).clone(),
            tenures: self.views(key, now),
            queue: queue.collect(),
            around: self.surroundings(key, now),
        })
    }

    fn surroundings(&self, key: &ResourceKey, now: Millis) -> EngineContext {
        let works = |session: &&Session| {
            let kinds = session.worker.as_ref().map(|worker| &worker.kinds);
            session.is_alive(now)
                && session.acts_for(key.tenant())
                && kinds.is_some_and(|kinds| kinds.iter().any(|kind| **kind == *key.kind()))
        };
        EngineContext {
            tenures: self.views(key, now),
            workers: self.world().sessions.iter().filter(works).count(),
            running: self.world().ready.running_counts(key.kind(), key.tenant()),
            now,
        }
    }

    /// One resource as lists show it, if it is at hand.
    #[must_use]
    pub fn resource(&self, key: &ResourceKey) -> Option<ResourceShown> {
        let resource = self.world().records.get(key)?.resource.clone()?;
        Some(ResourceShown { key: key.clone(), resource })
    }

    /// A job that is not over.
    #[must_use]
    pub fn job(&self, id: JobId) -> Option<JobShown> {
        let key = self.world().job_index.get(&id)?;
        let job = self.world().records.get(key)?.job(id)?;
        Some(JobShown { key: key.clone(), job: Box::new(job.clone()) })
    }

    /// Jobs that are not over, newest first.
    #[must_use]
    pub fn jobs(&self, query: &JobQuery) -> Vec<JobShown> {
        if query.state.is_some_and(JobState::is_finished) {
            return Vec::new();
        }
        let below = query.after.map_or(Bound::Unbounded, Bound::Excluded);
        let newest = self.world().job_index.range((Bound::Unbounded, below)).rev();
        let wanted = newest.filter_map(|(id, key)| {
            let job = self.world().records.get(key)?.job(*id)?;
            query.wants(key, job).then(|| JobShown { key: key.clone(), job: Box::new(job.clone()) })
        });
        wanted.take(query.limit + 1).collect()
    }

    /// Whose a session is.
    #[must_use]
    pub fn tenant_of(&self, session: SessionId) -> Option<Text> {
        self.world().sessions.get(session).map(|session| session.tenant.clone())
    }

    /// The sessions that ask for jobs.
    #[must_use]
    pub fn workers(&self, now: Millis) -> Vec<WorkerShown> {
        let shown = |session: &Session| {
            let worker = session.worker.as_ref().filter(|_| session.is_alive(now))?;
            Some(WorkerShown {
                session: session.id,
                tenant: session.tenant.clone(),
                name: session.name.clone(),
                kinds: worker.kinds.clone(),
                asked_ms: now.since(worker.polled_at),
                expires_in_ms: session.expires_at.since(now),
                jobs: self.jobs_of(session),
            })
        };
        let mut workers: Vec<_> = self.world().sessions.iter().filter_map(shown).collect();
        workers.sort_unstable_by(|a, b| (&a.name, a.session).cmp(&(&b.name, b.session)));
        workers
    }

    fn jobs_of(&self, session: &Session) -> Vec<(ResourceKey, JobId)> {
        let mut jobs = Vec::new();
        for key in self.world().session_index.resources_of(session.id) {
            let Some(record) = self.world().records.get(key) else { continue };
            let mine = record.tenures.iter().filter(|tenure| tenure.session == session.id);
            jobs.extend(mine.filter_map(|tenure| Some((key.clone(), tenure.job?))));
        }
        jobs.dedup();
        jobs
    }
}

/// Puts a page together from jobs that are not over and those that are, each newest first.
pub(crate) fn page(live: Vec<JobShown>, past: Vec<JobShown>, limit: usize) -> JobPage {
    let mut items = live;
    items.extend(past);
    // One that ended between the two readings is in both: what is over counts.
    items.sort_by_key(|shown| (Reverse(shown.job.id), !shown.job.state.is_finished()));
    items.dedup_by_key(|shown| shown.job.id);
    finish(items, limit)
}

/// Walks back the jobs of one resource that are over, from the one that was over last.
///
/// They are in the order in which they ended. A page that ended with one of them goes on with the
/// one before.
pub(crate) fn walk<E>(
    live: Vec<JobShown>,
    last: Option<JobId>,
    query: &JobQuery,
    mut find: impl FnMut(JobId) -> Result<Option<JobShown>, E>,
) -> Result<JobPage, E> {
    let mut items = live;
    let mut next = last;
    if let Some(after) = query.after
        && let Some(shown) = find(after)?
    {
        items.clear();
        next = shown.job.previous;
    }
    while items.len() <= query.limit
        && let Some(id) = next
        && let Some(shown) = find(id)?
    {
        next = shown.job.previous;
        if query.wants(&shown.key, &shown.job) {
            items.push(shown);
        }
    }
    Ok(finish(items, query.limit))
}

/// Cuts a page to its length, and says where to go on.
pub(crate) fn finish(mut items: Vec<JobShown>, limit: usize) -> JobPage {
    let more = items.len() > limit;
    items.truncate(limit);
    let next = items.last().filter(|_| more).map(|shown| shown.job.id);
    JobPage { items, next }
}

impl ListQuery {
    fn wants(&self, view: &TenureView) -> bool {
        is(&self.tenant, view.key.tenant())
            && is(&self.kind, view.key.kind())
            && is(&self.name, view.key.name())
            && is(&self.holder, &view.holder)
    }
}

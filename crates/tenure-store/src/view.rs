//! Read-only views of a ledger: lists and single rows, as the API shows them.

use std::cmp::Reverse;
use std::ops::Bound;

use tenure_core::ready::GroupCounts;
use tenure_core::why::EngineContext;
use tenure_core::{JobId, JobState, Millis, ResourceKey, Session, TenureView};

use crate::ledger::Ledger;
use crate::store::{
    JobPage, JobQuery, JobView, Page, ResourceDetail, ResourceView, TenureQuery, WorkerView,
    key_range, matches_filter, matches_group,
};

impl Ledger {
    /// Returns the number of live resources: held, waited for, or with live jobs.
    #[must_use]
    pub fn live_count(&self) -> usize {
        self.live.len()
    }

    /// Lists the current tenures.
    #[must_use]
    pub fn tenures(&self, query: &TenureQuery, now: Millis) -> Page<TenureView> {
        let (first, end) =
            key_range(query.tenant.as_ref(), query.kind.as_ref(), query.group.as_ref());
        let after = query.after.as_ref().map_or("", ResourceKey::as_str);
        let from = if after < &*first { Bound::Included(&*first) } else { Bound::Excluded(after) };
        let mut page = Page { items: Vec::new(), next: None };
        let mut resources = 0;
        let in_range = self.live.range::<str, _>((from, Bound::Unbounded));
        for key in in_range.take_while(|key| key.as_str() < &*end) {
            let views = self.tenure_views(key, now);
            let matching: Vec<_> = views.into_iter().filter(|view| query.matches(view)).collect();
            if matching.is_empty() {
                continue;
            }
            if resources == query.limit {
                page.next = page.items.last().map(|view: &TenureView| view.key.clone());
                break;
            }
            resources += 1;
            page.items.extend(matching);
        }
        page
    }

    fn tenure_views(&self, key: &ResourceKey, now: Millis) -> Vec<TenureView> {
        let Some(record) = self.world().records.get(key) else { return Vec::new() };
        let mut tokens: Vec<_> = record.tenures.iter().map(|tenure| tenure.token).collect();
        tokens.dedup();
        let world = self.world();
        let view = |token| record.view(key, token, &world.sessions, &world.kinds, now);
        tokens.into_iter().filter_map(view).collect()
    }

    /// Returns one resource.
    #[must_use]
    pub fn show(&self, key: &ResourceKey, now: Millis) -> Option<ResourceDetail> {
        let record = self.world().records.get(key)?;
        let sessions = &self.world().sessions;
        let name = |id| sessions.get(id).map_or("unknown".into(), |s| s.name.clone());
        let queue = record.queue.iter().map(|waiter| (waiter.clone(), name(waiter.session)));
        Some(ResourceDetail {
            record: (**record).clone(),
            tenures: self.tenure_views(key, now),
            queue: queue.collect(),
            context: self.surroundings(key, now),
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
            kind: self.world().kinds.get(key.kind()).cloned(),
            tenures: self.tenure_views(key, now),
            workers: self.world().sessions.iter().filter(works).count(),
            running: self.world().ready.running_counts(key.kind(), key.tenant()),
            now,
        }
    }

    /// Returns one resource as in lists, if its record is in memory.
    #[must_use]
    pub fn resource(&self, key: &ResourceKey) -> Option<ResourceView> {
        let resource = self.world().records.get(key)?.resource.clone()?;
        Some(ResourceView { key: key.clone(), resource })
    }

    /// Counts the unfinished jobs of a group.
    #[must_use]
    pub fn group(&self, tenant: &str, kind: &str, group: &str) -> GroupCounts {
        self.world().ready.group_counts(tenant, kind, group)
    }

    /// Returns a live job.
    #[must_use]
    pub fn job(&self, id: JobId) -> Option<JobView> {
        let key = self.world().job_index.get(&id)?;
        let job = self.world().records.get(key)?.job(id)?;
        Some(JobView { key: key.clone(), job: Box::new(job.clone()) })
    }

    /// Lists live jobs, newest first, up to one more than the limit.
    #[must_use]
    pub fn jobs(&self, query: &JobQuery) -> Vec<JobView> {
        if query.state.is_some_and(JobState::is_finished) {
            return Vec::new();
        }
        let below = query.after.map_or(Bound::Unbounded, Bound::Excluded);
        let newest = self.world().job_index.range((Bound::Unbounded, below)).rev();
        let matching = newest.filter_map(|(id, key)| {
            let job = self.world().records.get(key)?.job(*id)?;
            query
                .matches(key, job)
                .then(|| JobView { key: key.clone(), job: Box::new(job.clone()) })
        });
        matching.take(query.limit + 1).collect()
    }

    /// Lists the sessions that claim jobs.
    #[must_use]
    pub fn workers(&self, now: Millis) -> Vec<WorkerView> {
        let view = |session: &Session| {
            let worker = session.worker.as_ref().filter(|_| session.is_alive(now))?;
            Some(WorkerView {
                session: session.id,
                tenant: session.tenant.clone(),
                name: session.name.clone(),
                kinds: worker.kinds.clone(),
                age_ms: now.since(session.opened_at),
                asked_ms: now.since(worker.polled_at),
                expires_in_ms: session.expires_at.since(now),
                jobs: self.jobs_of(session),
            })
        };
        let mut workers: Vec<_> = self.world().sessions.iter().filter_map(view).collect();
        workers.sort_unstable_by(|a, b| (&a.name, a.session).cmp(&(&b.name, b.session)));
        workers
    }

    fn jobs_of(&self, session: &Session) -> Vec<(ResourceKey, JobId)> {
        let mut jobs = Vec::new();
        for key in self.world().session_index.resources_of(session.id) {
            let Some(record) = self.world().records.get(key) else { continue };
            let held = record.tenures.iter().filter(|tenure| tenure.session == session.id);
            jobs.extend(held.filter_map(|tenure| Some((key.clone(), tenure.job?))));
        }
        jobs.dedup();
        jobs
    }
}

/// Merges live and finished jobs, each newest first, into a page.
pub(crate) fn merge_jobs(live: Vec<JobView>, finished: Vec<JobView>, limit: usize) -> JobPage {
    let mut items = live;
    items.extend(finished);
    // A job that ended between the two reads is in both lists: keep the finished one.
    items.sort_by_key(|view| (Reverse(view.job.id), !view.job.state.is_finished()));
    items.dedup_by_key(|view| view.job.id);
    truncate_page(items, limit)
}

/// Builds a page of the jobs of one resource: the live ones, then the finished ones in reverse
/// order of their end, following the links from `last` back. A page that starts after a finished
/// job continues with the one that ended before it.
pub(crate) fn page_of_resource<E>(
    live: Vec<JobView>,
    last: Option<JobId>,
    query: &JobQuery,
    mut find: impl FnMut(JobId) -> Result<Option<JobView>, E>,
) -> Result<JobPage, E> {
    let mut items = live;
    let mut next = last;
    if let Some(after) = query.after
        && let Some(view) = find(after)?
    {
        items.clear();
        next = view.job.previous;
    }
    while items.len() <= query.limit
        && let Some(id) = next
        && let Some(view) = find(id)?
    {
        next = view.job.previous;
        if query.matches(&view.key, &view.job) {
            items.push(view);
        }
    }
    Ok(truncate_page(items, query.limit))
}

/// Truncates a page to its limit and sets the start of the next one.
pub(crate) fn truncate_page(mut items: Vec<JobView>, limit: usize) -> JobPage {
    let more = items.len() > limit;
    items.truncate(limit);
    let next = items.last().filter(|_| more).map(|view| view.job.id);
    JobPage { items, next }
}

impl TenureQuery {
    fn matches(&self, view: &TenureView) -> bool {
        matches_filter(&self.tenant, view.key.tenant())
            && matches_filter(&self.kind, view.key.kind())
            && matches_filter(&self.name, view.key.name())
            && matches_group(&self.group, &view.key)
            && matches_filter(&self.holder, &view.holder)
    }
}

//! The duty `builds`: deletes builds after their time to live, and tests of terms that do not
//! count.
//!
//! A term does not count if its leader was replaced before it had published all tests, or if its
//! build was deleted by hand. No node sees those tests; they are only rows to delete.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use async_trait::async_trait;
use tenure_app::{Duty, DutyContext, DutyReport};
use tenure_core::{
    Command, JobAction, Millis, Outcome, Refusal, ResourceAction, ResourceKey, Text, Token,
};
use tenure_store::StoreError;
use tenure_store::store::{PAGE_MAX, ResourceQuery, ResourceView, TenureQuery};

use crate::LoadedBuilds;
use crate::build::{BuildSpec, BuildStatus};
use crate::names::{BUILD, NODE, TEST, test_group};
use crate::state::BuildState;

/// Interval between two runs.
const INTERVAL: Duration = Duration::from_secs(15);
/// Maximum number of tests that are deleted in one run.
const DELETED_MAX: usize = 5_000;
/// Principal of what the duty does.
const BY: &str = "builds";

/// Deletes what is left of builds.
pub(crate) struct Cleanup;

#[async_trait]
impl Duty for Cleanup {
    fn name(&self) -> &'static str {
        "builds"
    }

    fn interval(&self) -> Duration {
        INTERVAL
    }

    async fn run(&mut self, cx: &DutyContext) -> Result<DutyReport, StoreError> {
        if cx.live.app::<LoadedBuilds>().is_none() {
            return Ok(DutyReport::default());
        }
        let now = cx.store().status().await?.now;
        Ok(DutyReport::done(delete_expired(cx, now).await?))
    }
}

/// Deletes builds that have expired at `now`, and tests of terms that do not count. Returns the
/// number of builds, at most what one run may delete.
async fn delete_expired(cx: &DutyContext, now: Millis) -> Result<usize, StoreError> {
    let builds = Builds::read(cx, now).await?;
    let mut left = DELETED_MAX;
    let mut incomplete: HashSet<ResourceKey> = HashSet::new();
    let mut after = None;
    // One query for each group: the next test behind the last one of the group before.
    while let Some(test) = next_test(cx, after.take()).await? {
        let Some((build, term)) = build_and_term(&test) else {
            after = Some(test);
            continue;
        };
        if !builds.counts(&build, term) && !delete_tests(cx, &build, term, &mut left).await? {
            incomplete.insert(build.clone());
            if left == 0 {
                // The next run continues.
                return Ok(0);
            }
        }
        after = Some(last_of_group(&build, term)?);
    }
    let expired = builds.expired.iter().filter(|view| !incomplete.contains(&view.key));
    let mut deleted = 0;
    for view in expired {
        deleted += usize::from(delete_all(cx, std::slice::from_ref(view)).await?);
    }
    Ok(deleted)
}

/// The builds of all tenants.
#[derive(Default)]
struct Builds {
    /// Terms whose tests count, or may count soon.
    terms: HashMap<ResourceKey, Token>,
    expired: Vec<ResourceView>,
}

impl Builds {
    async fn read(cx: &DutyContext, now: Millis) -> Result<Self, StoreError> {
        let (mut builds, mut after) = (Self::default(), None);
        loop {
            let kind = Some(BUILD.into());
            let query = ResourceQuery { kind, after, limit: PAGE_MAX, ..ResourceQuery::default() };
            let page = cx.store().reads().resources(query).await?;
            for view in page.items {
                builds.add(cx, view, now).await?;
            }
            after = page.next;
            if after.is_none() {
                return Ok(builds);
            }
        }
    }

    async fn add(
        &mut self,
        cx: &DutyContext,
        view: ResourceView,
        now: Millis,
    ) -> Result<(), StoreError> {
        let spec = view.resource.spec.as_deref();
        let Some(spec) = spec.and_then(|spec| serde_json::from_str::<BuildSpec>(spec).ok()) else {
            return Ok(());
        };
        if now >= spec.expires_at && !has_nodes(cx, &view.key).await? {
            self.expired.push(view);
        } else if let Some(term) = current_term(&view) {
            self.terms.insert(view.key, term);
        }
        Ok(())
    }

    fn counts(&self, build: &ResourceKey, term: Token) -> bool {
        self.terms.get(build) == Some(&term)
    }
}

/// Returns the first test behind a key.
async fn next_test(
    cx: &DutyContext,
    after: Option<ResourceKey>,
) -> Result<Option<ResourceKey>, StoreError> {
    let query =
        ResourceQuery { kind: Some(TEST.into()), after, limit: 1, ..ResourceQuery::default() };
    let page = cx.store().reads().resources(query).await?;
    Ok(page.items.into_iter().next().map(|view| view.key))
}

/// Returns the build and the term of a test.
fn build_and_term(test: &ResourceKey) -> Option<(ResourceKey, Token)> {
    let (build, term) = test.group()?.rsplit_once(':')?;
    let build = ResourceKey::new(test.tenant(), BUILD, build).ok()?;
    Some((build, Token(term.parse().ok()?)))
}

/// Returns a key behind all tests of a group: their names end in digits.
fn last_of_group(build: &ResourceKey, term: Token) -> Result<ResourceKey, StoreError> {
    let name = format!("{}:z", test_group(build, term));
    let key = ResourceKey::new(build.tenant(), TEST, &name);
    key.map_err(|error| StoreError::corrupt(format!("the group of {build} is too long: {error}")))
}

/// Returns the term that counts, or may count soon.
fn current_term(view: &ResourceView) -> Option<Token> {
    let status = view.resource.status.as_ref().map(|status| &status.document);
    let status: BuildStatus =
        status.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    if *view.resource.state == *BuildState::Ready.as_str() {
        return status.published.as_ref().map(|published| published.term);
    }
    // Of a setup without a running attempt, the last term is over, too: deleted later.
    status.terms.last().copied()
}

/// Returns whether nodes work on a build.
async fn has_nodes(cx: &DutyContext, build: &ResourceKey) -> Result<bool, StoreError> {
    let query = TenureQuery {
        tenant: Some(build.tenant().into()),
        kind: Some(NODE.into()),
        group: Some(build.name().into()),
        limit: 1,
        ..TenureQuery::default()
    };
    Ok(!cx.store().reads().tenures(query).await?.items.is_empty())
}

/// Deletes the tests of a term, up to `left` of them. Returns whether none remain.
async fn delete_tests(
    cx: &DutyContext,
    build: &ResourceKey,
    term: Token,
    left: &mut usize,
) -> Result<bool, StoreError> {
    let group: Text = test_group(build, term);
    loop {
        let query = ResourceQuery {
            tenant: Some(build.tenant().into()),
            kind: Some(TEST.into()),
            group: Some(group.clone()),
            limit: PAGE_MAX.min((*left).max(1)),
            ..ResourceQuery::default()
        };
        let page = cx.store().reads().resources(query).await?.items;
        if page.is_empty() {
            return Ok(true);
        }
        if *left == 0 {
            return Ok(false);
        }
        *left = left.saturating_sub(page.len());
        if !delete_all(cx, &page).await? {
            // A node still runs one of them: its attempt is asked to stop.
            return Ok(false);
        }
    }
}

/// Cancels the jobs of resources and deletes them. Returns whether all are deleted.
async fn delete_all(cx: &DutyContext, views: &[ResourceView]) -> Result<bool, StoreError> {
    let reason: Text = "the build has expired".into();
    let cancel = |job| Command::Job {
        id: job,
        action: JobAction::Cancel { by: BY.into(), reason: reason.clone() },
    };
    let jobs = views.iter().flat_map(|view| view.resource.lane.iter().map(|job| job.id));
    for outcome in cx.committer.submit_all(jobs.map(cancel).collect()).await {
        outcome?;
    }
    let delete = |view: &ResourceView| Command::Resource {
        key: view.key.clone(),
        action: ResourceAction::Delete { by: BY.into(), precondition: None },
    };
    let mut all = true;
    for outcome in cx.committer.submit_all(views.iter().map(delete).collect()).await {
        match outcome? {
            Outcome::Deleted | Outcome::Refused(Refusal::NoSuchResource) => {}
            _ => all = false,
        }
    }
    Ok(all)
}

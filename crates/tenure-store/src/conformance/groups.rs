//! Cases about groups: lists of jobs, resources and locks, and counts.

use tenure_core::ready::GroupCounts;
use tenure_core::{
    Command, Finish, JobAction, JobId, JobState, Outcome, ResourceKey, SessionId, Text, Token,
};

use super::jobs::{claim, claimed, prepare, submit};
use super::{Harness, apply_one};
use crate::store::{JobQuery, ResourceQuery, Store, TenureQuery};

/// Names of grouped resources of two tenants. Some groups are prefixes of others.
const NAMES: [&str; 7] =
    ["t/b1:t1", "t/b1:t2", "t/b1:x:t3", "t/b10:t1", "t/b2:t1", "u/b1:t1", "u/b:t1"];
/// Groups that are asked for.
const GROUPS: [&str; 6] = ["b1", "b1:x", "b10", "b2", "b", "none"];

fn key(name: &str) -> ResourceKey {
    let (tenant, name) = name.split_once('/').expect("TENANT/NAME");
    ResourceKey::new(tenant, "check", name).expect("a valid name")
}

/// Returns the names that are in a group of a tenant, or of any.
fn names_of(group: &str, tenant: Option<&str>) -> Vec<&'static str> {
    let is_match = |name: &&&str| {
        let (of, name) = name.split_once('/').expect("TENANT/NAME");
        tenant.is_none_or(|tenant| tenant == of)
            && name.rsplit_once(':').is_some_and(|(of, _)| of == group)
    };
    NAMES.iter().filter(is_match).copied().collect()
}

fn ok(id: JobId, token: Token) -> Command {
    let finish = Finish::Ok { state: None, result: None };
    Command::Job { id, action: JobAction::Finish { token, finish, update: None } }
}

/// Runs one job of each resource, and leaves one running and one behind it.
async fn prepare_groups(store: &dyn Store) {
    prepare(store).await;
    let (tenant, name): (Text, Text) = ("*".into(), "all".into());
    let session = SessionId(9);
    apply_one(store, Command::Open { session, tenant, name, ttl_ms: 60_000 }).await;
    for (round, requests) in [100, 200, 300].into_iter().enumerate() {
        for (n, name) in (0..).zip(NAMES) {
            apply_one(store, submit(&key(name), "run", requests + n)).await;
        }
        if round == 2 {
            break;
        }
        let all = tenure_core::Claim { session, ..claim("check", 900 + requests, 9) };
        let jobs = claimed(store, all).await;
        assert_eq!(jobs.len(), NAMES.len());
        for (id, token) in jobs.into_iter().filter(|_| round == 0) {
            apply_one(store, ok(id, token)).await;
        }
    }
    // Of another kind, whose names are like those of groups.
    let other = ResourceKey::new("t", "task", "b1:t1").expect("a valid name");
    apply_one(store, submit(&other, "work", 400)).await;
}

/// Reads all pages of a list of jobs.
async fn jobs(store: &dyn Store, mut query: JobQuery) -> Vec<String> {
    let mut names = Vec::new();
    query.limit = 1;
    loop {
        let page = store.reads().jobs(query.clone()).await.expect("the store is available");
        names.extend(page.items.iter().map(|view| {
            format!("{}/{} {}", view.key.tenant(), view.key.name(), view.job.state.as_str())
        }));
        match page.next {
            Some(next) => query.after = Some(next),
            None => break,
        }
    }
    names.sort();
    names
}

/// Reads all pages of a list of resources.
async fn resources(store: &dyn Store, mut query: ResourceQuery) -> Vec<String> {
    let mut names = Vec::new();
    query.limit = 1;
    loop {
        let page = store.reads().resources(query.clone()).await.expect("the store is available");
        names.extend(page.items.iter().map(|v| format!("{}/{}", v.key.tenant(), v.key.name())));
        match page.next {
            Some(next) => query.after = Some(next),
            None => break,
        }
    }
    names.sort();
    names
}

/// Reads all pages of a list of locks.
async fn locks(store: &dyn Store, mut query: TenureQuery) -> Vec<String> {
    let mut names = Vec::new();
    query.limit = 1;
    loop {
        let page = store.reads().tenures(query.clone()).await.expect("the store is available");
        names.extend(page.items.iter().map(|v| format!("{}/{}", v.key.tenant(), v.key.name())));
        match page.next {
            Some(next) => query.after = Some(next),
            None => break,
        }
    }
    names.sort();
    names
}

/// Lists contain what is in the group, whatever else they are filtered by.
pub async fn lists_are_restricted_to_a_group(harness: &mut impl Harness) {
    let store = &*harness.store();
    prepare_groups(store).await;
    check_lists(store).await;
}

async fn check_lists(store: &dyn Store) {
    let kind = || Some("check".into());
    for group in GROUPS {
        for tenant in [None, Some("t"), Some("u"), Some("none")] {
            let names = names_of(group, tenant);
            let (group, tenant) = (|| Some(group.into()), || tenant.map(Into::into));
            let query = ResourceQuery {
                tenant: tenant(),
                kind: kind(),
                group: group(),
                ..ResourceQuery::default()
            };
            assert_eq!(resources(store, query.clone()).await, names, "{query:?}");
            let query = ResourceQuery { state: Some("none".into()), ..query };
            assert_eq!(resources(store, query).await, [""; 0]);
            let query = TenureQuery {
                tenant: tenant(),
                kind: kind(),
                group: group(),
                ..TenureQuery::default()
            };
            assert_eq!(locks(store, query.clone()).await, names, "{query:?}");
            let query =
                JobQuery { tenant: tenant(), kind: kind(), group: group(), ..JobQuery::default() };
            let states = [JobState::Queued, JobState::Running, JobState::Succeeded];
            let of = |state: JobState| names.iter().map(move |n| format!("{n} {}", state.as_str()));
            let mut all: Vec<String> = states.into_iter().flat_map(of).collect();
            all.sort();
            assert_eq!(jobs(store, query.clone()).await, all, "{query:?}");
            for state in states {
                let query = JobQuery { state: Some(state), ..query.clone() };
                assert_eq!(jobs(store, query).await, of(state).collect::<Vec<_>>());
            }
            let query = JobQuery { operation: Some("none".into()), ..query };
            assert_eq!(jobs(store, query).await, [""; 0]);
        }
    }
    // A name beside the group: both have to match.
    for (tenant, name, group, expected) in [
        (Some("t"), "b1:t1", "b1", 3),
        (Some("t"), "b1:t1", "b2", 0),
        (None, "b1:t1", "b1", 6),
        (None, "b1:t1", "b10", 0),
    ] {
        let query = JobQuery {
            tenant: tenant.map(Into::into),
            kind: kind(),
            name: Some(name.into()),
            group: Some(group.into()),
            ..JobQuery::default()
        };
        assert_eq!(jobs(store, query.clone()).await.len(), expected, "{query:?}");
    }
}

async fn counts(store: &dyn Store, tenant: &str, kind: &str, group: &str) -> GroupCounts {
    let counts = store.reads().group(tenant.into(), kind.into(), group.into()).await;
    counts.expect("the store is available")
}

/// Counts are those of one group of one tenant, and follow its jobs.
pub async fn jobs_of_a_group_are_counted(harness: &mut impl Harness) {
    let store = &*harness.store();
    prepare_groups(store).await;
    for group in GROUPS {
        for tenant in ["t", "u", "none"] {
            let n = names_of(group, Some(tenant)).len();
            let expected = GroupCounts { running: n, waiting: n, ready: 0 };
            assert_eq!(counts(store, tenant, "check", group).await, expected, "{tenant} {group}");
        }
    }
    assert_eq!(counts(store, "t", "none", "b1").await, GroupCounts::default());
    let query = JobQuery {
        tenant: Some("t".into()),
        kind: Some("check".into()),
        group: Some("b1".into()),
        state: Some(JobState::Running),
        limit: 9,
        ..JobQuery::default()
    };
    let running = store.reads().jobs(query).await.expect("the store is available").items;
    let (id, token) = (running[0].job.id, running[0].job.token().expect("it runs"));
    let finished = apply_one(store, ok(id, token)).await;
    assert!(matches!(finished, Outcome::Finished { .. }), "{finished:?}");
    let expected = GroupCounts { running: 1, waiting: 2, ready: 1 };
    assert_eq!(counts(store, "t", "check", "b1").await, expected);
    assert_eq!(counts(store, "u", "check", "b1").await.ready, 0, "the group of another tenant");
}

/// Lists and counts of groups are the same after a restart.
pub async fn groups_survive_a_restart(harness: &mut impl Harness) {
    prepare_groups(&*harness.store()).await;
    harness.restart().await;
    let store = &*harness.store();
    store.declare(crate::scenario::kinds()).await.expect("the store is available");
    check_lists(store).await;
    let expected = GroupCounts { running: 2, waiting: 2, ready: 0 };
    assert_eq!(counts(store, "t", "check", "b1").await, expected);
}

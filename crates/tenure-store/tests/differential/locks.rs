//! Random commands about locks.

use proptest::prelude::*;
use tenure_core::{
    Acquire, Claimant, Command, LockAction, LockName, LockSet, RequestId, ResourceKey, SessionId,
    Text, Token,
};

fn key() -> impl Strategy<Value = ResourceKey> {
    // One resource has a kind with a stale margin.
    (0..4u8).prop_map(|n| {
        let kind = if n == 3 { "careful" } else { "k" };
        ResourceKey::new("t", kind, &format!("r{n}")).expect("a valid name")
    })
}

fn locks() -> impl Strategy<Value = LockSet> {
    let name = prop::sample::select(vec!["main", "a", "b"]);
    prop::collection::vec(name, 1..3).prop_map(|names| {
        let names = names.iter().map(|n| n.parse::<LockName>().expect("a valid name"));
        LockSet::new(names.collect()).expect("a small set")
    })
}

fn claimant() -> impl Strategy<Value = Claimant> {
    prop_oneof![
        (1..4u128).prop_map(|id| Claimant::Session(SessionId(id))),
        Just(Claimant::Solo { name: "solo".into(), ttl_ms: 3_000 }),
    ]
}

fn wait_ms() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(2_000), Just(60_000)]
}

fn max_age_ms() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![8 => Just(None), 1 => Just(Some(5_000)), 1 => Just(Some(0))]
}

/// Returns the tenant that the caller is bound to: that of the sessions, another, or none.
fn bound() -> impl Strategy<Value = Option<Text>> {
    prop_oneof![4 => Just(None), 1 => Just(Some("t".into())), 1 => Just(Some("u".into()))]
}

fn lock_action() -> impl Strategy<Value = LockAction> {
    let token = || (0..12u64).prop_map(Token);
    let request = || (100..130u128).prop_map(RequestId);
    prop_oneof![
        4 => (locks(), claimant(), request(), wait_ms(), max_age_ms(), bound())
            .prop_map(|(locks, claimant, request, wait_ms, max_age_ms, tenant)| {
                let purpose = None;
                LockAction::Acquire(Acquire {
                    locks,
                    claimant,
                    request,
                    wait_ms,
                    purpose,
                    max_age_ms,
                    tenant,
                })
            }),
        3 => (token(), prop::option::of(locks()))
            .prop_map(|(token, locks)| LockAction::Release { token, locks, to: None }),
        2 => (token(), prop::sample::select(vec!["s1", "s2", "s3", "solo"])).prop_map(
            |(token, to)| LockAction::Release { token, locks: None, to: Some(to.into()) }
        ),
        1 => (token(), prop::option::of(Just(5_000)))
            .prop_map(|(token, ttl_ms)| LockAction::Renew { token, ttl_ms }),
        1 => request().prop_map(|request| LockAction::Withdraw { request }),
        1 => token().prop_map(|token| {
            let (by, reason) = ("ann".into(), "test".into());
            LockAction::Break { token, locks: None, by, reason, end_job: false }
        }),
    ]
}

pub(crate) fn command() -> impl Strategy<Value = Command> {
    let session = || (1..4u128).prop_map(SessionId);
    prop_oneof![
        2 => session().prop_map(|session| {
            let name = format!("s{}", session.0).into();
            Command::Open { session, tenant: "t".into(), name, ttl_ms: 4_000 }
        }),
        2 => (session(), 0..3u64, bound())
            .prop_map(|(session, seen, tenant)| Command::Heartbeat { session, seen, tenant }),
        1 => (session(), bound())
            .prop_map(|(session, tenant)| Command::Close { session, tenant }),
        12 => (key(), lock_action()).prop_map(|(key, action)| Command::Lock { key, action }),
    ]
}

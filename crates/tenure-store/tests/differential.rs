//! The embedded store and the memory store give the same answers and the same history.

use std::sync::Arc;

use proptest::prelude::*;
use tempfile::TempDir;
use tenure_core::{
    Acquire, Claimant, Command, LockAction, LockName, LockSet, RequestId, ResourceKey, SessionId,
    Token,
};
use tenure_store::clock::ManualClock;
use tenure_store::embedded::Options;
use tenure_store::store::{HistoryQuery, PAGE_MAX};
use tenure_store::verify::verify;
use tenure_store::{Embedded, Memory, Store};

/// One thing that happens to both stores.
#[derive(Clone, Debug)]
enum Act {
    Apply(Vec<Command>),
    Pass(u64),
    Sweep,
    Restart,
}

fn key() -> impl Strategy<Value = ResourceKey> {
    (0..3u8).prop_map(|n| ResourceKey::new("t", "k", &format!("r{n}")).expect("a good name"))
}

fn locks() -> impl Strategy<Value = LockSet> {
    let name = prop::sample::select(vec!["main", "a", "b"]);
    prop::collection::vec(name, 1..3).prop_map(|names| {
        let names = names.iter().map(|n| n.parse::<LockName>().expect("a good name"));
        LockSet::new(names.collect()).expect("a small set")
    })
}

fn claimant() -> impl Strategy<Value = Claimant> {
    prop_oneof![
        (1..4u128).prop_map(|id| Claimant::Session(SessionId(id))),
        Just(Claimant::Solo { name: "solo".into(), ttl_ms: 3_000 }),
    ]
}

fn lock_action() -> impl Strategy<Value = LockAction> {
    let token = || (0..12u64).prop_map(Token);
    let request = || (100..130u128).prop_map(RequestId);
    prop_oneof![
        4 => (locks(), claimant(), request(), prop_oneof![Just(0), Just(2_000), Just(60_000)])
            .prop_map(|(locks, claimant, request, wait_ms)| {
                LockAction::Acquire(Acquire { locks, claimant, request, wait_ms, purpose: None })
            }),
        3 => (token(), prop::option::of(locks()))
            .prop_map(|(token, locks)| LockAction::Release { token, locks }),
        1 => (token(), prop::option::of(Just(5_000)))
            .prop_map(|(token, ttl_ms)| LockAction::Renew { token, ttl_ms }),
        1 => request().prop_map(|request| LockAction::Withdraw { request }),
        1 => token().prop_map(|token| {
            LockAction::Break { token, locks: None, by: "ann".into(), reason: "test".into() }
        }),
    ]
}

fn command() -> impl Strategy<Value = Command> {
    let session = || (1..4u128).prop_map(SessionId);
    prop_oneof![
        2 => session().prop_map(|session| {
            Command::Open { session, tenant: "t".into(), name: "s".into(), ttl_ms: 4_000 }
        }),
        2 => (session(), 0..3u64).prop_map(|(session, seen)| Command::Beat { session, seen }),
        1 => session().prop_map(|session| Command::Close { session }),
        12 => (key(), lock_action()).prop_map(|(key, action)| Command::Lock { key, action }),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => prop::collection::vec(command(), 1..6).prop_map(Act::Apply),
        2 => (0..1_900u64).prop_map(Act::Pass),
        2 => Just(Act::Sweep),
        1 => Just(Act::Restart),
    ]
}

struct Pair {
    memory: Memory,
    embedded: Option<Embedded>,
    clock: ManualClock,
    dir: TempDir,
}

impl Pair {
    fn new() -> Self {
        let clock = ManualClock::default();
        let memory = Memory::with_clock(clock.clone());
        let dir = TempDir::new().expect("a temporary directory");
        let mut pair = Self { memory, embedded: None, clock, dir };
        pair.open();
        pair
    }

    fn open(&mut self) {
        drop(self.embedded.take());
        let options = Options { clock: Some(Arc::new(self.clock.clone())), ..Options::default() };
        let path = self.dir.path().join("tenure.db");
        self.embedded = Some(Embedded::open_with(&path, options).expect("it opens"));
    }

    fn embedded(&self) -> &Embedded {
        self.embedded.as_ref().expect("it is open")
    }

    async fn act(&mut self, act: Act) {
        match act {
            Act::Apply(commands) => {
                let ours = self.memory.apply(commands.clone()).await.expect("memory");
                let theirs = self.embedded().apply(commands).await.expect("embedded");
                assert_eq!(ours, theirs);
            }
            Act::Pass(ms) => self.clock.advance(ms),
            Act::Sweep => {
                let ours = self.memory.sweep().await.expect("memory");
                assert_eq!(ours, self.embedded().sweep().await.expect("embedded"));
            }
            Act::Restart => {
                // A restart gives full grace; for the store in memory a stall does the same.
                self.open();
                self.memory.grace();
            }
        }
    }

    async fn histories_agree(&self) {
        let all = || HistoryQuery::Scan { after: 0, limit: PAGE_MAX };
        let ours = self.memory.history(all()).await.expect("memory");
        assert_eq!(ours, self.embedded().history(all()).await.expect("embedded"));
        for store in [&self.memory as &dyn Store, self.embedded()] {
            assert_eq!(verify(store).await.expect("it reads").problems, []);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 96,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn embedded_and_memory_agree(acts in prop::collection::vec(act(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut pair = Pair::new();
            for act in acts {
                pair.act(act).await;
            }
            pair.histories_agree().await;
        });
    }
}

//! Random wishes about jobs, before it is known which jobs and tokens there are.

use proptest::prelude::*;
use tenure_core::retry::Class;
use tenure_core::{
    Acquire, Claim, Claimant, Command, Finish, JobAction, LockAction, LockName, RequestId,
    ResourceAction, ResourceKey, SessionId, Submit,
};

use crate::pair::Pair;

/// One wish.
#[derive(Clone, Debug)]
pub(crate) enum Wish {
    Open(u128),
    Beat(u128),
    Close(u128),
    Submit { key: ResourceKey, operation: usize, request: u128, priority: i32, ahead_ms: u64 },
    Resource { key: ResourceKey, action: ResourceAction },
    Claim { session: u128, request: u128, max: usize },
    Finish { pick: usize, finish: Finish },
    Say { pick: usize, log: bool },
    Job { pick: usize, verb: usize, request: u128 },
    Acquire { key: ResourceKey, request: u128 },
}

/// A few resources of each kind that differs, of two tenants.
fn key() -> impl Strategy<Value = ResourceKey> {
    let kinds = vec!["cluster", "pipeline", "shoot", "report", "task", "capped", "scheduler"];
    let tenant = prop::sample::select(vec!["t", "t", "u"]);
    (tenant, prop::sample::select(kinds))
        .prop_map(|(tenant, kind)| ResourceKey::new(tenant, kind, "r").expect("plain names"))
}

fn finish() -> impl Strategy<Value = Finish> {
    let failed = |code: &str, class| Finish::Failed {
        code: code.into(),
        message: "it failed".into(),
        class,
        state: None,
    };
    prop_oneof![
        4 => Just(Finish::Ok { state: None, result: Some("1".into()) }),
        2 => Just(failed("BUSY", Some(Class::Transient))),
        1 => Just(failed("QUOTA", None)),
        1 => Just(Finish::Cancelled),
        1 => Just(Finish::HandBack),
    ]
}

fn resource_action() -> impl Strategy<Value = ResourceAction> {
    let (by, reason) = (|| "ann".into(), || "so".into());
    prop_oneof![
        4 => (0..3_u8).prop_map(move |n| {
            ResourceAction::Put { spec: n.to_string().into(), by: by() }
        }),
        1 => Just(ResourceAction::Pause { by: by(), reason: reason() }),
        2 => Just(ResourceAction::Resume { by: by(), reason: reason() }),
        1 => Just(ResourceAction::Delete { by: by() }),
    ]
}

pub(crate) fn wish() -> impl Strategy<Value = Wish> {
    let session = || 1..7_u128;
    let request = || 1..8_u128;
    let ahead = prop_oneof![4 => Just(0), 1 => 1..9_000_u64];
    prop_oneof![
        3 => session().prop_map(Wish::Open),
        2 => session().prop_map(Wish::Beat),
        1 => session().prop_map(Wish::Close),
        8 => (key(), 0..3_usize, request(), -1..2_i32, ahead).prop_map(
            |(key, operation, request, priority, ahead_ms)| {
                Wish::Submit { key, operation, request, priority, ahead_ms }
            }
        ),
        3 => (key(), resource_action()).prop_map(|(key, action)| Wish::Resource { key, action }),
        7 => (session(), request(), 1..4_usize)
            .prop_map(|(session, request, max)| Wish::Claim { session, request, max }),
        6 => (0..6_usize, finish()).prop_map(|(pick, finish)| Wish::Finish { pick, finish }),
        2 => (0..4_usize, any::<bool>()).prop_map(|(pick, log)| Wish::Say { pick, log }),
        4 => (0..8_usize, 0..4_usize, request())
            .prop_map(|(pick, verb, request)| Wish::Job { pick, verb, request }),
        1 => (key(), request()).prop_map(|(key, request)| Wish::Acquire { key, request }),
    ]
}

/// Sessions of both tenants, and two for all.
fn tenant(session: u128) -> &'static str {
    ["t", "u", "*"][usize::try_from(session % 3).unwrap_or(0)]
}

impl Pair {
    /// The command of a wish, as things stand.
    pub(crate) fn command(&self, wish: &Wish) -> Command {
        let (by, reason) = (|| "ann".into(), || "so".into());
        match wish {
            Wish::Open(n) => {
                let (session, name) = (SessionId(*n), format!("w{n}").into());
                Command::Open { session, tenant: tenant(*n).into(), name, ttl_ms: 4_000 }
            }
            Wish::Beat(n) => Command::Heartbeat { session: SessionId(*n), seen: 0 },
            Wish::Close(n) => Command::Close { session: SessionId(*n) },
            Wish::Submit { key, operation, request, priority, ahead_ms } => {
                let kind = self.kinds.get(key.kind()).expect("it is declared");
                let names: Vec<_> = kind.operations.keys().cloned().collect();
                let ask = Submit {
                    request: RequestId(*request),
                    operation: names[operation % names.len()].clone(),
                    args: Some("{}".into()),
                    priority: *priority,
                    run_at: (*ahead_ms > 0).then(|| self.now().plus(*ahead_ms)),
                    by: by(),
                };
                Command::Resource { key: key.clone(), action: ResourceAction::Submit(ask) }
            }
            Wish::Resource { key, action } => {
                Command::Resource { key: key.clone(), action: action.clone() }
            }
            Wish::Claim { session, request, max } => {
                Command::Claim(self.claim(*session, *request, *max))
            }
            Wish::Finish { pick, finish } => {
                let (id, token) = self.taken(*pick);
                Command::Job { id, action: JobAction::Finish { token, finish: finish.clone() } }
            }
            Wish::Say { pick, log } => {
                let (id, token) = self.taken(*pick);
                let action = match log {
                    true => JobAction::Log { token, text: "a line\n".into() },
                    false => JobAction::Progress { token, percent: 50, message: "half".into() },
                };
                Command::Job { id, action }
            }
            Wish::Job { pick, verb, request } => {
                let (by, reason) = (by(), reason());
                // A request is about one job; so it is in every client.
                let request = RequestId(1_000 * (*pick as u128 + 1) + request);
                let action = match verb {
                    0 | 1 => JobAction::Cancel { by, reason },
                    2 => JobAction::Retry { request, by, reason },
                    _ => JobAction::Discard { by, reason },
                };
                Command::Job { id: self.job(*pick), action }
            }
            Wish::Acquire { key, request } => {
                let ask = Acquire {
                    locks: LockName::main().into(),
                    claimant: Claimant::Session(SessionId(2 + request % 2 * 3)),
                    request: RequestId(7_000 + request),
                    wait_ms: 1_000,
                    purpose: None,
                };
                Command::Lock { key: key.clone(), action: LockAction::Acquire(ask) }
            }
        }
    }

    /// What a store forgets when it restarts, so that one which did not would answer otherwise:
    /// which claims were answered, and which tenant was served last.
    fn claim(&self, session: u128, request: u128, max: usize) -> Claim {
        // One whose claims are in the rows has to answer the same.
        let epoch = if self.is_shared() { 0 } else { self.restarts };
        let all = tenant(session) == "*";
        let forgetful = self.restarts > 0 || self.is_shared();
        let session = if forgetful && all { session + 1 } else { session };
        Claim {
            session: SessionId(session),
            request: RequestId(10_000 + 1_000 * epoch + 10 * session + request),
            kinds: self.kinds.iter().map(|kind| kind.name.clone()).collect(),
            max,
        }
    }
}

//! Random commands about jobs, as templates: jobs and tokens are filled in when they are applied.

use proptest::prelude::*;
use tenure_core::retry::Class;
use tenure_core::{
    Acquire, Claim, Claimant, Command, Finish, JobAction, LockAction, LockName, Put, RequestId,
    ResourceAction, ResourceKey, SessionId, Submit,
};

use crate::pair::Pair;

/// Template of a command.
#[derive(Clone, Debug)]
pub(crate) enum Template {
    Open(u128),
    Heartbeat(u128),
    Close(u128),
    Submit { key: ResourceKey, operation: usize, request: u128, priority: i32, ahead_ms: u64 },
    Resource { key: ResourceKey, action: ResourceAction },
    Claim { session: u128, request: u128, max: usize },
    Finish { pick: usize, finish: Finish },
    Report { pick: usize, log: bool },
    Job { pick: usize, verb: usize, request: u128 },
    Acquire { key: ResourceKey, request: u128 },
}

/// One resource of each kind, of two tenants.
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
        delay_ms: None,
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
            ResourceAction::Put(Put::new(n.to_string().into(), by()))
        }),
        1 => Just(ResourceAction::Pause { by: by(), reason: reason() }),
        2 => Just(ResourceAction::Resume { by: by(), reason: reason() }),
        1 => Just(ResourceAction::Delete { by: by(), precondition: None }),
    ]
}

pub(crate) fn template() -> impl Strategy<Value = Template> {
    let session = || 1..7_u128;
    let request = || 1..8_u128;
    let ahead = prop_oneof![4 => Just(0), 1 => 1..9_000_u64];
    prop_oneof![
        3 => session().prop_map(Template::Open),
        2 => session().prop_map(Template::Heartbeat),
        1 => session().prop_map(Template::Close),
        8 => (key(), 0..3_usize, request(), -1..2_i32, ahead).prop_map(
            |(key, operation, request, priority, ahead_ms)| {
                Template::Submit { key, operation, request, priority, ahead_ms }
            }
        ),
        3 => (key(), resource_action())
            .prop_map(|(key, action)| Template::Resource { key, action }),
        7 => (session(), request(), 1..4_usize)
            .prop_map(|(session, request, max)| Template::Claim { session, request, max }),
        6 => (0..6_usize, finish()).prop_map(|(pick, finish)| Template::Finish { pick, finish }),
        2 => (0..4_usize, any::<bool>()).prop_map(|(pick, log)| Template::Report { pick, log }),
        4 => (0..8_usize, 0..4_usize, request())
            .prop_map(|(pick, verb, request)| Template::Job { pick, verb, request }),
        1 => (key(), request()).prop_map(|(key, request)| Template::Acquire { key, request }),
    ]
}

/// Returns the tenant of a session: one of two, or all.
fn tenant(session: u128) -> &'static str {
    ["t", "u", "*"][usize::try_from(session % 3).unwrap_or(0)]
}

impl Pair {
    /// Fills in a template.
    pub(crate) fn command(&self, template: &Template) -> Command {
        let (by, reason) = (|| "ann".into(), || "so".into());
        match template {
            Template::Open(n) => {
                let (session, name) = (SessionId(*n), format!("w{n}").into());
                Command::Open { session, tenant: tenant(*n).into(), name, ttl_ms: 4_000 }
            }
            Template::Heartbeat(n) => {
                Command::Heartbeat { session: SessionId(*n), seen: 0, tenant: None }
            }
            Template::Close(n) => Command::Close { session: SessionId(*n), tenant: None },
            Template::Submit { key, operation, request, priority, ahead_ms } => {
                let kind = self.kinds.get(key.kind()).expect("a declared kind");
                let names: Vec<_> = kind.operations.keys().cloned().collect();
                let submit = Submit {
                    request: RequestId(*request),
                    operation: names[operation % names.len()].clone(),
                    args: Some("{}".into()),
                    priority: *priority,
                    run_at: (*ahead_ms > 0).then(|| self.now().plus(*ahead_ms)),
                    by: by(),
                    precondition: None,
                };
                Command::Resource { key: key.clone(), action: ResourceAction::Submit(submit) }
            }
            Template::Resource { key, action } => {
                Command::Resource { key: key.clone(), action: action.clone() }
            }
            Template::Claim { session, request, max } => {
                Command::Claim(self.claim(*session, *request, *max))
            }
            Template::Finish { pick, finish } => {
                let (id, token) = self.attempt(*pick);
                Command::Job {
                    id,
                    action: JobAction::Finish { token, finish: finish.clone(), update: None },
                }
            }
            Template::Report { pick, log } => {
                let (id, token) = self.attempt(*pick);
                let action = match log {
                    true => JobAction::Log { token, text: "a line\n".into() },
                    false => JobAction::Progress { token, percent: 50, message: "half".into() },
                };
                Command::Job { id, action }
            }
            Template::Job { pick, verb, request } => {
                let (by, reason) = (by(), reason());
                // A request id belongs to one job, as in every client.
                let request = RequestId(1_000 * (*pick as u128 + 1) + request);
                let action = match verb {
                    0 | 1 => JobAction::Cancel { by, reason },
                    2 => JobAction::Retry { request, by, reason },
                    _ => JobAction::Discard { by, reason },
                };
                Command::Job { id: self.job(*pick), action }
            }
            Template::Acquire { key, request } => {
                let acquire = Acquire {
                    locks: LockName::main().into(),
                    claimant: Claimant::Session(SessionId(2 + request % 2 * 3)),
                    request: RequestId(7_000 + request),
                    wait_ms: 1_000,
                    purpose: None,
                    max_age_ms: None,
                    tenant: None,
                };
                Command::Lock { key: key.clone(), action: LockAction::Acquire(acquire) }
            }
        }
    }

    /// Builds a claim that avoids what a restart loses, and on which the stores would differ: the
    /// answered claims, and the tenant that was served last.
    fn claim(&self, session: u128, request: u128, max: usize) -> Claim {
        // A shared store has its claims in rows, so it must answer repetitions across restarts.
        let epoch = if self.is_shared() { 0 } else { self.restarts };
        let all = tenant(session) == "*";
        let may_differ = self.restarts > 0 || self.is_shared();
        let session = if may_differ && all { session + 1 } else { session };
        Claim {
            session: SessionId(session),
            request: RequestId(10_000 + 1_000 * epoch + 10 * session + request),
            kinds: self.kinds.iter().map(|kind| kind.name.clone()).collect(),
            max,
            tenant: None,
            only: None,
        }
    }
}

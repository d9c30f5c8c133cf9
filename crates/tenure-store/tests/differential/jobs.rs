//! Random commands about jobs, as templates: jobs and tokens are filled in when they are applied.

use proptest::prelude::*;
use tenure_core::retry::Class;
use tenure_core::{
    Acquire, Claim, ClaimScope, Claimant, Command, Finish, JobAction, LockAction, LockName,
    Precondition, Put, RequestId, ResourceAction, ResourceKey, SessionId, StatusUpdate, Submit,
    Text, TimerChange, TimerSetting,
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
    SubmitIf { key: ResourceKey, request: u128, condition: Precondition },
    Timer { key: ResourceKey, operation: usize, setting: TimerSetting, put: Option<Put> },
    Claim { session: u128, request: u128, max: usize, only: Option<(ResourceKey, bool)> },
    Finish { pick: usize, finish: Finish, update: Option<usize> },
    Status { pick: usize, update: usize },
    Report { pick: usize, log: bool },
    Job { pick: usize, verb: usize, request: u128 },
    Acquire { key: ResourceKey, request: u128 },
    Once { request: u128, template: Box<Self> },
}

/// One resource of each kind, of two tenants.
fn key() -> impl Strategy<Value = ResourceKey> {
    let kinds = vec![
        "cluster",
        "pipeline",
        "shoot",
        "report",
        "task",
        "capped",
        "scheduler",
        "roller",
        "check",
        "careful",
        "lease",
    ];
    let tenant = prop::sample::select(vec!["t", "t", "u"]);
    let group = prop::sample::select(vec!["g", "g", "h"]);
    (tenant, prop::sample::select(kinds), group).prop_map(|(tenant, kind, group)| {
        let name = if kind == "check" { &format!("{group}:r") } else { "r" };
        ResourceKey::new(tenant, kind, name).expect("plain names")
    })
}

fn finish() -> impl Strategy<Value = Finish> {
    let failed = |code: &str, class, delay_ms| Finish::Failed {
        code: code.into(),
        message: "it failed".into(),
        class,
        state: None,
        delay_ms,
    };
    let deferred = |delay_ms| Finish::Deferred {
        delay_ms,
        code: "NOT_YET".into(),
        message: "it waits".into(),
    };
    prop_oneof![
        4 => Just(Finish::Ok { state: None, result: Some("1".into()) }),
        2 => Just(failed("BUSY", Some(Class::Transient), None)),
        1 => Just(failed("BUSY", None, Some(700))),
        1 => Just(failed("QUOTA", None, None)),
        2 => (0..1_500_u64).prop_map(deferred),
        1 => Just(Finish::Cancelled),
        1 => Just(Finish::HandBack),
    ]
}

fn condition() -> impl Strategy<Value = Precondition> {
    prop_oneof![3 => (0..4_u64).prop_map(Precondition::Generation), 1 => Just(Precondition::Absent)]
}

fn timer_setting() -> impl Strategy<Value = TimerSetting> {
    prop_oneof![4 => (0..3_000_u64).prop_map(TimerSetting::After), 1 => Just(TimerSetting::Remove)]
}

fn timer() -> impl Strategy<Value = Template> {
    let put = (0..4_u8).prop_map(|n| Put::new(n.to_string().into(), "ann".into()));
    (key(), 0..3_usize, timer_setting(), prop::option::of(put))
        .prop_map(|(key, operation, setting, put)| Template::Timer { key, operation, setting, put })
}

fn resource_action() -> impl Strategy<Value = ResourceAction> {
    let (by, reason) = (|| "ann".into(), || "so".into());
    prop_oneof![
        4 => (0..3_u8).prop_map(move |n| {
            ResourceAction::Put(Put::new(n.to_string().into(), by()))
        }),
        2 => (0..4_u8, condition()).prop_map(move |(n, condition)| {
            let put = Put::new(n.to_string().into(), by());
            ResourceAction::Put(Put { precondition: Some(condition), ..put })
        }),
        1 => condition().prop_map(move |condition| {
            ResourceAction::Delete { by: by(), precondition: Some(condition) }
        }),
        1 => Just(ResourceAction::Pause { by: by(), reason: reason() }),
        2 => Just(ResourceAction::Resume { by: by(), reason: reason() }),
        1 => Just(ResourceAction::Delete { by: by(), precondition: None }),
    ]
}

pub(crate) fn template() -> impl Strategy<Value = Template> {
    prop_oneof![
        9 => plain(),
        1 => (1..9_u128, plain()).prop_map(|(request, template)| {
            Template::Once { request, template: Box::new(template) }
        }),
    ]
}

/// A command without a request id that is executed at most once.
fn plain() -> impl Strategy<Value = Template> {
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
            .prop_map(|(session, request, max)| {
                Template::Claim { session, request, max, only: None }
            }),
        2 => (session(), request(), key(), any::<bool>())
            .prop_map(|(session, request, key, group)| {
                Template::Claim { session, request, max: 1, only: Some((key, group)) }
            }),
        6 => (0..6_usize, finish(), prop::option::weighted(0.3, 0..6_usize))
            .prop_map(|(pick, finish, update)| Template::Finish { pick, finish, update }),
        2 => (0..6_usize, 0..6_usize)
            .prop_map(|(pick, update)| Template::Status { pick, update }),
        1 => (key(), request(), condition()).prop_map(|(key, request, condition)| {
            Template::SubmitIf { key, request: 500 + request, condition }
        }),
        3 => timer(),
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
                let submit = Submit {
                    request: RequestId(*request),
                    operation: self.operation(key, *operation),
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
            Template::SubmitIf { key, request, condition } => {
                let submit = Submit {
                    precondition: Some(*condition),
                    ..Submit::new(RequestId(*request), &self.operation(key, 0), by())
                };
                Command::Resource { key: key.clone(), action: ResourceAction::Submit(submit) }
            }
            Template::Timer { key, operation, setting, put } => {
                let operation = self.operation(key, *operation);
                let timers = vec![TimerChange { operation, setting: *setting }];
                let action = match put {
                    Some(put) => ResourceAction::Put(Put { timers, ..put.clone() }),
                    None => ResourceAction::SetTimers { timers, by: by(), precondition: None },
                };
                Command::Resource { key: key.clone(), action }
            }
            Template::Claim { session, request, max, only } => {
                Command::Claim(self.claim(*session, *request, *max, only.as_ref()))
            }
            Template::Finish { pick, finish, update } => {
                let (id, token) = self.attempt(*pick);
                let (finish, update) = (finish.clone(), update.map(update_of));
                Command::Job { id, action: JobAction::Finish { token, finish, update } }
            }
            Template::Status { pick, update } => {
                let (id, token) = self.attempt(*pick);
                let update = update_of(*update);
                Command::Job { id, action: JobAction::Status { token, update } }
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
            Template::Once { request, template } => {
                let command = self.command(template);
                match command {
                    Command::Resource { .. } | Command::Job { .. } => {
                        command.once(RequestId(20_000 + request))
                    }
                    command => command,
                }
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
    fn claim(
        &self,
        session: u128,
        request: u128,
        max: usize,
        only: Option<&(ResourceKey, bool)>,
    ) -> Claim {
        let scope = |(key, group): &(ResourceKey, bool)| {
            let (tenant, name) = (key.tenant().into(), key.name().into());
            match key.group().filter(|_| *group) {
                Some(group) => ClaimScope::Group { tenant, group: group.into() },
                None => ClaimScope::Resource { tenant, name },
            }
        };
        // A request id stands for one scope, as with every client.
        let scoped = u128::from(only.is_some());
        // A shared store has its claims in rows, so it must answer repetitions across restarts.
        let epoch = if self.is_shared() { 0 } else { self.restarts };
        let all = tenant(session) == "*";
        let may_differ = self.restarts > 0 || self.is_shared();
        let session = if may_differ && all { session + 1 } else { session };
        Claim {
            session: SessionId(session),
            request: RequestId(10_000 + 100_000 * scoped + 1_000 * epoch + 10 * session + request),
            kinds: self.kinds.iter().map(|kind| kind.name.clone()).collect(),
            max,
            tenant: None,
            only: only.map(scope),
        }
    }

    fn operation(&self, key: &ResourceKey, n: usize) -> Text {
        let kind = self.kinds.get(key.kind()).expect("a declared kind");
        let names: Vec<_> = kind.operations.keys().cloned().collect();
        names[n % names.len()].clone()
    }
}

/// Returns a status update: a patch, or a timer of an operation that some kinds have.
fn update_of(n: usize) -> Box<StatusUpdate> {
    let patches =
        [r#"{"a":1}"#, r#"{"a":{"b":[2]}}"#, r#"{"a":{"b":null,"c":"ü"}}"#, r#"{"a":null}"#];
    let merge = patches.get(n).map(|patch| (*patch).into());
    let setting = if n == 4 { TimerSetting::After(900) } else { TimerSetting::Remove };
    let change = TimerChange { operation: "work".into(), setting };
    let timers = if n >= 4 { vec![change] } else { Vec::new() };
    Box::new(StatusUpdate { merge, timers })
}

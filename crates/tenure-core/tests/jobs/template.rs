//! Random but plausible commands on jobs: few sessions, resources and requests, so that they
//! collide.

use proptest::prelude::*;
use tenure_core::retry::Class;
use tenure_core::{
    Acquire, Claim, ClaimScope, Claimant, Command, Finish, JobAction, JobId, LockAction, LockName,
    Millis, Precondition, Put, RequestId, ResourceAction, ResourceKey, SessionId, StatusUpdate,
    Submit, Text, TimerChange, TimerSetting, Token, limits,
};

use crate::run::Run;

/// Tenants of the sessions, by number. Ended sessions are never revived, so there are several per
/// tenant.
pub(crate) const TENANTS: [&str; 6] = ["t", "u", "*", "t", "u", "*"];
/// Times to live of the sessions; some last for the whole run.
const TTLS_MS: [u64; 6] = [1_500, 3_000, 6_000, 15_000, 30_000, 60_000];

/// A command whose job and token are chosen when it runs.
#[derive(Clone, Debug)]
pub(crate) enum Template {
    Open(usize),
    Heartbeat(usize),
    Close(usize),
    Expire(usize),
    Submit { at: usize, operation: usize, request: u128, priority: i32, ahead_ms: u64 },
    SubmitIf { at: usize, request: u128, generation: Option<u64> },
    Put { at: usize, spec: u8 },
    PutIf { at: usize, spec: u8, generation: Option<u64>, timer: Option<(usize, u64)> },
    DeleteIf { at: usize, generation: u64 },
    Timer { at: usize, operation: usize, after_ms: Option<u64> },
    Forget { at: usize, stale: bool },
    Manage { at: usize, verb: usize },
    Claim { session: usize, request: u128, max: usize, only: Option<(usize, bool)> },
    Finish { job: usize, token: Option<u64>, finish: usize, update: Option<usize> },
    Status { job: usize, token: Option<u64>, update: usize },
    Say { job: usize, token: Option<u64>, log: bool },
    Job { job: usize, verb: usize, request: u128 },
    Acquire { at: usize, request: u128, wait_ms: u64 },
    Release { at: usize, token: u64, verb: usize },
    Settle(usize),
}

pub(crate) fn template() -> impl Strategy<Value = Template> {
    let session = 0..TENANTS.len();
    let (at, request, job) = (0..4_usize, 1..=6_u128, 0..12_usize);
    // Mostly the token of the job's running attempt.
    let token = || prop_oneof![4 => Just(None), 1 => (0..6_u64).prop_map(Some)];
    let ahead = prop_oneof![4 => Just(0), 1 => 1..2_000_u64];
    let submit = (at.clone(), 0..3_usize, request.clone(), -1..2_i32, ahead);
    let scope = (0..4_usize, any::<bool>());
    prop_oneof![
        2 => session.clone().prop_map(Template::Open),
        2 => session.clone().prop_map(Template::Heartbeat),
        1 => session.clone().prop_map(Template::Close),
        1 => session.clone().prop_map(Template::Expire),
        8 => submit.prop_map(|(at, operation, request, priority, ahead_ms)| {
            Template::Submit { at, operation, request, priority, ahead_ms }
        }),
        2 => (at.clone(), 0..3_u8).prop_map(|(at, spec)| Template::Put { at, spec }),
        2 => (at.clone(), 0..3_usize).prop_map(|(at, verb)| Template::Manage { at, verb }),
        8 => (session, request.clone(), 1..3_usize, prop::option::weighted(0.3, scope))
            .prop_map(|(session, request, max, only)| {
                Template::Claim { session, request, max, only }
            }),
        7 => (job.clone(), token(), 0..11_usize, prop::option::weighted(0.3, 0..6_usize))
            .prop_map(|(job, token, finish, update)| {
                Template::Finish { job, token, finish, update }
            }),
        2 => (job.clone(), token(), 0..6_usize)
            .prop_map(|(job, token, update)| Template::Status { job, token, update }),
        4 => conditional(),
        1 => (job.clone(), token(), any::<bool>())
            .prop_map(|(job, token, log)| Template::Say { job, token, log }),
        4 => (job, 0..4_usize, request.clone())
            .prop_map(|(job, verb, request)| Template::Job { job, verb, request }),
        1 => (at.clone(), request, prop_oneof![Just(0), Just(900)])
            .prop_map(|(at, request, wait_ms)| Template::Acquire { at, request, wait_ms }),
        1 => (at.clone(), 0..6_u64, 0..3_usize)
            .prop_map(|(at, token, verb)| Template::Release { at, token, verb }),
        1 => at.prop_map(Template::Settle),
    ]
}

/// Conditional writes, timers, and forgetting.
fn conditional() -> impl Strategy<Value = Template> {
    let at = || 0..4_usize;
    let generation = || prop_oneof![2 => (0..4_u64).prop_map(Some), 1 => Just(None)];
    let timer = prop::option::of((0..3_usize, 1..2_500_u64));
    prop_oneof![
        2 => (at(), 0..3_usize, prop::option::weighted(0.8, 1..2_500_u64))
            .prop_map(|(at, operation, after_ms)| Template::Timer { at, operation, after_ms }),
        2 => (at(), 0..3_u8, generation(), timer).prop_map(|(at, spec, generation, timer)| {
            Template::PutIf { at, spec, generation, timer }
        }),
        1 => (at(), 20..24_u128, generation()).prop_map(|(at, request, generation)| {
            Template::SubmitIf { at, request, generation }
        }),
        1 => (at(), 0..3_u64).prop_map(|(at, generation)| Template::DeleteIf { at, generation }),
        1 => (at(), any::<bool>()).prop_map(|(at, stale)| Template::Forget { at, stale }),
    ]
}

const KINDS: [&str; 11] = [
    "cluster",
    "pipeline",
    "shoot",
    "report",
    "task",
    "queue",
    "capped",
    "fair",
    "scheduler",
    "check",
    "roller",
];

/// Generates the resources of a run: one to four, of two tenants, mostly of one kind.
pub(crate) fn keys() -> impl Strategy<Value = Vec<ResourceKey>> {
    let one = || {
        let tenant = prop::sample::select(vec!["t", "t", "u"]);
        (tenant, prop::sample::select(vec!["a", "b"]), 0..KINDS.len(), any::<bool>())
    };
    (0..KINDS.len(), prop::collection::vec(one(), 1..5)).prop_map(|(most, keys)| {
        let key = |(tenant, name, other, same)| {
            let kind = KINDS[if same { most } else { other }];
            let grouped = format!("g:{name}");
            ResourceKey::new(tenant, kind, if kind == "check" { &grouped } else { name })
                .expect("plain names")
        };
        keys.into_iter().map(key).collect()
    })
}

/// Generates commands, each with the pause before it.
pub(crate) fn templates() -> impl Strategy<Value = Vec<(Template, u64)>> {
    // Sometimes longer than requests are remembered.
    let leap = Just(limits::RECENT_TTL_MS + 1);
    let pause = prop_oneof![50 => Just(0), 30 => 1..900_u64, 10 => 900..4_000_u64, 1 => leap];
    prop::collection::vec((template(), pause), 1..80)
}

/// Returns a finish of each kind, including one that no operation allows.
fn finish(n: usize) -> Finish {
    let failed = |code: &str, class, state: Option<&str>| {
        let state = state.map(Into::into);
        Finish::Failed {
            code: code.into(),
            message: "it failed".into(),
            class,
            state,
            delay_ms: None,
        }
    };
    match n {
        0 | 1 => Finish::Ok { state: None, result: Some("1".into()) },
        2 => Finish::Ok { state: Some("DEGRADED".into()), result: None },
        3 => failed("BUSY", Some(Class::Transient), None),
        4 => failed("QUOTA", None, Some("DEGRADED")),
        5 => failed("BAD", None, None),
        6 => Finish::Cancelled,
        7 => Finish::HandBack,
        8 => Finish::Failed {
            code: "BUSY".into(),
            message: "it failed".into(),
            class: None,
            state: None,
            delay_ms: Some(400),
        },
        n => Finish::Deferred {
            delay_ms: 700 * (n as u64 - 9),
            code: "NOT_YET".into(),
            message: "it waits".into(),
        },
    }
}

fn by_ann(setting: TimerSetting, operation: &Text) -> Vec<TimerChange> {
    vec![TimerChange { operation: operation.clone(), setting }]
}

fn precondition(generation: Option<u64>) -> Option<Precondition> {
    Some(generation.map_or(Precondition::Absent, Precondition::Generation))
}

impl Run {
    pub(crate) fn command(&self, template: &Template) -> Command {
        let session = |n: &usize| SessionId(*n as u128 + 1);
        let lock = |at: &usize, action| Command::Lock { key: self.key(*at), action };
        match template {
            Template::Open(n) => {
                let (tenant, name) = (TENANTS[*n].into(), format!("w{n}").into());
                Command::Open { session: session(n), tenant, name, ttl_ms: TTLS_MS[*n] }
            }
            Template::Heartbeat(n) => {
                Command::Heartbeat { session: session(n), seen: 0, tenant: None }
            }
            Template::Close(n) => Command::Close { session: session(n), tenant: None },
            Template::Expire(n) => Command::Expire { session: session(n) },
            Template::Submit { at, operation, request, priority, ahead_ms } => {
                let run_at = (*ahead_ms > 0).then(|| self.now.plus(*ahead_ms));
                self.submit(*at, *operation, *request, *priority, run_at)
            }
            Template::Put { at, spec } => {
                let action = ResourceAction::Put(Put::new(spec.to_string().into(), "ann".into()));
                Command::Resource { key: self.key(*at), action }
            }
            Template::Manage { at, verb } => {
                let (by, reason) = ("ann".into(), "so".into());
                let action = match verb {
                    0 => ResourceAction::Pause { by, reason },
                    1 => ResourceAction::Resume { by, reason },
                    _ => ResourceAction::Delete { by, precondition: None },
                };
                Command::Resource { key: self.key(*at), action }
            }
            Template::SubmitIf { at, request, generation } => {
                let (key, operation) = self.operation(*at, 0);
                let submit = Submit {
                    precondition: precondition(*generation),
                    ..Submit::new(RequestId(*request), &operation, "ann".into())
                };
                Command::Resource { key, action: ResourceAction::Submit(submit) }
            }
            Template::PutIf { at, spec, generation, timer } => {
                let timers = timer.map_or(Vec::new(), |(operation, ms)| {
                    by_ann(TimerSetting::After(ms), &self.operation(*at, operation).1)
                });
                let request = 8_000 + 100 * generation.map_or(9, |n| n) + u64::from(*spec);
                let put = Put {
                    // Each request stands for one put, as with every client.
                    request: Some(RequestId(u128::from(request))),
                    precondition: precondition(*generation),
                    timers,
                    ..Put::new(spec.to_string().into(), "ann".into())
                };
                Command::Resource { key: self.key(*at), action: ResourceAction::Put(put) }
            }
            Template::DeleteIf { at, generation } => {
                let precondition = precondition(Some(*generation));
                let action = ResourceAction::Delete { by: "ann".into(), precondition };
                Command::Resource { key: self.key(*at), action }
            }
            Template::Timer { at, operation, after_ms } => {
                let (key, operation) = self.operation(*at, *operation);
                let setting = after_ms.map_or(TimerSetting::Remove, TimerSetting::After);
                let (by, timers) = ("ann".into(), by_ann(setting, &operation));
                let action = ResourceAction::SetTimers { timers, by, precondition: None };
                Command::Resource { key, action }
            }
            Template::Forget { at, stale } => {
                let n = self.world.records.get(&self.key(*at)).map_or(0, |r| r.chain.n);
                lock(at, LockAction::Forget { n: n + u64::from(*stale) })
            }
            Template::Claim { session: n, request, max, only } => {
                let only = only.map(|(at, group)| {
                    let key = self.key(at);
                    let (tenant, name) = (key.tenant().into(), key.name().into());
                    match key.group().filter(|_| group) {
                        Some(group) => ClaimScope::Group { tenant, group: group.into() },
                        None => ClaimScope::Resource { tenant, name },
                    }
                });
                let kinds = self.kinds().iter().map(|kind| kind.name.clone()).collect();
                // Clients generate request ids, so two sessions never share one, and each stands
                // for one scope.
                let scope = match &only {
                    None => String::new(),
                    Some(ClaimScope::Group { tenant, group }) => format!("{tenant}:{group}"),
                    Some(ClaimScope::Resource { tenant, name }) => format!("{tenant}/{name}"),
                };
                let scope = scope.bytes().fold(0, |n, byte| 257 * n + u128::from(byte));
                let request = RequestId(1_000_000 * scope + 1_000 * (*n as u128 + 1) + request);
                Command::Claim(Claim {
                    session: session(n),
                    request,
                    kinds,
                    max: *max,
                    tenant: None,
                    only,
                })
            }
            Template::Finish { job, token, finish: n, update } => {
                let (id, token, finish) = (self.job(*job), self.token(*job, *token), finish(*n));
                let update = update.map(|n| self.update(id, n));
                Command::Job { id, action: JobAction::Finish { token, finish, update } }
            }
            Template::Status { job, token, update } => {
                let (id, token) = (self.job(*job), self.token(*job, *token));
                let update = self.update(id, *update);
                Command::Job { id, action: JobAction::Status { token, update } }
            }
            Template::Say { job, token, log } => {
                let token = self.token(*job, *token);
                let action = match log {
                    true => JobAction::Log { token, text: "a line\n".into() },
                    false => JobAction::Progress { token, percent: 50, message: "half".into() },
                };
                Command::Job { id: self.job(*job), action }
            }
            Template::Job { job, verb, request } => {
                let (by, reason) = ("ann".into(), "so".into());
                let request = RequestId(9_000 + 10 * *job as u128 + request);
                let action = match verb {
                    0 | 1 => JobAction::Cancel { by, reason },
                    2 => JobAction::Retry { request, by, reason },
                    _ => JobAction::Discard { by, reason },
                };
                Command::Job { id: self.job(*job), action }
            }
            Template::Acquire { at, request, wait_ms } => {
                let ask = Acquire {
                    locks: LockName::main().into(),
                    claimant: Claimant::Session(SessionId(3 + request % 2 * 3)),
                    request: RequestId(5_000 + request),
                    wait_ms: *wait_ms,
                    purpose: None,
                    max_age_ms: None,
                    tenant: None,
                };
                lock(at, LockAction::Acquire(ask))
            }
            Template::Release { at, token, verb } => {
                let (token, locks) = (Token(*token), None);
                lock(
                    at,
                    match verb {
                        0 => LockAction::Release { token, locks, to: None },
                        _ => LockAction::Break {
                            token,
                            locks,
                            by: "ann".into(),
                            reason: "so".into(),
                            end_job: *verb == 2,
                        },
                    },
                )
            }
            Template::Settle(at) => lock(at, LockAction::Settle),
        }
    }

    /// Returns a resource and one of its operations.
    fn operation(&self, at: usize, operation: usize) -> (ResourceKey, Text) {
        let key = self.key(at);
        let names: Vec<_> = self.kind(&key).operations.keys().cloned().collect();
        let operation = names[operation % names.len()].clone();
        (key, operation)
    }

    /// Returns an update of the resource of a job: mostly a patch, sometimes a timer.
    fn update(&self, id: JobId, n: usize) -> Box<StatusUpdate> {
        let patches =
            [r#"{"a":1}"#, r#"{"a":{"b":2}}"#, r#"{"a":{"b":null,"c":3}}"#, r#"{"a":null}"#];
        let merge = patches.get(n).map(|patch| (*patch).into());
        let key = self.world.job_index.get(&id);
        let operation = key.and_then(|key| self.kind(key).operations.keys().next());
        let setting = if n == 4 { TimerSetting::After(600) } else { TimerSetting::Remove };
        let timers = operation.filter(|_| n >= 4).map(|operation| by_ann(setting, operation));
        Box::new(StatusUpdate { merge, timers: timers.unwrap_or_default() })
    }

    fn submit(
        &self,
        at: usize,
        operation: usize,
        request: u128,
        priority: i32,
        run_at: Option<Millis>,
    ) -> Command {
        let (key, operation) = self.operation(at, operation);
        let (request, by) = (RequestId(request), "ann".into());
        let ask =
            Submit { request, operation, args: None, priority, run_at, by, precondition: None };
        Command::Resource { key, action: ResourceAction::Submit(ask) }
    }
}

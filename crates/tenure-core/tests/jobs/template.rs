//! Random but plausible commands on jobs: few sessions, resources and requests, so that they
//! collide.

use proptest::prelude::*;
use tenure_core::retry::Class;
use tenure_core::{
    Acquire, Claim, Claimant, Command, Finish, JobAction, LockAction, LockName, Millis, Put,
    RequestId, ResourceAction, ResourceKey, SessionId, Submit, Token,
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
    Put { at: usize, spec: u8 },
    Manage { at: usize, verb: usize },
    Claim { session: usize, request: u128, max: usize },
    Finish { job: usize, token: Option<u64>, finish: usize },
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
        8 => (session, request.clone(), 1..3_usize)
            .prop_map(|(session, request, max)| Template::Claim { session, request, max }),
        7 => (job.clone(), token(), 0..8_usize)
            .prop_map(|(job, token, finish)| Template::Finish { job, token, finish }),
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

const KINDS: [&str; 9] =
    ["cluster", "pipeline", "shoot", "report", "task", "queue", "capped", "fair", "scheduler"];

/// Generates the resources of a run: one to four, of two tenants, mostly of one kind.
pub(crate) fn keys() -> impl Strategy<Value = Vec<ResourceKey>> {
    let one = || {
        let tenant = prop::sample::select(vec!["t", "t", "u"]);
        (tenant, prop::sample::select(vec!["a", "b"]), 0..KINDS.len(), any::<bool>())
    };
    (0..KINDS.len(), prop::collection::vec(one(), 1..5)).prop_map(|(most, keys)| {
        let key = |(tenant, name, other, same)| {
            let kind = KINDS[if same { most } else { other }];
            ResourceKey::new(tenant, kind, name).expect("plain names")
        };
        keys.into_iter().map(key).collect()
    })
}

/// Generates commands, each with the pause before it.
pub(crate) fn templates() -> impl Strategy<Value = Vec<(Template, u64)>> {
    let pause = prop_oneof![5 => Just(0), 3 => 1..900_u64, 1 => 900..4_000_u64];
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
        _ => Finish::HandBack,
    }
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
            Template::Claim { session: n, request, max } => {
                let kinds = self.kinds().iter().map(|kind| kind.name.clone()).collect();
                // Clients generate request ids, so two sessions never share one.
                let request = RequestId(1_000 * (*n as u128 + 1) + request);
                Command::Claim(Claim {
                    session: session(n),
                    request,
                    kinds,
                    max: *max,
                    tenant: None,
                    only: None,
                })
            }
            Template::Finish { job, token, finish: n } => {
                let action = JobAction::Finish {
                    token: self.token(*job, *token),
                    finish: finish(*n),
                    update: None,
                };
                Command::Job { id: self.job(*job), action }
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

    fn submit(
        &self,
        at: usize,
        operation: usize,
        request: u128,
        priority: i32,
        run_at: Option<Millis>,
    ) -> Command {
        let key = self.key(at);
        let names: Vec<_> = self.kind(&key).operations.keys().cloned().collect();
        let operation = names[operation % names.len()].clone();
        let (request, by) = (RequestId(request), "ann".into());
        let ask =
            Submit { request, operation, args: None, priority, run_at, by, precondition: None };
        Command::Resource { key, action: ResourceAction::Submit(ask) }
    }
}

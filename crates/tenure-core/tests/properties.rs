//! Properties of locks: for any sequence of commands, the invariants hold after each of them.
//!
//! Commands are random but plausible: few sessions, resources, locks and requests, so that they
//! collide. Failing cases shrink to the few commands that matter.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;
use tenure_core::history::{Event, SealedEntry};
use tenure_core::record::TenureEnd;
use tenure_core::verify::Verifier;
use tenure_core::{
    Acquire, Claimant, Command, LockAction, LockName, LockSet, Millis, Outcome, Record, RequestId,
    ResourceKey, SessionId, Token, World, step,
};
use tenure_core::{invariants, limits};

const SESSIONS: u128 = 3;
const RESOURCES: usize = 2;
const LOCKS: [&str; 3] = ["main", "config", "panic"];

/// A command whose token is chosen when it runs.
#[derive(Clone, Debug)]
enum Template {
    Open(u128),
    Heartbeat(u128),
    Close(u128),
    Expire(u128),
    Acquire { resource: usize, request: u128, locks: usize, wait_ms: u64, solo: bool },
    Withdraw { resource: usize, request: u128 },
    Token { resource: usize, pick: u64, verb: usize, locks: Option<usize> },
    Transfer { resource: usize, to: u128 },
    Forget { resource: usize, stale: bool },
    Settle(usize),
}

fn template() -> impl Strategy<Value = Template> {
    let session = 1..=SESSIONS;
    let resource = 0..RESOURCES;
    let request = 1..=9_u128;
    let acquire = (resource.clone(), request.clone(), 1..8_usize, 0..3_000_u64, any::<bool>());
    let token = (resource.clone(), any::<u64>(), 0..3_usize, prop::option::of(1..8_usize));
    prop_oneof![
        2 => session.clone().prop_map(Template::Open),
        2 => session.clone().prop_map(Template::Heartbeat),
        1 => session.clone().prop_map(Template::Close),
        1 => session.prop_map(Template::Expire),
        6 => acquire.prop_map(|(resource, request, locks, wait_ms, solo)| {
            let wait_ms = wait_ms.saturating_sub(1_000);
            Template::Acquire { resource, request, locks, wait_ms, solo }
        }),
        1 => (resource.clone(), request)
            .prop_map(|(resource, request)| Template::Withdraw { resource, request }),
        4 => token.prop_map(|(resource, pick, verb, locks)| {
            Template::Token { resource, pick, verb, locks }
        }),
        1 => (resource.clone(), 1..=SESSIONS)
            .prop_map(|(resource, to)| Template::Transfer { resource, to }),
        1 => (resource.clone(), any::<bool>())
            .prop_map(|(resource, stale)| Template::Forget { resource, stale }),
        1 => resource.prop_map(Template::Settle),
    ]
}

fn templates() -> impl Strategy<Value = Vec<(Template, u64)>> {
    // Sometimes longer than requests are remembered.
    let leap = Just(limits::RECENT_TTL_MS + 1);
    let pause = prop_oneof![18 => Just(0), 12 => 1..1_200_u64, 1 => leap];
    prop::collection::vec((template(), pause), 1..60)
}

fn key(resource: usize) -> ResourceKey {
    ResourceKey::new("t", "k", &format!("r{resource}")).expect("plain names")
}

/// Returns the lock set encoded by `bits`.
fn locks(bits: usize) -> LockSet {
    let chosen = LOCKS.iter().enumerate().filter(|(n, _)| bits >> n & 1 == 1);
    LockSet::new(chosen.map(|(_, name)| name.parse().expect("plain")).collect())
        .expect("one to three")
}

/// Builds an acquire. A request id belongs to one session or is solo. The locks vary, which must be
/// refused as a reused id while the first request is known.
fn acquire(request: u128, bits: usize, wait_ms: u64, solo: bool) -> LockAction {
    let bits = 1 + (bits + usize::try_from(request).unwrap_or(0)) % 7;
    let claimant = match solo && request > 6 {
        true => Claimant::Solo { name: "solo".into(), ttl_ms: 1_500 },
        false => Claimant::Session(SessionId(1 + request % SESSIONS)),
    };
    let (locks, request) = (locks(bits), RequestId(request));
    LockAction::Acquire(Acquire {
        locks,
        claimant,
        request,
        wait_ms,
        purpose: None,
        max_age_ms: None,
        tenant: None,
    })
}

/// A world and its history.
#[derive(Default)]
struct Run {
    world: World,
    now: Millis,
    lines: Vec<(ResourceKey, SealedEntry)>,
    /// Requests that were granted a tenure, and when.
    granted: HashMap<(ResourceKey, RequestId), Millis>,
    /// Last token of each resource, also of forgotten ones.
    last_tokens: HashMap<ResourceKey, Token>,
}

impl Run {
    fn command(&self, template: &Template) -> Command {
        let lock = |resource: usize, action| Command::Lock { key: key(resource), action };
        match template {
            Template::Open(n) => {
                let ttl_ms = 1_000 + 500 * u64::try_from(*n).unwrap_or(0);
                let (session, tenant) = (SessionId(*n), "t".into());
                let name = format!("s{n}").into();
                Command::Open { session, tenant, name, ttl_ms }
            }
            Template::Heartbeat(n) => {
                Command::Heartbeat { session: SessionId(*n), seen: 0, tenant: None }
            }
            Template::Close(n) => Command::Close { session: SessionId(*n), tenant: None },
            Template::Expire(n) => Command::Expire { session: SessionId(*n) },
            Template::Acquire { resource, request, locks, wait_ms, solo } => {
                lock(*resource, acquire(*request, *locks, *wait_ms, *solo))
            }
            Template::Withdraw { resource, request } => {
                lock(*resource, LockAction::Withdraw { request: RequestId(*request) })
            }
            Template::Token { resource, pick, verb, locks: bits } => {
                let last = self.world.records.get(&key(*resource)).map_or(0, |r| r.token.0);
                let (token, locks) = (Token(pick % (last + 2)), bits.map(locks));
                lock(*resource, with_token(token, *verb, locks))
            }
            Template::Transfer { resource, to } => {
                let record = self.world.records.get(&key(*resource));
                let first = record.and_then(|record| record.tenures.first());
                let (token, to) = (first.map_or(Token(1), |first| first.token), format!("s{to}"));
                lock(*resource, LockAction::Release { token, locks: None, to: Some(to.into()) })
            }
            Template::Forget { resource, stale } => {
                let n = self.world.records.get(&key(*resource)).map_or(0, |r| r.chain.n);
                lock(*resource, LockAction::Forget { n: n + u64::from(*stale) })
            }
            Template::Settle(resource) => lock(*resource, LockAction::Settle),
        }
    }

    /// Runs one step and checks it.
    fn step(&mut self, command: &Command) -> Result<Outcome, TestCaseError> {
        let before = self.world.clone();
        let outcome = step(&mut self.world, command, self.now);
        let changes = self.world.take_changes();
        for (key, _, event) in &changes.events {
            self.check_grant(&before, command, key, event)?;
        }
        Self::check_transfer(command, &outcome, &changes.events)?;
        for (key, token) in &changes.forgotten {
            self.check_forgotten(&before, command, key, *token)?;
            self.lines.retain(|(of, _)| of != key);
        }
        self.lines.extend(self.world.seal(changes.events));
        for (key, record) in &self.world.records {
            invariants::check_record(key, record, &self.world).map_err(TestCaseError::fail)?;
            let old = before.records.get(key).cloned();
            let old = old.unwrap_or_else(|| before.floors.new_record(key));
            invariants::check_forward(key, &old, record).map_err(TestCaseError::fail)?;
        }
        Ok(outcome)
    }

    fn check_grant(
        &mut self,
        before: &World,
        command: &Command,
        key: &ResourceKey,
        event: &Event,
    ) -> Result<(), TestCaseError> {
        let Event::Granted { session, request, token, .. } = event else { return Ok(()) };
        let last = self.last_tokens.insert(key.clone(), *token).unwrap_or_default();
        prop_assert!(*token > last, "token {token} of {key} follows {last}");
        let lives = before.sessions.get(*session).is_some_and(|s| s.is_alive(self.now));
        prop_assert!(
            lives || creates_session(command, *session),
            "dead {session} was granted {key}"
        );
        let first = self.granted.insert((key.clone(), *request), self.now);
        let long_ago = |at: Millis| self.now.since(at) > limits::RECENT_TTL_MS;
        let first = first.is_none_or(long_ago);
        // Exceeding the number of remembered requests, or their time, is a documented limit.
        let old = before.records.get(key).map_or(0, |record| record.recent.len());
        prop_assert!(first || old == limits::RECENT_REQUESTS_MAX, "{request} was granted twice");
        Ok(())
    }

    /// A planned transfer grants the locks to the named session in the same step.
    fn check_transfer(
        command: &Command,
        outcome: &Outcome,
        events: &[(ResourceKey, Millis, Event)],
    ) -> Result<(), TestCaseError> {
        let Command::Lock { action: LockAction::Release { to: Some(to), .. }, .. } = command else {
            return Ok(());
        };
        if *outcome != (Outcome::Released { already: false }) {
            return Ok(());
        }
        let released =
            |event: &Event| matches!(event, Event::Ended { how: TenureEnd::Released, .. });
        let after = events.iter().skip_while(|(_, _, event)| !released(event)).nth(1);
        let to_named = matches!(after, Some((_, _, Event::Granted { holder, .. })) if holder == to);
        prop_assert!(to_named, "{command:?} was followed by {after:?}");
        Ok(())
    }

    /// Only an idle resource is forgotten, at its last entry and with its last token.
    fn check_forgotten(
        &self,
        before: &World,
        command: &Command,
        key: &ResourceKey,
        token: Token,
    ) -> Result<(), TestCaseError> {
        let Command::Lock { action: LockAction::Forget { n }, .. } = command else {
            return Err(TestCaseError::fail(format!("{command:?} forgot {key}")));
        };
        let record = before.records.get(key);
        prop_assert_eq!(record.map_or(0, |record| record.chain.n), *n);
        prop_assert!(record.is_none_or(|record| record.tenures.is_empty()), "{:?}", record);
        let last = self.last_tokens.get(key).copied().unwrap_or_default();
        prop_assert!(token >= last, "{key} was forgotten with token {token} after {last}");
        prop_assert!(!self.world.records.contains_key(key), "{key} remains");
        Ok(())
    }

    fn tenures(&self) -> HashMap<ResourceKey, HashSet<(LockName, Token)>> {
        let of = |record: &Record| {
            record.tenures.iter().map(|tenure| (tenure.lock.clone(), tenure.token)).collect()
        };
        let live = self.world.records.iter().filter(|(_, record)| record.is_live());
        live.map(|(key, record)| (key.clone(), of(record))).collect()
    }
}

/// Returns `true` if the command creates that session.
fn creates_session(command: &Command, session: SessionId) -> bool {
    let Command::Lock { action: LockAction::Acquire(acquire), .. } = command else { return false };
    matches!(acquire.claimant, Claimant::Solo { .. }) && acquire.request.0 == session.0
}

fn with_token(token: Token, verb: usize, locks: Option<LockSet>) -> LockAction {
    match verb {
        0 => LockAction::Renew { token, ttl_ms: None },
        1 => LockAction::Release { token, locks, to: None },
        _ => LockAction::Break {
            token,
            locks,
            by: "ann".into(),
            reason: "stuck".into(),
            end_job: false,
        },
    }
}

/// Returns the kind of an outcome, with its token if it has one.
fn kind(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Granted(view) | Outcome::Renewed(view) => format!("granted {}", view.token),
        Outcome::Refused(refusal) => format!("refused {}", refusal.code()),
        Outcome::Waiting { position, .. } => format!("waiting {position}"),
        Outcome::Released { .. } => "released".to_owned(),
        Outcome::Withdrawn { .. } => "withdrawn".to_owned(),
        other => format!("{other:?}"),
    }
}

fn is_idempotent(command: &Command) -> bool {
    let Command::Lock { action, .. } = command else { return false };
    !matches!(action, LockAction::Settle | LockAction::Forget { .. })
}

/// Returns the number of cases of each property: `reduced`, unless `cargo xtask soak properties`
/// asks for more.
fn cases(reduced: u32) -> u32 {
    let wanted = std::env::var("PROPTEST_CASES").ok().and_then(|wanted| wanted.parse().ok());
    wanted.unwrap_or(reduced)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(512), ..ProptestConfig::default() })]

    #[test]
    fn invariants_hold_after_every_command(templates in templates()) {
        let mut run = Run { now: Millis(1_000), ..Run::default() };
        for (template, pause_ms) in &templates {
            run.now = run.now.plus(*pause_ms);
            run.step(&run.command(template))?;
        }
    }

    #[test]
    fn verifier_accepts_every_history_and_matches_the_records(templates in templates()) {
        let mut run = Run { now: Millis(1_000), ..Run::default() };
        for (template, pause_ms) in &templates {
            run.now = run.now.plus(*pause_ms);
            run.step(&run.command(template))?;
        }
        let mut verifier = Verifier::default();
        for (key, sealed) in &run.lines {
            verifier.check_line(key, &sealed.line, sealed.hash);
        }
        for (key, record) in &run.world.records {
            verifier.compare(key, record);
        }
        let report = verifier.finish();
        prop_assert!(report.problems.is_empty(), "{:?}", report.problems);
    }

    #[test]
    fn repeated_command_returns_the_same_response_and_changes_nothing(templates in templates()) {
        let mut run = Run { now: Millis(1_000), ..Run::default() };
        for (template, pause_ms) in &templates {
            run.now = run.now.plus(*pause_ms);
            let command = run.command(template);
            let first = run.step(&command)?;
            if is_idempotent(&command) {
                let tenures = run.tenures();
                let second = run.step(&command)?;
                prop_assert_eq!(kind(&first), kind(&second), "{:?}", command);
                prop_assert_eq!(tenures, run.tenures(), "{:?}", command);
            }
        }
    }

    #[test]
    fn sweep_leaves_no_tenure_of_an_ended_session(templates in templates()) {
        let mut run = Run { now: Millis(1_000), ..Run::default() };
        for (template, pause_ms) in &templates {
            run.now = run.now.plus(*pause_ms);
            run.step(&run.command(template))?;
        }
        for resource in 0..RESOURCES {
            run.step(&Command::Lock { key: key(resource), action: LockAction::Settle })?;
        }
        invariants::check_swept(&run.world, run.now).map_err(TestCaseError::fail)?;
    }
}

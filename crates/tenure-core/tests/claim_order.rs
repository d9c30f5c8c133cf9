//! The order in which claims of several kinds start jobs: kinds in turn, the tenants of a kind in
//! turn, and the jobs of a tenant by priority and due time. No ready job starves.

use std::sync::Arc;

use proptest::prelude::*;
use tenure_core::{
    Assignment, Claim, ClaimScope, Command, Finish, JobAction, Kind, Kinds, Millis, Operation,
    Outcome, RequestId, ResourceAction, ResourceKey, SessionId, Submit, World, limits, step,
};

const KINDS: [&str; 3] = ["k", "l", "m"];
const TENANTS: [&str; 3] = ["t", "u", "v"];
/// Session of all tenants.
const ALL: SessionId = SessionId(1);
/// Session of tenant `t`.
const OF_T: SessionId = SessionId(2);

fn kind(name: &str) -> Kind {
    Kind::new(name).operation(Operation::new("work"))
}

/// A world whose time advances with each submit.
struct Run {
    world: World,
    now: Millis,
    requests: u128,
}

impl Run {
    fn new() -> Self {
        Self::with_kinds(KINDS.map(kind))
    }

    fn with_kinds(kinds: impl IntoIterator<Item = Kind>) -> Self {
        let (mut world, now) = (World::default(), Millis(1_000_000));
        world.declare(Arc::new(Kinds::new(kinds).expect("valid kinds")), now);
        for (session, tenant) in [(ALL, "*"), (OF_T, "t")] {
            let (tenant, name, ttl_ms) = (tenant.into(), "w".into(), limits::TTL_MS_MAX);
            step(&mut world, &Command::Open { session, tenant, name, ttl_ms }, now);
        }
        Self { world, now, requests: 0 }
    }

    fn request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId(self.requests)
    }

    fn submit(&mut self, key: &str, priority: i32) {
        self.now = self.now.plus(1);
        let (request, operation, by) = (self.request(), "work".into(), "ann".into());
        let submit = Submit {
            request,
            operation,
            args: None,
            priority,
            run_at: None,
            by,
            precondition: None,
        };
        let key = key.parse().expect("a good key");
        let command = Command::Resource { key, action: ResourceAction::Submit(submit) };
        let outcome = step(&mut self.world, &command, self.now);
        assert!(matches!(outcome, Outcome::Submitted { .. }), "{outcome:?}");
    }

    fn claim(
        &mut self,
        session: SessionId,
        kinds: &[&str],
        only: Option<ClaimScope>,
    ) -> Vec<Assignment> {
        let kinds = kinds.iter().map(|name| (*name).into()).collect();
        let claim = Claim { session, request: self.request(), kinds, max: 1, tenant: None, only };
        match step(&mut self.world, &Command::Claim(claim), self.now) {
            Outcome::Claimed(jobs) => jobs,
            other => panic!("not claimed: {other:?}"),
        }
    }

    /// Starts the next job and returns its resource.
    fn start(&mut self, session: SessionId, kinds: &[&str]) -> Option<Assignment> {
        self.claim(session, kinds, None).pop()
    }

    fn finish(&mut self, job: &Assignment) {
        let (token, finish) = (job.tenure.token, Finish::Ok { state: None, result: None });
        let action = JobAction::Finish { token, finish, update: None };
        let outcome = step(&mut self.world, &Command::Job { id: job.job.id, action }, self.now);
        assert!(matches!(outcome, Outcome::Finished { .. }), "{outcome:?}");
        // What a store would do after each batch.
        self.world.take_changes();
        self.world.finished_jobs.clear();
    }

    /// Starts and finishes the next job and returns its resource.
    fn run(&mut self, session: SessionId, kinds: &[&str]) -> Option<ResourceKey> {
        let job = self.start(session, kinds)?;
        self.finish(&job);
        Some(job.tenure.key)
    }

    /// Runs jobs for a worker of all tenants, in the order in which they start.
    fn run_all(&mut self, kinds: &[&str]) -> Vec<String> {
        std::iter::from_fn(|| self.run(ALL, kinds)).map(|key| key.to_string()).collect()
    }
}

#[test]
fn low_priority_of_one_tenant_does_not_hide_the_job_of_another() {
    for finishes in [true, false] {
        let mut run = Run::new();
        run.submit("t/k/first", 0);
        run.run(ALL, &KINDS).expect("it is ready");
        run.submit("t/k/old", 0);
        run.submit("u/k/low", -1);
        let mut started = Vec::new();
        for n in 0..4 {
            run.submit(&format!("t/l/x{n}"), 0);
            let job = run.start(ALL, &["k", "l"]).expect("a job is ready");
            started.push(job.tenure.key.to_string());
            if finishes {
                run.finish(&job);
            }
        }
        assert!(started.contains(&"t/k/old".to_owned()), "{started:?}");
        assert!(started.contains(&"u/k/low".to_owned()), "{started:?}");
    }
}

#[test]
fn urgent_jobs_of_one_tenant_do_not_starve_another_kind() {
    let mut run = Run::new();
    run.submit("t/k/a", 0);
    for n in 0..3 {
        run.submit(&format!("u/l/x{n}"), 1000);
    }
    assert_eq!(run.run_all(&KINDS), ["u/l/x0", "t/k/a", "u/l/x1", "u/l/x2"]);
}

#[test]
fn tenant_that_prefers_another_kind_does_not_block_those_behind_it() {
    let mut run = Run::new();
    // It is the turn of `t` in both kinds; it always wants `l` first.
    run.submit("t/k/low", -1);
    run.submit("u/k/a", 0);
    run.submit("u/k/b", 0);
    for name in ["a", "b", "c"] {
        run.submit(&format!("t/l/{name}"), 0);
    }
    let started = run.run_all(&KINDS);
    assert_eq!(started, ["t/l/a", "u/k/a", "t/l/b", "u/k/b", "t/l/c", "t/k/low"]);
}

#[test]
fn jobs_of_one_tenant_start_by_priority_and_due_time_whatever_their_kinds() {
    for session in [ALL, OF_T] {
        let mut run = Run::new();
        for (key, priority) in [("t/k/a", 0), ("t/l/b", 5), ("t/m/c", 0), ("t/k/d", 5)] {
            run.submit(key, priority);
        }
        let started = std::iter::from_fn(|| run.run(session, &KINDS));
        let started: Vec<_> = started.map(|key| key.to_string()).collect();
        assert_eq!(started, ["t/l/b", "t/k/d", "t/k/a", "t/m/c"], "{session}");
    }
}

#[test]
fn claims_that_choose_no_kind_do_not_delay_the_others_of_it() {
    let mut run = Run::new();
    run.submit("u/k/a", 0);
    for n in 0..3 {
        run.submit(&format!("v/l/x{n}"), 1);
        run.submit(&format!("t/k/x{n}"), 0);
        // Another worker serves only tenant `t`, or only one resource.
        let only = ClaimScope::Resource { tenant: "t".into(), name: format!("x{n}").into() };
        let job = match n % 2 {
            0 => run.claim(OF_T, &["k"], None),
            _ => run.claim(ALL, &["k"], Some(only)),
        };
        run.finish(&job[0]);
        if run.run(ALL, &["k", "l"]).is_some_and(|key| *key.name() == *"a") {
            assert_eq!(n, 1, "the first turn is that of the better job");
            return;
        }
    }
    panic!("u/k/a never runs");
}

#[test]
fn kind_at_its_cap_passes_its_turn() {
    let capped = [kind("k").running_max(Some(1), None), kind("l").running_max(None, Some(1))];
    let mut run = Run::with_kinds(capped.into_iter().chain([kind("m")]));
    for key in ["t/k/a", "u/k/a", "t/l/a", "t/l/b", "u/l/a", "v/m/a", "v/m/b", "v/m/c"] {
        run.submit(key, 0);
    }
    let started = std::iter::from_fn(|| run.start(ALL, &KINDS));
    let started: Vec<_> = started.map(|job| job.tenure.key.to_string()).collect();
    assert_eq!(started, ["t/k/a", "t/l/a", "v/m/a", "u/l/a", "v/m/b", "v/m/c"]);
}

#[test]
fn number_of_tenants_that_a_claim_considers_is_limited() {
    let tenants = 32;
    for full in [limits::CLAIM_TENANTS_MAX / tenants - 1, limits::CLAIM_TENANTS_MAX / tenants] {
        // Each tenant has an urgent job in a kind of its own, and others in each full kind.
        let names: Vec<String> = (0..tenants + full).map(|n| format!("k{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut run = Run::with_kinds(names.iter().map(|name| kind(name)));
        for tenant in 0..tenants {
            for name in &names[tenants..] {
                run.submit(&format!("t{tenant}/{name}/a"), 0);
            }
        }
        // The first turn is that of the urgent jobs, the second that of the full kinds.
        let mut urgent = 0;
        for turn in 0..=tenants {
            for tenant in 0..tenants {
                run.submit(&format!("t{tenant}/k{tenant}/x{turn}"), 1);
            }
            let started = run.run(ALL, &names).expect("a job is ready");
            urgent += usize::from(started.name().starts_with('x'));
        }
        let all_are_urgent = full * tenants < limits::CLAIM_TENANTS_MAX;
        assert_eq!(urgent, tenants + usize::from(all_are_urgent), "{full} full kinds");
    }
}

/// A job: its tenant, its kind and its priority.
type Template = (usize, usize, i32);

fn job() -> impl Strategy<Value = Template> {
    (0..TENANTS.len(), 0..KINDS.len(), -2..=2)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// However many jobs of other tenants arrive, and of its own tenant behind it, a job that is
    /// the next of its tenant starts after a few others.
    #[test]
    fn no_tenant_starves(
        before in prop::collection::vec(job(), 0..8),
        of in (0..TENANTS.len(), 0..KINDS.len()),
        stream in prop::collection::vec(job(), 1..6),
        at_once in 1..4_usize,
    ) {
        let mut run = Run::new();
        let key = |(tenant, kind, _): Template, name: &str| {
            format!("{}/{}/{name}", TENANTS[tenant], KINDS[kind])
        };
        for (n, job) in before.iter().enumerate() {
            run.submit(&key(*job, &format!("before{n}")), job.2);
        }
        let waiting = (of.0, of.1, 3);
        run.submit(&key(waiting, "waiting"), waiting.2);
        let mut running = std::collections::VecDeque::new();
        // Each of the others in each kind once, and once more for those that run.
        let claims_max = 2 * TENANTS.len() * KINDS.len() + at_once;
        for n in 0..claims_max {
            for (m, job) in stream.iter().enumerate() {
                let ahead = if job.0 == waiting.0 { 0 } else { 10 };
                run.submit(&key(*job, &format!("s{n}-{m}")), job.2 + ahead);
            }
            if running.len() == at_once {
                let job = running.pop_front().expect("not empty");
                run.finish(&job);
            }
            let job = run.start(ALL, &KINDS).expect("a job is ready");
            if *job.tenure.key.name() == *"waiting" {
                return Ok(());
            }
            running.push_back(job);
        }
        prop_assert!(false, "it waits for more than {} claims", claims_max);
    }
}

//! Scenarios in plain text: a readable specification that every store runs.
//!
//! A line is `at TIME ACTOR VERB … -> ANSWER`; see the files in `scenarios/`. An actor that has
//! sent `open` uses its session; any other takes locks as a solo claimant. Jobs are named `j1`,
//! `j2`, … in order of appearance; their kinds are declared in `kinds`. The runner does not depend
//! on a store: it uses a [`Driver`], which may be an HTTP client of a server.

mod jobs;
mod kinds;
mod render;

use std::collections::HashMap;

use async_trait::async_trait;
use tenure_core::history::Entry;
use tenure_core::resource::Resource;
use tenure_core::{
    Acquire, Claimant, Command, Job, JobId, LockAction, LockPath, LockSet, Millis, Outcome,
    RequestId, ResourceKey, SessionId, Text, Token,
};

pub use kinds::kinds;
use render::{render, render_history};

/// System under test of a scenario.
#[async_trait]
pub trait Driver: Send {
    /// Sends one command.
    async fn send(&mut self, command: Command) -> Outcome;
    /// Advances store time, sweeping as a running store does.
    async fn advance(&mut self, ms: u64);
    /// Restarts the store.
    async fn restart(&mut self);
    /// Returns the history of a resource, oldest first.
    async fn history(&mut self, key: &ResourceKey) -> Vec<Entry>;
    /// Returns the problems found by the verifier.
    async fn verify(&mut self) -> Vec<String>;
    /// Returns the store time.
    async fn now(&mut self) -> Millis;
    /// Returns a job, live or finished.
    async fn job(&mut self, id: JobId) -> Option<Job>;
    /// Returns the state of a resource.
    async fn resource(&mut self, key: &ResourceKey) -> Option<Resource>;
    /// Returns the word that explains the state of a job.
    async fn why(&mut self, id: JobId) -> String;
}

/// Runs a scenario. Panics with the number of the line that fails.
pub async fn run(text: &str, driver: &mut dyn Driver) {
    let mut runner = Runner::default();
    for (index, line) in text.lines().enumerate() {
        let line = line.split(" //").next().unwrap_or_default().trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (step, expected) = line.split_once("->").unwrap_or((line, ""));
        let actual = runner.run_step(step.trim(), driver).await;
        let expected = expected.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(actual, expected, "line {}: {line}", index + 1);
    }
    assert_eq!(driver.verify().await, Vec::<String>::new(), "after the scenario");
}

#[derive(Default)]
struct Runner {
    now_ms: u64,
    requests: u128,
    sessions: HashMap<String, SessionId>,
    /// Jobs in order of appearance.
    jobs: Vec<JobId>,
}

/// Arguments of a step: positional ones, and `name=value` options.
struct Arguments<'a> {
    positional: Vec<&'a str>,
    options: HashMap<&'a str, &'a str>,
}

impl<'a> Arguments<'a> {
    fn parse(words: &[&'a str]) -> Self {
        let options = words.iter().filter_map(|word| word.split_once('=')).collect();
        let positional = words.iter().copied().filter(|word| !word.contains('=')).collect();
        Self { positional, options }
    }

    fn ms(&self, name: &str) -> Option<u64> {
        self.options.get(name).map(|text| parse_ms(text))
    }

    fn token(&self) -> Token {
        Token(self.options.get("token").expect("token=N").parse().expect("a number"))
    }

    /// Returns the tenant that the caller is bound to, from `bound=TENANT`.
    fn bound(&self) -> Option<Text> {
        self.options.get("bound").map(|tenant| (*tenant).into())
    }

    /// Returns the resource, its locks, and whether a lock other than `main` is named.
    fn locks(&self) -> (ResourceKey, LockSet, bool) {
        let paths = self.positional.iter().map(|path| path.parse::<LockPath>().expect("a lock"));
        let paths: Vec<_> = paths.collect();
        let tenant = self.options.get("tenant").copied().unwrap_or("t");
        let key = paths[0].resource(tenant).expect("a resource");
        let named = paths.iter().any(|path| !path.lock.is_main());
        let names = paths.into_iter().map(|path| path.lock).collect();
        (key, LockSet::new(names).expect("a set"), named)
    }
}

impl Runner {
    async fn run_step(&mut self, step: &str, driver: &mut dyn Driver) -> String {
        let mut words: Vec<&str> = step.split_whitespace().collect();
        if words[0] == "at" {
            let at = parse_ms(words[1]);
            let elapsed = at.checked_sub(self.now_ms).expect("time goes forward");
            driver.advance(elapsed).await;
            self.now_ms = at;
            words.drain(..2);
        }
        match words[0] {
            "history" => {
                let (key, _, _) = Arguments::parse(&words[1..]).locks();
                render_history(&driver.history(&key).await, &mut self.jobs)
            }
            "job" | "why" | "state" | "status" => self.inspect(&words, driver).await,
            "verify" => {
                let problems = driver.verify().await;
                if problems.is_empty() { "ok".to_owned() } else { problems.join("; ") }
            }
            "restart" => {
                driver.restart().await;
                String::new()
            }
            actor => {
                let (verb, arguments) = (words[1], Arguments::parse(&words[2..]));
                let now = driver.now().await;
                let command = match self.job_command(actor, verb, &arguments, now) {
                    Some(command) => command,
                    None => self.command(actor, verb, &arguments),
                };
                render(&driver.send(command).await, &mut self.jobs)
            }
        }
    }

    fn command(&mut self, actor: &str, verb: &str, arguments: &Arguments<'_>) -> Command {
        let session = |runner: &Self| *runner.sessions.get(actor).expect("an open session");
        match verb {
            "open" => {
                let id = self.sessions.len() as u128 + 1;
                let id = SessionId(id << 64 | id);
                let session = *self.sessions.entry(actor.to_owned()).or_insert(id);
                let tenant = arguments.options.get("tenant").copied().unwrap_or("t").into();
                let ttl_ms = arguments.ms("ttl").expect("ttl=TIME");
                Command::Open { session, tenant, name: actor.into(), ttl_ms }
            }
            "beat" => {
                let seen =
                    arguments.options.get("seen").map_or(0, |n| n.parse().expect("a number"));
                Command::Heartbeat { session: session(self), seen, tenant: arguments.bound() }
            }
            "close" => Command::Close { session: session(self), tenant: arguments.bound() },
            _ => {
                let (key, locks, named) = arguments.locks();
                let action = self.action(actor, verb, arguments, locks, named);
                Command::Lock { key, action }
            }
        }
    }

    fn action(
        &mut self,
        actor: &str,
        verb: &str,
        arguments: &Arguments<'_>,
        locks: LockSet,
        named: bool,
    ) -> LockAction {
        let only = named.then(|| locks.clone());
        match verb {
            "acquire" => LockAction::Acquire(self.acquire(actor, arguments, locks)),
            "renew" => LockAction::Renew { token: arguments.token(), ttl_ms: arguments.ms("ttl") },
            "release" => {
                let to = arguments.options.get("to").map(|name| (*name).into());
                LockAction::Release { token: arguments.token(), locks: only, to }
            }
            "withdraw" => LockAction::Withdraw { request: self.request(arguments) },
            "break" => LockAction::Break {
                token: arguments.token(),
                locks: only,
                by: actor.into(),
                reason: arguments.options.get("reason").copied().unwrap_or_default().into(),
                end_job: arguments.options.contains_key("end_job"),
            },
            _ => panic!("unknown verb {verb}"),
        }
    }

    fn acquire(&mut self, actor: &str, arguments: &Arguments<'_>, locks: LockSet) -> Acquire {
        let request = self.request(arguments);
        let claimant = match self.sessions.get(actor) {
            Some(session) => Claimant::Session(*session),
            None => {
                let ttl_ms = arguments.ms("ttl").expect("ttl=TIME, or an open session");
                Claimant::Solo { name: actor.into(), ttl_ms }
            }
        };
        let wait_ms = arguments.ms("wait").unwrap_or(0);
        let tenant = arguments.bound();
        Acquire { locks, claimant, request, wait_ms, purpose: None, max_age_ms: None, tenant }
    }

    /// Returns the request id named by `as=NAME`, or a new one.
    fn request(&mut self, arguments: &Arguments<'_>) -> RequestId {
        let Some(name) = arguments.options.get("as") else {
            self.requests += 1;
            return RequestId(1 << 100 | self.requests);
        };
        RequestId(name.bytes().fold(0, |id, byte| id << 8 | u128::from(byte)))
    }
}

fn parse_ms(text: &str) -> u64 {
    let number = |unit| text.strip_suffix(unit).and_then(|number: &str| number.parse::<u64>().ok());
    let seconds = || number("s").map(|s| s * 1_000);
    let hours = || number("h").map(|h| h * 3_600_000);
    number("ms")
        .or_else(seconds)
        .or_else(hours)
        .unwrap_or_else(|| panic!("{text} is not a duration"))
}

/// Passes the names of all scenarios that every store can run to a macro.
#[macro_export]
macro_rules! for_each_scenario {
    ([$($run:tt)+] $($args:tt)*) => {
        $($run)+! { $($args)*
            a_bound_caller_uses_only_sessions_of_its_tenant,
            a_claim_can_be_restricted_to_a_group,
            a_conditional_write_loses_to_a_faster_one,
            a_deferred_attempt_is_not_counted,
            a_job_in_backoff_can_reserve_its_locks,
            a_job_that_starts_too_late_fails,
            a_leader_can_hand_over_to_a_named_candidate,
            a_refused_timer_is_repeated,
            a_stale_margin_delays_the_take_over,
            a_status_is_written_with_the_token,
            a_timer_submits_its_operation_once,
            a_break_can_end_the_job_in_the_same_step,
            breaking_a_tenure_ends_it_and_notifies_its_holder,
            a_change_during_a_sync_is_synced,
            a_closed_session_hands_over_at_once,
            a_dead_letter_can_be_discarded,
            a_job_is_retried_after_its_worker_dies,
            a_submit_does_not_attach_to_a_cancelling_job,
            a_submit_does_not_attach_to_a_scheduled_job,
            a_holder_that_stops_renewing_loses_the_lock,
            backoff_blocks_the_lane_unless_the_kind_lets_jobs_pass,
            a_job_runs_through_its_lifecycle,
            an_expired_session_cannot_be_revived,
            a_lock_has_one_holder,
            a_paused_resource_starts_nothing,
            a_release_hands_over_to_the_first_living_waiter,
            a_release_matches_the_token,
            a_repeated_request_gives_the_same_tenure,
            a_resource_can_override_the_rules_of_its_kind,
            a_session_belongs_to_its_tenant,
            a_set_of_locks_is_all_or_nothing,
            a_submit_attaches_to_the_live_job,
            a_wait_ends_at_its_deadline,
            a_request_for_several_locks_is_not_starved,
            a_withdrawn_request_leaks_nothing,
            a_worker_hands_work_back,
            a_worker_may_choose_another_end_state,
            a_token_does_not_renew_a_session_of_all_tenants,
            policy_cancel_stops_the_running_job,
            out_of_range_durations_are_rejected,
            cancel_is_a_state_with_an_end,
            concurrency_limits_are_enforced,
            coalesced_submits_share_the_queued_job,
            create_is_refused_while_destroying,
            failures_are_transient_or_permanent,
            locks_and_jobs_exclude_each_other,
            one_heartbeat_renews_everything,
            priority_and_time_order_the_lane,
            repeated_submits_claims_and_finishes_are_idempotent,
            resources_are_put_and_deleted,
            claims_alternate_between_tenants,
            policy_replace_supersedes_queued_jobs,
            a_job_is_dead_after_its_third_crash,
            the_token_stays_while_the_tenure_lasts,
            three_destroys_run_one_after_the_other,
            the_desired_state_is_checked_after_every_job,
            a_served_tenant_waits_for_the_others,
            operations_with_several_locks_are_not_starved,
        }
    };
}

macro_rules! scenarios {
    ($($name:ident),* $(,)?) => {
        /// Names of all scenarios.
        pub const NAMES: &[&str] = &[$(stringify!($name)),*];

        /// Returns the text of a scenario.
        ///
        /// # Panics
        /// Panics if there is no scenario of that name.
        #[must_use]
        pub fn text(name: &str) -> &'static str {
            match name {
                $(stringify!($name) =>
                    include_str!(concat!("../../scenarios/", stringify!($name), ".txt")),)*
                _ => panic!("there is no scenario {name}"),
            }
        }
    };
}

// Scenarios that restart the store, for durable stores only.
for_each_scenario!([scenarios]
    a_restart_renews_every_session,
    running_jobs_survive_a_restart,
);

#[cfg(test)]
mod tests {
    use super::NAMES;

    #[test]
    fn every_scenario_file_is_listed() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");
        let stem = |entry: std::io::Result<std::fs::DirEntry>| {
            entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned()
        };
        let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(stem).collect();
        files.sort();
        let mut listed: Vec<_> = NAMES.iter().map(|name| (*name).to_owned()).collect();
        listed.sort();
        assert_eq!(files, listed);
    }
}

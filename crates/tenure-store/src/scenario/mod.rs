//! Scenarios in plain text: the specification that people read and every store runs.
//!
//! A line is `at TIME ACTOR VERB … -> ANSWER`; the files in `scenarios/` show all there is. An
//! actor that has said `open` acts through its session, any other takes locks with a session of
//! their own. Jobs are called `j1`, `j2`, … in the order in which a scenario meets them; what their
//! kinds are is in `kinds`. The runner knows nothing of stores: it drives a [`Driver`], which may
//! be a server behind HTTP.

mod jobs;
mod kinds;
mod render;

use std::collections::HashMap;

use async_trait::async_trait;
use tenure_core::history::Entry;
use tenure_core::resource::Resource;
use tenure_core::{
    Acquire, Claimant, Command, Job, JobId, LockAction, LockPath, LockSet, Millis, Outcome,
    RequestId, ResourceKey, SessionId, Token,
};

pub use kinds::kinds;
use render::{render, render_history};

/// What a scenario runs on.
#[async_trait]
pub trait Driver: Send {
    /// Sends one command.
    async fn send(&mut self, command: Command) -> Outcome;
    /// Lets store time pass, sweeping as a running store does.
    async fn advance(&mut self, ms: u64);
    /// Stops the store and starts it again.
    async fn restart(&mut self);
    /// The history of a resource, oldest first.
    async fn history(&mut self, key: &ResourceKey) -> Vec<Entry>;
    /// What the verifier has to say: empty when all is well.
    async fn verify(&mut self) -> Vec<String>;
    /// Store time.
    async fn now(&mut self) -> Millis;
    /// A job, over or not.
    async fn job(&mut self, id: JobId) -> Option<Job>;
    /// The state of a resource.
    async fn resource(&mut self, key: &ResourceKey) -> Option<Resource>;
    /// The word for why a job is where it is.
    async fn why(&mut self, id: JobId) -> String;
}

/// Runs a scenario; a panic names the line that went wrong.
pub async fn run(text: &str, driver: &mut dyn Driver) {
    let mut runner = Runner::default();
    for (at, line) in text.lines().enumerate() {
        let line = line.split(" //").next().unwrap_or_default().trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (ask, wanted) = line.split_once("->").unwrap_or((line, ""));
        let got = runner.line(ask.trim(), driver).await;
        let wanted = wanted.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(got, wanted, "line {}: {line}", at + 1);
    }
    assert_eq!(driver.verify().await, Vec::<String>::new(), "after the scenario");
}

#[derive(Default)]
struct Runner {
    now_ms: u64,
    requests: u128,
    sessions: HashMap<String, SessionId>,
    /// The jobs in the order in which they were met.
    jobs: Vec<JobId>,
}

/// The words of a line after the actor: a verb, places, and `name=value` pairs.
struct Words<'a> {
    places: Vec<&'a str>,
    pairs: HashMap<&'a str, &'a str>,
}

impl<'a> Words<'a> {
    fn of(words: &[&'a str]) -> Self {
        let pairs = words.iter().filter_map(|word| word.split_once('=')).collect();
        let places = words.iter().copied().filter(|word| !word.contains('=')).collect();
        Self { places, pairs }
    }

    fn ms(&self, name: &str) -> Option<u64> {
        self.pairs.get(name).map(|text| millis(text))
    }

    fn token(&self) -> Token {
        Token(self.pairs.get("token").expect("token=N").parse().expect("a number"))
    }

    /// The resource and the locks of it that are named, and whether any lock was named.
    fn locks(&self) -> (ResourceKey, LockSet, bool) {
        let paths = self.places.iter().map(|place| place.parse::<LockPath>().expect("a lock"));
        let paths: Vec<_> = paths.collect();
        let tenant = self.pairs.get("tenant").copied().unwrap_or("t");
        let key = paths[0].resource(tenant).expect("a resource");
        let named = paths.iter().any(|path| !path.lock.is_main());
        let names = paths.into_iter().map(|path| path.lock).collect();
        (key, LockSet::new(names).expect("a set"), named)
    }
}

impl Runner {
    async fn line(&mut self, ask: &str, driver: &mut dyn Driver) -> String {
        let mut words: Vec<&str> = ask.split_whitespace().collect();
        if words[0] == "at" {
            let at = millis(words[1]);
            let passed = at.checked_sub(self.now_ms).expect("time goes forward");
            driver.advance(passed).await;
            self.now_ms = at;
            words.drain(..2);
        }
        match words[0] {
            "history" => {
                let (key, _, _) = Words::of(&words[1..]).locks();
                render_history(&driver.history(&key).await, &mut self.jobs)
            }
            "job" | "why" | "state" => self.look(&words, driver).await,
            "verify" => {
                let problems = driver.verify().await;
                if problems.is_empty() { "ok".to_owned() } else { problems.join("; ") }
            }
            "restart" => {
                driver.restart().await;
                String::new()
            }
            actor => {
                let words_after = Words::of(&words[2..]);
                let now = driver.now().await;
                let command = match self.on_jobs(actor, words[1], &words_after, now) {
                    Some(command) => command,
                    None => self.command(actor, words[1], &words_after),
                };
                render(&driver.send(command).await, &mut self.jobs)
            }
        }
    }

    fn command(&mut self, actor: &str, verb: &str, words: &Words<'_>) -> Command {
        let session = |runner: &Self| *runner.sessions.get(actor).expect("an open session");
        match verb {
            "open" => {
                let id = self.sessions.len() as u128 + 1;
                let id = SessionId(id << 64 | id);
                let session = *self.sessions.entry(actor.to_owned()).or_insert(id);
                let tenant = words.pairs.get("tenant").copied().unwrap_or("t").into();
                let ttl_ms = words.ms("ttl").expect("ttl=TIME");
                Command::Open { session, tenant, name: actor.into(), ttl_ms }
            }
            "beat" => {
                let seen = words.pairs.get("seen").map_or(0, |n| n.parse().expect("a number"));
                Command::Heartbeat { session: session(self), seen }
            }
            "close" => Command::Close { session: session(self) },
            _ => {
                let (key, locks, named) = words.locks();
                let action = self.action(actor, verb, words, locks, named);
                Command::Lock { key, action }
            }
        }
    }

    fn action(
        &mut self,
        actor: &str,
        verb: &str,
        words: &Words<'_>,
        locks: LockSet,
        named: bool,
    ) -> LockAction {
        let only = named.then(|| locks.clone());
        match verb {
            "acquire" => LockAction::Acquire(self.acquire(actor, words, locks)),
            "renew" => LockAction::Renew { token: words.token(), ttl_ms: words.ms("ttl") },
            "release" => LockAction::Release { token: words.token(), locks: only },
            "withdraw" => LockAction::Withdraw { request: self.request(words) },
            "break" => LockAction::Break {
                token: words.token(),
                locks: only,
                by: actor.into(),
                reason: words.pairs.get("reason").copied().unwrap_or_default().into(),
            },
            _ => panic!("there is no verb {verb}"),
        }
    }

    fn acquire(&mut self, actor: &str, words: &Words<'_>, locks: LockSet) -> Acquire {
        let request = self.request(words);
        let claimant = match self.sessions.get(actor) {
            Some(session) => Claimant::Session(*session),
            None => {
                let ttl_ms = words.ms("ttl").expect("ttl=TIME, or an open session");
                Claimant::Solo { name: actor.into(), ttl_ms }
            }
        };
        let wait_ms = words.ms("wait").unwrap_or(0);
        Acquire { locks, claimant, request, wait_ms, purpose: None }
    }

    /// The request that `as=NAME` names, or one of its own.
    fn request(&mut self, words: &Words<'_>) -> RequestId {
        let Some(name) = words.pairs.get("as") else {
            self.requests += 1;
            return RequestId(1 << 100 | self.requests);
        };
        RequestId(name.bytes().fold(0, |id, byte| id << 8 | u128::from(byte)))
    }
}

fn millis(text: &str) -> u64 {
    let number = |unit| text.strip_suffix(unit).and_then(|number: &str| number.parse::<u64>().ok());
    let seconds = || number("s").map(|s| s * 1_000);
    let hours = || number("h").map(|h| h * 3_600_000);
    number("ms").or_else(seconds).or_else(hours).unwrap_or_else(|| panic!("{text} is not a time"))
}

/// Hands the names of all scenarios that any store can run to a macro: the one list of them.
#[macro_export]
macro_rules! for_each_scenario {
    ([$($run:tt)+] $($args:tt)*) => {
        $($run)+! { $($args)*
            a_broken_tenure_is_over_and_its_holder_is_told,
            a_change_during_a_sync_is_synced,
            a_closed_session_hands_over_at_once,
            a_dead_letter_can_be_thrown_away,
            a_dead_worker_is_settled_and_its_job_retried,
            a_dying_flight_is_not_joined,
            a_flight_of_tomorrow_is_not_joined,
            a_holder_that_stops_renewing_loses_the_lock,
            a_job_in_backoff_holds_its_lane_or_not,
            a_job_runs_through_its_lifecycle,
            a_lapsed_session_never_comes_back,
            a_lock_is_held_by_one,
            a_paused_resource_starts_nothing,
            a_release_hands_over_to_the_first_living_waiter,
            a_release_matches_the_token,
            a_repeated_request_gives_the_same_tenure,
            a_resource_may_have_rules_of_its_own,
            a_session_belongs_to_its_tenant,
            a_set_of_locks_is_all_or_nothing,
            a_submit_attaches_to_the_flight,
            a_wait_ends_in_time,
            a_wide_request_is_not_starved,
            a_withdrawn_request_leaks_nothing,
            a_worker_hands_work_back,
            a_worker_may_choose_another_end_state,
            a_worker_of_all_tenants_beats_for_itself,
            an_urgent_wish_stops_the_running_one,
            bad_numbers_are_refused,
            cancel_is_a_state_with_an_end,
            caps_bound_what_runs_at_once,
            coalesced_submits_share_the_waiting_one,
            create_is_refused_while_destroying,
            failures_are_transient_or_permanent,
            locks_and_jobs_share_one_right,
            one_heartbeat_renews_everything,
            priority_and_time_order_the_lane,
            repeated_submits_claims_and_finishes_give_the_same,
            resources_are_put_and_deleted,
            tenants_take_turns,
            the_newest_wish_replaces_those_that_wait,
            the_third_crash_is_the_last,
            the_token_stays_while_the_tenure_lasts,
            three_destroys_run_one_after_the_other,
            what_should_be_is_looked_at_again,
            who_comes_back_waits_for_others,
            wide_operations_are_not_starved,
        }
    };
}

macro_rules! scenarios {
    ($($name:ident),* $(,)?) => {
        /// The names of all scenarios.
        pub const NAMES: &[&str] = &[$(stringify!($name)),*];

        /// The text of a scenario.
        ///
        /// # Panics
        /// When there is none of that name.
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

// Those that restart the store are for durable stores only.
for_each_scenario!([scenarios]
    a_restart_gives_everybody_full_grace,
    running_jobs_survive_a_restart,
);

#[cfg(test)]
mod tests {
    use super::NAMES;

    #[test]
    fn every_scenario_file_is_run() {
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

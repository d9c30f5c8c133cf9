//! Properties of jobs: for any sequence of commands, each job runs as often as its retry rule
//! allows and ends once, and history is complete.
//!
//! Commands are generated in `jobs/template.rs` and checked in `jobs/run.rs`. Failing cases shrink
//! to the few commands that matter.

#[path = "jobs/history.rs"]
mod history;
#[path = "jobs/kinds.rs"]
mod kinds;
#[path = "jobs/resources.rs"]
mod resources;
#[path = "jobs/run.rs"]
mod run;
#[path = "jobs/startable.rs"]
mod startable;
#[path = "jobs/template.rs"]
mod template;

use proptest::prelude::*;
use run::Run;
use template::{keys, templates};
use tenure_core::resource::Resource;
use tenure_core::{
    Command, JobAction, LockAction, Outcome, Refusal, RequestId, ResourceAction, invariants, limits,
};

/// Returns `true` if repeating the command at once must return the same response and change
/// nothing.
fn is_idempotent(command: &Command) -> bool {
    match command {
        Command::Resource { .. } | Command::Claim(_) => true,
        // Repeating a cancel of a waiting job finds it cancelled, which returns the same response;
        // repeating a retry of one in backoff finds it ready and does not create another job.
        Command::Job { action, .. } => !matches!(action, JobAction::Log { .. }),
        _ => false,
    }
}

/// Summarizes a response without the parts that may differ between repetitions.
fn summarize(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Claimed(jobs) => {
            let mut tokens: Vec<_> = jobs.iter().map(|a| (a.job.id, a.tenure.token)).collect();
            tokens.sort_unstable();
            format!("claimed {tokens:?}")
        }
        Outcome::Finished { state, .. } => format!("finished {state:?}"),
        // Only the first response names the job that was created.
        Outcome::Put { generation, .. } => format!("put {generation}"),
        Outcome::Refused(refusal) => format!("refused {}", refusal.code()),
        other => format!("{other:?}"),
    }
}

/// Removes the job of a submit, which a repetition shows as it is by then.
fn without_job(outcome: &Outcome) -> Outcome {
    match outcome {
        Outcome::Submitted { verdict, job, .. } => {
            Outcome::Submitted { verdict: *verdict, job: *job, snapshot: None }
        }
        Outcome::Put { generation, job, snapshot: Some(resource) } => {
            let resource = Resource { recent_submits: Default::default(), ..(**resource).clone() };
            let snapshot = Some(Box::new(resource));
            Outcome::Put { generation: *generation, job: *job, snapshot }
        }
        Outcome::TimersSet { snapshot: Some(resource) } => {
            let resource = Resource { recent_submits: Default::default(), ..(**resource).clone() };
            Outcome::TimersSet { snapshot: Some(Box::new(resource)) }
        }
        other => other.clone(),
    }
}

/// Returns `true` for a delete, which cannot be repeated.
fn is_delete(command: &Command) -> bool {
    matches!(command, Command::Resource { action: ResourceAction::Delete { .. }, .. })
}

/// Returns the number of cases of each property: `reduced`, unless `cargo xtask soak properties`
/// asks for more.
fn cases(reduced: u32) -> u32 {
    let wanted = std::env::var("PROPTEST_CASES").ok().and_then(|wanted| wanted.parse().ok());
    wanted.unwrap_or(reduced)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(500),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn job_invariants_hold_after_every_step(keys in keys(), templates in templates()) {
        let mut run = Run::new(keys);
        for (template, pause_ms) in &templates {
            run.now = run.now.plus(*pause_ms);
            run.step(&run.command(template))?;
        }
        run.check_history()?;
    }

    #[test]
    fn ready_index_matches_the_records(keys in keys(), templates in templates()) {
        let mut run = Run::new(keys);
        for (template, pause_ms) in &templates {
            run.now = run.now.plus(*pause_ms);
            run.step(&run.command(template))?;
            run.check_index()?;
        }
    }

    #[test]
    fn claims_explanations_and_verdicts_agree_on_what_may_start(
        keys in keys(),
        templates in templates(),
    ) {
        let mut run = Run::new(keys);
        for (template, pause_ms) in &templates {
            run.now = run.now.plus(*pause_ms);
            let (before, command) = (run.world.clone(), run.command(template));
            let outcome = run.step(&command)?;
            run.check_verdict(&before, &command, &outcome)?;
            run.check_explanations()?;
        }
    }

    #[test]
    fn repeated_command_returns_the_same_response_and_changes_nothing(
        keys in keys(),
        templates in templates(),
    ) {
        let mut run = Run::new(keys);
        for (template, pause_ms) in &templates {
            run.now = run.now.plus(*pause_ms);
            let command = run.command(template);
            let first = run.step(&command)?;
            if is_idempotent(&command) && !is_delete(&command) {
                let records = run.world.records.clone();
                let second = run.step(&command)?;
                prop_assert_eq!(summarize(&first), summarize(&second), "{:?}", command);
                prop_assert_eq!(&records, &run.world.records, "{:?}", command);
            }
        }
    }

    #[test]
    fn commands_that_are_executed_once_can_be_repeated_after_all_others(
        keys in keys(),
        templates in templates(),
    ) {
        let mut run = Run::new(keys);
        let mut answered = Vec::new();
        for (template, pause_ms) in &templates {
            run.now = run.now.plus(*pause_ms);
            let command = run.command(template);
            let of_resource = matches!(command, Command::Resource { .. } | Command::Job { .. });
            if of_resource {
                let command = command.once(RequestId(1_000_000 + answered.len() as u128));
                let outcome = run.step(&command)?;
                answered.push((command, outcome, run.now));
            } else {
                run.step(&command)?;
            }
        }
        for (command, first, at) in answered {
            // An unknown job has no resource that could remember the answer.
            let is_remembered = run.now.since(at) <= limits::RECENT_TTL_MS
                && first != Outcome::Refused(Refusal::NoSuchJob);
            if is_remembered {
                let again = run.repeat(&command)?;
                prop_assert_eq!(without_job(&first), without_job(&again), "{:?}", command);
            }
        }
        run.check_history()?;
    }

    #[test]
    fn sweep_leaves_no_running_job_of_an_ended_session(keys in keys(), templates in templates()) {
        let mut run = Run::new(keys);
        for (template, pause_ms) in &templates {
            run.now = run.now.plus(*pause_ms);
            run.step(&run.command(template))?;
        }
        for key in run.keys() {
            run.step(&Command::Lock { key, action: LockAction::Settle })?;
        }
        invariants::check_swept(&run.world, run.now).map_err(TestCaseError::fail)?;
    }
}

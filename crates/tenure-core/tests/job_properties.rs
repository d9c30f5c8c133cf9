//! Properties of jobs: whatever commands come in whatever order, each job runs as often as its rule
//! allows, ends once, and history tells it all.
//!
//! The commands are in `jobs/wish.rs`, the questions in `jobs/run.rs`. A failing case shrinks to
//! the few commands that matter.

#[path = "jobs/kinds.rs"]
mod kinds;
#[path = "jobs/run.rs"]
mod run;
#[path = "jobs/wish.rs"]
mod wish;

use proptest::prelude::*;
use run::Run;
use tenure_core::{Command, JobAction, LockAction, Outcome, ResourceAction, invariants};
use wish::{keys, wishes};

/// Whether repeating a command at once must be answered alike and move nothing.
fn is_idempotent(command: &Command) -> bool {
    match command {
        Command::Resource { .. } | Command::Claim(_) => true,
        // A second cancel of a job that was waiting finds it over, which is answered alike; a
        // second retry of one that rested finds it ready, which is not a new wish either.
        Command::Job { action, .. } => !matches!(action, JobAction::Log { .. }),
        _ => false,
    }
}

/// An answer without what may differ from one time to the next.
fn gist(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Claimed(jobs) => {
            let mut tokens: Vec<_> = jobs.iter().map(|a| (a.job.id, a.tenure.token)).collect();
            tokens.sort_unstable();
            format!("claimed {tokens:?}")
        }
        Outcome::Finished { state, .. } => format!("finished {state:?}"),
        // Only the first says which job was made for it.
        Outcome::Put { generation, .. } => format!("put {generation}"),
        Outcome::Refused(refusal) => format!("refused {}", refusal.code()),
        other => format!("{other:?}"),
    }
}

/// A deleted resource is not there to be deleted again.
fn is_delete(command: &Command) -> bool {
    matches!(command, Command::Resource { action: ResourceAction::Delete { .. }, .. })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 500,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_step_keeps_the_promises_of_jobs(keys in keys(), wishes in wishes()) {
        let mut run = Run::new(keys);
        for (wish, pause_ms) in &wishes {
            run.now = run.now.plus(*pause_ms);
            run.step(&run.command(wish))?;
        }
        run.history_is_good()?;
    }

    #[test]
    fn the_index_of_ready_resources_is_what_the_records_say(keys in keys(), wishes in wishes()) {
        let mut run = Run::new(keys);
        for (wish, pause_ms) in &wishes {
            run.now = run.now.plus(*pause_ms);
            run.step(&run.command(wish))?;
            run.index_is_good()?;
        }
    }

    #[test]
    fn a_command_that_comes_twice_is_answered_alike_and_moves_nothing(
        keys in keys(),
        wishes in wishes(),
    ) {
        let mut run = Run::new(keys);
        for (wish, pause_ms) in &wishes {
            run.now = run.now.plus(*pause_ms);
            let command = run.command(wish);
            let first = run.step(&command)?;
            if is_idempotent(&command) && !is_delete(&command) {
                let records = run.world.records.clone();
                let second = run.step(&command)?;
                prop_assert_eq!(gist(&first), gist(&second), "{:?}", command);
                prop_assert_eq!(&records, &run.world.records, "{:?}", command);
            }
        }
    }

    #[test]
    fn a_swept_world_runs_nothing_of_the_dead(keys in keys(), wishes in wishes()) {
        let mut run = Run::new(keys);
        for (wish, pause_ms) in &wishes {
            run.now = run.now.plus(*pause_ms);
            run.step(&run.command(wish))?;
        }
        for key in run.keys() {
            run.step(&Command::Lock { key, action: LockAction::Settle })?;
        }
        invariants::swept(&run.world, run.now).map_err(TestCaseError::fail)?;
    }
}

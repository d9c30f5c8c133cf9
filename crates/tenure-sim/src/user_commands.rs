//! User commands that processes issue: submits, cancels and retries of jobs; spec changes, pauses
//! and resumes of resources. Each stays in the outbox until it is answered.

use tenure_core::{
    Command, JobAction, JobId, Millis, Outcome, Put, RequestId, ResourceAction, ResourceKey,
    Submit, Text,
};

use crate::holder::{Env, Process};
use crate::kinds::GROUPED;
use crate::outbox::OutboxCommand;
use crate::plan::{LANE_JOBS_MAX, Phase};
use crate::resource_model::{conditional_principal, timer_principal};
use crate::updates::{draw_condition, draw_timers};

/// Outbox length from which a process issues no more user commands.
const OUTBOX_MAX: usize = 4;
/// Number of recent jobs that a process remembers.
const KNOWN_JOBS_MAX: usize = 8;

impl Process {
    pub(crate) fn poll_user_commands(&mut self, env: &mut Env<'_>) {
        if env.phase == Phase::Draining || env.now < self.user_command_at {
            return;
        }
        let mean = env.plan.user_command_ms;
        self.user_command_at = env.random_instant(mean / 4, mean * 2);
        if self.outbox.len() < OUTBOX_MAX
            && let Some(command) = self.draw_user_command(env)
        {
            let once = env.rng.chance(300).then(|| RequestId(env.rng.id()));
            let command = match once {
                Some(request) => command.once(request),
                None => command,
            };
            self.outbox.push(OutboxCommand::new(command, env.now));
        }
    }

    /// Remembers the job that a reply names.
    pub(crate) fn learn_jobs(&mut self, outcome: &Outcome) {
        let (Outcome::Submitted { job, .. } | Outcome::Put { job: Some(job), .. }) = outcome else {
            return;
        };
        if self.known_jobs.len() == KNOWN_JOBS_MAX {
            self.known_jobs.remove(0);
        }
        self.known_jobs.push(*job);
    }

    fn draw_user_command(&self, env: &mut Env<'_>) -> Option<Command> {
        let lane = env.rng.below(env.plan.lanes.len());
        let key = env.plan.lanes[lane].clone();
        let (by, reason) = (|| self.principal(), || "so".into());
        match env.rng.within(0, 99) {
            0..12 => {
                let put = self.draw_put(&key, env);
                Some(resource_command(key, ResourceAction::Put(put)))
            }
            12..28 => {
                let (by, reason) = (by(), reason());
                Some(job_command(self.pick_job(env)?, JobAction::Cancel { by, reason }))
            }
            28..33 => {
                let (request, by, reason) = (RequestId(env.rng.id()), by(), reason());
                Some(job_command(self.pick_job(env)?, JobAction::Retry { request, by, reason }))
            }
            33..37 => {
                let (by, reason) = (by(), reason());
                Some(job_command(self.pick_job(env)?, JobAction::Discard { by, reason }))
            }
            37..41 if env.phase == Phase::Faulty => {
                let (by, reason) = (by(), reason());
                Some(resource_command(key, ResourceAction::Pause { by, reason }))
            }
            41..46 => {
                let (by, reason) = (by(), reason());
                Some(resource_command(key, ResourceAction::Resume { by, reason }))
            }
            46..49 => Some(self.draw_delete(key, env)),
            49..55 if env.phase == Phase::Draining => None,
            49..55 => Some(self.draw_timer_command(key, env)),
            55..60 if *key.kind() == *GROUPED => Some(self.draw_delete(key, env)),
            // Longer lanes could not drain in time.
            _ if env.job_model.unfinished(Some(&key)) >= LANE_JOBS_MAX => None,
            _ => Some(resource_command(
                key.clone(),
                ResourceAction::Submit(self.draw_submit(&key, env)),
            )),
        }
    }

    fn pick_job(&self, env: &mut Env<'_>) -> Option<JobId> {
        if self.known_jobs.is_empty() {
            return None;
        }
        Some(self.known_jobs[env.rng.below(self.known_jobs.len())])
    }

    fn principal(&self) -> Text {
        format!("h{}", self.index).into()
    }

    fn draw_put(&self, key: &ResourceKey, env: &mut Env<'_>) -> Put {
        let spec: Text = env.rng.within(0, 3).to_string().into();
        let precondition = env.rng.chance(400).then(|| draw_condition(key, env));
        let timers = if env.rng.chance(200) { draw_timers(key, env) } else { Vec::new() };
        let by = match timers.is_empty() {
            true => self.principal(),
            false => timer_principal(&self.principal()),
        };
        // A repeated put with a request id sets no timers again.
        let request = (timers.is_empty() && env.rng.chance(500)).then(|| RequestId(env.rng.id()));
        let by = conditional_principal(&by, precondition);
        Put { spec, by, request, precondition, timers }
    }

    fn draw_delete(&self, key: ResourceKey, env: &mut Env<'_>) -> Command {
        let precondition = env.rng.chance(400).then(|| draw_condition(&key, env));
        let by = conditional_principal(&self.principal(), precondition);
        resource_command(key, ResourceAction::Delete { by, precondition })
    }

    fn draw_timer_command(&self, key: ResourceKey, env: &mut Env<'_>) -> Command {
        let precondition = env.rng.chance(250).then(|| draw_condition(&key, env));
        let by = conditional_principal(&timer_principal(&self.principal()), precondition);
        let timers = draw_timers(&key, env);
        resource_command(key, ResourceAction::SetTimers { timers, by, precondition })
    }

    fn draw_submit(&self, key: &ResourceKey, env: &mut Env<'_>) -> Submit {
        let kind = env.kinds.get(key.kind()).expect("every kind is declared");
        let at = env.rng.below(kind.operations.len());
        let operation = kind.operations.keys().nth(at).expect("the index is in range").clone();
        let priority = if env.rng.chance(200) { 1 } else { 0 };
        // A client sends a duration, which its server adds to the store time.
        let run_at = env.rng.chance(100).then(|| env.rng.within(0, 4_000));
        let run_at = run_at.map(|ms| Millis(env.store_now.0 + ms));
        let request = RequestId(env.rng.id());
        let precondition = env.rng.chance(150).then(|| draw_condition(key, env));
        let by = conditional_principal(&self.principal(), precondition);
        Submit { request, operation, args: None, priority, run_at, by, precondition }
    }
}

fn resource_command(key: ResourceKey, action: ResourceAction) -> Command {
    Command::Resource { key, action }
}

fn job_command(id: JobId, action: JobAction) -> Command {
    Command::Job { id, action }
}

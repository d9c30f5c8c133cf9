//! What a process wants done: it submits, cancels and retries jobs, changes what resources should
//! be like, pauses and resumes them. Each wish is a chore that is repeated until it is answered.

use tenure_core::{
    Command, JobAction, JobId, Millis, Outcome, RequestId, ResourceAction, ResourceKey, Submit,
};

use crate::chore::Chore;
use crate::holder::{Env, Process};
use crate::plan::{LANE_FULL, Mood};

/// Wishes of one process that may be open at once.
const OPEN_MAX: usize = 4;
/// Jobs that a process remembers.
const KNOWN_MAX: usize = 8;

impl Process {
    pub(crate) fn wishes_turn(&mut self, env: &mut Env<'_>) {
        if env.mood == Mood::Draining || env.now < self.wish_at {
            return;
        }
        let mean = env.plan.wish_ms;
        self.wish_at = env.soon(mean / 4, mean * 2);
        if self.chores.len() < OPEN_MAX
            && let Some(command) = self.draw_wish(env)
        {
            self.chores.push(Chore::new(command, env.now));
        }
    }

    /// Learns from an answer which jobs there are.
    pub(crate) fn wish_answered(&mut self, outcome: &Outcome) {
        let (Outcome::Submitted { job, .. } | Outcome::Put { job: Some(job), .. }) = outcome else {
            return;
        };
        if self.known.len() == KNOWN_MAX {
            self.known.remove(0);
        }
        self.known.push(*job);
    }

    fn draw_wish(&self, env: &mut Env<'_>) -> Option<Command> {
        let lane = env.rng.below(env.plan.lanes.len());
        let key = env.plan.lanes[lane].clone();
        let (by, reason) = (|| format!("h{}", self.at).into(), || "so".into());
        match env.rng.within(0, 99) {
            0..12 => {
                let spec = env.rng.within(0, 3).to_string().into();
                Some(on(key, ResourceAction::Put { spec, by: by() }))
            }
            12..28 => {
                let (by, reason) = (by(), reason());
                Some(of(self.pick(env)?, JobAction::Cancel { by, reason }))
            }
            28..35 => {
                let (request, by, reason) = (RequestId(env.rng.id()), by(), reason());
                Some(of(self.pick(env)?, JobAction::Retry { request, by, reason }))
            }
            35..37 => {
                let (by, reason) = (by(), reason());
                Some(of(self.pick(env)?, JobAction::Discard { by, reason }))
            }
            37..41 if env.mood == Mood::Faulty => {
                let (by, reason) = (by(), reason());
                Some(on(key, ResourceAction::Pause { by, reason }))
            }
            41..46 => {
                let (by, reason) = (by(), reason());
                Some(on(key, ResourceAction::Resume { by, reason }))
            }
            46..48 => Some(on(key, ResourceAction::Delete { by: by() })),
            // Whoever submits looks at the queue before.
            _ if env.lanes.left(Some(&key)) >= LANE_FULL => None,
            _ => Some(on(key.clone(), ResourceAction::Submit(self.draw_submit(&key, env)))),
        }
    }

    fn pick(&self, env: &mut Env<'_>) -> Option<JobId> {
        if self.known.is_empty() {
            return None;
        }
        Some(self.known[env.rng.below(self.known.len())])
    }

    fn draw_submit(&self, key: &ResourceKey, env: &mut Env<'_>) -> Submit {
        let kind = env.kinds.get(key.kind()).expect("every kind is declared");
        let at = env.rng.below(kind.operations.len());
        let operation = kind.operations.keys().nth(at).expect("it is below their number").clone();
        let priority = if env.rng.chance(200) { 1 } else { 0 };
        // A client would say "in so many seconds"; its server knows the store's time.
        let run_at = env.rng.chance(100).then(|| env.rng.within(0, 4_000));
        let run_at = run_at.map(|ms| Millis(env.store_now.0 + ms));
        let (request, by) = (RequestId(env.rng.id()), format!("h{}", self.at).into());
        Submit { request, operation, args: None, priority, run_at, by }
    }
}

fn on(key: ResourceKey, action: ResourceAction) -> Command {
    Command::Resource { key, action }
}

fn of(id: JobId, action: JobAction) -> Command {
    Command::Job { id, action }
}

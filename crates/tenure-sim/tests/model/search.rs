//! Breadth-first search over states, with a shortest path to a violation.

use std::collections::HashSet;
use std::fmt;

use crate::checks;
use crate::state::{Action, Scenario, State};

/// Size of a search.
#[derive(Debug)]
pub(crate) struct SearchStats {
    pub(crate) states: usize,
    /// Shown in the test output.
    #[expect(dead_code, reason = "shown by Debug")]
    pub(crate) steps: usize,
    /// Whether all states within the bounds of the scenario were explored.
    #[expect(dead_code, reason = "shown by Debug")]
    pub(crate) complete: bool,
}

/// A violated property, and a shortest path to it.
#[derive(Debug)]
pub(crate) struct Counterexample {
    pub(crate) what: String,
    pub(crate) path: Vec<Action>,
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} after {} steps:", self.what, self.path.len())?;
        self.path.iter().try_for_each(|action| write!(f, "\n    {action:?}"))
    }
}

/// How a state was first reached.
struct Predecessor {
    from: usize,
    action: Action,
}

struct Search<'a> {
    scenario: &'a Scenario,
    seen: HashSet<u64>,
    predecessors: Vec<Predecessor>,
    steps: usize,
}

/// Checks every state that is reachable in `depth` steps.
pub(crate) fn search(
    scenario: &Scenario,
    depth: usize,
) -> Result<SearchStats, Box<Counterexample>> {
    let first = State::first(scenario);
    let seen = HashSet::from([first.fingerprint()]);
    let predecessors = vec![Predecessor { from: 0, action: Action::Advance(0) }];
    let mut search = Search { scenario, seen, predecessors, steps: 0 };
    let mut front = vec![(0, first)];
    for _ in 0..depth {
        let mut next = Vec::new();
        for (at, state) in front {
            search.expand(at, &state, &mut next)?;
        }
        front = next;
    }
    let Search { seen, steps, .. } = search;
    Ok(SearchStats { states: seen.len(), steps, complete: front.is_empty() })
}

impl Search<'_> {
    fn expand(
        &mut self,
        at: usize,
        state: &State,
        next: &mut Vec<(usize, State)>,
    ) -> Result<(), Box<Counterexample>> {
        for action in state.actions(self.scenario) {
            self.steps += 1;
            let after = match &action {
                Action::Advance(ms) => Ok(state.advance(*ms)),
                Action::Command(command) => checks::check_step(state, command),
            };
            let after = after.map_err(|what| self.found(at, &action, what))?;
            if after.record.token.0 <= self.scenario.tokens_max
                && !after.exceeds_job_limit(self.scenario)
                && self.seen.insert(after.fingerprint())
            {
                if self.seen.len().is_multiple_of(32) {
                    checks::verify(&after).map_err(|what| self.found(at, &action, what))?;
                }
                self.predecessors.push(Predecessor { from: at, action });
                next.push((self.predecessors.len() - 1, after));
            }
        }
        Ok(())
    }

    fn found(&self, mut at: usize, last: &Action, what: String) -> Box<Counterexample> {
        let mut path = vec![last.clone()];
        while at > 0 {
            path.push(self.predecessors[at].action.clone());
            at = self.predecessors[at].from;
        }
        path.reverse();
        Box::new(Counterexample { what, path })
    }
}

//! Breadth first search over states, with the shortest way to whatever breaks.

use std::collections::HashSet;
use std::fmt;

use crate::questions;
use crate::state::{Act, Small, State};

/// How much was looked at.
#[derive(Debug)]
pub(crate) struct Searched {
    pub(crate) states: usize,
    /// Read by people, in the output of the test.
    #[expect(dead_code, reason = "shown by Debug")]
    pub(crate) steps: usize,
    /// Whether nothing was left to follow within the bounds of the world.
    #[expect(dead_code, reason = "shown by Debug")]
    pub(crate) complete: bool,
}

/// A property that broke, and the shortest way there.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) what: String,
    pub(crate) path: Vec<Act>,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} after {} steps:", self.what, self.path.len())?;
        self.path.iter().try_for_each(|act| write!(f, "\n    {act:?}"))
    }
}

/// How a state was reached first.
struct Way {
    from: usize,
    act: Act,
}

struct Search<'a> {
    small: &'a Small,
    seen: HashSet<u64>,
    ways: Vec<Way>,
    steps: usize,
}

/// Looks at every state that `depth` steps can reach.
pub(crate) fn search(small: &Small, depth: usize) -> Result<Searched, Box<Found>> {
    let first = State::first(small);
    let seen = HashSet::from([first.fingerprint()]);
    let ways = vec![Way { from: 0, act: Act::Pass(0) }];
    let mut search = Search { small, seen, ways, steps: 0 };
    let mut front = vec![(0, first)];
    for _ in 0..depth {
        let mut next = Vec::new();
        for (at, state) in front {
            search.expand(at, &state, &mut next)?;
        }
        front = next;
    }
    let Search { seen, steps, .. } = search;
    Ok(Searched { states: seen.len(), steps, complete: front.is_empty() })
}

impl Search<'_> {
    fn expand(
        &mut self,
        at: usize,
        state: &State,
        next: &mut Vec<(usize, State)>,
    ) -> Result<(), Box<Found>> {
        for act in state.acts(self.small) {
            self.steps += 1;
            let after = match &act {
                Act::Pass(ms) => Ok(state.passed(*ms)),
                Act::Do(command) => questions::ask(state, command),
            };
            let after = after.map_err(|what| self.found(at, &act, what))?;
            if after.record.token.0 <= self.small.tokens_max
                && !after.is_busy_enough(self.small)
                && self.seen.insert(after.fingerprint())
            {
                if self.seen.len().is_multiple_of(32) {
                    questions::verify(&after).map_err(|what| self.found(at, &act, what))?;
                }
                self.ways.push(Way { from: at, act });
                next.push((self.ways.len() - 1, after));
            }
        }
        Ok(())
    }

    fn found(&self, mut at: usize, last: &Act, what: String) -> Box<Found> {
        let mut path = vec![last.clone()];
        while at > 0 {
            path.push(self.ways[at].act.clone());
            at = self.ways[at].from;
        }
        path.reverse();
        Box::new(Found { what, path })
    }
}

//! The values that labels may have.
//!
//! Clients choose the kinds of their locks and the codes of their failures. Each distinct value is
//! a series that Prometheus keeps, so there is a bound: who comes later is called `other`. What is
//! declared is always called by its name.

use std::collections::HashSet;
use std::sync::{PoisonError, RwLock};

use tenure_app::metrics::OTHER;
use tenure_core::retry::{LOCK_BROKEN, LOCK_STATE_LOST, WORKER_CLOSED, WORKER_TIMEOUT};
use tenure_core::{Kinds, Text};

/// Most distinct kinds, operations and tenants.
pub(crate) const NAMES_MAX: usize = 100;
/// Most distinct codes of failures.
pub(crate) const CODES_MAX: usize = 50;

/// The values that labels have had so far.
pub(super) struct Names {
    pub(super) kinds: Bounded,
    pub(super) operations: Bounded,
    pub(super) codes: Bounded,
    pub(super) tenants: Bounded,
    /// The value of a label that does not apply.
    pub(super) nothing: Text,
    /// What a request for locks came to; made once, because there are many.
    pub(super) granted: Text,
    pub(super) failed: Text,
}

impl Default for Names {
    fn default() -> Self {
        let codes = Bounded::new(CODES_MAX);
        codes.know([LOCK_BROKEN, LOCK_STATE_LOST, WORKER_CLOSED, WORKER_TIMEOUT]);
        Self {
            kinds: Bounded::new(NAMES_MAX),
            operations: Bounded::new(NAMES_MAX),
            codes,
            tenants: Bounded::new(NAMES_MAX),
            nothing: "".into(),
            granted: "granted".into(),
            failed: "failed".into(),
        }
    }
}

impl Names {
    pub(super) fn know(&self, kinds: &Kinds) {
        self.kinds.know(kinds.iter().map(|kind| &*kind.name));
        let operations = kinds.iter().flat_map(|kind| kind.operations.keys());
        self.operations.know(operations.map(|operation| &**operation));
    }
}

/// A label with a bound.
pub(super) struct Bounded {
    max: usize,
    known: RwLock<HashSet<Text>>,
    other: Text,
}

impl Bounded {
    fn new(max: usize) -> Self {
        Self { max, known: RwLock::default(), other: OTHER.into() }
    }

    /// These keep their names, also beyond the bound.
    fn know<'a>(&self, names: impl IntoIterator<Item = &'a str>) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.extend(names.into_iter().map(Text::from));
    }

    /// What to call something.
    pub(super) fn label(&self, name: &str) -> Text {
        {
            let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(known) = known.get(name) {
                return known.clone();
            }
            if known.len() >= self.max {
                return self.other.clone();
            }
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get(name) {
            return known.clone();
        }
        if known.len() >= self.max {
            // Others were quicker.
            return self.other.clone();
        }
        let name = Text::from(name);
        known.insert(name.clone());
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_comes_after_the_bound_is_called_other() {
        let names = Bounded::new(2);
        assert_eq!(&*names.label("a"), "a");
        assert_eq!(&*names.label("b"), "b");
        assert_eq!(&*names.label("c"), OTHER);
        assert_eq!(&*names.label("a"), "a");
    }

    #[test]
    fn what_is_declared_keeps_its_name_and_its_place() {
        let names = Bounded::new(2);
        names.label("a");
        names.know(["x", "y", "z"]);
        for name in ["a", "x", "y", "z"] {
            assert_eq!(&*names.label(name), name);
        }
        assert_eq!(&*names.label("b"), OTHER);
    }
}

//! Bounded label values.
//!
//! Clients choose the kinds of their locks and the codes of their failures. Each distinct value is
//! a series in Prometheus, so their number is bounded: values beyond the bound become `other`.
//! Declared names are always kept.

use std::collections::HashSet;
use std::sync::{PoisonError, RwLock};

use tenure_app::metrics::OTHER;
use tenure_core::retry::{LOCK_BROKEN, LOCK_STATE_LOST, WORKER_CLOSED, WORKER_TIMEOUT};
use tenure_core::{Kinds, Text};

/// Maximum number of distinct kinds, of operations and of tenants.
pub(crate) const LABEL_VALUES_MAX: usize = 100;
/// Maximum number of distinct failure codes.
pub(crate) const CODES_MAX: usize = 50;

/// The label values in use.
pub(super) struct LabelValues {
    pub(super) kinds: BoundedLabel,
    pub(super) operations: BoundedLabel,
    pub(super) codes: BoundedLabel,
    pub(super) tenants: BoundedLabel,
    /// The value of a label that does not apply.
    pub(super) empty: Text,
    /// Results of lock requests, allocated once because there are many.
    pub(super) granted: Text,
    pub(super) failed: Text,
}

impl Default for LabelValues {
    fn default() -> Self {
        let codes = BoundedLabel::new(CODES_MAX);
        codes.declare([LOCK_BROKEN, LOCK_STATE_LOST, WORKER_CLOSED, WORKER_TIMEOUT]);
        Self {
            kinds: BoundedLabel::new(LABEL_VALUES_MAX),
            operations: BoundedLabel::new(LABEL_VALUES_MAX),
            codes,
            tenants: BoundedLabel::new(LABEL_VALUES_MAX),
            empty: "".into(),
            granted: "granted".into(),
            failed: "failed".into(),
        }
    }
}

impl LabelValues {
    /// Keeps the names of declared kinds and operations, also beyond the bound.
    pub(super) fn declare(&self, kinds: &Kinds) {
        self.kinds.declare(kinds.iter().map(|kind| &*kind.name));
        let operations = kinds.iter().flat_map(|kind| kind.operations.keys());
        self.operations.declare(operations.map(|operation| &**operation));
    }
}

/// A label with a bounded number of values.
pub(super) struct BoundedLabel {
    max: usize,
    known: RwLock<HashSet<Text>>,
    other: Text,
}

impl BoundedLabel {
    fn new(max: usize) -> Self {
        Self { max, known: RwLock::default(), other: OTHER.into() }
    }

    /// Keeps these names, also beyond the bound.
    fn declare<'a>(&self, names: impl IntoIterator<Item = &'a str>) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.extend(names.into_iter().map(Text::from));
    }

    /// Returns the label value for a name: the name itself, or `other`.
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
            // Another thread has added the last value meanwhile.
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
    fn values_beyond_the_bound_become_other() {
        let names = BoundedLabel::new(2);
        assert_eq!(&*names.label("a"), "a");
        assert_eq!(&*names.label("b"), "b");
        assert_eq!(&*names.label("c"), OTHER);
        assert_eq!(&*names.label("a"), "a");
    }

    #[test]
    fn declared_names_are_kept_beyond_the_bound() {
        let names = BoundedLabel::new(2);
        names.label("a");
        names.declare(["x", "y", "z"]);
        for name in ["a", "x", "y", "z"] {
            assert_eq!(&*names.label(name), name);
        }
        assert_eq!(&*names.label("b"), OTHER);
    }
}

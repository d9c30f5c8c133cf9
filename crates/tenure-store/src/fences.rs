//! Which resources have to stay as they are for now, because transactions of others rely on them.
//!
//! Those transactions name resources by numbers. Which number is whose is worked out when the first
//! such transaction is seen, and followed from then on: a batch must not look through all that
//! lives because somebody relies on one lock.

use std::collections::{BTreeSet, HashMap, HashSet};

use tenure_core::ResourceKey;
use tenure_core::history::Chain;

/// The resources that have to stay as they are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fences {
    numbers: HashSet<i64>,
    /// The numbers of all resources that live, once anybody has relied on anything.
    of: Option<HashMap<i64, ResourceKey>>,
}

/// The number by which a resource is fenced.
fn number(key: &ResourceKey) -> i64 {
    let digest = Chain::genesis(key).head.0;
    digest.iter().take(8).fold(0, |number, byte| number << 8 | i64::from(*byte))
}

impl Fences {
    /// Says anew which numbers are fenced.
    pub(crate) fn set(&mut self, numbers: Vec<i64>, live: &BTreeSet<ResourceKey>) {
        self.numbers = numbers.into_iter().collect();
        if !self.numbers.is_empty() && self.of.is_none() {
            self.of = Some(live.iter().map(|key| (number(key), key.clone())).collect());
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// Whether a resource has to stay as it is.
    pub(crate) fn has(&self, key: &ResourceKey) -> bool {
        !self.is_empty() && self.numbers.contains(&number(key))
    }

    /// Those of the resources that live.
    pub(crate) fn keys(&self) -> Vec<ResourceKey> {
        let Some(of) = &self.of else { return Vec::new() };
        self.numbers.iter().filter_map(|number| of.get(number)).cloned().collect()
    }

    /// A resource has come to live.
    pub(crate) fn came(&mut self, key: &ResourceKey) {
        if let Some(of) = &mut self.of {
            of.insert(number(key), key.clone());
        }
    }

    /// A resource does not live any more.
    pub(crate) fn went(&mut self, key: &ResourceKey) {
        if let Some(of) = &mut self.of {
            of.remove(&number(key));
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::record::Tenure;
    use tenure_core::{LockName, Millis, Record, RequestId, SessionId, Token};

    use super::*;
    use crate::ledger::Ledger;

    fn key(n: usize) -> ResourceKey {
        format!("t/k/r{n}").parse().expect("a good name")
    }

    #[test]
    fn resources_that_come_and_go_after_the_first_fence_are_known() {
        let mut ledger = Ledger::default();
        let held = |key: &ResourceKey| {
            let mut record = Record::new(key);
            let (request, job, purpose) = (RequestId(1), None, None);
            let (lock, token, session) = (LockName::main(), Token(1), SessionId(1));
            let since = Millis(0);
            record.tenures.push(Tenure { lock, token, session, request, purpose, since, job });
            Box::new(record)
        };
        let numbers = || vec![number(&key(1)), number(&key(2)), number(&key(3))];
        ledger.admit(&key(1), held(&key(1)), Millis(0));
        ledger.fence(numbers());
        assert_eq!(ledger.fences.keys(), [key(1)]);
        assert!(ledger.is_fenced(&key(2)), "it does not live, and is relied on all the same");
        ledger.admit(&key(2), held(&key(2)), Millis(0));
        ledger.admit(&key(1), Box::new(Record::new(&key(1))), Millis(0));
        ledger.fence(numbers());
        assert_eq!(ledger.fences.keys(), [key(2)]);
        ledger.fence(Vec::new());
        assert!(ledger.fences.is_empty() && !ledger.is_fenced(&key(2)));
    }
}

//! Token floors: what remains of forgotten resources.
//!
//! A forgotten resource leaves no row. The floor of its tenant and kind is at least its last token,
//! and the tokens of every new resource of that kind start above the floor, so a name that is used
//! again never repeats a token.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::canary::{Canary, planted};
use crate::key::ResourceKey;
use crate::limits;
use crate::record::Record;
use crate::token::Token;

/// The token floors of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenFloors {
    /// Floor of all kinds.
    #[serde(default)]
    all: Token,
    /// Floor by `tenant/kind`.
    #[serde(default)]
    kinds: BTreeMap<String, Token>,
}

impl TokenFloors {
    /// Returns the token above which the tokens of a new resource start.
    #[must_use]
    pub fn get(&self, key: &ResourceKey) -> Token {
        let own = self.kinds.get(tenant_and_kind(key)).copied().unwrap_or_default();
        own.max(self.all)
    }

    /// Returns the record of a resource without history. Its tokens start above the floor.
    #[must_use]
    pub fn new_record(&self, key: &ResourceKey) -> Box<Record> {
        let mut record = Record::new(key);
        if !planted(Canary::TokenFloorForgotten) {
            record.token = self.get(key);
        }
        Box::new(record)
    }

    /// Raises the floor for a resource that is forgotten. Too many floors are merged into one.
    pub fn raise(&mut self, key: &ResourceKey, token: Token) {
        if token <= self.get(key) {
            return;
        }
        self.kinds.insert(tenant_and_kind(key).to_owned(), token);
        if self.kinds.len() > limits::TOKEN_FLOORS_MAX {
            let highest = self.kinds.values().copied().max().unwrap_or_default();
            self.all = self.all.max(highest);
            self.kinds.clear();
        }
    }
}

fn tenant_and_kind(key: &ResourceKey) -> &str {
    let text = key.as_str();
    &text[..text.len() - key.name().len() - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(kind: &str, name: &str) -> ResourceKey {
        ResourceKey::new("t", kind, name).unwrap()
    }

    #[test]
    fn a_floor_is_that_of_tenant_and_kind_and_never_falls() {
        let mut floors = TokenFloors::default();
        floors.raise(&key("k", "a"), Token(5));
        floors.raise(&key("k", "b"), Token(3));
        assert_eq!(floors.get(&key("k", "c")), Token(5));
        assert_eq!(floors.get(&key("other", "a")), Token(0));
    }

    #[test]
    fn too_many_floors_become_one() {
        let mut floors = TokenFloors::default();
        for n in 0..=limits::TOKEN_FLOORS_MAX {
            floors.raise(&key(&format!("k{n}"), "a"), Token(n as u64 + 1));
        }
        assert!(floors.kinds.is_empty());
        assert_eq!(floors.get(&key("new", "a")), Token(limits::TOKEN_FLOORS_MAX as u64 + 1));
    }
}

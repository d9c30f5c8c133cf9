//! The chains that a verification of a growing history remembers: at most a fixed number, the most
//! recently changed ones.

use std::collections::BTreeSet;

use tenure_core::ResourceKey;
use tenure_core::map::Map;
use tenure_core::verify::ChainCheckpoint;

/// A verified chain and the position of its last entry.
#[derive(Clone, Debug)]
pub(super) struct CachedChain {
    pub(super) chain: ChainCheckpoint,
    pub(super) position: u64,
}

/// Chains by resource. Positions only increase, so they also say which chain changed least
/// recently.
#[derive(Debug)]
pub(super) struct ChainCache {
    chains: Map<ResourceKey, CachedChain>,
    by_position: BTreeSet<(u64, ResourceKey)>,
    chains_max: usize,
}

impl ChainCache {
    pub(super) fn new(chains_max: usize) -> Self {
        Self { chains: Map::default(), by_position: BTreeSet::new(), chains_max }
    }

    pub(super) fn get(&self, key: &ResourceKey) -> Option<&CachedChain> {
        self.chains.get(key)
    }

    /// Removes a chain.
    pub(super) fn take(&mut self, key: &ResourceKey) -> Option<CachedChain> {
        let (key, cached) = self.chains.remove_entry(key)?;
        self.by_position.remove(&(cached.position, key));
        Some(cached)
    }

    /// Adds a chain that is not in the cache. A full cache drops the chain that changed least
    /// recently.
    pub(super) fn insert(&mut self, key: ResourceKey, cached: CachedChain) {
        self.by_position.insert((cached.position, key.clone()));
        self.chains.insert(key, cached);
        if self.chains.len() > self.chains_max
            && let Some((_, oldest)) = self.by_position.pop_first()
        {
            self.chains.remove(&oldest);
        }
    }

    pub(super) fn clear(&mut self) {
        self.chains.clear();
        self.by_position.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ResourceKey {
        ResourceKey::new("t", "k", name).unwrap()
    }

    fn cached(name: &str, position: u64) -> CachedChain {
        CachedChain { chain: ChainCheckpoint::new(&key(name)), position }
    }

    #[test]
    fn a_full_cache_drops_the_chain_that_changed_least_recently() {
        let mut cache = ChainCache::new(2);
        cache.insert(key("a"), cached("a", 1));
        cache.insert(key("b"), cached("b", 2));
        let again = cache.take(&key("a")).unwrap();
        cache.insert(key("a"), CachedChain { position: 3, ..again });
        assert_eq!(cache.chains.len(), 2);
        cache.insert(key("c"), cached("c", 4));
        assert!(cache.get(&key("b")).is_none(), "b changed before a");
        assert!(cache.get(&key("a")).is_some() && cache.get(&key("c")).is_some());
        assert_eq!((cache.chains.len(), cache.by_position.len()), (2, 2));
    }
}

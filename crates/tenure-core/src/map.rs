//! Hash maps and sets for hot lookups. Their keys come from authenticated clients, so they use a
//! fast seeded hash rather than one that resists deliberate collisions.

/// A map for hot lookups.
pub type Map<K, V> = std::collections::HashMap<K, V, foldhash::fast::RandomState>;

/// A set for hot lookups.
pub type Set<T> = std::collections::HashSet<T, foldhash::fast::RandomState>;

//! Maps and sets that every step looks into. Their keys are names and ids of people who have a key
//! to the store, so hashing is quick, and seeded, rather than proof against everybody.

/// A map that is looked into often.
pub type Map<K, V> = std::collections::HashMap<K, V, foldhash::fast::RandomState>;

/// A set that is looked into often.
pub type Set<T> = std::collections::HashSet<T, foldhash::fast::RandomState>;

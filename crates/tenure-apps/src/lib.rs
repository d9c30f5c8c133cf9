//! The systems that stand on the library, thin: each is a kind, a handler for its jobs, and names.
//!
//! Nothing here decides who holds a lock or which job runs. A rule that two of them need belongs in
//! the library, a rule about locks in the core.

pub mod pipelines;

//! What users hold: sessions, tenures and supervised commands.

pub mod clock;
pub mod exec;
pub mod lease;

//! Clusters: creates, scales and destroys OpenShift clusters, one operation at a time per cluster,
//! and leaves no infrastructure behind.

pub mod artifacts;
pub mod config;
pub mod inventory;
pub mod names;
pub mod settings;
pub mod state;
pub mod status;

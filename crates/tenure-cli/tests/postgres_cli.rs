//! Operation on PostgreSQL: the real binary with real database servers.

#[path = "postgres_cli/audit.rs"]
mod audit;
#[path = "postgres_cli/batches.rs"]
mod batches;
mod common;
#[path = "postgres_cli/doctor.rs"]
mod doctor;
#[path = "postgres_cli/migrate.rs"]
mod migrate;
#[path = "postgres_cli/outages.rs"]
mod outages;
#[path = "postgres_cli/roles.rs"]
mod roles;
#[path = "postgres_cli/testbed.rs"]
mod testbed;
#[path = "postgres_cli/tls.rs"]
mod tls;

//! What several servers on one database, and a database that misbehaves, must not break.

#![cfg(feature = "postgres")]

#[path = "postgres_shared/bed.rs"]
mod bed;
#[path = "postgres_shared/claims.rs"]
mod claims;
#[path = "postgres_shared/faults.rs"]
mod faults;
#[path = "postgres_shared/fence.rs"]
mod fence;
#[path = "postgres_shared/lives.rs"]
mod lives;
#[path = "postgres_shared/locks.rs"]
mod locks;
#[path = "postgres_shared/pages.rs"]
mod pages;
#[path = "postgres_shared/records.rs"]
mod records;
#[path = "postgres_shared/tables.rs"]
mod tables;
#[path = "postgres_shared/wakeups.rs"]
mod wakeups;

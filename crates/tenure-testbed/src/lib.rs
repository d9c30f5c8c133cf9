//! Private servers for tests and benchmarks, on free loopback ports: real database servers with
//! their own data directories, and an imitation of a Kubernetes API server.
//!
//! Must never touch a server it did not start, never listen beyond loopback, and clean up after
//! itself: a server stops when its handle is dropped or the process is killed; the directories of a
//! killed process are removed by the next one.

mod bouncer;
mod clock;
mod kube_api;
mod postgres;
mod process;
mod proxy;

pub use bouncer::{PgBouncer, shared_bouncer};
pub use kube_api::{
    Held, KubeApi, KubeFault, MACHINE_NAMESPACE, MACHINE_SETS, MACHINES, NODES, Objects, Refusal,
    Request, ResourceType, new_machine_set,
};
pub use postgres::{Backup, Durability, Postgres, shared};
pub use proxy::{Fault, Proxy};

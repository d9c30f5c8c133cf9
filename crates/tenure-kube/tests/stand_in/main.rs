//! The client against an imitated Kubernetes API over TLS.
//!
//! Must never sleep: the test moves the machines, and intervals are a millisecond.

mod connect;
mod imitation;
mod ready;
mod scale;

use std::time::Duration;

use tenure_core::{JobId, Token};
use tenure_kube::{Fence, Kube, KubeOptions, WorkerPools};
use tenure_testbed::{KubeApi, MACHINE_SETS};

/// Name of the MachineSets, up to their zone.
const SET: &str = "demo-x7k2p-worker-eu-west-1";

/// Intervals that cost nothing; polls without watches.
fn options() -> KubeOptions {
    KubeOptions {
        retry_delay: Duration::from_millis(1),
        poll_interval: Duration::from_millis(1),
        poll_gap: Duration::from_millis(1),
        ..KubeOptions::default()
    }
}

async fn connect(kubeconfig: &str) -> Kube {
    Kube::from_kubeconfig(kubeconfig, options()).await.expect("the kubeconfig is valid")
}

async fn pools(api: &KubeApi) -> WorkerPools {
    WorkerPools::new(connect(&api.kubeconfig()).await)
}

fn fence(token: u64) -> Fence {
    Fence { token: Token(token), job: JobId(7) }
}

/// Returns the replicas of the MachineSets, by name.
fn replicas(api: &KubeApi) -> Vec<u64> {
    let count = |set: &serde_json::Value| set["spec"]["replicas"].as_u64();
    api.edit(|objects| objects.list(MACHINE_SETS, None).filter_map(count).collect())
}

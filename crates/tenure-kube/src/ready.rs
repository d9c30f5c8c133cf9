//! Waits until a scaled cluster has as many ready workers as it should.
//!
//! Must never decide how long to wait: the caller drops the future. Writes nothing.

use std::collections::BTreeSet;
use std::fmt;

use k8s_openapi::api::core::v1::Node;
use serde::Deserialize;
use tokio::time::{sleep, timeout};

use crate::error::Error;
use crate::machine_set::{MachineSet, RawMetadata};
use crate::pools::{MACHINE_SETS_PATH, WorkerPools, replicas};

/// Maximum number of machines that [`Progress::waiting_for`] names.
pub const WAITING_FOR_MAX: usize = 10;
/// Maximum number of polls in a row without an answer.
const OUTAGE_POLLS_MAX: u32 = 30;

const MACHINES_PATH: &str =
    "/apis/machine.openshift.io/v1beta1/namespaces/openshift-machine-api/machines";
const NODES_PATH: &str = "/api/v1/nodes";
/// Control plane nodes that also run workloads have the label of workers, too.
const WORKER_NODES: &str = "node-role.kubernetes.io/worker,\
    !node-role.kubernetes.io/control-plane,!node-role.kubernetes.io/master";
const SET_LABEL: &str = "machine.openshift.io/cluster-api-machineset";

/// How far a cluster is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Number of workers to have.
    pub wanted: u32,
    /// Number of ready nodes of the machines of the worker sets.
    pub ready: u32,
    /// Number of machines of these sets, without those being deleted.
    pub machines: u32,
    /// Number of machines that are being deleted.
    pub deleting: u32,
    /// Whether the controllers of all sets report that they are done.
    pub is_settled: bool,
    /// The first machines without a ready node, with their phases.
    pub waiting_for: Vec<String>,
    /// Why the last poll has no answer; the other fields are of the poll before.
    pub outage: Option<String>,
}

impl Progress {
    /// Returns whether nothing is left to wait for.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let complete = self.ready == self.wanted && self.machines == self.wanted;
        complete && self.deleting == 0 && self.is_settled && self.outage.is_none()
    }
}

/// One line for people.
impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} workers are ready", self.ready, self.wanted)?;
        if self.deleting > 0 {
            write!(f, ", {} are being deleted", self.deleting)?;
        }
        if !self.waiting_for.is_empty() {
            write!(f, ", waiting for {}", self.waiting_for.join(", "))?;
        }
        match &self.outage {
            Some(outage) => write!(f, "; {outage}"),
            None => Ok(()),
        }
    }
}

impl WorkerPools {
    /// Waits until exactly `total` workers are ready, and removed machines are gone.
    ///
    /// Polls, and sooner if a set changes. `observer` sees every poll, also one without an answer.
    /// Dropping the future stops at once.
    ///
    /// # Errors
    /// [`Error::Conflict`] if the sets no longer add up to `total`, since that would never end;
    /// [`Error::Unreachable`] after 30 polls without an answer.
    pub async fn wait_ready(
        &self,
        total: u32,
        mut observer: impl FnMut(&Progress) + Send,
    ) -> Result<Progress, Error> {
        let mut progress = Progress { wanted: total, ..Progress::default() };
        let mut outages = 0;
        loop {
            let version = match self.poll(total).await {
                Ok((found, version)) => {
                    (progress, outages) = (found, 0);
                    Some(version)
                }
                Err(error @ Error::Unreachable { .. }) => {
                    outages += 1;
                    if outages >= OUTAGE_POLLS_MAX {
                        return Err(error);
                    }
                    progress.outage = Some(error.to_string());
                    None
                }
                Err(error) => return Err(error),
            };
            observer(&progress);
            if progress.is_done() {
                return Ok(progress);
            }
            self.pause(version).await;
        }
    }

    /// Completes when it is time for the next poll.
    async fn pause(&self, version: Option<String>) {
        let options = &self.kube.options;
        let (Some(version), true) = (version, options.poll_gap < options.poll_interval) else {
            return sleep(options.poll_interval).await;
        };
        let changed = self.kube.changed(MACHINE_SETS_PATH, &version);
        // Either way it is time for a poll.
        if timeout(options.poll_interval, changed).await.is_ok() {
            sleep(options.poll_gap).await;
        }
    }

    async fn poll(&self, total: u32) -> Result<(Progress, String), Error> {
        let sets = self.list_at_version().await?;
        let sum = replicas(&sets.items);
        if sum != total {
            let tried = format!("wait for {total} workers");
            let message = format!("the MachineSets now want {sum}");
            return Err(Error::Conflict { tried, message });
        }
        let machines = self.kube.list("list the machines", MACHINES_PATH, None).await?;
        let nodes = self.kube.list("list the nodes", NODES_PATH, Some(WORKER_NODES)).await?;
        let ready: BTreeSet<String> = nodes
            .items
            .into_iter()
            .filter(is_ready)
            .filter_map(|node| node.metadata.name)
            .collect();
        Ok((progress(total, &sets.items, machines.items, &ready), sets.version))
    }
}

fn progress(
    total: u32,
    sets: &[MachineSet],
    machines: Vec<RawMachine>,
    ready: &BTreeSet<String>,
) -> Progress {
    let mut progress = Progress { wanted: total, ..Progress::default() };
    progress.is_settled = sets.iter().all(MachineSet::is_settled);
    let names: BTreeSet<&str> = sets.iter().map(|set| set.name.as_str()).collect();
    for machine in machines {
        let set = machine.metadata.labels.get(SET_LABEL);
        if !set.is_some_and(|set| names.contains(set.as_str())) {
            continue;
        }
        if machine.metadata.deletion_timestamp.is_some() {
            progress.deleting += 1;
            continue;
        }
        progress.machines += 1;
        let node = machine.status.node_ref.map(|node| node.name);
        if node.is_some_and(|node| ready.contains(&node)) {
            progress.ready += 1;
        } else if progress.waiting_for.len() < WAITING_FOR_MAX {
            let phase = machine.status.phase.unwrap_or_else(|| "new".to_owned());
            progress.waiting_for.push(format!("{} ({phase})", machine.metadata.name));
        }
    }
    progress
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
}

#[derive(Clone, Deserialize)]
struct RawMachine {
    metadata: RawMetadata,
    #[serde(default)]
    status: RawMachineStatus,
}

#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawMachineStatus {
    phase: Option<String>,
    node_ref: Option<RawReference>,
}

#[derive(Clone, Deserialize)]
struct RawReference {
    name: String,
}

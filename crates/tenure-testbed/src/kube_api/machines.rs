//! The machine controller: makes Machines and Nodes follow their MachineSets, one step at a time.
//!
//! Must never wait: a step happens when the test asks for it. As in a real cluster, the status of a
//! set lags behind, does not count machines that are being deleted, and has no zeros.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::objects::{Objects, ResourceType, generation, text};

/// Namespace of the machine API.
pub const MACHINE_NAMESPACE: &str = "openshift-machine-api";
/// MachineSets of OpenShift.
pub const MACHINE_SETS: ResourceType = machine_type("machinesets", "MachineSet");
/// Machines of OpenShift.
pub const MACHINES: ResourceType = machine_type("machines", "Machine");
/// Nodes.
pub const NODES: ResourceType = ResourceType {
    group: "",
    version: "v1",
    plural: "nodes",
    kind: "Node",
    namespaced: false,
    has_status: true,
};

const SET_LABEL: &str = "machine.openshift.io/cluster-api-machineset";
const ROLE_LABEL: &str = "machine.openshift.io/cluster-api-machine-role";
const TYPE_LABEL: &str = "machine.openshift.io/cluster-api-machine-type";
const FINALIZER: &str = "machine.machine.openshift.io";
const INFRASTRUCTURE: &str = "demo-x7k2p";
const CONTROL_PLANE_NODES: usize = 3;

const fn machine_type(plural: &'static str, kind: &'static str) -> ResourceType {
    ResourceType {
        group: "machine.openshift.io",
        version: "v1beta1",
        plural,
        kind,
        namespaced: true,
        has_status: true,
    }
}

/// State of the controller that no object has.
#[derive(Default)]
pub(super) struct Machines {
    serial: u64,
    /// How many of the next nodes stay `NotReady`.
    stuck_next: usize,
    stuck: BTreeSet<String>,
}

impl Machines {
    /// Makes the next nodes stay `NotReady`.
    pub(super) fn stick(&mut self, count: usize) {
        self.stuck_next = count;
    }

    /// Lets stuck nodes become ready, also those to come.
    pub(super) fn unstick(&mut self) {
        self.stuck_next = 0;
        self.stuck.clear();
    }

    /// Performs one step. Returns whether anything changed.
    pub(super) fn advance(&mut self, objects: &mut Objects) -> bool {
        let before = objects.version();
        // From the state before this step: the status of a set lags.
        let sets: Vec<Value> = objects.list(MACHINE_SETS, None).cloned().collect();
        for set in &sets {
            update_status(objects, set);
        }
        let machines: Vec<Value> = objects.list(MACHINES, None).cloned().collect();
        for machine in &machines {
            self.advance_machine(objects, machine);
        }
        for set in &sets {
            self.scale(objects, set);
        }
        objects.version() != before
    }

    /// Creates missing machines and deletes surplus ones, the newest first.
    fn scale(&mut self, objects: &mut Objects, set: &Value) {
        let wanted = if is_deleting(set) { 0 } else { replicas(set) };
        let mut owned: Vec<String> =
            machines_of(objects, set).iter().map(|one| name(one).to_owned()).collect();
        while owned.len() > wanted {
            let Some(surplus) = owned.pop() else { return };
            objects.delete(MACHINES, MACHINE_NAMESPACE, &surplus, &Value::Null).ok();
        }
        for _ in owned.len()..wanted {
            self.serial += 1;
            let machine = new_machine(set, self.serial);
            objects.create(MACHINES, MACHINE_NAMESPACE, machine).ok();
        }
    }

    fn advance_machine(&mut self, objects: &mut Objects, machine: &Value) {
        let node = format!("node-{}", name(machine));
        let has_node = objects.get(NODES, "", &node).is_some();
        let edit = |objects: &mut Objects, change: &dyn Fn(&mut Value)| {
            objects.edit(MACHINES, MACHINE_NAMESPACE, name(machine), change);
        };
        match (is_deleting(machine), text(machine, "/status/phase")) {
            (true, "Deleting") if has_node => {
                objects.delete(NODES, "", &node, &Value::Null).ok();
                self.stuck.remove(&node);
            }
            (true, "Deleting") => edit(objects, &|one| one["metadata"]["finalizers"] = json!([])),
            (true, _) => edit(objects, &|one| one["status"]["phase"] = "Deleting".into()),
            (false, "") => edit(objects, &|one| one["status"]["phase"] = "Provisioning".into()),
            (false, "Provisioning") => {
                edit(objects, &|one| one["status"]["phase"] = "Provisioned".into());
            }
            (false, "Provisioned") => {
                if self.stuck_next > 0 {
                    self.stuck_next -= 1;
                    self.stuck.insert(node.clone());
                }
                objects.create(NODES, "", new_node(&node, &WORKER, Some(machine), false)).ok();
                let reference = json!({"kind": "Node", "name": node});
                edit(objects, &|one| {
                    one["status"] = json!({"phase": "Running", "nodeRef": reference});
                });
            }
            (false, _) => {
                if has_node && !self.stuck.contains(&node) {
                    set_ready(objects, &node, true);
                }
            }
        }
    }
}

/// Changes the condition `Ready` of a node.
pub(super) fn set_ready(objects: &mut Objects, node: &str, ready: bool) {
    let conditions = conditions(ready);
    objects.edit(NODES, "", node, |node| node["status"]["conditions"] = conditions);
}

/// Fills a new server: three control plane nodes, and worker sets over zones with ready nodes.
pub(super) fn populate(objects: &mut Objects, machines: &mut Machines, zones: &[String], all: u32) {
    for resource in [MACHINE_SETS, MACHINES, NODES] {
        objects.register(resource);
    }
    for n in 0..CONTROL_PLANE_NODES {
        let name = format!("{INFRASTRUCTURE}-master-{n}");
        objects.create(NODES, "", new_node(&name, &CONTROL_PLANE, None, true)).ok();
    }
    let count = u32::try_from(zones.len()).unwrap_or(u32::MAX);
    for (at, zone) in (0..).zip(zones) {
        let replicas = all / count + u32::from(at < all % count);
        let name = format!("{INFRASTRUCTURE}-worker-{zone}");
        let set = new_machine_set(&name, "worker", zone, replicas);
        objects.create(MACHINE_SETS, MACHINE_NAMESPACE, set).ok();
    }
    while machines.advance(objects) {}
}

/// Returns a MachineSet as the installer writes it: its role is in the template only.
#[must_use]
pub fn new_machine_set(name: &str, role: &str, zone: &str, replicas: u32) -> Value {
    let cluster = json!({"machine.openshift.io/cluster-api-cluster": INFRASTRUCTURE});
    let mut labels = cluster.clone();
    labels[SET_LABEL] = name.into();
    let selector = labels.clone();
    labels[ROLE_LABEL] = role.into();
    labels[TYPE_LABEL] = role.into();
    json!({
        "metadata": {"name": name, "labels": cluster},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": selector},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"providerSpec": {"value": {"placement": {"availabilityZone": zone}}}},
            },
        },
    })
}

fn new_machine(set: &Value, serial: u64) -> Value {
    json!({
        "metadata": {
            "name": format!("{}-{serial:05}", name(set)),
            "labels": set["spec"]["template"]["metadata"]["labels"],
            "finalizers": [FINALIZER],
            "ownerReferences": [{
                "apiVersion": MACHINE_SETS.api_version(), "kind": MACHINE_SETS.kind,
                "name": name(set), "uid": set["metadata"]["uid"], "controller": true,
            }],
        },
        "spec": set["spec"]["template"]["spec"],
    })
}

const WORKER: [&str; 1] = ["node-role.kubernetes.io/worker"];
const CONTROL_PLANE: [&str; 3] = [
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/master",
    // Masters that also run workloads have this label, and are no workers.
    "node-role.kubernetes.io/worker",
];

fn new_node(name: &str, roles: &[&str], machine: Option<&Value>, ready: bool) -> Value {
    let mut node = json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {},
        "status": {"conditions": conditions(ready)},
    });
    for role in roles {
        node["metadata"]["labels"][role] = "".into();
    }
    if let Some(machine) = machine {
        let machine = format!("{MACHINE_NAMESPACE}/{}", self::name(machine));
        node["metadata"]["annotations"] = json!({"machine.openshift.io/machine": machine});
    }
    node
}

fn conditions(ready: bool) -> Value {
    json!([
        {"type": "MemoryPressure", "status": "False"},
        {"type": "Ready", "status": if ready { "True" } else { "False" }},
    ])
}

/// Writes what the controller sees of a set.
fn update_status(objects: &mut Objects, set: &Value) {
    let machines = machines_of(objects, set);
    let ready = |machine: &&Value| {
        let node = objects.get(NODES, "", text(machine, "/status/nodeRef/name"));
        node.is_some_and(is_ready)
    };
    let ready = machines.iter().filter(|machine| ready(machine)).count();
    let mut status = json!({"replicas": machines.len(), "observedGeneration": generation(set)});
    if ready > 0 {
        status["readyReplicas"] = ready.into();
        status["availableReplicas"] = ready.into();
    }
    objects.edit(MACHINE_SETS, MACHINE_NAMESPACE, name(set), |set| set["status"] = status);
}

fn machines_of<'a>(objects: &'a Objects, set: &Value) -> Vec<&'a Value> {
    let machines = objects.list(MACHINES, Some(MACHINE_NAMESPACE));
    let owned = |one: &&Value| one["metadata"]["labels"][SET_LABEL] == set["metadata"]["name"];
    machines.filter(owned).filter(|one| !is_deleting(one)).collect()
}

fn is_ready(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array();
    let ready = |one: &Value| one["type"] == "Ready" && one["status"] == "True";
    conditions.is_some_and(|all| all.iter().any(ready))
}

fn is_deleting(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

fn replicas(set: &Value) -> usize {
    set["spec"]["replicas"].as_u64().and_then(|count| usize::try_from(count).ok()).unwrap_or(1)
}

fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

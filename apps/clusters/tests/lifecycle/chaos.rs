//! Many clusters, several workers, random kills and freezes: no overlap, nothing left, every job
//! settled.
//!
//! | variable | |
//! |---|---|
//! | `TENURE_TEST_CLUSTERS` | number of clusters; `cargo xtask soak clusters` runs a hundred |
//! | `TENURE_TEST_SEED` | decides what happens to whom |
//! | `TENURE_TEST_STORE` | `postgres`, the default, or `embedded` |

use serde_json::{Value, json};
use tenure_testbed::KubeApi;

use crate::bed::{Bed, StoreKind, Worker, path};
use crate::common::until;
use crate::scale::{replicas, tokens};

/// Number of clusters without the variable.
const CLUSTERS: usize = 8;
/// Number of workers.
const WORKERS: usize = 4;
/// Number of worker nodes of a new cluster.
const NODES: u32 = 3;

/// A cluster, and what is still to happen to it.
struct Cluster {
    name: String,
    api: KubeApi,
    /// Whether it is destroyed without waiting until it runs.
    in_a_hurry: bool,
    scales: usize,
    /// Number of worker nodes that were asked for.
    nodes: u64,
}

impl Cluster {
    fn create(bed: &Bed, n: usize, random: &mut Random) -> Self {
        let name = format!("c{n}");
        let api = bed.kube(&name, NODES);
        assert_eq!(bed.create(&name).0, 202);
        let (in_a_hurry, scales) = (random.below(3) == 0, random.below(4));
        Self { name, api, in_a_hurry, scales, nodes: u64::from(NODES) }
    }

    /// Scales the cluster while there is something to scale. Returns `false` if there is not.
    fn scale(&mut self, bed: &Bed, random: &mut Random) -> bool {
        if self.in_a_hurry || self.scales == 0 {
            return false;
        }
        self.check(bed);
        self.scales -= 1;
        self.nodes = random.below(10) as u64;
        let body = json!({ "workers": self.nodes });
        let (status, answer) = bed.api("POST", &format!("{}/scale", path(&self.name)), &body);
        assert_eq!(status, 202, "{answer}");
        true
    }

    /// Checks that it has what was asked for, written under one token.
    fn check(&self, bed: &Bed) {
        let (shown, sets) = (bed.show(&self.name), replicas(&self.api));
        assert_eq!(sets.iter().sum::<u64>(), self.nodes, "{shown:#}");
        assert_eq!(shown["workers"], self.nodes, "{shown:#}");
        let mut tokens = tokens(&self.api);
        tokens.dedup();
        assert!(tokens.len() <= 1, "{}: {tokens:?}", self.name);
    }
}

/// Workers that are killed and frozen.
struct Workers<'a> {
    bed: &'a Bed,
    running: Vec<Worker>,
    /// One of them that is frozen.
    frozen: Option<usize>,
    kills: usize,
    freezes: usize,
}

impl<'a> Workers<'a> {
    fn start(bed: &'a Bed) -> Self {
        let running = (0..WORKERS).map(|n| bed.worker(&format!("w{n}"))).collect();
        Self { bed, running, frozen: None, kills: 0, freezes: 0 }
    }

    /// Kills or freezes one, or lets one continue.
    fn disturb(&mut self, random: &mut Random) {
        let n = random.below(WORKERS);
        match random.below(6) {
            0 | 1 => {
                self.kills += 1;
                self.running[n].kill();
                self.running[n] = self.bed.worker(&format!("w{n}-{}", self.kills));
                self.frozen = self.frozen.filter(|frozen| *frozen != n);
            }
            2 if self.frozen.is_none() => {
                self.freezes += 1;
                self.running[n].signal("STOP");
                self.frozen = Some(n);
            }
            3 => self.thaw(),
            _ => {}
        }
    }

    fn thaw(&mut self) {
        if let Some(frozen) = self.frozen.take() {
            self.running[frozen].signal("CONT");
        }
    }
}

#[test]
fn random_kills_leave_nothing_behind() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let count = number("TENURE_TEST_CLUSTERS")
        .map_or(CLUSTERS, |count| usize::try_from(count).expect("few"));
    let mut random = Random(number("TENURE_TEST_SEED").unwrap_or(4_711));
    let embedded = std::env::var("TENURE_TEST_STORE").is_ok_and(|store| store == "embedded");
    let store = if embedded { StoreKind::Embedded } else { StoreKind::Postgres };
    println!("seed {}, {store:?}", random.0);
    let bed = Bed::with(store, "attempts = 20");
    let mut workers = Workers::start(&bed);
    let mut pending: Vec<Cluster> =
        (0..count).map(|n| Cluster::create(&bed, n, &mut random)).collect();
    let (mut destroyed, mut scales) = (Vec::new(), 0);
    while !pending.is_empty() {
        // Any cluster may be next; those in a hurry are destroyed while they are created.
        let start = random.below(pending.len());
        let next = || {
            let idle = idle(&bed);
            let mut order = (0..pending.len()).map(|n| (start + n) % pending.len());
            order.find(|n| pending[*n].in_a_hurry || idle.contains(&pending[*n].name))
        };
        until(|| next().is_some());
        let at = next().expect("what was idle stays idle");
        if pending[at].scale(&bed, &mut random) {
            scales += 1;
        } else {
            let cluster = pending.swap_remove(at);
            if !cluster.in_a_hurry {
                cluster.check(&bed);
            }
            assert_eq!(bed.destroy(&cluster.name).0, 202);
            destroyed.push(cluster.name);
        }
        workers.disturb(&mut random);
    }
    workers.thaw();
    for name in &destroyed {
        until_settled(&bed, name);
    }
    bed.check(&[]);
    let (code, text) = bed.run(&["verify"]);
    assert_eq!(code, Some(0), "{text}");
    for state in ["queued", "running", "cancelling", "backoff", "dead"] {
        let path = format!("/v1/jobs?kind=cluster&state={state}");
        let page = bed.api("GET", &path, &Value::Null).1;
        assert_eq!(page["items"], json!([]), "every job is settled");
    }
    let Workers { kills, freezes, .. } = workers;
    println!("{count} clusters, {scales} scales, {kills} kills, {freezes} freezes");
}

/// Returns the names of the clusters that run and have no operation.
fn idle(bed: &Bed) -> Vec<String> {
    let page = bed.api("GET", "/v1/clusters?state=READY&limit=1000", &Value::Null).1;
    let items = page["items"].as_array().expect("a list").iter();
    let idle = items.filter(|cluster| cluster["operation"].is_null());
    idle.map(|cluster| cluster["name"].as_str().expect("a name").to_owned()).collect()
}

/// Waits until a cluster is destroyed, however long the others take.
fn until_settled(bed: &Bed, name: &str) {
    let mut journal = 0;
    loop {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            until(|| bed.state(name) == "DESTROYED");
        }));
        // As long as something happens, it is not stuck.
        let now = bed.journal().len();
        if done.is_ok() {
            return;
        }
        assert!(now > journal, "{name} is stuck: {:#}", bed.show(name));
        journal = now;
    }
}

/// A generator that repeats its numbers for a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % bound
    }
}

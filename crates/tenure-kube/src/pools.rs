//! The worker MachineSets of an OpenShift cluster: reads and scales them.
//!
//! Must never change a set that a later tenure has written, or one that changed after it was read.

use kube::core::Request as Path;
use kube::core::params::{Patch, PatchParams};
use serde_json::{Value, json};
use tenure_core::{JobId, Token};

use crate::client::Kube;
use crate::error::Error;
use crate::machine_set::{MachineSet, RawSet};
use crate::plan::{Change, plan};
use crate::transport::Listed;

/// Annotation with the token under which a set was written.
pub const TOKEN_ANNOTATION: &str = "tenure.dev/token";
/// Annotation with the job that wrote a set.
pub const JOB_ANNOTATION: &str = "tenure.dev/job";
/// Maximum number of workers: what Kubernetes is tested with.
pub const WORKERS_MAX: u32 = 5_000;
/// How often sets are read again and the plan is made anew because somebody else changed them.
const REPLANS_MAX: u32 = 5;
const FIELD_MANAGER: &str = "tenure";

pub(crate) const MACHINE_SETS_PATH: &str =
    "/apis/machine.openshift.io/v1beta1/namespaces/openshift-machine-api/machinesets";

/// Under what a write happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The token of the tenure.
    pub token: Token,
    /// Its job.
    pub job: JobId,
}

/// What [`WorkerPools::scale`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scaled {
    /// Number of workers that the sets had before.
    pub before: u32,
    /// How the sets differ from before; nothing was written if they do not.
    pub changes: Vec<Change>,
}

impl Scaled {
    /// Compares the sets of the first read with those of the last, after its changes.
    fn between(first: &[MachineSet], last: &[MachineSet], changes: &[Change]) -> Self {
        let to = |set: &MachineSet| {
            let change = changes.iter().find(|change| change.name == set.name);
            change.map_or(set.replicas, |change| change.to)
        };
        let changed = last.iter().filter_map(|set| {
            let before = first.iter().find(|one| one.name == set.name);
            let from = before.map_or(set.replicas, |before| before.replicas);
            let (name, zone, to) = (set.name.clone(), set.zone.clone(), to(set));
            (from != to).then_some(Change { name, zone, from, to })
        });
        Self { before: replicas(first), changes: changed.collect() }
    }
}

/// The worker MachineSets of a cluster.
#[derive(Clone, Debug)]
pub struct WorkerPools {
    pub(crate) kube: Kube,
}

impl WorkerPools {
    /// Makes a handle; nothing is sent yet.
    #[must_use]
    pub fn new(kube: Kube) -> Self {
        Self { kube }
    }

    /// Returns the worker MachineSets, without those being deleted.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the cluster has no machine API.
    pub async fn list(&self) -> Result<Vec<MachineSet>, Error> {
        Ok(self.list_at_version().await?.items)
    }

    pub(crate) async fn list_at_version(&self) -> Result<Listed<MachineSet>, Error> {
        let listed = self.kube.list("list the MachineSets", MACHINE_SETS_PATH, None).await?;
        let parsed = listed.items.into_iter().filter_map(|raw: RawSet| {
            // Sets of other machines are left out.
            MachineSet::parse(raw).transpose()
        });
        Ok(Listed { items: parsed.collect::<Result<_, _>>()?, version: listed.version })
    }

    /// Spreads `total` workers evenly over the zones. Sets that have their share already are marked
    /// with the token only; if all have, nothing is written.
    ///
    /// Dropping the future, or a failure, can leave some sets changed; a repetition continues.
    ///
    /// # Errors
    /// [`Error::Fenced`] if a later tenure has written, [`Error::Conflict`] if others keep changing
    /// the sets, [`Error::NotFound`] if there are none.
    pub async fn scale(&self, total: u32, fence: &Fence) -> Result<Scaled, Error> {
        let tried = format!("scale the cluster to {total} workers");
        if total > WORKERS_MAX {
            return Err(Error::invalid(tried, format!("the maximum is {WORKERS_MAX}")));
        }
        let mut first = None;
        for _ in 0..=REPLANS_MAX {
            let sets = self.list().await?;
            check(&tried, &sets, fence)?;
            let changes = plan(total, &sets);
            let is_first = first.is_none();
            let before = first.get_or_insert_with(|| sets.clone());
            let is_unchanged = is_first && changes.is_empty();
            if is_unchanged || self.write(&sets, &changes, fence).await? {
                return Ok(Scaled::between(before, &sets, &changes));
            }
        }
        let message = format!("they changed {REPLANS_MAX} times while they were being scaled");
        Err(Error::Conflict { tried, message })
    }

    /// Writes the changes, and the token to the other sets. Returns `false` if a set has changed.
    async fn write(
        &self,
        sets: &[MachineSet],
        changes: &[Change],
        fence: &Fence,
    ) -> Result<bool, Error> {
        let change_of = |set: &MachineSet| changes.iter().find(|change| change.name == set.name);
        let is_growth = |set: &MachineSet| change_of(set).is_some_and(|one| one.to > one.from);
        let mut ordered: Vec<&MachineSet> = sets.iter().collect();
        // New machines first, so that the workers in between are not fewer than at either end.
        ordered.sort_by_key(|set| !is_growth(set));
        for set in ordered {
            let change = change_of(set);
            if change.is_none() && set.token == Some(fence.token) {
                continue;
            }
            match self.patch(set, change, fence).await {
                Ok(()) => {}
                Err(Error::Conflict { .. } | Error::NotFound { .. }) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    async fn patch(
        &self,
        set: &MachineSet,
        change: Option<&Change>,
        fence: &Fence,
    ) -> Result<(), Error> {
        let mut body = json!({
            "metadata": {
                "uid": set.uid,
                "resourceVersion": set.resource_version,
                "annotations": {
                    TOKEN_ANNOTATION: fence.token.to_string(),
                    JOB_ANNOTATION: fence.job.to_string(),
                },
            },
        });
        if let Some(change) = change {
            body["spec"] = json!({"replicas": change.to});
        }
        let tried = format!("scale MachineSet {}", set.name);
        let params =
            PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..Default::default() };
        let request = Path::new(MACHINE_SETS_PATH).patch(&set.name, &params, &Patch::Merge(body));
        self.kube.call::<Value>(&tried, request).await.map(drop)
    }
}

/// Checks that the sets may be written.
fn check(tried: &str, sets: &[MachineSet], fence: &Fence) -> Result<(), Error> {
    if sets.is_empty() {
        let message = "it has no MachineSets of workers".to_owned();
        return Err(Error::NotFound { tried: tried.to_owned(), message });
    }
    let written = sets.iter().filter_map(|set| Some((set, set.token?)));
    if let Some((set, live)) = written.max_by_key(|(_, live)| *live)
        && live > fence.token
    {
        let object = format!("MachineSet {}", set.name);
        return Err(Error::Fenced { object, token: fence.token, live });
    }
    let before = replicas(sets);
    if before > WORKERS_MAX {
        return Err(Error::invalid(tried, format!("it has {before}, more than {WORKERS_MAX}")));
    }
    Ok(())
}

pub(crate) fn replicas(sets: &[MachineSet]) -> u32 {
    sets.iter().fold(0, |sum, set| sum.saturating_add(set.replicas))
}

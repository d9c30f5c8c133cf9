//! The kind `cluster`: states, operations, and what happens when they meet.

use tenure_core::retry::Retry;
use tenure_core::{Kind, Operation, Policy};

use crate::names::{CLUSTER, CREATE, DESTROY, JANITOR_DESTROY, PURGE, SCALE_WORKERS};
use crate::settings::Settings;
use crate::state::ClusterState::{
    self, Creating, DestroyFailed, Destroyed, Destroying, Failed, Pending, Ready, Scaling,
};

/// Time of an attempt for everything around the installer: snapshots, queries, status.
const OVERHEAD_MS: u64 = 15 * 60 * 1_000;

/// Backoff after the worker of an attempt has died.
const LOST_BACKOFF_MS: u64 = 10_000;

/// Returns the kind.
pub(crate) fn kind(settings: &Settings) -> Kind {
    let mut kind = Kind::new(CLUSTER)
        .states(&ClusterState::ALL.map(ClusterState::as_str))
        .operation(create(settings))
        .operation(destroy(settings))
        .operation(janitor_destroy(settings))
        .operation(scale_workers(settings))
        .operation(purge(settings));
    kind.stale_margin_ms = settings.stale_margin_ms;
    kind
}

/// An attempt that fails also removes what it has created.
fn create(settings: &Settings) -> Operation {
    let limit_ms = settings.create_limit_ms + settings.destroy_limit_ms + OVERHEAD_MS;
    Operation::new(CREATE)
        .path(
            &[Pending, Destroyed, Failed].map(ClusterState::as_str),
            Creating.as_str(),
            Ready.as_str(),
            Failed.as_str(),
        )
        .meets(CREATE, Policy::Attach)
        .meets(DESTROY, Policy::Reject)
        .meets(JANITOR_DESTROY, Policy::Reject)
        .meets(SCALE_WORKERS, Policy::Reject)
        .meets(PURGE, Policy::Cancel)
        .limit_ms(limit_ms)
        .retry(retry(settings))
}

/// From DESTROYED it verifies that nothing is left. It replaces a waiting JANITOR_DESTROY instead
/// of attaching to it, because that one does nothing if the time to live was extended.
fn destroy(settings: &Settings) -> Operation {
    Operation::new(DESTROY)
        .path(
            &[Pending, Ready, Failed, DestroyFailed, Destroyed].map(ClusterState::as_str),
            Destroying.as_str(),
            Destroyed.as_str(),
            DestroyFailed.as_str(),
        )
        .meets(CREATE, Policy::Cancel)
        .meets(DESTROY, Policy::Attach)
        .meets(JANITOR_DESTROY, Policy::Replace)
        .meets(SCALE_WORKERS, Policy::Cancel)
        .meets(PURGE, Policy::Cancel)
        .limit_ms(settings.destroy_limit_ms + OVERHEAD_MS)
        .retry(retry(settings))
}

/// Ends in the state before it if the time to live was extended meanwhile.
fn janitor_destroy(settings: &Settings) -> Operation {
    let from = [Pending, Ready, Failed, DestroyFailed].map(ClusterState::as_str);
    let mut operation = Operation::new(JANITOR_DESTROY)
        .path(&from, Destroying.as_str(), Destroyed.as_str(), DestroyFailed.as_str())
        .meets(CREATE, Policy::Cancel)
        .meets(DESTROY, Policy::Attach)
        .meets(JANITOR_DESTROY, Policy::Attach)
        .meets(SCALE_WORKERS, Policy::Cancel)
        .limit_ms(settings.destroy_limit_ms + OVERHEAD_MS)
        .retry(retry(settings));
    operation.ends = from.map(Into::into).to_vec();
    operation
}

/// A cluster with the wrong number of workers still runs, so a failure leaves it READY.
fn scale_workers(settings: &Settings) -> Operation {
    Operation::new(SCALE_WORKERS)
        .path(&[Ready.as_str()], Scaling.as_str(), Ready.as_str(), Ready.as_str())
        .meets(CREATE, Policy::Reject)
        .meets(DESTROY, Policy::Reject)
        .meets(JANITOR_DESTROY, Policy::Reject)
        .meets(SCALE_WORKERS, Policy::Replace)
        .limit_ms(settings.scale_limit_ms + OVERHEAD_MS)
        .retry(retry(settings))
}

/// Deletes snapshots; a cluster that is created again meanwhile goes first.
fn purge(settings: &Settings) -> Operation {
    let mut operation = Operation::new(PURGE).limit_ms(OVERHEAD_MS).retry(retry(settings));
    operation.from = vec![Destroyed.as_str().into()];
    for present in [CREATE, DESTROY, JANITOR_DESTROY, SCALE_WORKERS, PURGE] {
        operation = operation.meets(present, Policy::Reject);
    }
    operation
}

/// Returns the retry rule of all operations. Workers report the backoff of each failure; the one
/// here is for attempts that were lost with their worker, which need not wait for anything.
fn retry(settings: &Settings) -> Retry {
    Retry {
        attempts: settings.attempts,
        initial_ms: settings.backoff_ms.min(LOST_BACKOFF_MS),
        factor: 2.0,
        max_ms: settings.backoff_max_ms.max(settings.backoff_ms),
        ..Retry::default()
    }
}

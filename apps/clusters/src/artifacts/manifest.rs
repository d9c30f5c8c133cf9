//! The manifest of a snapshot: written last, it is what makes the snapshot complete.

use serde::{Deserialize, Serialize};
use tenure_core::{JobId, Token};

use super::NewSnapshot;

/// Version of the format.
pub(super) const VERSION: u32 = 1;
/// Number of files that are listed as left out.
const LEFT_OUT_MAX: usize = 1_000;

/// Content of a snapshot. It has names of secret files, and no secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the format.
    pub version: u32,
    /// Tenant of the cluster.
    pub tenant: String,
    /// Id of the cluster.
    pub cluster: String,
    /// Token of the attempt that took it.
    pub token: Token,
    /// Number of the snapshot within the attempt.
    pub seq: u32,
    /// Phase of the attempt.
    pub phase: String,
    /// Job.
    pub job: JobId,
    /// Worker.
    pub worker: String,
    /// Its archives: at most one of each part.
    pub archives: Vec<ArchiveEntry>,
    /// Known files that are not in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOut>,
}

/// Part of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// Files without secrets.
    Public,
    /// Files with credentials of the cluster, below the prefix `secrets/`.
    Secrets,
}

/// One archive of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchiveEntry {
    /// Part.
    pub part: Part,
    /// Place in the store.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    /// SHA-256, in hexadecimal digits.
    pub sha256: String,
    /// Its files, sorted by name.
    pub files: Vec<FileEntry>,
}

/// A file of an archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Name relative to the install directory.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
}

/// A known file that is not in the snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Name relative to the install directory.
    pub path: String,
    /// Size in bytes, if known, or 0.
    pub size: u64,
    /// Why it is not in the snapshot.
    pub reason: String,
}

impl LeftOut {
    /// Appends a file, unless too many are listed.
    pub(super) fn add(list: &mut Vec<Self>, path: String, size: u64, reason: &str) {
        if list.len() < LEFT_OUT_MAX {
            list.push(Self { path, size, reason: reason.to_owned() });
        }
    }
}

impl Manifest {
    pub(super) fn new(
        new: &NewSnapshot<'_>,
        archives: Vec<ArchiveEntry>,
        left_out: Vec<LeftOut>,
    ) -> Self {
        Self {
            version: VERSION,
            tenant: new.tenant.to_owned(),
            cluster: new.cluster.to_owned(),
            token: new.token,
            seq: new.seq,
            phase: new.phase.to_owned(),
            job: new.job,
            worker: new.worker.to_owned(),
            archives,
            left_out,
        }
    }
}

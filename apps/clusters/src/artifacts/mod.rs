//! Snapshots of install directories.
//!
//! A snapshot is one archive of files without secrets, one of secrets below a prefix of its own, so
//! that another policy can protect it, and a manifest. The manifest is written last: without it
//! there is no snapshot. Keys contain the fencing token and objects are created, never overwritten,
//! so a worker that has lost its lock can neither replace nor damage what its successor wrote.
//! Nothing in here reads a clock.
//!
//! | object | key |
//! |---|---|
//! | public archive | `clusters/TENANT/ID/TOKEN/SEQ-PHASE.tar.zst` |
//! | secret archive | `secrets/clusters/TENANT/ID/TOKEN/SEQ-PHASE.tar.zst` |
//! | manifest | `clusters/TENANT/ID/TOKEN/SEQ-PHASE.json` |
//!
//! See `contents.rs` for the files, `archive.rs` for their format, `store.rs` for the stores.

mod archive;
mod contents;
mod manifest;
pub mod redact;
mod store;

use std::collections::BTreeMap;
use std::path::Path as FilePath;

use object_store::path::Path;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tenure_core::{JobId, ResourceKey, Token};

pub use archive::{ARCHIVE_BYTES_MAX, ENTRIES_MAX, FILE_BYTES_MAX, UNPACKED_BYTES_MAX};
pub use manifest::{ArchiveEntry, FileEntry, LeftOut, Manifest, Part};

use crate::names::cluster_key;
use crate::settings::Settings;
use archive::{Packed, Unpacked};
use contents::Contents;
use store::Store;

/// Prefix of manifests and of archives without secrets.
const PUBLIC: &str = "clusters";
/// Prefix of archives with secrets, before the other one.
const SECRETS: &str = "secrets";
/// Maximum size of a manifest.
const MANIFEST_BYTES_MAX: u64 = 16 << 20;
/// Maximum length of the name of a phase.
pub const PHASE_BYTES_MAX: usize = 32;

/// A complete snapshot: the pointer that the status of its cluster has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Place of its manifest in the store, without the ending `.json`:
    /// `clusters/TENANT/ID/TOKEN/SEQ-PHASE`.
    pub path: String,
    /// Token of the attempt that took it.
    pub token: Token,
    /// SHA-256 of the manifest.
    pub sha256: String,
}

/// What identifies a snapshot that is taken.
#[derive(Clone, Copy, Debug)]
pub struct NewSnapshot<'a> {
    /// Tenant of the cluster.
    pub tenant: &'a str,
    /// Id of the cluster, such as `aws:demo.dev.example.com`.
    pub cluster: &'a str,
    /// Token of the attempt.
    pub token: Token,
    /// Number of the snapshot within the attempt. Each one has another number, unless it repeats a
    /// [`Artifacts::save`] whose directory has not changed since.
    pub seq: u32,
    /// Phase of the attempt: letters, digits and hyphens.
    pub phase: &'a str,
    /// Job.
    pub job: JobId,
    /// Worker.
    pub worker: &'a str,
}

/// What is restored of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parts {
    /// Files without secrets.
    Public,
    /// Files with secrets.
    Secrets,
    /// All files.
    All,
}

impl Parts {
    fn has(self, part: Part) -> bool {
        match self {
            Self::Public => part == Part::Public,
            Self::Secrets => part == Part::Secrets,
            Self::All => true,
        }
    }
}

/// A failure of the store of snapshots.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactError {
    /// The store cannot be opened.
    #[error("cannot open the artifact store {url}: {why}")]
    Open {
        /// URL.
        url: String,
        /// What is wrong.
        why: String,
    },
    /// The names of a snapshot cannot be used.
    #[error("cannot use the snapshot: {0}")]
    Invalid(String),
    /// A request failed; nothing is known about its effect.
    #[error("cannot {what} the artifact {path}: {why}; check the store and its credentials")]
    Store {
        /// Verb.
        what: &'static str,
        /// Place in the store.
        path: String,
        /// Answer of the store.
        why: String,
    },
    /// An object with another content is in the place of a new one.
    #[error(
        "cannot write the artifact {path}: another worker wrote it, or the directory has changed \
         since; take a snapshot with the next number if the lock is still held"
    )]
    Conflict {
        /// Place in the store.
        path: String,
    },
    /// An object does not exist.
    #[error(
        "there is no artifact {path}: the snapshot is incomplete, or was deleted; use another one"
    )]
    Missing {
        /// Place in the store.
        path: String,
    },
    /// An object is not what was written.
    #[error("the artifact {path} is damaged: {why}; use another snapshot")]
    Corrupt {
        /// Place in the store.
        path: String,
        /// What is wrong.
        why: String,
    },
    /// The install directory cannot be read or written.
    #[error("cannot {what} the install directory {dir}")]
    Directory {
        /// Verb.
        what: &'static str,
        /// Directory.
        dir: String,
        /// Error of the operating system.
        source: std::io::Error,
    },
}

/// The store of snapshots.
#[derive(Debug)]
pub struct Artifacts {
    store: Store,
}

impl Artifacts {
    /// Opens the store of a `file:`, `s3:`, `gs:`, `az:` or `abfss:` URL.
    ///
    /// Options are those of `object_store`, such as `endpoint` and `region`. Others come from the
    /// environment: `AWS_…`, `GOOGLE_…` or `AZURE_…`.
    ///
    /// # Errors
    ///
    /// Fails if the URL or an option is wrong, or the folder cannot be created.
    pub fn open(url: &str, options: &BTreeMap<String, String>) -> Result<Self, ArtifactError> {
        Ok(Self { store: Store::open(url, options)? })
    }

    /// Opens the store of the settings. Their address for AWS is that of S3 too, unless the options
    /// name another one.
    ///
    /// # Errors
    ///
    /// See [`Artifacts::open`].
    pub fn from_settings(settings: &Settings) -> Result<Self, ArtifactError> {
        let mut options = settings.artifact_options.clone();
        let has_endpoint =
            options.keys().any(|name| name.to_ascii_lowercase().contains("endpoint"));
        if let Some(endpoint) = &settings.aws_endpoint
            && settings.artifacts.starts_with("s3")
            && !has_endpoint
        {
            options.insert("endpoint".to_owned(), endpoint.clone());
        }
        Self::open(&settings.artifacts, &options)
    }

    /// Returns the URL of the store.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.store.url
    }

    /// Takes a snapshot of an install directory.
    ///
    /// Succeeds if the same snapshot exists already, as when the answer to an earlier call was
    /// lost.
    ///
    /// # Errors
    ///
    /// [`ArtifactError::Conflict`] if an object with another content is in its place. After any
    /// error the snapshot is not complete.
    pub async fn save(
        &self,
        new: &NewSnapshot<'_>,
        dir: &FilePath,
    ) -> Result<Snapshot, ArtifactError> {
        let keys = Keys::new(new)?;
        let packed = pack(dir.to_owned()).await?;
        let mut archives = Vec::new();
        for (part, archive) in [(Part::Secrets, packed.secrets), (Part::Public, packed.public)] {
            let Some(Packed { bytes, files }) = archive else { continue };
            let path = keys.archive(part);
            self.store.create(&path, &bytes).await?;
            let (size, sha256) = (bytes.len() as u64, digest(&bytes));
            archives.push(ArchiveEntry { part, path: path.to_string(), size, sha256, files });
        }
        let manifest = Manifest::new(new, archives, packed.left_out);
        let text = serde_json::to_vec(&manifest)
            .map_err(|error| ArtifactError::Invalid(format!("cannot write a manifest: {error}")))?;
        if text.len() as u64 > MANIFEST_BYTES_MAX {
            let why = format!("its manifest has {} bytes", text.len());
            return Err(ArtifactError::Invalid(why));
        }
        // Last: it makes the snapshot complete.
        self.store.create(&keys.manifest(), &text).await?;
        Ok(Snapshot { path: keys.base(), token: new.token, sha256: digest(&text) })
    }

    /// Returns the manifest of a snapshot, with the names of its files.
    ///
    /// # Errors
    ///
    /// Fails if it does not exist, or is not the one that the pointer names.
    pub async fn manifest(&self, snapshot: &Snapshot) -> Result<Manifest, ArtifactError> {
        let path = Path::parse(format!("{}.json", snapshot.path))
            .map_err(|error| ArtifactError::Invalid(error.to_string()))?;
        let corrupt = |why: String| ArtifactError::Corrupt { path: path.to_string(), why };
        let text = self.store.read(&path, MANIFEST_BYTES_MAX).await?;
        check_digest(&text, &snapshot.sha256).map_err(corrupt)?;
        let manifest: Manifest = serde_json::from_slice(&text)
            .map_err(|error| corrupt(format!("it is not a manifest: {error}")))?;
        if manifest.version != manifest::VERSION {
            return Err(corrupt(format!("its version is {}, not 1", manifest.version)));
        }
        let keys = Keys::of(&manifest)?;
        if keys.base() != snapshot.path || manifest.token != snapshot.token {
            return Err(corrupt("it is that of another snapshot".to_owned()));
        }
        for archive in &manifest.archives {
            if archive.path != keys.archive(archive.part).as_ref() {
                return Err(corrupt(format!("it names the archive {}", archive.path)));
            }
        }
        Ok(manifest)
    }

    /// Writes the files of a snapshot into a directory, which is created with access for this user
    /// only. Existing files are not replaced.
    ///
    /// Everything is checked before the first file is written.
    ///
    /// # Errors
    ///
    /// Fails if the snapshot is incomplete or damaged, or a file exists. After
    /// [`ArtifactError::Directory`] some files may have been written: remove the directory.
    pub async fn restore(
        &self,
        snapshot: &Snapshot,
        into: &FilePath,
        parts: Parts,
    ) -> Result<(), ArtifactError> {
        let manifest = self.manifest(snapshot).await?;
        let mut files = Vec::new();
        for archive in manifest.archives.into_iter().filter(|archive| parts.has(archive.part)) {
            files.extend(self.files(archive).await?);
        }
        let into = into.to_owned();
        let dir = into.display().to_string();
        let written = blocking(move || archive::write_files(&into, &files)).await;
        written.map_err(|source| ArtifactError::Directory { what: "restore", dir, source })
    }

    /// Returns a secret file of a snapshot, such as `auth/kubeconfig`; none if the snapshot does
    /// not have it.
    ///
    /// # Errors
    ///
    /// Fails if the snapshot is incomplete or damaged.
    pub async fn read_secret_file(
        &self,
        snapshot: &Snapshot,
        name: &str,
    ) -> Result<Option<Vec<u8>>, ArtifactError> {
        let manifest = self.manifest(snapshot).await?;
        let archive = manifest.archives.into_iter().find(|archive| archive.part == Part::Secrets);
        let Some(archive) = archive.filter(|archive| archive.has(name)) else { return Ok(None) };
        let files = self.files(archive).await?;
        Ok(files.into_iter().find(|file| file.name == name).map(|file| file.content))
    }

    /// Deletes the snapshots of a cluster that were taken with a token up to `up_to`, also
    /// incomplete ones. Returns the number of deleted objects.
    ///
    /// # Errors
    ///
    /// Fails if a request fails; repeat it.
    pub async fn delete(
        &self,
        tenant: &str,
        cluster: &str,
        up_to: Token,
    ) -> Result<usize, ArtifactError> {
        let key = key(tenant, cluster)?;
        let mut deleted = 0;
        // Secrets first, in case that it is not repeated.
        for below in [cluster_path(&[SECRETS, PUBLIC], &key), cluster_path(&[PUBLIC], &key)] {
            let depth = below.parts().count();
            let is_deleted = |path: &Path| {
                let token = path.parts().nth(depth);
                let token = token.and_then(|part| part.as_ref().parse().ok());
                token.is_some_and(|token| Token(token) <= up_to)
            };
            deleted += self.store.delete(&below, is_deleted).await?;
        }
        Ok(deleted)
    }

    /// Reads and checks an archive.
    async fn files(&self, archive: ArchiveEntry) -> Result<Vec<Unpacked>, ArtifactError> {
        let corrupt = |why: String| ArtifactError::Corrupt { path: archive.path.clone(), why };
        let path = Path::parse(&archive.path).map_err(|error| corrupt(error.to_string()))?;
        let bytes = self.store.read(&path, archive.size.min(ARCHIVE_BYTES_MAX)).await?;
        check_digest(&bytes, &archive.sha256).map_err(corrupt)?;
        let files = blocking(move || archive::unpack(&bytes)).await.map_err(corrupt)?;
        let listed = archive.files.iter().map(|file| (file.path.as_str(), file.size));
        if !listed.eq(files.iter().map(|file| (file.name.as_str(), file.content.len() as u64))) {
            return Err(corrupt("its files are not those of the manifest".to_owned()));
        }
        Ok(files)
    }
}

impl ArchiveEntry {
    /// Returns whether the archive has a file.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.files.iter().any(|file| file.path == name)
    }
}

/// Keys of the objects of one snapshot.
struct Keys {
    /// Folder of the manifest and of the public archive.
    public: Path,
    /// Folder of the secret archive.
    secrets: Path,
    name: String,
}

impl Keys {
    fn new(new: &NewSnapshot<'_>) -> Result<Self, ArtifactError> {
        let NewSnapshot { tenant, cluster, token, seq, phase, .. } = *new;
        Self::build(tenant, cluster, token, seq, phase)
    }

    fn of(manifest: &Manifest) -> Result<Self, ArtifactError> {
        let Manifest { tenant, cluster, token, seq, phase, .. } = manifest;
        Self::build(tenant, cluster, *token, *seq, phase)
    }

    fn build(
        tenant: &str,
        cluster: &str,
        token: Token,
        seq: u32,
        phase: &str,
    ) -> Result<Self, ArtifactError> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if phase.is_empty() || phase.len() > PHASE_BYTES_MAX || !phase.chars().all(allowed) {
            return Err(ArtifactError::Invalid(format!(
                "the phase {phase:?} is not 1 to {PHASE_BYTES_MAX} letters, digits and hyphens"
            )));
        }
        let (key, token) = (key(tenant, cluster)?, token.to_string());
        let public = cluster_path(&[PUBLIC], &key).join(token.as_str());
        let secrets = cluster_path(&[SECRETS, PUBLIC], &key).join(token.as_str());
        Ok(Self { public, secrets, name: format!("{seq}-{phase}") })
    }

    /// Returns the place of the snapshot.
    fn base(&self) -> String {
        format!("{}/{}", self.public, self.name)
    }

    fn manifest(&self) -> Path {
        self.public.clone().join(format!("{}.json", self.name))
    }

    fn archive(&self, part: Part) -> Path {
        let folder = match part {
            Part::Public => &self.public,
            Part::Secrets => &self.secrets,
        };
        folder.clone().join(format!("{}.tar.zst", self.name))
    }
}

fn key(tenant: &str, cluster: &str) -> Result<ResourceKey, ArtifactError> {
    cluster_key(tenant, cluster).map_err(|error| ArtifactError::Invalid(error.to_string()))
}

fn cluster_path(prefix: &[&str], key: &ResourceKey) -> Path {
    Path::from_iter(prefix.iter().copied().chain([key.tenant(), key.name()]))
}

/// The archives of an install directory.
struct PackedParts {
    public: Option<Packed>,
    secrets: Option<Packed>,
    left_out: Vec<LeftOut>,
}

async fn pack(dir: std::path::PathBuf) -> Result<PackedParts, ArtifactError> {
    let shown = dir.display().to_string();
    let packed = blocking(move || {
        let Contents { public, secrets, mut left_out } = Contents::of(&dir)?;
        let public = archive::pack(&public, &mut left_out)?;
        let secrets = archive::pack(&secrets, &mut left_out)?;
        Ok(PackedParts { public, secrets, left_out })
    });
    packed.await.map_err(|source| ArtifactError::Directory { what: "read", dir: shown, source })
}

/// Runs what blocks on a thread of its own.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime shuts down: nobody waits for this any more.
            Err(_) => std::future::pending().await,
        },
    }
}

fn check_digest(bytes: &[u8], expected: &str) -> Result<(), String> {
    let found = digest(bytes);
    if found == expected {
        return Ok(());
    }
    Err(format!("its SHA-256 is {found}, not {expected}"))
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

//! The table `[clusters]` of `tenure.toml`.
//!
//! The defaults are short where that is safe: a session with heartbeats decides who is alive, so a
//! lock need not outlive the longest operation. `example.toml` also shows the values of older
//! systems.
//!
//! `settings/read.rs` reads the table, `settings/sqs.rs` its table `sqs`.

mod places;
mod read;
mod sqs;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub(crate) use places::installer as read_installer;

const MINUTE_MS: u64 = 60 * 1_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;

/// Tenant of base domains that are not declared.
const TENANT_DEFAULT: &str = "default";

/// How a destroy is verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verification {
    /// By the tags of resources on AWS.
    Aws,
    /// By a program that prints one resource per line; it gets the infra id, the cluster id and the
    /// region in `INFRA_ID`, `CLUSTER_ID` and `REGION`.
    Command(Vec<String>),
    /// Not at all: the exit code of the installer decides.
    None,
}

/// Settings of the queue on SQS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqsSettings {
    /// Name of the queue.
    pub queue: String,
    /// Name of its dead-letter queue.
    pub dead_letters: String,
    /// Region of both.
    pub region: String,
    /// Time for which a received message is hidden from others.
    pub visibility_ms: u64,
    /// Duration of one long poll.
    pub wait_ms: u64,
    /// Number of receives after which a message that cannot be read goes to the dead-letter queue.
    pub receives: u32,
    /// Time for which the dead-letter queue keeps messages.
    pub retention_ms: u64,
    /// Interval at which workers claim jobs without a message.
    pub claim_interval_ms: u64,
    /// Whether missing queues are created.
    pub create: bool,
}

/// Settings of the app.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Path of the installer; `{version}` stands for the version of the cluster. A name without a
    /// slash is looked up in `PATH`.
    pub installer: String,
    /// Directory for install directories.
    pub work_dir: PathBuf,
    /// Directory with the profiles, `PROFILE.toml`.
    pub profiles: PathBuf,
    /// File with further rules that classify failures.
    pub failure_rules: Option<PathBuf>,
    /// Tenant that each base domain belongs to; others belong to the tenant `default`.
    pub base_domains: BTreeMap<String, String>,
    /// Number of jobs that one process runs concurrently; 0 if others run them.
    pub slots: usize,
    /// Time after which a worker without heartbeats has lost its jobs.
    pub lock_ttl_ms: u64,
    /// Interval between heartbeats.
    pub heartbeat_ms: u64,
    /// Time for which locks stay held after the session of their worker has expired.
    pub stale_margin_ms: u64,
    /// Number of attempts.
    pub attempts: u32,
    /// Backoff after the first failure; it doubles each time.
    pub backoff_ms: u64,
    /// Maximum backoff.
    pub backoff_max_ms: u64,
    /// Time limit of one install.
    pub create_limit_ms: u64,
    /// Time limit of one destroy.
    pub destroy_limit_ms: u64,
    /// Time until all nodes have to be ready after a change of their number.
    pub scale_limit_ms: u64,
    /// Time from TERM to KILL of the installer when its job is cancelled.
    pub stop_grace_ms: u64,
    /// How a destroy is verified.
    pub verification: Verification,
    /// Time between the two queries that have to be empty.
    pub verify_interval_ms: u64,
    /// Variables of the worker that the installer gets: `NAME` or `PREFIX*`.
    pub pass_env: Vec<String>,
    /// URL of the store of snapshots.
    pub artifacts: String,
    /// Options of that store, such as `endpoint`.
    pub artifact_options: BTreeMap<String, String>,
    /// Time for which snapshots of destroyed clusters are kept.
    pub artifact_retention_ms: u64,
    /// Address that replaces those of AWS, for compatible services.
    pub aws_endpoint: Option<String>,
    /// Name of the environment variable with the URL of the database whose advisory locks are taken
    /// around the installer.
    pub advisory_locks: Option<String>,
    /// Queue on SQS that wakes workers.
    pub sqs: Option<SqsSettings>,
}

impl Settings {
    /// Returns the tenant that a base domain belongs to.
    #[must_use]
    pub fn owner_of(&self, domain: &str) -> &str {
        self.base_domains.get(domain).map_or(TENANT_DEFAULT, String::as_str)
    }

    /// Returns the defaults; relative paths are below `dir`.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        Self {
            installer: "openshift-install".to_owned(),
            work_dir: dir.join("clusters/work"),
            profiles: dir.join("profiles"),
            failure_rules: None,
            base_domains: BTreeMap::new(),
            slots: 4,
            lock_ttl_ms: 30_000,
            heartbeat_ms: 10_000,
            stale_margin_ms: 0,
            attempts: 3,
            backoff_ms: 5 * MINUTE_MS,
            backoff_max_ms: 30 * MINUTE_MS,
            create_limit_ms: 3 * HOUR_MS,
            destroy_limit_ms: HOUR_MS,
            scale_limit_ms: 30 * MINUTE_MS,
            stop_grace_ms: MINUTE_MS,
            verification: Verification::Aws,
            verify_interval_ms: 30_000,
            pass_env: Vec::new(),
            artifacts: format!("file://{}", dir.join("clusters/artifacts").display()),
            artifact_options: BTreeMap::new(),
            artifact_retention_ms: 30 * DAY_MS,
            aws_endpoint: None,
            advisory_locks: None,
            sqs: None,
        }
    }
}

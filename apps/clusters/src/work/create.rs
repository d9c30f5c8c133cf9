//! CREATE: installs a cluster.
//!
//! An install has two phases. The first one creates files only; among them is `metadata.json` with
//! the infra id that tags every resource. It is in the status of the cluster, durably, before the
//! second phase creates the first resource. So the worker that continues after a crash finds
//! everything that may exist, and removes it before another install begins, in the same tenure.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tenure::clock::BootInstant;
use tenure::{Done, Failure};
use tenure_core::Millis;

use super::attempt::{Attempt, file_failure, without_nulls};
use super::destroy;
use super::directory::{InstallDirectory, METADATA};
use super::failed::{self, Verdict};
use super::installer::{self, Ended};
use crate::artifacts;
use crate::config::ClusterConfig;
use crate::failure::Step;
use crate::install_config::InstallConfig;
use crate::names::{JANITOR_DESTROY, PURGE};
use crate::profile::Profile;
use crate::status::{ClusterStatus, Infra, Outputs};

/// Code of a cluster that is kept for an investigation.
const PRESERVED: &str = "PRESERVED";
/// Code of a profile that gives no install-config.
const BAD_CONFIG: &str = "BAD_CONFIG";
/// Code of an installer that does not write what is expected.
const BAD_INSTALLER: &str = "BAD_INSTALLER";
/// Code of a preflight command that refused the install.
const PREFLIGHT: &str = "PREFLIGHT";
/// Exit code of an installer whose cluster operators were not ready in time.
const OPERATORS_NOT_READY: i32 = 6;
/// Number of further times to wait for them.
const WAITS_MAX: u32 = 2;
/// Time limit of the first phase, which does not touch the cloud.
const PREPARE_LIMIT: Duration = Duration::from_secs(10 * 60);
/// Exit code of a preflight command that could not be run to its end.
const TEMPORARY: i32 = 75;
/// File with the password of the administrator.
const PASSWORD: &str = "auth/kubeadmin-password";

/// Why an install did not succeed.
enum InstallError {
    /// The attempt had to stop, or something other than the installer failed.
    Stopped(Failure),
    /// The installer failed in this step.
    Failed(Step, Box<Ended>),
}

impl From<Failure> for InstallError {
    fn from(failure: Failure) -> Self {
        Self::Stopped(failure)
    }
}

/// Creates a cluster.
pub(super) async fn create(attempt: &mut Attempt<'_>) -> Result<Done, Failure> {
    let config: ClusterConfig = attempt.job.args()?;
    let profile = attempt.profile(&config.profile)?;
    begin(attempt, &config).await?;
    if attempt.status.infra.is_some() {
        attempt.job.log("removing what an earlier attempt has created");
        destroy::remove_infra(attempt).await?;
    }
    let directory = attempt.directory("install")?;
    let started = BootInstant::now();
    match install(attempt, &profile, &config, &directory).await {
        Ok(ended) => {
            let took = Duration::from_nanos(BootInstant::now().as_nanos() - started.as_nanos());
            ready(attempt, &config, &directory, ended, took).await
        }
        Err(InstallError::Stopped(failure)) => Err(failure),
        Err(InstallError::Failed(step, ended)) => {
            let removes = attempt.status.infra.is_some() && !config.preserve_on_failure;
            let verdict = failed::classify(attempt, step, &ended, removes);
            fail(attempt, &config, &directory, &verdict).await
        }
    }
}

/// Begins a life of the cluster with the first attempt of its job.
async fn begin(attempt: &mut Attempt<'_>, config: &ClusterConfig) -> Result<(), Failure> {
    let job = attempt.job;
    if attempt.status.create_job == Some(job.id()) {
        return Ok(());
    }
    if attempt.status.preserved {
        let why = "what a failed create has left is kept for an investigation; destroy the cluster \
                   before you create it again";
        return Err(Failure::permanent(PRESERVED, why));
    }
    let created_at = job.job().submitted_at;
    let expires_at = config.ttl_ms.map(|ttl| created_at.plus(ttl));
    let update = attempt.change(|status| {
        *status = ClusterStatus {
            config: Some(config.clone()),
            create_job: Some(job.id()),
            created_at: Some(created_at),
            expires_at,
            // An earlier life may have left something.
            infra: status.infra.take(),
            ..ClusterStatus::default()
        };
    })?;
    let update = match expires_at {
        Some(Millis(at)) => {
            let at = std::time::UNIX_EPOCH + Duration::from_millis(at);
            update.timer_at(JANITOR_DESTROY, at)
        }
        None => update.remove_timer(JANITOR_DESTROY),
    };
    attempt.send(update.remove_timer(PURGE)).await
}

async fn install(
    attempt: &mut Attempt<'_>,
    profile: &Profile,
    config: &ClusterConfig,
    directory: &InstallDirectory,
) -> Result<Ended, InstallError> {
    let program = profile.installer(&config.version, &attempt.app.settings);
    preflight(attempt, profile, directory).await?;
    prepare(attempt, profile, config, directory, &program).await?;
    let until = BootInstant::now() + Duration::from_millis(attempt.app.settings.create_limit_ms);
    let create = ["create", "cluster"];
    let mut ended =
        installer::run(attempt, &program, directory, &create, until.remaining()).await?;
    let (mut waits, mut step) = (0, Step::Create);
    while ended.code == Some(OPERATORS_NOT_READY) && !ended.timed_out && waits < WAITS_MAX {
        (waits, step) = (waits + 1, Step::Complete);
        attempt.job.log("the cluster operators are not ready yet; waiting for them again");
        let wait = ["wait-for", "install-complete"];
        let again = installer::run(attempt, &program, directory, &wait, until.remaining()).await?;
        ended = Ended { infra_started: true, ..again };
    }
    if ended.code == Some(0) && !ended.timed_out {
        Ok(ended)
    } else {
        Err(InstallError::Failed(step, Box::new(ended)))
    }
}

/// Runs the check of the profile, if it has one. A check that cannot be made blocks nothing.
async fn preflight(
    attempt: &Attempt<'_>,
    profile: &Profile,
    directory: &InstallDirectory,
) -> Result<(), Failure> {
    if profile.preflight.is_empty() {
        return Ok(());
    }
    let settings = &attempt.app.settings;
    let command = tenure::worker::Command::new(&profile.preflight)
        .dir(directory.path())
        .pass_env(settings.pass_env.iter().cloned())
        .env(attempt.variables())
        .limit(Some(PREPARE_LIMIT))
        .stop_when(attempt.stop.subscribe())
        .traceparent(attempt.parent);
    let exit = command.execute(attempt.job).await?;
    attempt.check()?;
    match exit.into_result() {
        Ok(_) => Ok(()),
        Err(failure) if failure.code == format!("EXIT_{TEMPORARY}") => {
            attempt.job.log("the preflight command could not check everything; continuing");
            Ok(())
        }
        Err(failure) => Err(Failure::permanent(PREFLIGHT, failure.message)),
    }
}

/// The first phase: writes the files of the install, and the infra id into the status.
async fn prepare(
    attempt: &mut Attempt<'_>,
    profile: &Profile,
    config: &ClusterConfig,
    directory: &InstallDirectory,
    program: &str,
) -> Result<(), InstallError> {
    let secrets = profile.read_secrets().map_err(|why| Failure::transient(PREFLIGHT, why))?;
    if let Some(pull_secret) = &secrets.pull_secret {
        attempt.job.add_secret(pull_secret.expose());
    }
    let document = InstallConfig::new(config, profile, &secrets)
        .map_err(|why| Failure::permanent(BAD_CONFIG, why))?;
    let text = document.expose().to_string();
    directory.write("install-config.yaml", &text).map_err(|error| file_failure(&error))?;
    // The installer removes its input; the copy belongs to the snapshot.
    let copy = document.redacted().to_string();
    directory.write("install-config.copy.yaml", &copy).map_err(|error| file_failure(&error))?;
    for step in ["manifests", "ignition-configs"] {
        let args = ["create", step];
        let ended = installer::run(attempt, program, directory, &args, PREPARE_LIMIT).await?;
        if ended.code != Some(0) || ended.timed_out {
            return Err(InstallError::Failed(Step::Prepare, Box::new(ended)));
        }
    }
    let password = directory.read(PASSWORD).map_err(|error| file_failure(&error))?;
    password.iter().for_each(|password| attempt.job.add_secret(password.trim()));
    let infra = read_infra(attempt, config, directory)?;
    attempt.update(|status| status.infra = Some(infra)).await?;
    attempt.snapshot(directory, "prepared").await?;
    Ok(())
}

/// The part of `metadata.json` that is needed here.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(rename = "infraID")]
    infra_id: String,
    #[serde(rename = "clusterID")]
    cluster_id: String,
}

fn read_infra(
    attempt: &Attempt<'_>,
    config: &ClusterConfig,
    directory: &InstallDirectory,
) -> Result<Infra, Failure> {
    let bad = |why: String| {
        let why =
            format!("the installer wrote no usable {METADATA} with the ignition configs: {why}");
        Failure::permanent(BAD_INSTALLER, why)
    };
    let text = directory.read(METADATA).map_err(|error| file_failure(&error))?;
    let text = text.ok_or_else(|| bad("the file is missing".to_owned()))?;
    let metadata: Metadata = serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
    let scrubbed = artifacts::redact::metadata(text.as_bytes()).unwrap_or_default();
    let document: Value =
        serde_json::from_slice(&scrubbed).map_err(|error| bad(error.to_string()))?;
    if metadata.infra_id.is_empty() {
        return Err(bad("the infraID is empty".to_owned()));
    }
    Ok(Infra {
        infra_id: metadata.infra_id,
        cluster_id: metadata.cluster_id,
        region: config.region.clone(),
        token: attempt.job.token(),
        metadata: without_nulls(document),
    })
}

/// Ends a successful attempt.
async fn ready(
    attempt: &mut Attempt<'_>,
    config: &ClusterConfig,
    directory: &InstallDirectory,
    ended: Ended,
    took: Duration,
) -> Result<Done, Failure> {
    // The first snapshot has the credentials, too; this one adds the log.
    if let Err(failure) = attempt.snapshot(directory, "installed").await {
        attempt.check()?;
        attempt.job.log(&format!("the snapshot of the finished install is missing: {failure}"));
    }
    let outputs = ended.outputs.unwrap_or_else(|| {
        let domain = format!("{}.{}", config.name, config.base_domain);
        let console_url = format!("https://console-openshift-console.apps.{domain}");
        Outputs { api_url: format!("https://api.{domain}:6443"), console_url: Some(console_url) }
    });
    let result = serde_json::json!({ "outputs": outputs });
    let update = attempt.change(|status| {
        status.outputs = Some(outputs);
        status.workers = Some(config.workers);
        status.install_ms = u64::try_from(took.as_millis()).ok();
        status.failures = None;
        status.last_error = None;
    })?;
    Ok(Done::with(&result)?.update(update))
}

/// Ends a failed attempt: removes what it has created, unless the cluster is to be kept.
async fn fail(
    attempt: &mut Attempt<'_>,
    config: &ClusterConfig,
    directory: &InstallDirectory,
    verdict: &Verdict,
) -> Result<Done, Failure> {
    attempt.job.log(&verdict.line());
    let update = verdict.record(attempt)?;
    attempt.send(update).await?;
    if attempt.status.infra.is_none() {
        return Err(verdict.failure());
    }
    if let Err(failure) = attempt.snapshot(directory, "failed").await {
        attempt.check()?;
        attempt.job.log(&format!("the snapshot of the failed install is missing: {failure}"));
    }
    if verdict.is_final() && config.preserve_on_failure {
        attempt.job.log("what the install has left is kept: preserve_on_failure is set");
        let update = attempt.change(|status| status.preserved = true)?;
        return Err(verdict.failure().update(update.remove_timer(JANITOR_DESTROY)));
    }
    if let Err(failure) = destroy::remove_infra(attempt).await {
        attempt.check()?;
        // The infra id stays in the status: the next attempt, a destroy or the time to live
        // removes the rest.
        attempt.job.log(&format!("cannot remove what the install has left: {failure}"));
    }
    Err(verdict.failure())
}

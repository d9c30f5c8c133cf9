//! `tenure build report`

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tenure::clock::{BootInstant, sleep_until};
use tenure_cli_kit::text::parse_duration;
use tenure_cli_kit::{CliContext, Done};

use super::summary::{self, Files};
use super::{parse_build, stopped};
use crate::node::api::{BuildApi, SERVER_TIMEOUT};
use crate::node::end::Stopped;
use crate::node::setup_failed;
use crate::wire::{BuildInfo, MasterStatus};

/// Interval at which the build is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Show the results of a build, or wait for them
///
/// With --wait it does not take part in the build: it waits until every test has its result, and
/// ends with 40 if no node leads, 45 if tests are left and no node works on them.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure build report 4711
  tenure build report 4711 --wait 30m --junit junit.xml
  tenure build report 4711 -o json | jq '.failures[].test'")]
pub(super) struct Report {
    /// Id of the build
    #[arg(value_parser = parse_build)]
    build: String,
    /// Maximum time to wait for the results
    #[arg(long, value_name = "DUR", value_parser = parse_duration)]
    wait: Option<Duration>,
    /// Write the results as JUnit XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Write the failed tests, one per line
    #[arg(long, value_name = "FILE")]
    failures: Option<PathBuf>,
}

impl Report {
    pub(super) async fn run(&self, cx: &CliContext) -> Done {
        cx.server.one_tenant()?;
        let api = BuildApi::new(cx.server.transport()?, &self.build, SERVER_TIMEOUT);
        if let Some(wait) = self.wait
            && let Err(why) = self.wait(&api, wait).await
        {
            return Ok(stopped(&why));
        }
        let files = Files { junit: self.junit.as_deref(), failures: self.failures.as_deref() };
        summary::print(&api, cx.output, &files).await
    }

    /// Waits until every test has its final result.
    async fn wait(&self, api: &BuildApi, wait: Duration) -> Result<(), Stopped> {
        let deadline = BootInstant::now() + wait;
        let mut alone = Alone::default();
        loop {
            let build = match api.show().await {
                Ok(build) => Some(build),
                // The nodes may not have started yet.
                Err(tenure::Error::NotFound(_)) => None,
                Err(error) => return Err(Stopped::Application(error.to_string())),
            };
            if let Some(build) = &build {
                match build.master_status {
                    MasterStatus::Finished => return Ok(()),
                    MasterStatus::Failed => return Err(setup_failed(build)),
                    _ => {}
                }
                if let Some(stop) = &build.stopped {
                    return Err(Stopped::TooManyFailures(stop.message.clone()));
                }
                alone.check(build)?;
            }
            if deadline.has_passed() {
                let id = &self.build;
                return Err(match build {
                    Some(_) => {
                        Stopped::TimedOut(format!("build {id} is not finished after {wait:?}"))
                    }
                    None => Stopped::NoLeader(format!("no node joined build {id} in {wait:?}")),
                });
            }
            sleep_until((BootInstant::now() + POLL_INTERVAL).min(deadline)).await;
        }
    }
}

/// Since when no node works on a build.
#[derive(Default)]
struct Alone(Option<BootInstant>);

impl Alone {
    /// Fails if no node has worked on the build for too long.
    fn check(&mut self, build: &BuildInfo) -> Result<(), Stopped> {
        if !build.nodes.is_empty() {
            self.0 = None;
            return Ok(());
        }
        let since = *self.0.get_or_insert_with(BootInstant::now);
        let (id, rules) = (&build.build, &build.rules);
        let is_published = build.total.is_some();
        let wait = if is_published { rules.stale_ms } else { rules.wait_ms };
        if !(since + Duration::from_millis(wait)).has_passed() {
            return Ok(());
        }
        if is_published {
            let left = build.remaining;
            let why = format!("{left} tests of build {id} are left, and no node works on it");
            return Err(Stopped::WorkersDied(why));
        }
        Err(Stopped::NoLeader(format!("no node leads build {id}")))
    }
}

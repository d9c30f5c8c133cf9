//! The scenario of `tenure demo pipelines`: duplicates, two tenants, a cancelled run, a failing
//! step.
//!
//! It uses the HTTP API only, as any client would, and checks every answer: a demo that shows
//! something else than it says fails.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use async_trait::async_trait;
use indicatif::MultiProgress;
use tenure::http::HttpTransport;
use tenure_app::{Demo, DemoServer};
use tenure_cli_kit::listing::fetch;
use tenure_cli_kit::text::{format_duration, print_line, query, sanitize, table};
use tenure_cli_kit::{bars, color};
use tenure_core::JobId;
use tenure_core::session::ALL_TENANTS;
use tenure_wire::parse_instant;

use crate::cli::display::{Display, RunSnapshot};
use crate::cli::get_run;
use crate::cli::runs::note;
use crate::wire::{RunDetail, RunInfo, RunStatus, StepStatus, TriggerRequest, TriggerResponse};

/// Maximum duration of the scenario, which takes about 15 seconds.
const SCENARIO_MAX: Duration = Duration::from_secs(120);
/// Interval between two polls of a run. The server answers earlier when it ends.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Progress at which the report is cancelled.
const CANCEL_AT_PERCENT: u8 = 8;
/// Maximum number of runs in the summary.
const RUNS_MAX: usize = 20;

/// The files of the private directory; both tenants have the pipeline `billing`.
const FILES: &[(&str, &str)] = &[
    ("tenure.toml", include_str!("../demo/tenure.toml")),
    ("pipelines/acme/billing.toml", BILLING),
    ("pipelines/globex/billing.toml", BILLING),
    ("pipelines/acme/report.toml", include_str!("../demo/report.toml")),
    ("pipelines/acme/import.toml", include_str!("../demo/import.toml")),
    ("pipelines/acme/fetch.sh", include_str!("../demo/fetch.sh")),
];
const BILLING: &str = include_str!("../demo/billing.toml");

/// The scenario.
pub(crate) struct Scenario;

#[async_trait(?Send)]
impl Demo for Scenario {
    fn summary(&self) -> &'static str {
        "one run at a time per tenant and pipeline; a duplicate gets the id of the active run"
    }

    fn files(&self) -> &'static [(&'static str, &'static str)] {
        FILES
    }

    async fn run(&self, server: &DemoServer) -> anyhow::Result<()> {
        let tenant = |name| Ok::<_, tenure::Error>(Tenant { name, api: server.transport(name)? });
        let (acme, globex) = (tenant("acme")?, tenant("globex")?);
        let bars = MultiProgress::with_draw_target(bars::draw_target());
        let scenario = ScenarioRun { acme, globex, bars };
        let ended = tokio::time::timeout(SCENARIO_MAX, scenario.run()).await;
        ended.with_context(|| format!("the scenario takes longer than {SCENARIO_MAX:?}"))??;
        print_summary(&server.transport(ALL_TENANTS)?).await
    }

    fn next(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("tenure pipeline ls --tenant '*'", "what is declared"),
            ("tenure pipeline runs --tenant '*'", "every run, and how it ended"),
            ("tenure pipeline run billing --tenant acme -f", "a run with its steps"),
            ("tenure resource history pipeline/billing --tenant acme", "its locks and attempts"),
            ("tenure verify", "never two holders"),
        ]
    }
}

/// A tenant, with a transport that acts for it.
struct Tenant {
    name: &'static str,
    api: HttpTransport,
}

/// What the parts of the scenario share.
struct ScenarioRun {
    acme: Tenant,
    globex: Tenant,
    /// The live bars; hidden without a terminal.
    bars: MultiProgress,
}

/// A run that was triggered.
struct Triggered {
    id: JobId,
    pipeline: String,
}

impl ScenarioRun {
    async fn run(&self) -> anyhow::Result<()> {
        self.trigger_twice().await?;
        self.cancel_a_run().await?;
        self.fail_a_step().await
    }

    /// A duplicate attaches to the active run; another tenant has its own.
    async fn trigger_twice(&self) -> anyhow::Result<()> {
        self.say("\n1. ann triggers billing of acme, a pipeline of three steps")?;
        let ann = self.trigger(&self.acme, "billing", "ann").await?;
        let mut first = self.follow(&self.acme, &ann);
        first.until(|run| run.steps.iter().any(|s| s.status == StepStatus::Running)).await?;
        self.say("\n2. bob triggers it while it runs: no second run, he gets the id of the first")?;
        let bob = self.trigger(&self.acme, "billing", "bob").await?;
        let (expected, got) = (ann.id, bob.id);
        ensure!(got == expected, "the duplicate got {got}, expected the active run {expected}");
        self.say("\n3. globex has a billing of its own, which runs at the same time")?;
        let eve = self.trigger(&self.globex, "billing", "eve").await?;
        ensure!(eve.id != expected, "the tenants share the run {expected}");
        let mut second = self.follow(&self.globex, &eve);
        let (first, second) = tokio::try_join!(first.end(), second.end())?;
        self.expect_end(&first.run, RunStatus::Complete)?;
        self.expect_end(&second.run, RunStatus::Complete)?;
        ensure!(first.run.duplicates == 1, "{} duplicates, expected 1", first.run.duplicates);
        ensure!(overlap(&second.run, &first.run), "the tenants waited for each other");
        Ok(())
    }

    /// A cancelled run stops in the middle of its step.
    async fn cancel_a_run(&self) -> anyhow::Result<()> {
        self.say("\n4. ann triggers report, and cancels it while it runs")?;
        let report = self.trigger(&self.acme, "report", "ann").await?;
        let (id, mut run) = (report.id, self.follow(&self.acme, &report));
        let percent = |run: &RunDetail| run.run.progress.as_ref().map_or(0, |p| p.percent);
        run.until(|run| percent(run) >= CANCEL_AT_PERCENT).await?;
        self.say(&format!("$ tenure pipeline cancel {id} --tenant acme --reason 'wrong month'"))?;
        let reason = Some("wrong month".to_owned());
        let path = query(&format!("/pipelines/runs/{id}"), &[("reason", reason)]);
        let _: RunInfo = self.acme.api.delete(&path).await?;
        self.expect_end(&run.end().await?.run, RunStatus::Cancelled)
    }

    /// A transient failure is retried; a permanent one ends the run.
    async fn fail_a_step(&self) -> anyhow::Result<()> {
        self.say("\n5. import fails: fetch is retried and succeeds, load cannot")?;
        let import = self.trigger(&self.acme, "import", "bob").await?;
        let detail = self.follow(&self.acme, &import).end().await?;
        self.expect_end(&detail.run, RunStatus::Failed)?;
        let code = detail.run.error.as_ref().map(|error| error.code.as_str());
        ensure!(code == Some("NO_SPACE"), "the run failed with {code:?}, expected NO_SPACE");
        let tries = detail.steps.first().map(|fetch| fetch.tries);
        ensure!(tries == Some(2), "fetch had {tries:?} tries, expected 2");
        Ok(())
    }

    /// Triggers a pipeline and prints the command line that does the same.
    async fn trigger(
        &self,
        tenant: &Tenant,
        pipeline: &str,
        by: &str,
    ) -> anyhow::Result<Triggered> {
        let name = tenant.name;
        self.say(&format!("$ tenure pipeline run {pipeline} --tenant {name} --by {by}"))?;
        let body = TriggerRequest { trigger_by: Some(by.to_owned()), ..TriggerRequest::default() };
        let (path, key) =
            (format!("/pipelines/run/{pipeline}"), tenure_store::random::request_id());
        let key = Some(key.to_string());
        let answer: TriggerResponse = tenant.api.post(&path, key, &body, Duration::ZERO).await?;
        let id = answer.pipeline_logging_id.context("no pipeline of the demo has a precheck")?;
        self.say(&format!("{} {id}: {}", answer.status.as_str(), sanitize(&answer.message)))?;
        Ok(Triggered { id, pipeline: answer.pipeline_id })
    }

    fn follow<'a>(&self, tenant: &'a Tenant, run: &Triggered) -> FollowedRun<'a> {
        let title = format!("{}/{}", tenant.name, run.pipeline);
        let display = Display::in_group(&self.bars, &title);
        FollowedRun { api: &tenant.api, id: run.id, display }
    }

    /// Prints how a run ended.
    fn expect_end(&self, run: &RunInfo, expected: RunStatus) -> anyhow::Result<()> {
        let (name, status, expected) = (&run.pipeline_id, run.status.as_str(), expected.as_str());
        ensure!(status == expected, "{name} ended as {status}, expected {expected}: {}", note(run));
        let took = run.duration_ms.map(format_duration).unwrap_or_default();
        self.say(&format!("{}/{name} is {status} after {took}", run.tenant_id))
    }

    /// Prints a line above the bars.
    fn say(&self, line: &str) -> anyhow::Result<()> {
        self.bars.suspend(|| print_line(line))
    }
}

/// A run that is displayed as it progresses.
struct FollowedRun<'a> {
    api: &'a HttpTransport,
    id: JobId,
    display: Display,
}

impl FollowedRun<'_> {
    /// Waits until the run is as described, or has ended.
    async fn until(&mut self, reached: impl Fn(&RunDetail) -> bool) -> anyhow::Result<RunDetail> {
        loop {
            let detail = get_run(self.api, self.id, POLL_INTERVAL).await?;
            if detail.run.status.is_finished() {
                self.display.finish(&detail);
                return Ok(detail);
            }
            self.display.update(&RunSnapshot { detail: &detail, why: None });
            if reached(&detail) {
                return Ok(detail);
            }
        }
    }

    async fn end(&mut self) -> anyhow::Result<RunDetail> {
        self.until(|_| false).await
    }
}

/// Returns whether `later` started before `earlier` ended, by the times of the server.
fn overlap(later: &RunInfo, earlier: &RunInfo) -> bool {
    let at = |at: &Option<String>| at.as_deref().and_then(|at| parse_instant(at).ok());
    at(&later.started_at).zip(at(&earlier.ended_at)).is_some_and(|(start, end)| start < end)
}

/// Prints all runs, oldest first.
async fn print_summary(api: &HttpTransport) -> anyhow::Result<()> {
    let mut runs = fetch::<RunInfo>(api, "/pipelines/runs", &[], RUNS_MAX).await?.items;
    runs.reverse();
    let row = |run: &RunInfo| {
        [
            sanitize(&run.tenant_id),
            sanitize(&run.pipeline_id),
            run.pipeline_logging_id.to_string(),
            color::state(run.status.as_str()),
            run.duration_ms.map(format_duration).unwrap_or_default(),
            sanitize(&run.trigger_by),
            run.duplicates.to_string(),
            note(run),
        ]
    };
    let header = ["TENANT", "PIPELINE", "RUN", "STATUS", "TOOK", "BY", "DUPLICATES", "NOTE"];
    print_line("")?;
    print_line(&table(header, runs.iter().map(row)))?;
    print_line("")
}

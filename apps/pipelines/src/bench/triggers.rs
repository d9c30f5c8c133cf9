//! Triggers over HTTP: duplicates during a run, and the time until a run starts.
//!
//! Both loads check the responses and fail unless there was exactly one run at a time, since
//! figures of a lock that does not lock would be meaningless.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tenure_core::JobId;
use tokio::task::JoinSet;

use super::runs::RunRecorder;
use tenure_bench::clock::now;
use tenure_bench::http::Connection;
use tenure_bench::load::{self, GRACE, Pairs, Sample, Tally, Window};

/// Body of a trigger; the date is a parameter without a default.
const BODY: &[u8] = br#"{"trigger_by":"bench","date":"2026-01-31"}"#;

/// Server that receives triggers.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) addr: SocketAddr,
    pub(crate) bearer: String,
    pub(crate) tenant: String,
    pub(crate) runs: Arc<RunRecorder>,
}

/// Result of a load.
pub(crate) struct Measured {
    pub(crate) sample: Sample,
    /// Number of all triggers, including those outside of the window.
    pub(crate) triggers: u64,
    /// Number of runs.
    pub(crate) runs: u64,
}

/// A caller with its own connection.
struct Caller {
    connection: Connection,
    path: String,
    bearer: String,
}

impl Caller {
    async fn open(target: &Target, pipeline: &str) -> Result<Self> {
        let connection = Connection::open(target.addr).await?;
        let path = format!("/pipelines/run/{pipeline}?tenant={}", target.tenant);
        Ok(Self { connection, path, bearer: target.bearer.clone() })
    }

    async fn trigger(&mut self) -> Result<TriggerResult> {
        let headers = [("authorization", self.bearer.as_str())];
        let (status, response) = self.connection.post(&self.path, &headers, BODY).await?;
        let text = || String::from_utf8_lossy(response);
        ensure!(status == 200, "a trigger returned status {status}: {}", text());
        TriggerResult::parse(response)
    }
}

/// Result of a trigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TriggerResult {
    id: JobId,
    /// Whether this trigger created the run.
    pending: bool,
}

impl TriggerResult {
    /// Extracts the fields without parsing all of the response, to keep the load generator cheap.
    fn parse(response: &[u8]) -> Result<Self> {
        let text = std::str::from_utf8(response)?;
        let field = |name: &str| {
            let rest = text.split_once(name).with_context(|| format!("find {name} in {text}"))?.1;
            rest.split('"').next().with_context(|| format!("read {name} of {text}"))
        };
        let id = field(r#""pipeline_logging_id":""#)?.parse()?;
        match field(r#""status":""#)? {
            "PENDING" => Ok(Self { id, pending: true }),
            "RUNNING" => Ok(Self { id, pending: false }),
            other => anyhow::bail!("a trigger returned the run status {other}"),
        }
    }
}

/// Results of the triggers of one pipeline during one run.
#[derive(Default)]
struct TriggerResults {
    id: std::sync::OnceLock<JobId>,
    triggers: AtomicU64,
    pending: AtomicU64,
    /// Number of results with another run than the first one.
    others: AtomicU64,
}

impl TriggerResults {
    fn record(&self, result: TriggerResult) {
        self.triggers.fetch_add(1, Ordering::Relaxed);
        if result.pending {
            self.pending.fetch_add(1, Ordering::Relaxed);
        }
        if *self.id.get_or_init(|| result.id) != result.id {
            self.others.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the run. Fails unless there was exactly one, created by exactly one trigger.
    fn only_run(&self) -> Result<JobId> {
        let (pending, others) =
            (self.pending.load(Ordering::SeqCst), self.others.load(Ordering::SeqCst));
        ensure!(others == 0, "{others} triggers got another run than the active one");
        ensure!(pending == 1, "{pending} triggers got PENDING for one run");
        self.id.get().copied().context("no trigger was sent")
    }
}

struct Duplicate {
    caller: Caller,
    results: Arc<TriggerResults>,
}

impl Pairs for Duplicate {
    async fn pair(&mut self, _: u64) -> Result<()> {
        self.results.record(self.caller.trigger().await?);
        Ok(())
    }
}

/// Triggers one idle pipeline, whose run is held open until the measurement ends. Before that,
/// `check` may return the number of attached triggers in the store, which is verified.
pub(crate) async fn duplicates(
    target: &Target,
    pipeline: &str,
    (in_flight, budget): (usize, Duration),
    check: impl AsyncFn(JobId) -> Result<Option<u32>>,
) -> Result<Measured> {
    let runs = &target.runs;
    runs.hold(pipeline)?;
    let results = Arc::new(TriggerResults::default());
    let open = async |_| {
        let caller = Caller::open(target, pipeline).await?;
        Ok(Duplicate { caller, results: Arc::clone(&results) })
    };
    let sample = load::pairs(in_flight, budget, open).await?;
    let id = results.only_run()?;
    let triggers = results.triggers.load(Ordering::SeqCst);
    if let Some(stored) = check(id).await? {
        let attached = triggers - 1;
        ensure!(u64::from(stored) == attached, "{attached} were attached, {stored} are stored");
    }
    let ended = async {
        runs.wait_for_start(pipeline, id).await?;
        runs.release(pipeline)?;
        runs.wait_for_end(pipeline, id).await
    };
    tokio::time::timeout(GRACE, ended).await.context("end the run")??;
    let starts = runs.starts(pipeline)?;
    ensure!(starts == 1, "{starts} runs started, expected one");
    Ok(Measured { sample, triggers, runs: starts })
}

/// Triggers idle pipelines repeatedly, each by its own caller: when a run has ended, the next one
/// is triggered. Measures the time from a trigger until the handler of its run is called.
pub(crate) async fn starts(
    target: &Target,
    pipelines: &[String],
    budget: Duration,
) -> Result<Measured> {
    let mut callers = Vec::with_capacity(pipelines.len());
    let mut before = 0;
    for pipeline in pipelines {
        before += target.runs.starts(pipeline)?;
        callers.push((Caller::open(target, pipeline).await?, pipeline.clone()));
    }
    let window = Window::starting(now(), budget);
    let mut running = JoinSet::new();
    for (caller, pipeline) in callers {
        running.spawn(trigger_repeatedly(caller, Arc::clone(&target.runs), pipeline, window));
    }
    let all = async {
        let (mut total, mut triggers) = (Tally::new()?, 0);
        while let Some(joined) = running.join_next().await {
            let (tally, sent) = joined.context("join a caller")??;
            total.add(&tally)?;
            triggers += sent;
        }
        anyhow::Ok((total.sample(window), triggers))
    };
    let limit = budget + GRACE;
    let (sample, triggers) = tokio::time::timeout(limit, all)
        .await
        .with_context(|| format!("start and end all runs within {limit:?}"))??;
    let starts =
        pipelines.iter().map(|pipeline| target.runs.starts(pipeline)).sum::<Result<u64>>()?;
    let runs = starts - before;
    ensure!(runs == triggers, "{triggers} triggers of idle pipelines started {runs} runs");
    Ok(Measured { sample, triggers, runs })
}

async fn trigger_repeatedly(
    mut caller: Caller,
    runs: Arc<RunRecorder>,
    pipeline: String,
    window: Window,
) -> Result<(Tally, u64)> {
    let (mut tally, mut triggers) = (Tally::new()?, 0);
    loop {
        let sent = now();
        if sent >= window.until {
            return Ok((tally, triggers));
        }
        let TriggerResult { id, pending } = caller.trigger().await?;
        ensure!(pending, "{pipeline} was idle, but its trigger got the existing run {id}");
        triggers += 1;
        tally.record(sent, runs.wait_for_start(&pipeline, id).await?, window);
        runs.wait_for_end(&pipeline, id).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: TriggerResult = TriggerResult { id: JobId(1), pending: true };
    const ATTACHED: TriggerResult = TriggerResult { id: JobId(1), pending: false };

    fn check(results: &[TriggerResult]) -> Result<JobId> {
        let recorded = TriggerResults::default();
        results.iter().for_each(|result| recorded.record(*result));
        recorded.only_run()
    }

    #[test]
    fn response_is_parsed_regardless_of_field_order() {
        let id = "000000000000000000000000000000ff";
        for status in ["PENDING", "RUNNING"] {
            let text = format!(
                r#"{{"pipeline_logging_id":"{id}","pipeline_id":"x","status":"{status}"}}"#
            );
            let result = TriggerResult::parse(text.as_bytes()).unwrap();
            assert_eq!(result, TriggerResult { id: JobId(255), pending: status == "PENDING" });
        }
        for text in ["", "{}", r#"{"pipeline_logging_id":"x","status":"PENDING"}"#] {
            assert!(TriggerResult::parse(text.as_bytes()).is_err(), "{text}");
        }
        let finished = format!(r#"{{"pipeline_logging_id":"{id}","status":"COMPLETE"}}"#);
        let error = TriggerResult::parse(finished.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("COMPLETE"), "{error}");
    }

    #[test]
    fn one_run_created_by_one_trigger_is_accepted() {
        assert_eq!(check(&[ATTACHED, ONE, ATTACHED]).unwrap(), JobId(1));
    }

    #[test]
    fn several_runs_or_creators_are_rejected() {
        let other = TriggerResult { id: JobId(2), pending: false };
        for (results, why) in [
            (&[ONE, other][..], "1 triggers got another run"),
            (&[ONE, ONE], "2 triggers got PENDING"),
            (&[ATTACHED], "0 triggers got PENDING"),
            (&[], "0 triggers got PENDING"),
        ] {
            let error = check(results).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}

//! Triggers over HTTP: duplicates while a run goes on, and the time until a run begins.
//!
//! Both loads count what they were answered and fail unless there was exactly one run where one was
//! due: a figure of a lock that does not lock would be worth nothing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tenure_core::JobId;
use tokio::task::JoinSet;

use super::runs::Runs;
use tenure_bench::http::Connection;
use tenure_bench::load::{self, GRACE, Pairs, Sample, Tally, Window, now};

/// What a trigger says; the date is a parameter without a default.
const BODY: &[u8] = br#"{"trigger_by":"bench","date":"2026-01-31"}"#;

/// Where triggers go.
#[derive(Clone)]
pub(crate) struct Site {
    pub(crate) addr: SocketAddr,
    pub(crate) bearer: String,
    pub(crate) tenant: String,
    pub(crate) runs: Arc<Runs>,
}

/// What a load measured.
pub(crate) struct Measured {
    pub(crate) sample: Sample,
    /// All triggers, counted or not.
    pub(crate) triggers: u64,
    /// The runs that they got.
    pub(crate) runs: u64,
}

/// One caller with a connection of its own.
struct Caller {
    connection: Connection,
    path: String,
    bearer: String,
}

impl Caller {
    async fn open(site: &Site, pipeline: &str) -> Result<Self> {
        let connection = Connection::open(site.addr).await?;
        let path = format!("/pipelines/run/{pipeline}?tenant={}", site.tenant);
        Ok(Self { connection, path, bearer: site.bearer.clone() })
    }

    async fn trigger(&mut self) -> Result<Answer> {
        let headers = [("authorization", self.bearer.as_str())];
        let (status, answer) = self.connection.post(&self.path, &headers, BODY).await?;
        let text = || String::from_utf8_lossy(answer);
        ensure!(status == 200, "a trigger was answered with {status}: {}", text());
        Answer::read(answer)
    }
}

/// What a trigger was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Answer {
    id: JobId,
    /// Whether this trigger made the run.
    pending: bool,
}

impl Answer {
    /// Found without reading all of it: the generator should cost little.
    fn read(answer: &[u8]) -> Result<Self> {
        let text = std::str::from_utf8(answer)?;
        let field = |name: &str| {
            let rest = text.split_once(name).with_context(|| format!("find {name} in {text}"))?.1;
            rest.split('"').next().with_context(|| format!("read {name} of {text}"))
        };
        let id = field(r#""pipeline_logging_id":""#)?.parse()?;
        match field(r#""status":""#)? {
            "PENDING" => Ok(Self { id, pending: true }),
            "RUNNING" => Ok(Self { id, pending: false }),
            other => anyhow::bail!("a trigger was answered with the status {other}"),
        }
    }
}

/// What the callers of one pipeline were answered while one run went on.
#[derive(Default)]
struct Seen {
    id: std::sync::OnceLock<JobId>,
    triggers: AtomicU64,
    pending: AtomicU64,
    /// Answers that name another run than the first one did.
    others: AtomicU64,
}

impl Seen {
    fn note(&self, answer: Answer) {
        self.triggers.fetch_add(1, Ordering::Relaxed);
        if answer.pending {
            self.pending.fetch_add(1, Ordering::Relaxed);
        }
        if *self.id.get_or_init(|| answer.id) != answer.id {
            self.others.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The one run; fails if there was not exactly one, made by exactly one trigger.
    fn only(&self) -> Result<JobId> {
        let (pending, others) =
            (self.pending.load(Ordering::SeqCst), self.others.load(Ordering::SeqCst));
        ensure!(others == 0, "{others} triggers got another run than the one that went on");
        ensure!(pending == 1, "{pending} triggers were told PENDING for one run");
        self.id.get().copied().context("nobody was answered")
    }
}

struct Duplicate {
    caller: Caller,
    seen: Arc<Seen>,
}

impl Pairs for Duplicate {
    async fn pair(&mut self, _: u64) -> Result<()> {
        self.seen.note(self.caller.trigger().await?);
        Ok(())
    }
}

/// Triggers one pipeline that is idle at first, and whose one run goes on until all is measured.
/// `check` is asked, before the run ends, how many triggers it knows of beside the first.
pub(crate) async fn duplicates(
    site: &Site,
    pipeline: &str,
    (in_flight, budget): (usize, Duration),
    check: impl AsyncFn(JobId) -> Result<Option<u32>>,
) -> Result<Measured> {
    let runs = &site.runs;
    runs.hold(pipeline)?;
    let seen = Arc::new(Seen::default());
    let open = async |_| {
        let caller = Caller::open(site, pipeline).await?;
        Ok(Duplicate { caller, seen: Arc::clone(&seen) })
    };
    let sample = load::pairs(in_flight, budget, open).await?;
    let id = seen.only()?;
    let triggers = seen.triggers.load(Ordering::SeqCst);
    if let Some(known) = check(id).await? {
        let attached = triggers - 1;
        ensure!(u64::from(known) == attached, "{attached} were attached, {known} are kept");
    }
    let ended = async {
        runs.began(pipeline, id).await?;
        runs.let_go(pipeline)?;
        runs.until_over(pipeline, id).await
    };
    tokio::time::timeout(GRACE, ended).await.context("end the run")??;
    let begun = runs.begun(pipeline)?;
    ensure!(begun == 1, "{begun} runs began where one was due");
    Ok(Measured { sample, triggers, runs: begun })
}

/// Triggers idle pipelines, each by a caller of its own, again and again: when a run has begun and
/// is over, the next is triggered. What is measured is the time from a trigger until the handler of
/// its run is called.
pub(crate) async fn starts(
    site: &Site,
    pipelines: &[String],
    budget: Duration,
) -> Result<Measured> {
    let mut callers = Vec::with_capacity(pipelines.len());
    let mut before = 0;
    for pipeline in pipelines {
        before += site.runs.begun(pipeline)?;
        callers.push((Caller::open(site, pipeline).await?, pipeline.clone()));
    }
    let window = Window::starting(now(), budget);
    let mut running = JoinSet::new();
    for (caller, pipeline) in callers {
        running.spawn(start_all(caller, Arc::clone(&site.runs), pipeline, window));
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
        .with_context(|| format!("begin and end all runs within {limit:?}"))??;
    let begun = pipelines.iter().map(|pipeline| site.runs.begun(pipeline)).sum::<Result<u64>>()?;
    let runs = begun - before;
    ensure!(runs == triggers, "{triggers} triggers of idle pipelines began {runs} runs");
    Ok(Measured { sample, triggers, runs })
}

async fn start_all(
    mut caller: Caller,
    runs: Arc<Runs>,
    pipeline: String,
    window: Window,
) -> Result<(Tally, u64)> {
    let (mut tally, mut triggers) = (Tally::new()?, 0);
    loop {
        let sent = now();
        if sent >= window.until {
            return Ok((tally, triggers));
        }
        let Answer { id, pending } = caller.trigger().await?;
        ensure!(pending, "{pipeline} was idle, and its trigger got the run {id} that was there");
        triggers += 1;
        tally.record(sent, runs.began(&pipeline, id).await?, window);
        runs.until_over(&pipeline, id).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Answer = Answer { id: JobId(1), pending: true };
    const ATTACHED: Answer = Answer { id: JobId(1), pending: false };

    fn seen(answers: &[Answer]) -> Result<JobId> {
        let seen = Seen::default();
        answers.iter().for_each(|answer| seen.note(*answer));
        seen.only()
    }

    #[test]
    fn an_answer_is_read_in_whatever_place_it_stands() {
        let id = "000000000000000000000000000000ff";
        for status in ["PENDING", "RUNNING"] {
            let text = format!(
                r#"{{"pipeline_logging_id":"{id}","pipeline_id":"x","status":"{status}"}}"#
            );
            let answer = Answer::read(text.as_bytes()).unwrap();
            assert_eq!(answer, Answer { id: JobId(255), pending: status == "PENDING" });
        }
        for text in ["", "{}", r#"{"pipeline_logging_id":"x","status":"PENDING"}"#] {
            assert!(Answer::read(text.as_bytes()).is_err(), "{text}");
        }
        let over = format!(r#"{{"pipeline_logging_id":"{id}","status":"COMPLETE"}}"#);
        let error = Answer::read(over.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("COMPLETE"), "{error}");
    }

    #[test]
    fn one_run_made_by_one_trigger_is_what_is_due() {
        assert_eq!(seen(&[ATTACHED, ONE, ATTACHED]).unwrap(), JobId(1));
    }

    #[test]
    fn two_runs_two_makers_and_none_are_told() {
        let other = Answer { id: JobId(2), pending: false };
        for (answers, why) in [
            (&[ONE, other][..], "1 triggers got another run"),
            (&[ONE, ONE], "2 triggers were told PENDING"),
            (&[ATTACHED], "0 triggers were told PENDING"),
            (&[], "0 triggers were told PENDING"),
        ] {
            let error = seen(answers).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}

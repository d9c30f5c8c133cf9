//! A node of a build: joins, leads if it is elected, runs tests until none is left.
//!
//! A node decides nothing about the queue. What it holds depends on its session: when that is lost,
//! its command is killed, and it joins the build again like a new node.

pub(crate) mod api;
pub(crate) mod ci;
pub(crate) mod command;
pub(crate) mod end;
mod lead;
mod progress;
mod work;

use std::collections::HashSet;
use std::fmt::Debug;
use std::mem::ManuallyDrop;
use std::time::Duration;

use tenure::clock::BootInstant;
use tenure::lease::LeaseState;
use tenure::{Client, Error, Session, SessionOptions, Tenure};
use tenure_cli_kit::message;
use tenure_core::retry::{WORKER_CLOSED, WORKER_TIMEOUT};
use tenure_core::{Code, ResourceKey, Token};
use tokio::sync::mpsc;

use crate::names::{BUILD, NODE, node_lock, resource_name};
use crate::order;
use crate::wire::{
    BuildInfo, BuildRules, BuildRulesRequest, JoinRequest, MasterStatus, RetryRequest, TestListInfo,
};
use api::BuildApi;
use command::TestCommand;
use end::{Interruption, Stopped};
pub(crate) use lead::{check_tests, parse_tests};
use progress::Progress;

/// Time that the server may hold back a request to join.
const JOIN_WAIT: Duration = Duration::from_secs(5);
/// Delay before a build is joined again, or a request to open a session is repeated.
const RETRY_DELAY: Duration = Duration::from_millis(300);

/// Where the tests come from.
#[derive(Clone, Debug)]
pub(crate) enum TestSource {
    /// A list that every node has.
    List(Vec<String>),
    /// A shell command that the leader runs; it prints one test per line.
    Collect(String),
}

/// Settings of a node.
pub(crate) struct NodeOptions {
    pub(crate) build: String,
    pub(crate) worker: String,
    pub(crate) tests: TestSource,
    pub(crate) rules: BuildRulesRequest,
    pub(crate) command: TestCommand,
    /// Number of tests that are reserved at once.
    pub(crate) batch: usize,
    pub(crate) max_consecutive_failures: Option<u32>,
    pub(crate) max_duration: Option<Duration>,
    pub(crate) known_flaky: HashSet<String>,
    /// Refuse to create the build.
    pub(crate) existing: bool,
    /// Build whose durations order the tests.
    pub(crate) timings_from: Option<String>,
    /// Time to wait for a server that does not answer.
    pub(crate) server_timeout: Duration,
}

/// A node.
pub(crate) struct Node {
    pub(crate) api: BuildApi,
    /// The API of the build whose durations order the tests.
    pub(crate) timings: Option<BuildApi>,
    pub(crate) client: Client,
    pub(crate) options: NodeOptions,
    /// Signals that stop the node.
    pub(crate) signals: mpsc::Receiver<i32>,
    progress: Progress,
    /// Time at which the node stops.
    stop_at: Option<BootInstant>,
    /// Number of failed tests since the last one that did not fail.
    consecutive_failures: u32,
    /// Whether a failed setup is to be started again.
    restart: bool,
}

impl Node {
    pub(crate) fn new(
        api: BuildApi,
        timings: Option<BuildApi>,
        client: Client,
        options: NodeOptions,
        signals: mpsc::Receiver<i32>,
    ) -> Self {
        let stop_at = options.max_duration.map(|max| BootInstant::now() + max);
        let progress = Progress::new(&options.build);
        let restart = options.existing;
        let consecutive_failures = 0;
        Self {
            api,
            timings,
            client,
            options,
            signals,
            progress,
            stop_at,
            consecutive_failures,
            restart,
        }
    }

    /// Takes part in the build until every test has its final result.
    pub(crate) async fn run(&mut self) -> Result<(), Stopped> {
        let build = self.create().await?;
        let is_finished = build.master_status == MasterStatus::Finished;
        let is_over = is_finished || build.stopped.is_some();
        if is_over && !self.retry_failures().await? && is_finished {
            message::say(&format!("build {} is finished already", self.options.build));
            return Ok(());
        }
        loop {
            match self.take_part(&build.rules).await {
                Ok(()) => return Ok(()),
                Err(Interruption::Stop(stopped)) => return Err(stopped),
                Err(Interruption::Lost(why)) => {
                    self.progress.clear();
                    message::warn(&format!("{why}; joining the build again"));
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
        }
    }

    /// Creates the build, or checks that it has the same tests.
    async fn create(&self) -> Result<BuildInfo, Stopped> {
        let body = JoinRequest { session: None, wait_ms: 0, ..self.join_request() };
        let answer = self.api.join(&body).await;
        let build = answer.map_err(|error| Stopped::Application(error.to_string()))?.build;
        let ignored = ignored_rules(&self.options.rules, &build.rules);
        if !ignored.is_empty() {
            let (id, rules) = (&self.options.build, ignored.join(", "));
            message::warn(&format!(
                "build {id} was created with other rules, which apply to all nodes: {rules}"
            ));
        }
        Ok(build)
    }

    /// Queues the failed tests of an earlier run of this node. A node that is retried under another
    /// name, as some CI systems do, queues all failed tests. Returns whether there are any.
    async fn retry_failures(&self) -> Result<bool, Stopped> {
        let own = self.retry(Some(&self.options.worker)).await?;
        let (tests, whose) = match own {
            0 if self.options.existing => (self.retry(None).await?, "all nodes"),
            own => (own, "this node"),
        };
        if tests > 0 {
            message::say(&format!("running {tests} failed tests of {whose} again"));
        }
        Ok(tests > 0)
    }

    async fn retry(&self, worker: Option<&str>) -> Result<usize, Stopped> {
        let body = RetryRequest { worker: worker.map(str::to_owned) };
        let answer = self.api.retry(&body).await;
        answer.map(|answer| answer.tests).map_err(|error| Stopped::Application(error.to_string()))
    }

    fn join_request(&self) -> JoinRequest {
        let tests = match &self.options.tests {
            TestSource::List(tests) => {
                Some(TestListInfo { total: tests.len(), digest: order::digest(tests) })
            }
            TestSource::Collect(_) => None,
        };
        JoinRequest {
            worker: self.options.worker.clone(),
            session: None,
            tests,
            rules: self.options.rules.clone(),
            existing: self.options.existing,
            restart: false,
            wait_ms: u64::try_from(JOIN_WAIT.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// Takes part with one session.
    async fn take_part(&mut self, rules: &BuildRules) -> Result<(), Interruption> {
        let session = self.open_session(rules).await?;
        let tenure = self.node_lock(&session).await?;
        // If it is unknown whether a command is dead, the session must expire, not be closed.
        let (session, tenure) = (ManuallyDrop::new(session), ManuallyDrop::new(tenure));
        let result = self.with_session(&session, &tenure).await;
        if !matches!(result, Err(Interruption::Stop(Stopped::Application(_))) if self.has_unknown())
        {
            drop(ManuallyDrop::into_inner(tenure));
            ManuallyDrop::into_inner(session).close().await;
        }
        result
    }

    /// Returns whether a command of this process may be alive.
    fn has_unknown(&self) -> bool {
        self.options.command.may_be_alive()
    }

    async fn with_session(
        &mut self,
        session: &Session,
        tenure: &Tenure,
    ) -> Result<(), Interruption> {
        let term = self.campaign(session, tenure).await?;
        self.work(session, tenure, term).await
    }

    /// Opens a session, again and again while the server is unavailable.
    async fn open_session(&self, rules: &BuildRules) -> Result<Session, Interruption> {
        let ttl = Duration::from_millis(rules.stale_ms);
        let heartbeat = Duration::from_millis(rules.heartbeat_ms);
        let options = SessionOptions::new(&self.options.worker, ttl).heartbeat(heartbeat);
        let deadline = BootInstant::now() + self.options.server_timeout;
        loop {
            match self.client.open_session(&options).await {
                Err(error) if error.is_unavailable() && !deadline.has_passed() => {
                    tokio::time::sleep(RETRY_DELAY).await;
                }
                Err(error) => return Err(Stopped::Application(error.to_string()).into()),
                Ok(session) => return Ok(session),
            }
        }
    }

    /// Takes the lock of the node, under which its commands run.
    async fn node_lock(&self, session: &Session) -> Result<Tenure, Interruption> {
        let name = resource_name(&self.options.build);
        let build = ResourceKey::new("tenant", BUILD, &name).map_err(Error::from)?;
        let path = format!("{NODE}/{}", node_lock(&build, session.id()));
        let purpose: String = format!("node {}", self.options.worker).chars().take(128).collect();
        Ok(session.lock(&path)?.purpose(&purpose).acquire().await?)
    }

    /// Waits until the tests are published, and publishes them if this node is elected. Returns
    /// their term.
    async fn campaign(
        &mut self,
        session: &Session,
        tenure: &Tenure,
    ) -> Result<Token, Interruption> {
        let mut alone_since = BootInstant::now();
        loop {
            // Once: a setup that fails again has failed.
            let restart = std::mem::take(&mut self.restart);
            let session_id = Some(session.id());
            let body = JoinRequest { session: session_id, restart, ..self.join_request() };
            let answer = tokio::select! {
                answer = self.api.join(&body) => answer.map_err(|error| refused(&error))?,
                Some(signal) = self.signals.recv() => {
                    return Err(Stopped::Interrupted(signal).into());
                }
            };
            let build = answer.build;
            if let Some(leadership) = answer.leadership {
                self.progress.clear();
                message::say(&format!(
                    "leading build {} in term {}",
                    self.options.build, leadership.term
                ));
                self.lead(leadership, tenure, &build.rules).await?;
                return Ok(leadership.term);
            }
            match (build.master_status, build.term) {
                (MasterStatus::Ready | MasterStatus::Finished, Some(term)) => return Ok(term),
                (MasterStatus::Failed, _) => return Err(setup_failed(&build).into()),
                // The leader is alive, however slow it is.
                (MasterStatus::Setup, _) => alone_since = BootInstant::now(),
                _ => {}
            }
            if session.state() == LeaseState::Lost {
                return Err(Interruption::Lost("the session of this node is lost".to_owned()));
            }
            let wait = Duration::from_millis(build.rules.wait_ms);
            if (alone_since + wait).has_passed() {
                let why = format!("no node led build {} for {wait:?}", self.options.build);
                return Err(Stopped::NoLeader(why).into());
            }
            if self.is_over_time() {
                return Err(self.timed_out().into());
            }
            self.progress.waiting(&build);
        }
    }

    fn is_over_time(&self) -> bool {
        self.stop_at.is_some_and(BootInstant::has_passed)
    }

    fn timed_out(&self) -> Stopped {
        let max = self.options.max_duration.unwrap_or_default();
        Stopped::TimedOut(format!("this node has worked for {max:?}, its maximum duration"))
    }
}

/// Returns the rules of a build that differ from those that a node was given.
fn ignored_rules(given: &BuildRulesRequest, rules: &BuildRules) -> Vec<String> {
    fn rule<T: PartialEq + Debug>(name: &str, given: Option<&T>, of_build: &T) -> Option<String> {
        given.filter(|given| *given != of_build).map(|_| format!("{name} is {of_build:?}"))
    }
    let max_failures = given.max_failures.filter(|max| Some(*max) != rules.max_failures);
    let max_failures = max_failures.map(|_| match rules.max_failures {
        Some(max) => format!("max_failures is {max}"),
        None => "there is no max_failures".to_owned(),
    });
    let others = [
        rule("seed", given.seed.as_ref(), &rules.seed),
        rule("timeout_ms", given.timeout_ms.as_ref(), &rules.timeout_ms),
        rule("max_requeues", given.max_requeues.as_ref(), &rules.max_requeues),
        rule("requeue_tolerance", given.requeue_tolerance.as_ref(), &rules.requeue_tolerance),
        rule("max_losses", given.max_losses.as_ref(), &rules.max_losses),
        max_failures,
    ];
    others.into_iter().flatten().collect()
}

/// Returns what follows from a refusal to join: a lost session is replaced, nothing else helps.
fn refused(error: &Error) -> Interruption {
    match error.code() {
        Some(Code::Lost) => Interruption::Lost(error.to_string()),
        _ => Stopped::Application(error.to_string()).into(),
    }
}

/// Returns why a setup that failed stops its nodes.
pub(crate) fn setup_failed(build: &BuildInfo) -> Stopped {
    let (code, text) = match &build.error {
        Some(error) => (error.code.as_str(), format!("{}: {}", error.code, error.message)),
        None => ("", "for an unknown reason".to_owned()),
    };
    let (id, elections) = (&build.build, build.elections);
    if [WORKER_TIMEOUT, WORKER_CLOSED].contains(&code) {
        let why = format!(
            "the setup of build {id} failed: all {elections} leaders were lost before they \
             published the tests"
        );
        return Stopped::HeartbeatDied(why);
    }
    Stopped::Application(format!(
        "the setup of build {id} failed: {text}; run a node with --existing to try again"
    ))
}

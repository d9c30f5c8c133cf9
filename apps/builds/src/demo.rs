//! The scenario of `tenure demo builds`: four nodes, a dead leader, a flaky test, a dead node.
//!
//! The nodes are processes of this binary that run the line that CI nodes run. The scenario watches
//! them through the HTTP API, kills two, and checks every claim: a demo that shows something else
//! than it says fails.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use async_trait::async_trait;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use tenure::clock::BootInstant;
use tenure_app::{Demo, DemoServer};
use tenure_cli_kit::bars;
use tenure_cli_kit::text::{format_duration, print_line, sanitize};
use tenure_core::Token;

use crate::node::api::{BuildApi, SERVER_TIMEOUT};
use crate::wire::{BuildInfo, BuildReportResponse, MasterStatus, TestReport};

/// Maximum duration of the scenario, which takes about 20 seconds.
const SCENARIO_MAX: Duration = Duration::from_secs(120);
/// Interval between two looks at the build and its nodes.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Time for which the leader prepares the tests before it is killed.
const SETUP_BEFORE_KILL: Duration = Duration::from_millis(1_200);
/// Where bars are not shown, the progress is printed this number of times.
const STEPS: usize = 4;

/// Id of the build, and so the seed of the order of its tests.
const BUILD: &str = "demo";
/// Number of nodes.
const NODES: usize = 4;
/// Number of tests that `collect.sh` prints.
const TESTS: usize = 200;
/// Test that fails in its first run.
const FLAKY: &str = "search/test_07";
/// Test that takes long in its first run, so that its node is killed in the middle of it.
const SLOW: &str = "checkout/test_03";
/// File in which that run names its node.
const SLOW_WORKER: &str = "slow/worker";
/// File with a line for each run of a test: its node, its term and the test.
const RUNS: &str = "runs";
/// Arguments of every node, before its name and after it.
const NODE_ARGS: [&[&str]; 2] =
    [&["build", "run", BUILD, "--collect", "./collect.sh"], &["--", "./test.sh", "{}"]];
/// Variables that a node inherits. Those of a CI system would change what it does.
const INHERITED: [&str; 3] = ["PATH", "HOME", "LANG"];

/// The scenario.
pub(crate) struct Scenario;

#[async_trait(?Send)]
impl Demo for Scenario {
    fn summary(&self) -> &'static str {
        "four nodes share 200 tests; the leader and a node are killed, every test counts once"
    }

    fn files(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("tenure.toml", include_str!("../demo/tenure.toml")),
            ("collect.sh", include_str!("../demo/collect.sh")),
            ("test.sh", include_str!("../demo/test.sh")),
        ]
    }

    async fn run(&self, server: &DemoServer) -> anyhow::Result<()> {
        let mut scenario = ScenarioRun::new(server)?;
        let ended = tokio::time::timeout(SCENARIO_MAX, scenario.run()).await;
        ended.with_context(|| format!("the scenario takes longer than {SCENARIO_MAX:?}"))?
    }

    fn next(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("tenure build report demo", "the results, read from the tests themselves"),
            ("tenure build status demo", "who led, in which term"),
            ("tenure resource history build/demo", "both terms: the lost one and its successor"),
            ("tenure verify", "never two leaders, never two results of a test"),
        ]
    }
}

/// The state of the scenario.
struct ScenarioRun<'a> {
    server: &'a DemoServer,
    api: BuildApi,
    nodes: Vec<Node>,
    bars: MultiProgress,
    bar: ProgressBar,
    /// Number of steps of the progress that were printed.
    printed: usize,
}

/// The leader that published the tests.
struct Leader {
    name: String,
    term: Token,
}

impl<'a> ScenarioRun<'a> {
    fn new(server: &'a DemoServer) -> anyhow::Result<Self> {
        let api = BuildApi::new(server.transport("default")?, BUILD, SERVER_TIMEOUT);
        let bars = MultiProgress::with_draw_target(bars::draw_target());
        let bar = bars.add(ProgressBar::no_length());
        bar.set_style(ProgressStyle::with_template("{wide_msg}")?);
        Ok(Self { server, api, nodes: Vec::new(), bars, bar, printed: 0 })
    }

    async fn run(&mut self) -> anyhow::Result<()> {
        let first = self.elect().await?;
        let leader = self.kill_leader(&first).await?;
        let killed = self.kill_node().await?;
        self.finish(&leader, [&first.name, &killed]).await
    }

    /// Starts the nodes. One is elected.
    async fn elect(&mut self) -> anyhow::Result<Leader> {
        self.say("\n1. four CI nodes run the same line; one of them is elected")?;
        for n in 1..=NODES {
            let node = Node::start(&format!("node-{n}"), self.server)?;
            self.say(&format!("$ {}", node.line()))?;
            self.nodes.push(node);
        }
        let leader = self.until("a node leads", |build| {
            let is_setup = build.master_status == MasterStatus::Setup;
            let leader = build.master_worker_id.clone().zip(build.term);
            leader.filter(|_| is_setup).map(|(name, term)| Leader { name, term })
        });
        let leader = leader.await?;
        let Leader { name, term } = &leader;
        self.say(&format!("{name} leads in term {term}: it collects the tests, the others wait"))?;
        Ok(leader)
    }

    /// Kills the leader before it has published a test. Another node takes over.
    async fn kill_leader(&mut self, first: &Leader) -> anyhow::Result<Leader> {
        tokio::time::sleep(SETUP_BEFORE_KILL).await;
        self.say("\n2. the leader is killed in the middle of its setup")?;
        let build = self.api.show().await?;
        ensure!(build.total.is_none(), "the tests were published before the leader was killed");
        self.kill(&first.name)?;
        let killed_at = BootInstant::now();
        let leader = self.until("another node leads", |build| {
            let leader = build.master_worker_id.clone().zip(build.term);
            leader
                .filter(|(_, term)| *term != first.term && build.elections > 1)
                .map(|(name, term)| Leader { name, term })
        });
        let leader = leader.await?;
        let took = format_duration(millis(killed_at));
        let (name, term) = (&leader.name, leader.term);
        ensure!(*name != first.name, "the dead node {name} leads again");
        ensure!(term > first.term, "the term of {name} is {term}, not above {}", first.term);
        let dead = &first.name;
        self.say(&format!(
            "{name} leads in term {term}: {took} after the kill, the heartbeat of {dead} was 3s old"
        ))?;
        let total = self.until("the tests are published", |build| build.total).await?;
        ensure!(total == TESTS, "{total} tests were published, expected {TESTS}");
        self.say(&format!(
            "{name} has published {total} tests in one step; what term {} left does not count",
            first.term
        ))?;
        Ok(leader)
    }

    /// Kills a node in the middle of a test. Returns its name.
    async fn kill_node(&mut self) -> anyhow::Result<String> {
        self.say(&format!("\n3. all nodes pull tests; {FLAKY} fails in its first run"))?;
        self.until("a failed test is run again", |build| (build.requeues > 0).then_some(()))
            .await?;
        let failed_on = self.runs()?.into_iter().find(|run| run.test == FLAKY);
        let failed_on = failed_on.context("no run of the flaky test")?.worker;
        self.say(&format!("{FLAKY} has failed on {failed_on}, and is queued again"))?;
        let file = self.server.dir().join(SLOW_WORKER);
        self.until("a node runs the slow test", |_| file.exists().then_some(())).await?;
        let name = fs::read_to_string(&file).context("cannot read who runs the slow test")?;
        let name = name.trim().to_owned();
        self.say(&format!("\n4. {name} is killed in the middle of {SLOW}"))?;
        self.kill(&name)?;
        let killed_at = BootInstant::now();
        let is_gone = |build: &BuildInfo| build.nodes.iter().all(|node| node.worker != name);
        self.until("the node is lost", |build| is_gone(build).then_some(())).await?;
        let took = format_duration(millis(killed_at));
        self.say(&format!(
            "{took} after the kill, the heartbeat of {name} was 3s old: {SLOW} is queued again"
        ))?;
        Ok(name)
    }

    /// Waits until the other nodes are done, and compares what they print with what happened.
    async fn finish(&mut self, leader: &Leader, killed: [&str; 2]) -> anyhow::Result<()> {
        self.until("all tests have their result", |build| {
            (build.master_status == MasterStatus::Finished).then_some(())
        })
        .await?;
        while self.nodes.iter_mut().any(|node| node.status.is_none()) {
            tokio::time::sleep(POLL_INTERVAL).await;
            self.check_nodes()?;
        }
        self.bar.finish_and_clear();
        let build = self.api.show().await?;
        let report = self.api.report(true).await?;
        check_report(&report, killed)?;
        check_runs(&self.runs()?, leader, killed[0])?;
        ensure!(build.elections == 2, "there were {} leaders, expected 2", build.elections);
        self.say("\n5. the nodes that are left print the same report")?;
        let mut summaries = BTreeSet::new();
        for node in self.nodes.iter().filter(|node| !killed.contains(&&*node.name)) {
            summaries.insert(fs::read_to_string(&node.out).context("cannot read a summary")?);
        }
        ensure!(summaries.len() == 1, "the nodes print {} different summaries", summaries.len());
        summaries.iter().try_for_each(|summary| print_line(summary))?;
        let runs = self.runs()?.len();
        print_line(&format!(
            "{TESTS} tests, {runs} runs: every test counts once, and none ran after its result"
        ))
    }

    /// Waits until the build is as described. All nodes but the killed ones have to be alive.
    async fn until<T>(
        &mut self,
        what: &str,
        reached: impl Fn(&BuildInfo) -> Option<T>,
    ) -> anyhow::Result<T> {
        loop {
            let build = match self.api.show().await {
                Ok(build) => Some(build),
                // No node has joined yet.
                Err(tenure::Error::NotFound(_)) => None,
                Err(error) => return Err(error).context(format!("waiting until {what}")),
            };
            self.check_nodes().with_context(|| format!("waiting until {what}"))?;
            if let Some(build) = &build {
                self.show(build)?;
                if let Some(found) = reached(build) {
                    return Ok(found);
                }
                let is_over = build.master_status == MasterStatus::Finished;
                ensure!(!is_over, "the build is finished before {what}");
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Requires that every node that has ended was killed, or that all tests passed for it.
    fn check_nodes(&mut self) -> anyhow::Result<()> {
        for node in &mut self.nodes {
            if node.status.is_none() {
                node.status = node.child.try_wait().context("cannot wait for a node")?;
            }
            if let Some(status) = node.status.filter(|status| !node.is_killed && !status.success())
            {
                let printed = fs::read_to_string(&node.err).unwrap_or_default();
                bail!("{} ended with {status}:\n{printed}", node.name);
            }
        }
        Ok(())
    }

    /// Shows the progress: a bar on a terminal, otherwise a line now and then.
    fn show(&mut self, build: &BuildInfo) -> anyhow::Result<()> {
        let (Some(total), nodes) = (build.total, build.nodes.len()) else {
            let (leader, age) = (&build.master_worker_id, build.master_setup_heartbeat_age_ms);
            if let (Some(leader), Some(age)) = (leader, age) {
                let (leader, age) = (sanitize(leader), format_duration(age));
                self.bar.set_message(format!("{leader} leads, heartbeat {age} ago"));
            }
            return Ok(());
        };
        let done = total - build.remaining.min(total);
        let line = format!("{done} of {total} tests have their result, {nodes} nodes");
        self.bar.set_message(line.clone());
        let step = (done * STEPS).checked_div(total).unwrap_or(STEPS);
        if self.bars.is_hidden() && step > self.printed && step < STEPS {
            self.printed = step;
            print_line(&line)?;
        }
        Ok(())
    }

    fn kill(&mut self, name: &str) -> anyhow::Result<()> {
        let node = self.nodes.iter_mut().find(|node| node.name == name);
        let node = node.with_context(|| format!("{name} is no node of the demo"))?;
        let id = node.child.id();
        node.kill()?;
        self.say(&format!("$ kill -9 {id}    # {name}"))
    }

    /// Returns all runs of tests, in their order.
    fn runs(&self) -> anyhow::Result<Vec<TestRun>> {
        let text = fs::read_to_string(self.server.dir().join(RUNS));
        let text = text.context("cannot read the runs of the tests")?;
        text.lines().map(TestRun::parse).collect()
    }

    /// Prints a line above the bar.
    fn say(&self, line: &str) -> anyhow::Result<()> {
        self.bars.suspend(|| print_line(line))
    }
}

/// A run of a test, as the test itself has noted it.
struct TestRun {
    worker: String,
    term: String,
    test: String,
}

impl TestRun {
    fn parse(line: &str) -> anyhow::Result<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let [worker, term, test] = words[..] else { bail!("{line:?} is no run of a test") };
        let [worker, term, test] = [worker, term, test].map(str::to_owned);
        Ok(Self { worker, term, test })
    }
}

/// A node: a process of this binary. Killed when dropped.
struct Node {
    name: String,
    child: Child,
    /// Files with what it prints.
    out: PathBuf,
    err: PathBuf,
    is_killed: bool,
    status: Option<ExitStatus>,
}

impl Node {
    fn start(name: &str, server: &DemoServer) -> anyhow::Result<Self> {
        let binary = std::env::current_exe().context("cannot find this binary")?;
        let dir = server.dir();
        let (out, err) = (dir.join(format!("{name}.out")), dir.join(format!("{name}.err")));
        let create = |file: &Path| {
            File::create(file).with_context(|| format!("cannot create {}", file.display()))
        };
        let inherited = INHERITED.iter().filter_map(|key| Some((key, std::env::var_os(key)?)));
        let inherited: Vec<(&&str, OsString)> = inherited.collect();
        let mut command = Command::new(binary);
        command.args(Self::args(name)).current_dir(dir).env_clear().envs(inherited);
        command.env("TENURE_SERVER", server.url()).env("TENURE_KEY", server.key());
        command.env("TMPDIR", dir).stdin(Stdio::null()).stdout(create(&out)?).stderr(create(&err)?);
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        Ok(Self { name: name.to_owned(), child, out, err, is_killed: false, status: None })
    }

    fn args(name: &str) -> Vec<&str> {
        let [before, after] = NODE_ARGS;
        [before, &["--worker", name], after].concat()
    }

    /// Returns the command line that does the same.
    fn line(&self) -> String {
        format!("tenure {}", Self::args(&self.name).join(" "))
    }

    fn kill(&mut self) -> anyhow::Result<()> {
        self.is_killed = true;
        self.child.kill().with_context(|| format!("cannot kill {}", self.name))?;
        self.status = Some(self.child.wait().context("cannot wait for a killed node")?);
        Ok(())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.status.is_none() {
            self.kill().ok();
        }
    }
}

/// Requires that the report has what happened, and nothing else.
fn check_report(report: &BuildReportResponse, killed: [&str; 2]) -> anyhow::Result<()> {
    let counts = [
        ("tests", report.total, TESTS),
        ("passed tests", report.passed, TESTS),
        ("failed tests", report.failed, 0),
        ("unfinished tests", report.unfinished, 0),
        ("repeated failures", report.requeues, 1),
        ("lost runs", report.losses, 1),
    ];
    for (what, count, expected) in counts {
        ensure!(count == expected, "the report has {count} {what}, expected {expected}");
    }
    let only = |tests: &[TestReport], expected: &str| {
        let names: Vec<&str> = tests.iter().map(|test| &*test.test).collect();
        ensure!(names == [expected], "{names:?}, expected only {expected}");
        Ok(())
    };
    only(&report.flaky_tests, FLAKY).context("flaky tests")?;
    only(&report.lost_tests, SLOW).context("lost tests")?;
    let by_dead_leader = report.workers.iter().find(|worker| worker.worker == killed[0]);
    ensure!(by_dead_leader.is_none(), "{}, killed before the first test, has results", killed[0]);
    Ok(())
}

/// Requires that every test ran once, in the term that counts; the flaky and the lost one twice.
fn check_runs(runs: &[TestRun], leader: &Leader, dead_leader: &str) -> anyhow::Result<()> {
    let term = leader.term.to_string();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for run in runs {
        let TestRun { worker, test, .. } = run;
        ensure!(run.term == term, "{test} ran in term {}, expected {term}", run.term);
        ensure!(worker != dead_leader, "{test} ran on {worker}, which was killed before");
        *counts.entry(test).or_default() += 1;
    }
    ensure!(counts.len() == TESTS, "{} tests ran, expected {TESTS}", counts.len());
    for (test, count) in counts {
        let expected = if [FLAKY, SLOW].contains(&test) { 2 } else { 1 };
        ensure!(count == expected, "{test} ran {count} times, expected {expected}");
    }
    Ok(())
}

fn millis(since: BootInstant) -> u64 {
    let elapsed = BootInstant::now().saturating_duration_since(since);
    u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::order;

    #[test]
    fn the_flaky_test_comes_before_the_slow_one_and_neither_at_the_end() {
        let suites =
            ["cart", "catalog", "checkout", "login", "orders", "payment", "profile", "search"];
        let tests: Vec<String> = suites
            .iter()
            .flat_map(|suite| (1..=25).map(move |n| format!("{suite}/test_{n:02}")))
            .collect();
        assert_eq!(tests.len(), TESTS);
        let ordered = order::order(&tests, BUILD, &HashMap::new());
        let position = |test| ordered.iter().position(|one| one == test).unwrap();
        assert!(position(FLAKY) < position(SLOW) && position(SLOW) < TESTS / 2);
    }
}

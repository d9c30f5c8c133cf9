//! The scenario of `tenure demo clusters`: a duplicate create, a dead worker, two destroys, a time
//! to live.
//!
//! The workers are processes of this binary; the installer is a stand-in, its cloud a directory.
//! The scenario looks at clusters through the HTTP API and at the cloud itself, kills a worker, and
//! checks every claim: a demo that shows something else than it says fails.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use async_trait::async_trait;
use indicatif::MultiProgress;
use tenure::clock::BootInstant;
use tenure::http::HttpTransport;
use tenure::job::LogReader;
use tenure_app::{Demo, DemoServer};
use tenure_cli_kit::bars;
use tenure_cli_kit::follow::Follower as _;
use tenure_cli_kit::listing::fetch;
use tenure_cli_kit::text::{count, format_duration, print_line, sanitize};
use tenure_core::history::{Entry, Event};
use tenure_core::retry::WORKER_TIMEOUT;
use tenure_core::{Code, JobState};
use tenure_wire::{HistoryEntry, JobInfo, ListResponse, WorkerInfo};

use crate::cli::display::Display;
use crate::cli::follow::{Ended, OperationFollower, describe_end, verdict_text};
use crate::cli::ls::clusters_table;
use crate::cli::{get_cluster, get_job, route};
use crate::names::JANITOR_DESTROY;
use crate::request::CreateRequest;
use crate::state::ClusterState;
use crate::wire::{ClusterInfo, ClusterResponse, ClusterVerdict};

/// Maximum duration of the scenario, which takes about 30 seconds.
const SCENARIO_MAX: Duration = Duration::from_secs(150);
/// Interval between two looks at a cluster.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Number of workers, each with one slot.
const WORKERS: usize = 3;
/// Arguments of every worker.
const WORKER_ARGS: [&str; 5] = ["worker", "--config", "tenure.toml", "--slots", "1"];
/// Variables that a worker inherits.
const INHERITED: [&str; 3] = ["PATH", "HOME", "LANG"];
/// Directory that is the cloud of the stand-in.
const CLOUD: &str = "cloud";
const PROFILE: &str = "demo";
const DOMAIN: &str = "demo.example.com";
/// Progress at which the create of shop is repeated: its infrastructure has begun.
const REPEAT_AT_PERCENT: u8 = 10;
/// Progress at which the worker of blog is killed: its network and its DNS name exist.
const KILL_AT_PERCENT: u8 = 20;
/// Time to live of night: longer than its create takes.
const NIGHT_TTL: Duration = Duration::from_secs(20);
/// Maximum number of clusters in the summary.
const CLUSTERS_MAX: usize = 20;

/// The scenario.
pub(crate) struct Scenario;

#[async_trait(?Send)]
impl Demo for Scenario {
    fn summary(&self) -> &'static str {
        "one operation at a time per cluster; a dead worker leaves no infrastructure behind"
    }

    fn files(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("tenure.toml", include_str!("../demo/tenure.toml")),
            ("profiles/demo.toml", include_str!("../demo/profiles/demo.toml")),
            ("openshift-install", include_str!("../demo/openshift-install")),
            ("list-resources", include_str!("../demo/list-resources")),
        ]
    }

    async fn run(&self, server: &DemoServer) -> anyhow::Result<()> {
        let mut scenario = ScenarioRun::new(server)?;
        let ended = tokio::time::timeout(SCENARIO_MAX, scenario.run()).await;
        ended.with_context(|| format!("the scenario takes longer than {SCENARIO_MAX:?}"))?
    }

    fn next(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("tenure cluster ls", "all clusters, also the destroyed ones"),
            ("tenure cluster history blog", "the killed worker, and its successor"),
            ("tenure cluster logs blog", "what the installer printed, without its password"),
            ("tenure cluster outputs blog", "how it is reached"),
            ("tenure verify", "never two workers at one cluster"),
        ]
    }
}

/// The state of the scenario.
struct ScenarioRun<'a> {
    server: &'a DemoServer,
    api: Arc<HttpTransport>,
    workers: Vec<WorkerProcess>,
    /// The live bars; hidden without a terminal.
    bars: MultiProgress,
}

/// An operation that was requested.
struct Requested {
    /// Id of the cluster.
    cluster: String,
    job: JobInfo,
}

/// What the killed worker has left.
struct Left {
    infra_id: String,
    killed_at: BootInstant,
}

impl<'a> ScenarioRun<'a> {
    fn new(server: &'a DemoServer) -> anyhow::Result<Self> {
        let api = Arc::new(server.transport("default")?);
        let bars = MultiProgress::with_draw_target(bars::draw_target());
        Ok(Self { server, api, workers: Vec::new(), bars })
    }

    async fn run(&mut self) -> anyhow::Result<()> {
        self.start_workers().await?;
        let shop = self.create_twice().await?;
        self.say("\n3. blog is being created; its worker is killed in the middle of it")?;
        let blog = self.create("blog", None).await?;
        let api = Arc::clone(&self.api);
        let mut followed = self.follow(&api, &blog);
        let left = self.kill_worker(&blog, &mut followed).await?;
        self.destroy_twice(&shop).await?;
        self.time_to_live().await?;
        self.recover(&mut followed, &left).await?;
        drop(followed);
        self.print_summary().await
    }

    /// Starts the workers, and waits until they claim jobs.
    async fn start_workers(&mut self) -> anyhow::Result<()> {
        self.say("")?;
        for n in 1..=WORKERS {
            self.workers.push(WorkerProcess::start(n, self.server)?);
            self.say(&format!("$ tenure {} &", WORKER_ARGS.join(" ")))?;
        }
        loop {
            self.check_workers()?;
            let list: ListResponse<WorkerInfo> = self.api.get("/v1/workers").await?;
            if list.items.len() >= WORKERS {
                return Ok(());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// A create that is repeated attaches; one with another configuration is refused.
    async fn create_twice(&mut self) -> anyhow::Result<ClusterInfo> {
        let ttl = format_duration(millis(NIGHT_TTL));
        self.say(&format!("\n1. ann creates shop; and night, which is destroyed after {ttl}"))?;
        let shop = self.create("shop", None).await?;
        let night = self.create("night", Some(NIGHT_TTL)).await?;
        let api = Arc::clone(&self.api);
        let mut followed = self.follow(&api, &shop);
        self.until_percent(&shop, &mut followed, REPEAT_AT_PERCENT).await?;
        self.say("\n2. the same line runs again: no second create; with 3 workers it is refused")?;
        let again = self.submit(&request("shop", None)).await?;
        let (expected, got) = (shop.job.id, again.job.map(|job| job.id));
        ensure!(
            again.verdict == ClusterVerdict::Attached,
            "the repeated create: {:?}",
            again.verdict
        );
        ensure!(got == Some(expected), "the repeated create got {got:?}, expected {expected}");
        let other = CreateRequest { workers: Some(3), ..request("shop", None) };
        let refused = self.submit(&other).await.err().context("the other create was accepted")?;
        let code = refused.downcast_ref().and_then(tenure::Error::code);
        ensure!(code == Some(Code::Conflict), "the other create: {refused:#}");
        self.say(&sanitize(&refused.to_string()))?;
        let ended = self.end(&mut followed, ClusterState::Ready).await?;
        drop(followed);
        self.follow_to_end(&night, ClusterState::Ready).await?;
        ensure!(ended.job.attempt == 1, "shop needed {} attempts", ended.job.attempt);
        let outputs = ended.cluster.outputs.as_ref().context("shop has no addresses")?;
        self.say(&format!("shop is reached at {}", sanitize(&outputs.api_url)))?;
        Ok(ended.cluster)
    }

    /// Kills the worker of a cluster in the middle of its create.
    async fn kill_worker(
        &mut self,
        blog: &Requested,
        followed: &mut OperationFollower<'_>,
    ) -> anyhow::Result<Left> {
        let cluster = self.until_percent(blog, followed, KILL_AT_PERCENT).await?;
        let worker = cluster.operation.and_then(|operation| operation.worker);
        let worker = worker.context("no worker has the lock of blog")?;
        let infra_id = cluster.infra_id.context("blog has resources, but no infra id")?;
        let of_blog = |process: &&mut WorkerProcess| {
            worker.rsplit('/').next() == Some(&process.child.id().to_string())
        };
        let process = self.workers.iter_mut().find(of_blog);
        let process = process.with_context(|| format!("{worker} is no worker of the demo"))?;
        let id = process.child.id();
        process.kill()?;
        let killed_at = BootInstant::now();
        self.say(&format!("$ kill -9 {id}    # {}", sanitize(&worker)))?;
        let left = self.resources(Some(&infra_id))?.len();
        ensure!(left > 0, "nothing of {infra_id} exists");
        let what = count(left, "resource");
        self.say(&format!("{what} of {} are left in the cloud", sanitize(&infra_id)))?;
        Ok(Left { infra_id, killed_at })
    }

    /// A second destroy joins the first one.
    async fn destroy_twice(&mut self, shop: &ClusterInfo) -> anyhow::Result<()> {
        self.say("\n4. ann destroys shop, and so does bob: it is destroyed once")?;
        let ann = self.destroy(&shop.id).await?;
        let bob = self.destroy(&shop.id).await?;
        let expected = ann.job.as_ref().map(|job| job.id);
        let got = bob.job.as_ref().map(|job| job.id);
        ensure!(ann.verdict == ClusterVerdict::Started, "the first destroy: {:?}", ann.verdict);
        ensure!(bob.verdict == ClusterVerdict::Attached, "the second destroy: {:?}", bob.verdict);
        ensure!(got == expected, "the second destroy got {got:?}, expected {expected:?}");
        let job = ann.job.context("the destroy has no job")?;
        let requested = Requested { cluster: shop.id.clone(), job };
        self.follow_to_end(&requested, ClusterState::Destroyed).await?;
        let left = self.resources(shop.infra_id.as_deref())?;
        ensure!(left.is_empty(), "shop is DESTROYED, but exists: {}", left.join(", "));
        self.say("the cloud has nothing of shop; it was asked twice")
    }

    /// The time to live of a cluster elapses.
    async fn time_to_live(&mut self) -> anyhow::Result<()> {
        self.say("\n5. the time to live of night elapses")?;
        let id = cluster_id("night");
        let infra_id = get_cluster(&self.api, &id).await?.infra_id;
        loop {
            self.check_workers()?;
            let cluster = get_cluster(&self.api, &id).await?;
            match ClusterState::parse(&cluster.state) {
                Some(ClusterState::Destroyed) => break,
                Some(ClusterState::Ready | ClusterState::Destroying) => {}
                _ => bail!("night is {}", cluster.state),
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        let history = fetch::<HistoryEntry>(&self.api, &route(&id, "/history"), &[], 100).await?;
        let fired = |item: &HistoryEntry| match Entry::parse(&item.line).map(|entry| entry.event) {
            Ok(Event::TimerFired { operation, .. }) => *operation == *JANITOR_DESTROY,
            _ => false,
        };
        let fired = history.items.iter().any(fired);
        ensure!(fired, "night is DESTROYED, but no timer has fired");
        let left = self.resources(infra_id.as_deref())?;
        ensure!(left.is_empty(), "night is DESTROYED, but exists: {}", left.join(", "));
        self.say("night is DESTROYED by the operation JANITOR_DESTROY; nobody asked for it")
    }

    /// The next worker removes first what the dead one has left.
    async fn recover(
        &mut self,
        followed: &mut OperationFollower<'_>,
        left: &Left,
    ) -> anyhow::Result<()> {
        self.say("\n6. another worker has the lock of blog: it cleans up, then creates it")?;
        let Ended { job, cluster } = self.end(followed, ClusterState::Ready).await?;
        ensure!(job.attempt == 2, "blog needed {} attempts, expected 2", job.attempt);
        let [first, second] = &job.attempts[..] else { bail!("{} attempts", job.attempts.len()) };
        let code = first.code.as_deref();
        ensure!(code == Some(WORKER_TIMEOUT), "the killed attempt ended with {code:?}");
        ensure!(first.worker != second.worker, "the dead worker {} works again", first.worker);
        ensure!(first.token < second.token, "the token of the second attempt is not higher");
        let infra_id = cluster.infra_id.as_deref().context("blog has no infra id")?;
        ensure!(infra_id != left.infra_id, "the new install has the old infra id");
        let remaining = self.resources(Some(&left.infra_id))?;
        ensure!(remaining.is_empty(), "left of {}: {}", left.infra_id, remaining.join(", "));
        let exists = self.resources(Some(infra_id))?.len();
        ensure!(exists > 0, "blog is READY, but nothing of it exists");
        let total = self.cloud()?.len();
        ensure!(total == exists, "the cloud has {total} resources, {exists} of blog");
        let took =
            format_duration(millis(BootInstant::now().saturating_duration_since(left.killed_at)));
        let (old, new) = (sanitize(&left.infra_id), sanitize(infra_id));
        self.say(&format!("blog is READY {took} after the kill"))?;
        self.say(&format!("the cloud has nothing of {old}, and {exists} resources of {new}"))
    }

    /// Requests a cluster and prints the command line that does the same.
    async fn create(&self, name: &str, ttl: Option<Duration>) -> anyhow::Result<Requested> {
        let answer = self.submit(&request(name, ttl)).await?;
        let id = cluster_id(name);
        ensure!(answer.id == id, "the cluster is {}, expected {id}", answer.id);
        ensure!(answer.verdict == ClusterVerdict::Started, "the create: {:?}", answer.verdict);
        let job = answer.job.context("the create has no job")?;
        Ok(Requested { cluster: id, job })
    }

    async fn submit(&self, body: &CreateRequest) -> anyhow::Result<ClusterResponse> {
        let CreateRequest { name, owner, .. } = body;
        let ttl = body.ttl_ms.map(|ms| format!(" --ttl {}", format_duration(ms)));
        let workers = body.workers.map(|workers| format!(" --workers {workers}"));
        let options = ttl.unwrap_or_default() + &workers.unwrap_or_default();
        self.say(&format!(
            "$ tenure cluster create {name} --profile {PROFILE} --owner {owner}{options}"
        ))?;
        let key = Some(tenure_store::random::request_id().to_string());
        let answer: ClusterResponse =
            self.api.post("/v1/clusters", key, body, Duration::ZERO).await?;
        let verdict = verdict_text(answer.verdict, answer.job.as_ref());
        self.say(&format!("{verdict} {}", sanitize(&answer.id)))?;
        Ok(answer)
    }

    async fn destroy(&self, id: &str) -> anyhow::Result<ClusterResponse> {
        self.say(&format!("$ tenure cluster destroy {id}"))?;
        let answer: ClusterResponse = self.api.delete(&route(id, "")).await?;
        let verdict = verdict_text(answer.verdict, answer.job.as_ref());
        self.say(&format!("{verdict} {}", sanitize(&answer.id)))?;
        Ok(answer)
    }

    fn follow<'b>(
        &self,
        api: &'b HttpTransport,
        requested: &'b Requested,
    ) -> OperationFollower<'b> {
        let Requested { cluster, job } = requested;
        let title = cluster.split_once(':').map_or(&**cluster, |(_, host)| host);
        let title = title.split('.').next().unwrap_or(title);
        OperationFollower {
            transport: api,
            cluster,
            id: job.id,
            logs: LogReader::new(job.id, None),
            display: Display::in_group(&self.bars, title),
        }
    }

    /// Waits until a create has reached a percentage in its first attempt.
    async fn until_percent(
        &mut self,
        requested: &Requested,
        followed: &mut OperationFollower<'_>,
        percent: u8,
    ) -> anyhow::Result<ClusterInfo> {
        loop {
            self.check_workers()?;
            let ended = followed.poll(POLL_INTERVAL).await?;
            ensure!(ended.is_none(), "{} ended too early", requested.cluster);
            let job = get_job(&self.api, requested.job.id, Duration::ZERO).await?;
            if job.progress.is_some_and(|progress| progress.percent >= percent) {
                return get_cluster(&self.api, &requested.cluster).await;
            }
        }
    }

    async fn follow_to_end(
        &mut self,
        requested: &Requested,
        state: ClusterState,
    ) -> anyhow::Result<Ended> {
        let api = Arc::clone(&self.api);
        let mut followed = self.follow(&api, requested);
        self.end(&mut followed, state).await
    }

    /// Waits until an operation has succeeded and the cluster is in this state.
    async fn end(
        &mut self,
        followed: &mut OperationFollower<'_>,
        state: ClusterState,
    ) -> anyhow::Result<Ended> {
        loop {
            self.check_workers()?;
            let Some(ended) = followed.poll(POLL_INTERVAL).await? else { continue };
            let end = describe_end(&ended.job, &ended.cluster);
            ensure!(ended.job.state == JobState::Succeeded, "{end}");
            let (got, expected) = (&*ended.cluster.state, state.as_str());
            ensure!(got == expected, "{} is {got}, expected {expected}", ended.cluster.id);
            let end = end.split("; ").next().unwrap_or_default();
            self.say(&format!("{end}: {expected}"))?;
            return Ok(ended);
        }
    }

    /// Requires that every worker that has ended was killed.
    fn check_workers(&mut self) -> anyhow::Result<()> {
        for worker in &mut self.workers {
            if worker.status.is_some() {
                continue;
            }
            worker.status = worker.child.try_wait().context("cannot wait for a worker")?;
            if let Some(status) = worker.status {
                let printed = fs::read_to_string(&worker.err).unwrap_or_default();
                bail!("a worker ended with {status}:\n{printed}");
            }
        }
        Ok(())
    }

    /// Returns what the cloud has of an installation.
    fn resources(&self, infra_id: Option<&str>) -> anyhow::Result<Vec<String>> {
        let tag = infra_id.map(|infra_id| format!("kubernetes.io/cluster/{infra_id}=owned"));
        let tag = tag.context("there is no infra id")?;
        let found = self.cloud()?.into_iter().filter(|(_, text)| text.trim() == tag);
        Ok(found.map(|(name, _)| name).collect())
    }

    /// Returns everything in the cloud, by name, with its tag. A hidden file is no resource yet.
    fn cloud(&self) -> anyhow::Result<Vec<(String, String)>> {
        let mut all = Vec::new();
        let dir = self.server.dir().join(CLOUD);
        for entry in fs::read_dir(dir).context("cannot read the cloud")? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.starts_with('.') {
                all.push((name, fs::read_to_string(entry.path()).unwrap_or_default()));
            }
        }
        Ok(all)
    }

    async fn print_summary(&self) -> anyhow::Result<()> {
        let list = fetch::<ClusterInfo>(&self.api, "/v1/clusters", &[], CLUSTERS_MAX).await?;
        print_line("")?;
        print_line(&clusters_table("default", &list.items))?;
        print_line("")
    }

    /// Prints a line above the bars.
    fn say(&self, line: &str) -> anyhow::Result<()> {
        self.bars.suspend(|| print_line(line))
    }
}

/// A worker: a process of this binary. Killed when dropped.
struct WorkerProcess {
    child: Child,
    /// File with what it prints.
    err: PathBuf,
    status: Option<ExitStatus>,
}

impl WorkerProcess {
    fn start(n: usize, server: &DemoServer) -> anyhow::Result<Self> {
        let binary = std::env::current_exe().context("cannot find this binary")?;
        let dir = server.dir();
        let (out, err) = (dir.join(format!("worker-{n}.out")), dir.join(format!("worker-{n}.err")));
        let create = |file: &Path| {
            File::create(file).with_context(|| format!("cannot create {}", file.display()))
        };
        let inherited = INHERITED.iter().filter_map(|key| Some((key, std::env::var_os(key)?)));
        let inherited: Vec<(&&str, OsString)> = inherited.collect();
        let mut command = Command::new(binary);
        command.args(WORKER_ARGS).current_dir(dir).env_clear().envs(inherited);
        command.env("TENURE_SERVER", server.url()).env("TENURE_KEY", server.key());
        command.env("TMPDIR", dir).stdin(Stdio::null()).stdout(create(&out)?).stderr(create(&err)?);
        let child = command.spawn().context("cannot start a worker")?;
        Ok(Self { child, err, status: None })
    }

    fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill().context("cannot kill a worker")?;
        self.status = Some(self.child.wait().context("cannot wait for a killed worker")?);
        Ok(())
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        if self.status.is_none() {
            self.kill().ok();
        }
    }
}

fn request(name: &str, ttl: Option<Duration>) -> CreateRequest {
    CreateRequest {
        name: name.to_owned(),
        profile: PROFILE.to_owned(),
        owner: "ann".to_owned(),
        ttl_ms: ttl.map(millis),
        ..CreateRequest::default()
    }
}

fn cluster_id(name: &str) -> String {
    crate::names::cluster_id("aws", name, DOMAIN)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

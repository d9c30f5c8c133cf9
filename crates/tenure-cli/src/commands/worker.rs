//! `tenure worker`, and the workers that `tenure serve` has beside it: they run the commands of
//! `tenure.toml` as jobs.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use async_trait::async_trait;
use clap::Args;
use tenure::config::{Config, WorkerSettings};
use tenure::trace::Parent;
use tenure::worker::command::CANNOT_START;
use tenure::worker::{Command, Context, Done as JobDone, Failure, Handler, Summary};
use tenure::{Client, Worker};
use tenure_core::{Kind, Operation, Text, limits};
use tenure_store::{Committer, Store, StoreError};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Done;
use super::config::{ConfigFile, load, size};
use super::reload::Reload;
use super::serve::{StopSignal, open_store};
use crate::context::{Reach, process_name};
use crate::log::{LogArgs, say};

/// Work jobs by running the commands of tenure.toml
///
/// Takes jobs of the kinds whose operations have a `run`, for the tenant of --tenant (`*` for all
/// tenants). Ends on SIGTERM: no more jobs are taken, those that run have the time of `drain`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure worker                                  for the server on this machine
  tenure worker --server http://10.0.0.5:7117 --tenant '*' --slots 8")]
pub(super) struct WorkerVerb {
    #[command(flatten)]
    config: ConfigFile,
    /// Store to work on without a server: memory:, embedded:PATH or postgres://…
    #[arg(long, value_name = "URL", conflicts_with = "server")]
    store: Option<String>,
    /// Jobs at once [default: as tenure.toml says, else the number of cores]
    #[arg(long, value_name = "N")]
    slots: Option<usize>,
    #[command(flatten)]
    pub(super) log: LogArgs,
}

impl WorkerVerb {
    pub(super) async fn run(&self, reach: &Reach) -> Done {
        let file = self.config.find().context(
            "there is no tenure.toml here that says what to run; name one with --config",
        )?;
        let config = load(&file)?;
        if config.run_kinds().is_empty() {
            let file = file.display();
            bail!("no operation in {file} has a `run`: there is nothing to do for this worker");
        }
        say(&format!("commands from {}: {}", file.display(), size(&config)));
        let (client, store) = self.client(reach, &config).await?;
        let stop = StopSignal::new()?;
        let reload = Reload::new(Some(file))?;
        let crew = Crew::new(client, config, self.slots);
        let declare = async |config: &Config| match &store {
            Some(store) => store.declare(Arc::clone(&config.kinds)).await,
            None => Ok(()),
        };
        crew.work_until(stop, reload, declare).await?;
        say("stopped");
        Ok(ExitCode::SUCCESS)
    }

    /// The way to the server, or to a store of its own.
    async fn client(
        &self,
        reach: &Reach,
        config: &Config,
    ) -> anyhow::Result<(Client, Option<Arc<dyn Store>>)> {
        let Some(url) = &self.store else {
            return Ok((Client::over(Arc::new(reach.link()?), reach.tenant()), None));
        };
        let store = open_store(url).await?;
        store.declare(Arc::clone(&config.kinds)).await?;
        let client = Client::within(Committer::start(Arc::clone(&store)), reach.tenant());
        Ok((client, Some(store)))
    }
}

/// The workers of this process. They follow the file: what a command is, is looked up when it
/// starts.
pub(super) struct Crew {
    client: Client,
    settings: WorkerSettings,
    config: watch::Sender<Arc<Config>>,
    /// What the workers that were started can do: operations, or all of them, of each kind.
    covered: BTreeMap<Text, Option<Vec<Text>>>,
    workers: JoinSet<Result<Summary, tenure::Error>>,
    stop: CancellationToken,
}

impl Crew {
    /// Nobody yet. `slots` counts more than what the file says.
    pub(super) fn new(client: Client, config: Config, slots: Option<usize>) -> Self {
        let mut settings = config.worker.clone();
        settings.slots = slots.or(settings.slots);
        Self {
            client,
            settings,
            config: watch::Sender::new(Arc::new(config)),
            covered: BTreeMap::new(),
            workers: JoinSet::new(),
            stop: CancellationToken::new(),
        }
    }

    /// Starts workers for the kinds that nobody works yet. The present ones go on: whoever ended
    /// them because a file has changed would end the commands that they run.
    fn hire(&mut self) {
        let config = Arc::clone(&self.config.borrow());
        let mut new = Vec::new();
        for kind in config.run_kinds().iter().filter_map(|name| config.kinds.get(name)) {
            let can = what_runs(kind);
            match self.covered.get(&kind.name) {
                None => {
                    self.covered.insert(kind.name.clone(), can);
                    new.push(kind);
                }
                Some(covered) if *covered == can => {}
                Some(_) => {
                    let kind = &kind.name;
                    say(&format!("kind {kind}: only a restart gives its worker all commands"));
                }
            }
        }
        for kinds in new.chunks(limits::CLAIM_KINDS_MAX) {
            self.start(kinds);
        }
    }

    fn start(&mut self, kinds: &[&Arc<Kind>]) {
        let WorkerSettings { slots, ttl, drain, name } = self.settings.clone();
        let name = name.unwrap_or_else(process_name);
        let mut worker = Worker::new(&self.client, &name).ttl(ttl).drain(drain);
        if let Some(slots) = slots {
            worker = worker.slots(slots);
        }
        #[cfg(feature = "otel")]
        {
            worker = worker.span(crate::otel::span);
        }
        for kind in kinds {
            worker = self.handle(worker, kind);
        }
        let stop = self.stop.clone();
        self.workers.spawn(worker.run(async move { stop.cancelled().await }));
    }

    /// Why the present workers could not go on with another file: they would take jobs for which
    /// there is no command.
    fn objection(&self, config: &Config) -> Option<String> {
        let kinds =
            config.kinds.iter().filter_map(|kind| Some((kind, self.covered.get(&kind.name)?)));
        for (kind, covered) in kinds {
            let taken = |name: &Text| covered.as_ref().is_none_or(|names| names.contains(name));
            let bare = kind.operations.values().find(|one| one.run.is_empty() && taken(&one.name));
            if let Some(Operation { name, .. }) = bare {
                let kind = &kind.name;
                return Some(format!("{name} of {kind} has no `run`: that needs a restart"));
            }
        }
        None
    }

    fn handle(&self, mut worker: Worker, kind: &Kind) -> Worker {
        let runner = || Runner { config: self.config.subscribe() };
        match what_runs(kind) {
            None => worker.handle(&kind.name, runner()),
            Some(operations) => {
                for operation in operations {
                    worker = worker.handle_operation(&kind.name, &operation, runner());
                }
                worker
            }
        }
    }

    /// Works until it is told to stop, and follows the file; `declare` puts another one in force.
    /// Then no more jobs are taken, and those that run may end, unless it is told a second time.
    pub(super) async fn work_until(
        mut self,
        mut stop: StopSignal,
        mut reload: Reload,
        declare: impl AsyncFn(&Config) -> Result<(), StoreError>,
    ) -> anyhow::Result<()> {
        self.hire();
        loop {
            tokio::select! {
                () = stop.told() => break,
                error = self.fails() => return Err(error.into()),
                config = reload.next() => self.follow(config, &mut reload, &declare).await,
            }
        }
        tokio::select! {
            () = self.drain() => {}
            () = stop.told() => say("not waiting for what runs"),
        }
        Ok(())
    }

    /// Puts another file in force.
    async fn follow(
        &mut self,
        config: Config,
        reload: &mut Reload,
        declare: &impl AsyncFn(&Config) -> Result<(), StoreError>,
    ) {
        if let Some(why) = self.objection(&config) {
            Reload::refused(&why);
            return;
        }
        match declare(&config).await {
            Ok(()) => {
                reload.took(&config);
                self.config.send_replace(Arc::new(config));
                self.hire();
            }
            Err(error) => {
                say(&format!("the kinds cannot be declared, trying on: {error}"));
                reload.again();
            }
        }
    }

    /// Waits until a worker fails; only one that may not work does.
    async fn fails(&mut self) -> tenure::Error {
        loop {
            match self.workers.join_next().await {
                Some(Ok(Err(error))) => return error,
                Some(Ok(Ok(_))) => {}
                Some(Err(error)) => say(&format!("a worker has died: {error}")),
                None => return std::future::pending().await,
            }
        }
    }

    /// Waits until everything that runs has ended or was handed back.
    async fn drain(&mut self) {
        self.stop.cancel();
        while let Some(ended) = self.workers.join_next().await {
            match ended {
                Ok(Ok(summary)) => tracing::debug!(?summary, "a worker has ended"),
                Ok(Err(error)) => say(&format!("a worker has ended: {error}")),
                Err(error) => say(&format!("a worker has died: {error}")),
            }
        }
    }
}

/// The operations of a kind that have a command; nothing when all have.
fn what_runs(kind: &Kind) -> Option<Vec<Text>> {
    let runs = |operation: &&Operation| !operation.run.is_empty();
    let all = kind.operations.values().all(|operation| runs(&operation));
    let with = || kind.operations.values().filter(runs).map(|operation| operation.name.clone());
    (!all).then(|| with().collect())
}

/// The span around an attempt, for commands to go on with; none when nobody takes spans.
fn present_span() -> Option<Parent> {
    #[cfg(feature = "otel")]
    return crate::otel::current();
    #[cfg(not(feature = "otel"))]
    None
}

/// Runs the command that the file has for a job when it starts.
struct Runner {
    config: watch::Receiver<Arc<Config>>,
}

#[async_trait]
impl Handler for Runner {
    async fn run(&self, job: &Context) -> Result<JobDone, Failure> {
        let kinds = Arc::clone(&self.config.borrow().kinds);
        let kind = kinds.get(job.key().kind());
        let operation = kind.and_then(|kind| kind.operations.get(job.operation()));
        match operation.filter(|operation| !operation.run.is_empty()) {
            Some(operation) => {
                Command::new(&operation.run).traceparent(present_span()).run(job).await
            }
            None => {
                let why = "tenure.toml has no `run` for this operation any more";
                Err(Failure::transient(CANNOT_START, why))
            }
        }
    }

    fn winds_up(&self) -> bool {
        true
    }
}

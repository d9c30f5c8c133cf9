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
use tenure::wire::ReadyAnswer;
use tenure::worker::command::CANNOT_START;
use tenure::worker::{Command, Context, Done as JobDone, Failure, Handler, Summary};
use tenure::{Client, Worker};
use tenure_apps::pipelines::{self, Catalog, Runner};
use tenure_core::{Kind, Operation, Text, limits};
use tenure_store::{Committer, Store, StoreError};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Done;
use super::config::{ConfigFile, Loaded, load, size};
use super::reload::Reload;
use super::serve::{StopSignal, open_store};
use crate::context::{Reach, process_name};
use crate::log::{LogArgs, say};

/// Work jobs by running the commands of tenure.toml
///
/// Takes jobs of the kinds whose operations have a `run`, and runs of pipelines, for the tenant of
/// --tenant (`*` for all tenants). Ends on SIGTERM: no more jobs are taken, those that run have the
/// time of `drain`.
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
    /// Jobs at once, and as many runs of pipelines [default: as tenure.toml says, else the number
    /// of cores and 16 runs]
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
        let loaded = load(&file)?;
        if loaded.config.run_kinds().is_empty() && loaded.catalog.is_none() {
            let file = file.display();
            bail!(
                "no operation in {file} has a `run`, and there are no [pipelines]: there is \
                 nothing to do for this worker"
            );
        }
        say(&format!("commands from {}: {}", file.display(), size(&loaded)));
        let (client, store) = self.client(reach, &loaded.config).await?;
        let name = match &store {
            Some(store) => store.status().await?.store.to_owned(),
            None if loaded.catalog.is_some() => {
                reach.link()?.get::<ReadyAnswer>("/readyz").await?.store
            }
            None => String::new(),
        };
        let stop = StopSignal::new()?;
        let reload = Reload::new(Some(file), &loaded)?;
        let crew = Crew::new(client, loaded, self.slots, &name);
        let declare = async |loaded: &Loaded| match &store {
            Some(store) => store.declare(Arc::clone(&loaded.config.kinds)).await,
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
    catalog: watch::Sender<Option<Arc<Catalog>>>,
    /// Whether the store is a PostgreSQL database, on which transactions of others can rely.
    guarded: bool,
    /// Whether somebody does the runs of pipelines.
    runs: bool,
    /// How many of them at once, whatever the file says.
    run_slots: Option<usize>,
    /// What the workers that were started can do: operations, or all of them, of each kind.
    covered: BTreeMap<Text, Option<Vec<Text>>>,
    workers: JoinSet<Result<Summary, tenure::Error>>,
    stop: CancellationToken,
}

impl Crew {
    /// Nobody yet. `slots` counts more than what the file says; `store` is what the store is.
    pub(super) fn new(client: Client, loaded: Loaded, slots: Option<usize>, store: &str) -> Self {
        let Loaded { config, catalog } = loaded;
        let mut settings = config.worker.clone();
        settings.slots = slots.or(settings.slots);
        Self {
            client,
            settings,
            config: watch::Sender::new(Arc::new(config)),
            catalog: watch::Sender::new(catalog),
            guarded: store == "postgres",
            runs: false,
            run_slots: slots,
            covered: BTreeMap::new(),
            workers: JoinSet::new(),
            stop: CancellationToken::new(),
        }
    }

    /// Starts workers for the kinds that nobody works yet. The present ones go on: whoever ended
    /// them because a file has changed would end the commands that they run.
    fn hire(&mut self) -> Result<(), tenure::Error> {
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
            let mut worker = self.worker(self.settings.slots);
            for kind in kinds {
                worker = self.handle(worker, kind);
            }
            self.start(worker);
        }
        let declared = self.catalog.borrow().as_ref().map(|catalog| catalog.settings.slots);
        let slots = declared.map(|declared| self.run_slots.unwrap_or(declared));
        if let Some(slots) = slots.filter(|slots| *slots > 0 && !self.runs) {
            // One of its own: most of the time runs wait for others.
            let runner = Runner::new(self.catalog.subscribe(), self.guarded, present_span)?;
            let worker = self.worker(Some(slots)).handle(pipelines::KIND, runner);
            self.start(worker);
            self.runs = true;
        }
        Ok(())
    }

    fn worker(&self, slots: Option<usize>) -> Worker {
        let WorkerSettings { ttl, drain, name, .. } = self.settings.clone();
        let name = name.unwrap_or_else(process_name);
        let mut worker = Worker::new(&self.client, &name).ttl(ttl).drain(drain);
        if let Some(slots) = slots {
            worker = worker.slots(slots);
        }
        #[cfg(feature = "otel")]
        {
            worker = worker.span(crate::otel::span);
        }
        worker
    }

    fn start(&mut self, worker: Worker) {
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
        let runner = || FromFile { config: self.config.subscribe() };
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
        declare: impl AsyncFn(&Loaded) -> Result<(), StoreError>,
    ) -> anyhow::Result<()> {
        self.hire()?;
        loop {
            tokio::select! {
                () = stop.told() => break,
                error = self.fails() => return Err(error.into()),
                loaded = reload.next() => self.follow(loaded, &mut reload, &declare).await?,
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
        loaded: Loaded,
        reload: &mut Reload,
        declare: &impl AsyncFn(&Loaded) -> Result<(), StoreError>,
    ) -> Result<(), tenure::Error> {
        if let Some(why) = self.objection(&loaded.config) {
            Reload::refused(&why);
            return Ok(());
        }
        match declare(&loaded).await {
            Ok(()) => {
                reload.took(&loaded);
                let Loaded { config, catalog } = loaded;
                self.config.send_replace(Arc::new(config));
                self.catalog.send_replace(catalog);
                self.hire()
            }
            Err(error) => {
                say(&format!("the kinds cannot be declared, trying on: {error}"));
                reload.again();
                Ok(())
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
struct FromFile {
    config: watch::Receiver<Arc<Config>>,
}

#[async_trait]
impl Handler for FromFile {
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

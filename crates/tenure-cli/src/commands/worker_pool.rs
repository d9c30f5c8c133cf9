//! The workers of one process: one for the commands of `tenure.toml`, one for each app, and the
//! controllers of apps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use tenure::trace::TraceParent;
use tenure::worker::command::CANNOT_START;
use tenure::worker::{Command, Context, Done, Failure, Handler, Summary};
use tenure::{Client, Worker};
use tenure_app::{Apps, ControllerRunner, Live, LiveConfig, Loaded, WorkerEnv};
use tenure_cli_kit::message::say;
use tenure_cli_kit::process_name;
use tenure_config::{Config, WorkerSettings};
use tenure_core::{Kind, Operation, Text, limits};
use tenure_store::StoreError;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::reload::Reload;
use super::serve::StopSignal;

/// The workers of this process. They follow the live configuration: a command is looked up when it
/// starts.
pub(super) struct WorkerPool {
    client: Client,
    apps: Apps,
    settings: WorkerSettings,
    config: Arc<Config>,
    live: watch::Sender<LiveConfig>,
    /// Kind of the store.
    store: String,
    /// Slots of each worker, whatever the file says.
    slots: Option<usize>,
    /// Operations that the started workers run, or all of them, by kind.
    covered: BTreeMap<Text, Option<Vec<Text>>>,
    /// Apps whose worker or controllers were started.
    started: BTreeSet<&'static str>,
    workers: JoinSet<Result<Summary, tenure::Error>>,
    controllers: JoinSet<()>,
    stop: CancellationToken,
}

impl WorkerPool {
    /// Creates a pool without workers. `slots` overrides the file; `store` is the kind of the store.
    pub(super) fn new(
        client: Client,
        apps: &Apps,
        loaded: Loaded,
        slots: Option<usize>,
        store: &str,
    ) -> Self {
        let live = watch::Sender::new(loaded.live());
        let mut settings = loaded.config.worker.clone();
        settings.slots = slots.or(settings.slots);
        Self {
            client,
            apps: apps.clone(),
            settings,
            config: Arc::new(loaded.config),
            live,
            store: store.to_owned(),
            slots,
            covered: BTreeMap::new(),
            started: BTreeSet::new(),
            workers: JoinSet::new(),
            controllers: JoinSet::new(),
            stop: CancellationToken::new(),
        }
    }

    /// Starts workers for kinds and apps that have none yet. The present ones stay: ending one
    /// because a file has changed would end the commands that it runs.
    fn start_workers(&mut self) -> Result<(), tenure::Error> {
        self.start_command_workers();
        for app in self.apps.clone().iter() {
            let loaded = self.live.borrow().apps.named(app.name()).cloned();
            let Some(loaded) = loaded.filter(|_| !self.started.contains(app.name())) else {
                continue;
            };
            let env = WorkerEnv {
                live: Live::new(&self.live),
                store: self.store.clone(),
                span: current_span,
            };
            let worker = loaded.worker(&env)?;
            if let Some(mut worker) = worker {
                worker.slots = self.slots.unwrap_or(worker.slots);
                if worker.slots == 0 {
                    // A later file may give it slots.
                    continue;
                }
                let mut handling = self.worker(Some(worker.slots));
                for (kind, handler) in worker.handlers {
                    handling = handling.handle(kind, handler);
                }
                self.start(handling);
            }
            self.started.insert(app.name());
            for controller in app.controllers() {
                let (client, live) = (self.client.clone(), Live::new(&self.live));
                let runner = ControllerRunner::new(controller, client, live, &process_name());
                self.controllers.spawn(runner.run(self.stop.clone()));
            }
        }
        Ok(())
    }

    /// Starts workers for the kinds with commands.
    fn start_command_workers(&mut self) {
        let config = Arc::clone(&self.config);
        let mut new = Vec::new();
        for kind in config.command_kinds().iter().filter_map(|name| config.kinds.get(name)) {
            let operations = command_operations(kind);
            match self.covered.get(&kind.name) {
                None => {
                    self.covered.insert(kind.name.clone(), operations);
                    new.push(kind);
                }
                Some(covered) if *covered == operations => {}
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
        let runner = || FromFile { live: Live::new(&self.live) };
        match command_operations(kind) {
            None => worker.handle(&kind.name, runner()),
            Some(operations) => {
                for operation in operations {
                    worker = worker.handle_operation(&kind.name, &operation, runner());
                }
                worker
            }
        }
    }

    /// Works until the stop signal and follows the file; `put_in_force` makes a changed one live.
    /// Then no more jobs are claimed, and running ones may end, until a second signal.
    pub(super) async fn run(
        mut self,
        mut stop: StopSignal,
        mut reload: Reload,
        put_in_force: impl AsyncFn(&Loaded) -> Result<(), StoreError>,
    ) -> anyhow::Result<()> {
        self.start_workers()?;
        loop {
            tokio::select! {
                () = stop.told() => break,
                error = self.fails() => return Err(error.into()),
                loaded = reload.next() => self.reload(loaded, &mut reload, &put_in_force).await?,
            }
        }
        tokio::select! {
            () = self.drain() => {}
            () = stop.told() => say("not waiting for what runs"),
        }
        Ok(())
    }

    /// Puts another file in force.
    async fn reload(
        &mut self,
        loaded: Loaded,
        reload: &mut Reload,
        put_in_force: &impl AsyncFn(&Loaded) -> Result<(), StoreError>,
    ) -> Result<(), tenure::Error> {
        if let Some(why) = self.objection(&loaded.config) {
            Reload::refused(&why);
            return Ok(());
        }
        match put_in_force(&loaded).await {
            Ok(()) => {
                reload.took(&loaded);
                self.live.send_replace(loaded.live());
                self.config = Arc::new(loaded.config);
                self.start_workers()
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
        while self.controllers.join_next().await.is_some() {}
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
fn command_operations(kind: &Kind) -> Option<Vec<Text>> {
    let runs = |operation: &&Operation| !operation.run.is_empty();
    let all = kind.operations.values().all(|operation| runs(&operation));
    let with = || kind.operations.values().filter(runs).map(|operation| operation.name.clone());
    (!all).then(|| with().collect())
}

/// The span around an attempt, for commands to go on with; none when nobody takes spans.
fn current_span() -> Option<TraceParent> {
    #[cfg(feature = "otel")]
    return crate::otel::current();
    #[cfg(not(feature = "otel"))]
    None
}

/// Runs the command that the file has for a job when it starts.
struct FromFile {
    live: Live,
}

#[async_trait]
impl Handler for FromFile {
    async fn run(&self, job: &Context) -> Result<Done, Failure> {
        let kinds = self.live.kinds();
        let kind = kinds.get(job.key().kind());
        let operation = kind.and_then(|kind| kind.operations.get(job.operation()));
        match operation.filter(|operation| !operation.run.is_empty()) {
            Some(operation) => {
                Command::new(&operation.run).traceparent(current_span()).run(job).await
            }
            None => {
                let why = "tenure.toml has no `run` for this operation any more";
                Err(Failure::transient(CANNOT_START, why))
            }
        }
    }

    fn must_complete(&self) -> bool {
        true
    }
}

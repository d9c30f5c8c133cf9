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
    /// Kind of store.
    store: String,
    /// Slots of each worker; overrides the file.
    slots: Option<usize>,
    /// Operations that the started workers run, by kind; `None` for all.
    covered: BTreeMap<Text, Option<Vec<Text>>>,
    /// Apps whose worker or controllers were started.
    started: BTreeSet<&'static str>,
    workers: JoinSet<Result<Summary, tenure::Error>>,
    controllers: JoinSet<()>,
    stop: CancellationToken,
}

impl WorkerPool {
    /// Creates a pool without workers. `slots` overrides the file, `store` is the kind of store.
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

    /// Starts workers for kinds and apps that have none yet. Existing workers stay: stopping one
    /// because a file has changed would stop its running commands.
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
                let mut handling = self.new_worker(Some(worker.slots));
                for (kind, handler) in worker.handlers {
                    handling = handling.handle(kind, handler);
                }
                if let Some((ttl, heartbeat)) = worker.session {
                    handling = handling.ttl(ttl).heartbeat(heartbeat);
                }
                if let Some(wakeups) = worker.wakeups {
                    handling = handling.wakeups(wakeups);
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
                    say(&format!("kind {kind}: restart the process to run its added commands"));
                }
            }
        }
        for kinds in new.chunks(limits::CLAIM_KINDS_MAX) {
            let mut worker = self.new_worker(self.settings.slots);
            for kind in kinds {
                worker = self.handle(worker, kind);
            }
            self.start(worker);
        }
    }

    fn new_worker(&self, slots: Option<usize>) -> Worker {
        let WorkerSettings { ttl, heartbeat, drain, name, .. } = self.settings.clone();
        let name = name.unwrap_or_else(process_name);
        let mut worker = Worker::new(&self.client, &name).ttl(ttl).drain(drain);
        if let Some(interval) = heartbeat {
            worker = worker.heartbeat(interval);
        }
        if let Some(slots) = slots {
            worker = worker.slots(slots);
        }
        #[cfg(feature = "otel")]
        {
            worker = worker.span(crate::otel::create_attempt_span);
        }
        worker
    }

    fn start(&mut self, worker: Worker) {
        let stop = self.stop.clone();
        self.workers.spawn(worker.run(async move { stop.cancelled().await }));
    }

    /// Returns why the started workers cannot apply a changed file: they would claim jobs without a
    /// command.
    fn rejection(&self, config: &Config) -> Option<String> {
        let kinds =
            config.kinds.iter().filter_map(|kind| Some((kind, self.covered.get(&kind.name)?)));
        for (kind, covered) in kinds {
            let is_covered =
                |name: &Text| covered.as_ref().is_none_or(|names| names.contains(name));
            let mut operations = kind.operations.values();
            let missing = operations.find(|one| one.run.is_empty() && is_covered(&one.name));
            if let Some(Operation { name, .. }) = missing {
                let kind = &kind.name;
                return Some(format!("{name} of {kind} has no `run`: this requires a restart"));
            }
        }
        None
    }

    fn handle(&self, mut worker: Worker, kind: &Kind) -> Worker {
        let handler = || ConfiguredCommand { live: Live::new(&self.live) };
        match command_operations(kind) {
            None => worker.handle(&kind.name, handler()),
            Some(operations) => {
                for operation in operations {
                    worker = worker.handle_operation(&kind.name, &operation, handler());
                }
                worker
            }
        }
    }

    /// Runs the workers until the stop signal, and reloads the file; `apply` makes a changed one
    /// live. Then claims no more jobs and waits for running ones, until a second signal.
    pub(super) async fn run(
        mut self,
        mut stop: StopSignal,
        mut reload: Reload,
        apply: impl AsyncFn(&Loaded) -> Result<(), StoreError>,
    ) -> anyhow::Result<()> {
        self.start_workers()?;
        loop {
            tokio::select! {
                () = stop.received() => break,
                error = self.worker_error() => return Err(error.into()),
                loaded = reload.next() => self.reload(loaded, &mut reload, &apply).await?,
            }
        }
        tokio::select! {
            () = self.drain() => {}
            () = stop.received() => say("not waiting for running jobs"),
        }
        Ok(())
    }

    /// Applies a changed file, or rejects it.
    async fn reload(
        &mut self,
        loaded: Loaded,
        reload: &mut Reload,
        apply: &impl AsyncFn(&Loaded) -> Result<(), StoreError>,
    ) -> Result<(), tenure::Error> {
        if let Some(why) = self.rejection(&loaded.config) {
            Reload::report_rejected(&why);
            return Ok(());
        }
        match apply(&loaded).await {
            Ok(()) => {
                reload.report_applied(&loaded);
                self.live.send_replace(loaded.live());
                self.config = Arc::new(loaded.config);
                self.start_workers()
            }
            Err(error) => {
                say(&format!("cannot declare the kinds; retrying: {error}"));
                reload.retry();
                Ok(())
            }
        }
    }

    /// Waits until a worker fails, which happens only if it is not permitted to work.
    async fn worker_error(&mut self) -> tenure::Error {
        loop {
            match self.workers.join_next().await {
                Some(Ok(Err(error))) => return error,
                Some(Ok(Ok(_))) => {}
                Some(Err(error)) => say(&format!("worker task failed: {error}")),
                None => return std::future::pending().await,
            }
        }
    }

    /// Stops the workers and waits until all jobs have finished or were handed back.
    async fn drain(&mut self) {
        self.stop.cancel();
        while self.controllers.join_next().await.is_some() {}
        while let Some(ended) = self.workers.join_next().await {
            match ended {
                Ok(Ok(summary)) => tracing::debug!(?summary, "worker stopped"),
                Ok(Err(error)) => say(&format!("worker stopped with an error: {error}")),
                Err(error) => say(&format!("worker task failed: {error}")),
            }
        }
    }
}

/// Returns the operations of a kind that have a command, or `None` if all have one.
fn command_operations(kind: &Kind) -> Option<Vec<Text>> {
    let has_command = |operation: &&Operation| !operation.run.is_empty();
    let all = kind.operations.values().all(|operation| has_command(&operation));
    let names = || kind.operations.values().filter(has_command).map(|one| one.name.clone());
    (!all).then(|| names().collect())
}

/// Returns the span of the attempt as the parent for its command, or `None` if spans are not
/// exported.
fn current_span() -> Option<TraceParent> {
    #[cfg(feature = "otel")]
    return crate::otel::current_span();
    #[cfg(not(feature = "otel"))]
    None
}

/// Runs the command that the live configuration has when the job starts.
struct ConfiguredCommand {
    live: Live,
}

#[async_trait]
impl Handler for ConfiguredCommand {
    async fn run(&self, job: &Context) -> Result<Done, Failure> {
        let live = self.live.get();
        let kind = live.kinds.get(job.key().kind());
        let operation = kind.and_then(|kind| kind.operations.get(job.operation()));
        match operation.filter(|operation| !operation.run.is_empty()) {
            Some(operation) => {
                let command = Command::declared(operation)
                    .pass_env(live.pass_env.iter())
                    .traceparent(current_span());
                command.run(job).await
            }
            None => {
                let why = "tenure.toml no longer has a `run` for this operation";
                Err(Failure::transient(CANNOT_START, why))
            }
        }
    }

    fn must_complete(&self) -> bool {
        true
    }
}

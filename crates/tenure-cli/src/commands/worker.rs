//! `tenure worker`: runs jobs without serving the API.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use tenure::Client;
use tenure_app::{Apps, Loaded};
use tenure_cli_kit::message::say;
use tenure_cli_kit::{ConfigFile, Done, Output, ServerArgs, store};
use tenure_config::Config;
use tenure_store::{Committer, Store};
use tenure_wire::ReadyResponse;

use super::config::load;
use super::reload::Reload;
use super::serve::StopSignal;
use super::worker_ls;
use super::worker_pool::WorkerPool;
use crate::log::{LogArgs, LogFormat};

/// Run jobs with the commands of tenure.toml
///
/// Claims jobs of the kinds whose operations have a `run`, and those of apps, for the tenant given
/// by --tenant (`*` for all tenants). On SIGTERM it claims no more jobs and waits up to the time of
/// `drain` for running ones.
#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  tenure worker ls                               list the workers of a server
  tenure worker                                  connect to the server on this machine
  tenure worker --server https://10.0.0.5:7117 --tenant '*' --slots 8"
)]
pub(super) struct WorkerVerb {
    #[command(flatten)]
    config: ConfigFile,
    /// Store to use directly, without a server: memory:, embedded:PATH or postgres://…
    #[arg(long, value_name = "URL", conflicts_with = "server")]
    store: Option<String>,
    /// Maximum number of concurrent jobs, for commands and for each app [default: from tenure.toml,
    /// or the number of cores]
    #[arg(long, value_name = "N")]
    slots: Option<usize>,
    #[command(flatten)]
    log: LogArgs,
    #[command(subcommand)]
    verb: Option<WorkerListVerb>,
}

#[derive(Subcommand)]
enum WorkerListVerb {
    Ls(worker_ls::Ls),
}

impl WorkerVerb {
    /// Returns the format of the log of a worker process.
    pub(super) fn log_format(&self) -> Option<LogFormat> {
        self.verb.is_none().then_some(self.log.log_format)
    }

    pub(super) async fn run(&self, apps: &Apps, server: &ServerArgs, output: Output) -> Done {
        match &self.verb {
            Some(WorkerListVerb::Ls(ls)) => ls.run(server, output).await,
            None => self.work(apps, server).await,
        }
    }

    async fn work(&self, apps: &Apps, server: &ServerArgs) -> Done {
        let file = self.config.find().context("no tenure.toml found; name one with --config")?;
        let loaded = load(apps, &file)?;
        let has_apps = loaded.apps.iter().next().is_some();
        if loaded.config.command_kinds().is_empty() && !has_apps {
            let names: Vec<String> = apps.iter().map(|app| format!("[{}]", app.name())).collect();
            let (file, names) = (file.display(), names.join(" or "));
            bail!(
                "no operation in {file} has a `run`, and there is no section {names}: this worker \
                 has nothing to do"
            );
        }
        say(&format!("commands from {}: {}", file.display(), loaded.summary()));
        let (client, store) = self.client(server, &loaded.config).await?;
        let name = match &store {
            Some(store) => store.status().await?.store.to_owned(),
            None if has_apps => server.transport()?.get::<ReadyResponse>("/readyz").await?.store,
            None => String::new(),
        };
        let stop = StopSignal::new()?;
        let reload = Reload::new(apps, Some(file), &loaded)?;
        let pool = WorkerPool::new(client, apps, loaded, self.slots, &name);
        let declare = async |loaded: &Loaded| match &store {
            Some(store) => store.declare(Arc::clone(&loaded.config.kinds)).await,
            None => Ok(()),
        };
        pool.run(stop, reload, declare).await?;
        say("stopped");
        Ok(ExitCode::SUCCESS)
    }

    /// Returns a client of the server, or of a store that this process opens.
    async fn client(
        &self,
        server: &ServerArgs,
        config: &Config,
    ) -> anyhow::Result<(Client, Option<Arc<dyn Store>>)> {
        let Some(url) = &self.store else {
            return Ok((
                Client::with_transport(Arc::new(server.transport()?), server.tenant()),
                None,
            ));
        };
        let store = store::open(url).await?;
        store.declare(Arc::clone(&config.kinds)).await?;
        let client = Client::with_committer(Committer::start(Arc::clone(&store)), server.tenant());
        Ok((client, Some(store)))
    }
}

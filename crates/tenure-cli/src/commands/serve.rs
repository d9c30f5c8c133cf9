//! `tenure serve`: the server process.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use tenure::Client;
use tenure_config::{AuditSetting, ServerSettings};
use tenure_core::session::ALL_TENANTS;
use tenure_server::audit::Audit;
use tenure_server::auth::Keys;
use tenure_server::auth::limits::{AUTH_FAILURE_RATE, Rate};
use tenure_server::{HttpConfig, Server, ServerState, keyfile, listen};
use tenure_store::Store;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use tenure_app::{Apps, Loaded};
use tenure_cli_kit::Done;
use tenure_cli_kit::message::{self, say};
use tenure_cli_kit::store::{close, open as open_store};
use tenure_cli_kit::text::parse_duration;
use tenure_cli_kit::{ADMIN_KEY_FILE, ConfigFile, DEFAULT_LISTEN, ServerArgs, process_name};

use super::config::load;
use super::reload::Reload;
use super::worker_pool::WorkerPool;
use crate::log::LogArgs;

/// Serve the API, with a worker for the commands of tenure.toml
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure serve                                   on 127.0.0.1:7117, with the default data directory
  tenure serve --data /var/lib/tenure --listen 127.0.0.1:7200
  tenure serve --config deploy/tenure.toml       with kinds, and a worker for their commands
  tenure serve --store memory:                   without durability, for tests
  tenure serve --store postgres://tenure@db/ops  with other servers on one database

tenure.toml is reloaded on SIGHUP and when it changes; a file with problems is rejected.
On SIGTERM, running jobs have the time of `drain` to finish; a second SIGTERM ends the wait.")]
pub(super) struct Serve {
    /// Address to listen on
    #[arg(long, value_name = "ADDR", default_value = DEFAULT_LISTEN)]
    listen: String,
    /// Store: memory:, embedded:PATH or postgres://… [default: a file in the data directory]
    #[arg(long, env = "TENURE_STORE", hide_env_values = true, value_name = "URL")]
    store: Option<String>,
    /// Allow plain HTTP on an address other than loopback, where API keys are sent in clear text.
    /// For servers behind a proxy that terminates TLS
    #[arg(long)]
    plain_http: bool,
    /// Time to keep serving after SIGTERM while /readyz reports not ready, so that load balancers
    /// stop sending requests before the server stops
    #[arg(long, value_parser = parse_duration, value_name = "DUR", default_value = "0s")]
    linger: Duration,
    /// File with the admin key, for servers that share one [default: admin.key in the data
    /// directory, created at the first start]
    #[arg(long, env = ADMIN_KEY_FILE, value_name = "FILE")]
    admin_key_file: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigFile,
    #[command(flatten)]
    pub(super) log: LogArgs,
}

impl Serve {
    pub(super) async fn run(&self, apps: &Apps, args: &ServerArgs) -> Done {
        let dir = args.data().dir()?;
        create_data_dir(&dir)?;
        let file = self.config.find();
        let loaded = file.as_deref().map(|file| load(apps, file)).transpose()?.unwrap_or_default();
        let config = &loaded.config;
        let (key, key_path) = match &self.admin_key_file {
            Some(file) => (keyfile::load(file)?, file.clone()),
            None => keyfile::load_or_create(&dir)?,
        };
        let store = open_store(&store_url(self.store.as_deref(), &dir)).await?;
        let front = front_config(&config.server, &dir)?;
        let listener = self.bind(front.tls.is_some()).await?;
        let scheme = if front.tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}", listener.local_addr()?);
        let (keys, live) = (Keys::admin(&key), loaded.live());
        let server_config = tenure_server::Config { keys, apps: apps.clone(), live, http: front };
        let server = Server::start(Arc::clone(&store), server_config, &process_name()).await?;
        server.state().metrics.set_per_tenant(config.metrics.per_tenant);
        // Before the address is published: from then on the process may be signalled.
        let stop = StopSignal::with_token(server.state().draining.clone())?;
        let address_file = AddressFile::write(args.data().address_file()?, &url)?;
        print_greeting(&url, &server.state().sign_in_link(), &key_path, &*store).await?;
        print_config(file.as_deref(), &loaded);
        let reload = Reload::new(apps, file, &loaded)?;
        let process = ServerProcess { apps, loaded, reload, stop, linger: self.linger };
        process.run(server, listener).await?;
        drop(address_file);
        close(store).await;
        say("stopped");
        Ok(ExitCode::SUCCESS)
    }

    async fn bind(&self, tls: bool) -> anyhow::Result<TcpListener> {
        let listen = &self.listen;
        let bound = TcpListener::bind(listen).await.with_context(|| {
            format!(
                "cannot listen on {listen}; if another server runs there, stop it or choose \
                 another address with --listen"
            )
        })?;
        if !tls && !self.plain_http && !bound.local_addr()?.ip().is_loopback() {
            bail!(
                "{listen} is not a loopback address, and without TLS API keys are sent in clear \
                 text: set tls_certificate and tls_key in [server] of tenure.toml, or pass \
                 --plain-http if a proxy in front of the server terminates TLS"
            );
        }
        Ok(bound)
    }
}

async fn print_greeting(
    url: &str,
    sign_in_link: &str,
    key: &Path,
    store: &dyn Store,
) -> anyhow::Result<()> {
    let status = store.status().await?;
    let (kind, safety) = (status.store, status.safety.as_str());
    say(&format!("listening on {url}"));
    say(&format!("store {kind}, safety class: {safety}"));
    say(&format!("the admin key is in {}", key.display()));
    // The link grants one sign-in as admin; JSON logs are shipped and stored.
    if message::is_text() {
        say(&format!("sign in once within 15 minutes: {url}{sign_in_link}"));
    }
    Ok(())
}

/// Returns the settings of the HTTP front end.
fn front_config(settings: &ServerSettings, data: &Path) -> anyhow::Result<HttpConfig> {
    let tls = settings.tls.as_ref().map(|(chain, key)| listen::load_tls(chain, key)).transpose()?;
    let open = |path: &Path| {
        Audit::open(path).with_context(|| {
            let path = path.display();
            format!(
                "cannot write the audit log to {path}; name another file with `audit` in [server]"
            )
        })
    };
    let audit = match &settings.audit {
        AuditSetting::Data => open(&data.join("audit.jsonl"))?,
        AuditSetting::File(path) => open(path)?,
        AuditSetting::Off => Audit::off(),
    };
    let tenants = settings.tenant_requests_per_s.map(Rate::per_s);
    let connections_max = settings.connections.unwrap_or(listen::CONNECTIONS_MAX);
    let wrong_keys = settings.wrong_keys_per_s.map_or(AUTH_FAILURE_RATE, Rate::per_s);
    Ok(HttpConfig {
        tls,
        audit,
        tenant_rate: tenants,
        auth_failure_rate: wrong_keys,
        connections_max,
        ..HttpConfig::default()
    })
}

/// The parts of the process: the HTTP server, the workers and the reload.
struct ServerProcess<'a> {
    apps: &'a Apps,
    loaded: Loaded,
    reload: Reload,
    stop: StopSignal,
    linger: Duration,
}

impl ServerProcess<'_> {
    /// Runs until a signal. The server answers until the workers have drained and the linger time
    /// has passed.
    async fn run(self, server: Server, listener: TcpListener) -> anyhow::Result<()> {
        let Self { apps, loaded, reload, stop, linger } = self;
        let state = server.state().clone();
        let client = Client::with_committer(state.services.committer.clone(), ALL_TENANTS);
        let store = state.services.store().status().await?.store;
        let pool = WorkerPool::new(client, apps, loaded, None, store);
        let stopped = CancellationToken::new();
        let serve = server.serve(listener, stopped.clone().cancelled_owned());
        let apply = async |loaded: &Loaded| apply_config(&state, loaded).await;
        let work = async {
            let _stopped = stopped.drop_guard();
            let lingered = async {
                state.draining.cancelled().await;
                tokio::time::sleep(linger).await;
            };
            let worked = async {
                let worked = pool.run(stop, reload, apply).await;
                state.draining.cancel();
                worked
            };
            tokio::join!(worked, lingered).0
        };
        tokio::pin!(serve);
        tokio::select! {
            // Ends before the workers only on a failure.
            served = &mut serve => served?,
            worked = work => {
                serve.await?;
                worked?;
            }
        }
        Ok(())
    }
}

async fn apply_config(
    state: &ServerState,
    loaded: &Loaded,
) -> Result<(), tenure_store::StoreError> {
    state.reload(loaded.live()).await?;
    state.metrics.set_per_tenant(loaded.config.metrics.per_tenant);
    Ok(())
}

/// Returns the URL of the named store, or of the one in the data directory.
pub(super) fn store_url(named: Option<&str>, data: &Path) -> String {
    let default = || format!("embedded:{}", data.join("tenure.db").display());
    named.map_or_else(default, str::to_owned)
}

fn print_config(file: Option<&Path>, loaded: &Loaded) {
    match file {
        Some(file) => say(&format!("kinds from {}: {}", file.display(), loaded.summary())),
        None => say("no tenure.toml found: no kinds are declared"),
    }
}

fn create_data_dir(dir: &Path) -> anyhow::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).with_context(|| {
        let dir = dir.display();
        format!("cannot create the data directory {dir}; choose another with --data DIR")
    })
}

/// The file with the server's address, for the CLI on the same machine. Removed on drop.
struct AddressFile(PathBuf);

impl AddressFile {
    fn write(path: PathBuf, url: &str) -> anyhow::Result<Self> {
        fs::write(&path, format!("{url}\n"))
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for AddressFile {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0) {
            tracing::debug!(%error, "cannot remove the address file");
        }
    }
}

/// Receives SIGINT and SIGTERM.
pub(super) struct StopSignal {
    interrupt: Signal,
    terminate: Signal,
    leaving: CancellationToken,
}

impl StopSignal {
    pub(super) fn new() -> anyhow::Result<Self> {
        Self::with_token(CancellationToken::new())
    }

    /// Cancels `leaving` on the first signal.
    fn with_token(leaving: CancellationToken) -> anyhow::Result<Self> {
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(Self { interrupt, terminate: signal(SignalKind::terminate())?, leaving })
    }

    /// Waits for the next signal.
    pub(super) async fn received(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
        self.leaving.cancel();
        say("stopping");
    }
}

//! `tenure serve`

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
use tenure_server::auth::limits::{Rate, WRONG_KEYS};
use tenure_server::{Front, Server, ServerState, keyfile, listen};
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

/// Serve the API on a durable store
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure serve                                   on 127.0.0.1:7117, data in the user's directory
  tenure serve --data /var/lib/tenure --listen 127.0.0.1:7200
  tenure serve --config deploy/tenure.toml       with kinds, and a worker for their commands
  tenure serve --store memory:                   forgets everything when it ends
  tenure serve --store postgres://tenure@db/ops  beside others on one database

tenure.toml is read again on SIGHUP and when it has changed; one that is wrong changes nothing.
On SIGTERM the worker gets the time of `drain` to finish; a second SIGTERM cuts that short.")]
pub(super) struct Serve {
    /// Address to listen on
    #[arg(long, value_name = "ADDR", default_value = DEFAULT_LISTEN)]
    listen: String,
    /// Store: memory:, embedded:PATH or postgres://… [default: a file in the data directory]
    #[arg(long, env = "TENURE_STORE", hide_env_values = true, value_name = "URL")]
    store: Option<String>,
    /// Serve plain HTTP on an address that others can reach: keys travel unprotected. For servers
    /// behind a proxy that does TLS
    #[arg(long)]
    plain_http: bool,
    /// How long to go on answering after SIGTERM while /readyz says no, so that load balancers
    /// send nobody here any more when the server stops
    #[arg(long, value_parser = parse_duration, value_name = "DUR", default_value = "0s")]
    linger: Duration,
    /// File with the admin key, for servers that share one [default: admin.key in the data
    /// directory, made at the first start]
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
        make_dir(&dir)?;
        let file = self.config.find();
        let loaded = file.as_deref().map(|file| load(apps, file)).transpose()?.unwrap_or_default();
        let config = &loaded.config;
        let (key, key_path) = match &self.admin_key_file {
            Some(file) => (keyfile::read(file)?, file.clone()),
            None => keyfile::ensure(&dir)?,
        };
        let store = open_store(&store_url(self.store.as_deref(), &dir)).await?;
        let front = front(&config.server, &dir)?;
        let listener = self.bind(front.tls.is_some()).await?;
        let scheme = if front.tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}", listener.local_addr()?);
        let (keys, live) = (Keys::admin(&key), loaded.live());
        let server_config = tenure_server::Config { keys, apps: apps.clone(), live, front };
        let server = Server::start(Arc::clone(&store), server_config, &process_name()).await?;
        server.state().metrics.per_tenant(config.metrics.per_tenant);
        // Before the address is published: from then on the process may be signalled.
        let stop = StopSignal::telling(server.state().leaving.clone())?;
        let note = AddressNote::write(args.data().address_file()?, &url)?;
        greet(&url, &server.state().sign_in_link(), &key_path, &*store).await?;
        tell_config(file.as_deref(), &loaded);
        let reload = Reload::new(apps, file, &loaded)?;
        let work = Work { apps, loaded, reload, stop, linger: self.linger };
        work.run(server, listener).await?;
        drop(note);
        close(store).await;
        say("stopped");
        Ok(ExitCode::SUCCESS)
    }

    async fn bind(&self, secure: bool) -> anyhow::Result<TcpListener> {
        let listen = &self.listen;
        let bound = TcpListener::bind(listen).await.with_context(|| {
            format!(
                "cannot listen on {listen}; another server may run there: stop it, or choose \
                 another address with --listen"
            )
        })?;
        if !secure && !self.plain_http && !bound.local_addr()?.ip().is_loopback() {
            bail!(
                "{listen} can be reached by others, and without TLS everybody on the way reads \
                 keys: set tls_certificate and tls_key in [server] of tenure.toml, or say \
                 --plain-http if a proxy in front of it does TLS"
            );
        }
        Ok(bound)
    }
}

async fn greet(url: &str, link: &str, key: &Path, store: &dyn Store) -> anyhow::Result<()> {
    let status = store.status().await?;
    let (kind, safety) = (status.store, status.safety.as_str());
    say(&format!("listening on {url}"));
    say(&format!("store {kind}, safety class: {safety}"));
    say(&format!("the admin key is in {}", key.display()));
    // Whoever has the link is admin once; logs in JSON are kept and read by others.
    if message::is_text() {
        say(&format!("sign in once within 15 minutes: {url}{link}"));
    }
    Ok(())
}

/// How to deal with those who ask.
fn front(settings: &ServerSettings, data: &Path) -> anyhow::Result<Front> {
    let tls = settings.tls.as_ref().map(|(chain, key)| listen::tls(chain, key)).transpose()?;
    let open = |path: &Path| {
        Audit::open(path).with_context(|| {
            let path = path.display();
            format!("cannot write the audit to {path}; name another file by `audit` in [server]")
        })
    };
    let audit = match &settings.audit {
        AuditSetting::Data => open(&data.join("audit.jsonl"))?,
        AuditSetting::File(path) => open(path)?,
        AuditSetting::Off => Audit::off(),
    };
    let tenants = settings.tenant_requests_per_s.map(Rate::per_s);
    let connections_max = settings.connections.unwrap_or(listen::CONNECTIONS_MAX);
    let wrong_keys = settings.wrong_keys_per_s.map_or(WRONG_KEYS, Rate::per_s);
    Ok(Front { tls, audit, tenants, wrong_keys, connections_max, ..Front::default() })
}

/// What `tenure serve` runs beside the HTTP server.
struct Work<'a> {
    apps: &'a Apps,
    loaded: Loaded,
    reload: Reload,
    stop: StopSignal,
    linger: Duration,
}

impl Work<'_> {
    /// Serves and works until a signal. The server answers until the workers are done, and lingers.
    async fn run(self, server: Server, listener: TcpListener) -> anyhow::Result<()> {
        let Self { apps, loaded, reload, stop, linger } = self;
        let state = server.state().clone();
        let client = Client::with_committer(state.services.committer.clone(), ALL_TENANTS);
        let store = state.services.store().status().await?.store;
        let pool = WorkerPool::new(client, apps, loaded, None, store);
        let stopped = CancellationToken::new();
        let serve = server.serve(listener, stopped.clone().cancelled_owned());
        let put_in_force = async |loaded: &Loaded| put_in_force(&state, loaded).await;
        let work = async {
            let _stopped = stopped.drop_guard();
            let lingered = async {
                state.leaving.cancelled().await;
                tokio::time::sleep(linger).await;
            };
            let worked = async {
                let worked = pool.run(stop, reload, put_in_force).await;
                state.leaving.cancel();
                worked
            };
            tokio::join!(worked, lingered).0
        };
        tokio::pin!(serve);
        tokio::select! {
            // Only a failure ends it before the workers.
            served = &mut serve => served?,
            worked = work => {
                serve.await?;
                worked?;
            }
        }
        Ok(())
    }
}

async fn put_in_force(
    state: &ServerState,
    loaded: &Loaded,
) -> Result<(), tenure_store::StoreError> {
    state.reload(loaded.live()).await?;
    state.metrics.per_tenant(loaded.config.metrics.per_tenant);
    Ok(())
}

/// The store that was named, or the one in the data directory.
pub(super) fn store_url(named: Option<&str>, data: &Path) -> String {
    let default = || format!("embedded:{}", data.join("tenure.db").display());
    named.map_or_else(default, str::to_owned)
}

fn tell_config(file: Option<&Path>, loaded: &Loaded) {
    match file {
        Some(file) => say(&format!("kinds from {}: {}", file.display(), loaded.summary())),
        None => say("no tenure.toml here: no kinds are declared"),
    }
}

fn make_dir(dir: &Path) -> anyhow::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).with_context(|| {
        let dir = dir.display();
        format!("cannot make the data directory {dir}; choose another with --data DIR")
    })
}

/// The server's address, for the CLI on the same machine; removed when the server ends.
struct AddressNote(PathBuf);

impl AddressNote {
    fn write(path: PathBuf, url: &str) -> anyhow::Result<Self> {
        fs::write(&path, format!("{url}\n"))
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for AddressNote {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0) {
            tracing::debug!(%error, "cannot remove the note of the address");
        }
    }
}

/// Tells of SIGINT and SIGTERM.
pub(super) struct StopSignal {
    interrupt: Signal,
    terminate: Signal,
    leaving: CancellationToken,
}

impl StopSignal {
    pub(super) fn new() -> anyhow::Result<Self> {
        Self::telling(CancellationToken::new())
    }

    /// Cancels `leaving` on the first one.
    fn telling(leaving: CancellationToken) -> anyhow::Result<Self> {
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(Self { interrupt, terminate: signal(SignalKind::terminate())?, leaving })
    }

    /// Completes on the next one.
    pub(super) async fn told(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
        self.leaving.cancel();
        say("stopping");
    }
}

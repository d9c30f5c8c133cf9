//! `tenure serve`: the server process.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use tenure::Client;
use tenure_config::AuditSetting;
use tenure_core::session::ALL_TENANTS;
use tenure_server::audit::Audit;
use tenure_server::auth::Keys;
use tenure_server::auth::limits::{AUTH_FAILURE_RATE, Rate};
use tenure_server::{HttpConfig, Server, ServerState, keyfile, listen};
use tenure_store::{Store, private_file};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use tenure_app::{Apps, Loaded};
use tenure_cli_kit::Done;
use tenure_cli_kit::message::{self, say};
use tenure_cli_kit::store::{close, open_in};
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

tenure.toml is reloaded on SIGHUP and when it changes; a file with problems is rejected. An invalid
file of an app, such as that of a pipeline, disables only what it declares; /readyz names it.
On SIGTERM, running jobs have the time of `drain` to finish; a second SIGTERM ends the wait.")]
pub(super) struct Serve {
    /// Address to listen on
    #[arg(long, value_name = "ADDR", default_value = DEFAULT_LISTEN, value_parser = parse_listen)]
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
        let options = ServerOptions {
            apps,
            listen: &self.listen,
            plain_http: self.plain_http,
            store: store_url(self.store.as_deref(), &dir),
            address_file: args.data().address_file()?,
            data: dir,
            config: file.clone(),
            admin_key_file: self.admin_key_file.clone(),
            linger: self.linger,
        };
        let process = ServerProcess::start(options).await?;
        print_greeting(&process).await?;
        print_config(file.as_deref(), &process.loaded);
        process.run().await?;
        say("stopped");
        Ok(ExitCode::SUCCESS)
    }
}

/// Options of a server process.
pub(super) struct ServerOptions<'a> {
    pub(super) apps: &'a Apps,
    /// Address to listen on.
    pub(super) listen: &'a str,
    /// Allows an address other than loopback without TLS.
    pub(super) plain_http: bool,
    /// URL of the store.
    pub(super) store: String,
    /// Data directory; it exists.
    pub(super) data: PathBuf,
    /// File to which the address is written while the server runs.
    pub(super) address_file: PathBuf,
    /// `tenure.toml`, if there is one.
    pub(super) config: Option<PathBuf>,
    /// File with the admin key; by default one in the data directory.
    pub(super) admin_key_file: Option<PathBuf>,
    /// Time to keep serving after the stop signal.
    pub(super) linger: Duration,
}

/// A server that listens, with the workers and the reload of its process.
pub(super) struct ServerProcess {
    apps: Apps,
    loaded: Loaded,
    reload: Reload,
    stop: StopSignal,
    linger: Duration,
    server: Server,
    listener: TcpListener,
    store: Arc<dyn Store>,
    address_file: AddressFile,
    key_path: PathBuf,
    url: String,
}

impl ServerProcess {
    /// Opens the store, listens and publishes the address. Requests are answered by
    /// [`ServerProcess::run`].
    pub(super) async fn start(options: ServerOptions<'_>) -> anyhow::Result<Self> {
        let apps = options.apps;
        let loaded = options.config.as_deref().map(|file| load(apps, file)).transpose()?;
        let loaded = loaded.unwrap_or_default();
        let (key, key_path) = match &options.admin_key_file {
            Some(file) => (keyfile::load(file)?, file.clone()),
            None => keyfile::load_or_create(&options.data)?,
        };
        let store = open_in(&options.store, Some(&options.data)).await?;
        let front = front_config(&loaded.config, &options.data)?;
        let listener = bind(options.listen, front.tls.is_some() || options.plain_http).await?;
        let scheme = if front.tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}", listener.local_addr()?);
        let (keys, live) = (Keys::admin(&key), loaded.live());
        let server_config = tenure_server::Config { keys, apps: apps.clone(), live, http: front };
        let server = Server::start(Arc::clone(&store), server_config, &process_name()).await?;
        server.state().metrics.set_per_tenant(loaded.config.metrics.per_tenant);
        // Before the address is published: from then on the process may be signalled.
        let stop = StopSignal::with_token(server.state().draining.clone())?;
        let address_file = AddressFile::write(options.address_file, &url)?;
        let (apps, linger) = (apps.clone(), options.linger);
        let reload = Reload::new(&apps, options.config, &loaded)?;
        Ok(Self {
            apps,
            loaded,
            reload,
            stop,
            linger,
            server,
            listener,
            store,
            address_file,
            key_path,
            url,
        })
    }

    /// Returns the address of the server.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Returns the file with the admin key.
    pub(super) fn key_path(&self) -> &Path {
        &self.key_path
    }

    /// Returns a handle that stops the server as a signal does.
    pub(super) fn stop_handle(&self) -> StopHandle {
        self.stop.handle()
    }

    /// Serves and works until a signal or the stop handle, then closes the store. The server
    /// answers until the workers have drained and the linger time has passed.
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let Self { apps, loaded, reload, stop, linger, server, listener, store, .. } = self;
        let state = server.state().clone();
        let client = Client::with_committer(state.services.committer.clone(), ALL_TENANTS);
        let pool = WorkerPool::new(client, &apps, loaded, None, store.status().await?.store);
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
        drop(self.address_file);
        drop(state);
        close(store).await;
        Ok(())
    }
}

/// Checks that an address has the form `HOST:PORT`.
fn parse_listen(text: &str) -> Result<String, String> {
    let parts = text.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    // Without brackets the last part of an IPv6 address would be taken for the port.
    let is_address = parts.is_some_and(|(host, port)| {
        let is_bare_ipv6 = host.contains(':') && !host.starts_with('[');
        port.parse::<u16>().is_ok() && !is_bare_ipv6
    });
    if is_address {
        return Ok(text.to_owned());
    }
    let port = text.trim_start_matches(':').parse::<u16>().unwrap_or(7117);
    Err(format!("expected an address HOST:PORT, for example 127.0.0.1:{port} or [::1]:{port}"))
}

/// Binds an address; one other than loopback only if keys are not sent in clear text.
async fn bind(listen: &str, allow_any: bool) -> anyhow::Result<TcpListener> {
    let bound = TcpListener::bind(listen).await.map_err(|error| {
        let remedy = match error.kind() {
            io::ErrorKind::AddrInUse => {
                "if another server runs there, stop it or choose another address with --listen"
            }
            io::ErrorKind::AddrNotAvailable => {
                "choose an address of this machine with --listen, or 0.0.0.0 for all of them"
            }
            io::ErrorKind::PermissionDenied => {
                "choose a port above 1023 with --listen; lower ones require privileges"
            }
            _ => "choose another address with --listen",
        };
        anyhow::anyhow!("cannot listen on {listen}: {error}; {remedy}")
    })?;
    if !allow_any && !bound.local_addr()?.ip().is_loopback() {
        bail!(
            "{listen} is not a loopback address, and without TLS API keys are sent in clear text: \
             set tls_certificate and tls_key in [server] of tenure.toml, or pass --plain-http if a \
             proxy in front of the server terminates TLS"
        );
    }
    Ok(bound)
}

async fn print_greeting(process: &ServerProcess) -> anyhow::Result<()> {
    let status = process.store.status().await?;
    let (url, kind, safety) = (process.url(), status.store, status.safety.as_str());
    say(&format!("listening on {url}"));
    say(&format!("store {kind}, safety class: {safety}"));
    say(&format!("the admin key is in {}", process.key_path().display()));
    // The link grants one sign-in as admin; JSON logs are shipped and stored.
    if message::is_text() {
        let sign_in_link = process.server.state().sign_in_link();
        say(&format!("sign in once within 15 minutes: {url}{sign_in_link}"));
    }
    Ok(())
}

/// Returns the settings of the HTTP front end.
fn front_config(config: &tenure_config::Config, data: &Path) -> anyhow::Result<HttpConfig> {
    let settings = &config.server;
    let tls = settings.tls.as_ref().map(|(chain, key)| listen::load_tls(chain, key)).transpose()?;
    let open = |path: &Path| {
        Audit::open(path, config.audit).with_context(|| {
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
    })?;
    let shown = dir.display();
    let Ok(found) = fs::metadata(dir) else { return Ok(()) };
    match writers(found.mode(), found.uid() == rustix::process::geteuid().as_raw()) {
        Writers::Everyone => bail!(
            "every user can create files in the data directory {shown}, also an admin key: run \
             `chmod 700 {shown}`, or choose a private directory with --data DIR"
        ),
        Writers::Group => {
            tracing::warn!("other users can replace files in {shown}; run `chmod 700 {shown}`");
        }
        Writers::Owner => {}
    }
    Ok(())
}

/// Who can create files in a directory.
#[derive(Debug, PartialEq, Eq)]
enum Writers {
    Owner,
    Group,
    Everyone,
}

/// Returns who can create files in a directory. One of another user, such as a volume of a
/// container, is for that user to protect, unless the sticky bit marks it as shared.
fn writers(mode: u32, is_ours: bool) -> Writers {
    let is_shared = mode & 0o1000 != 0;
    if mode & 0o002 != 0 && (is_ours || is_shared) {
        return Writers::Everyone;
    }
    if mode & 0o020 != 0 && is_ours && !is_shared { Writers::Group } else { Writers::Owner }
}

/// The file with the server's address, for the CLI on the same machine. Removed on drop.
struct AddressFile(PathBuf);

impl AddressFile {
    fn write(path: PathBuf, url: &str) -> anyhow::Result<Self> {
        // Clients send their keys to this address: nobody else may change it.
        let write = || {
            private_file::restrict(&path)?;
            let options = &mut private_file::options();
            let mut file = options.create(true).write(true).truncate(true).open(&path)?;
            writeln!(file, "{url}")
        };
        write().with_context(|| format!("cannot write {}", path.display()))?;
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

/// Receives SIGINT and SIGTERM, and the requests of its handles.
pub(super) struct StopSignal {
    interrupt: Signal,
    terminate: Signal,
    requested: Arc<Notify>,
    leaving: CancellationToken,
}

impl StopSignal {
    pub(super) fn new() -> anyhow::Result<Self> {
        Self::with_token(CancellationToken::new())
    }

    /// Cancels `leaving` on the first signal.
    fn with_token(leaving: CancellationToken) -> anyhow::Result<Self> {
        let interrupt = signal(SignalKind::interrupt())?;
        let (terminate, requested) = (signal(SignalKind::terminate())?, Arc::default());
        Ok(Self { interrupt, terminate, requested, leaving })
    }

    fn handle(&self) -> StopHandle {
        StopHandle { requested: Arc::clone(&self.requested), leaving: self.leaving.clone() }
    }

    /// Waits for the next signal.
    pub(super) async fn received(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            () = self.requested.notified() => {}
        }
        self.leaving.cancel();
        say("stopping");
    }
}

/// Stops a server within this process.
pub(super) struct StopHandle {
    requested: Arc<Notify>,
    leaving: CancellationToken,
}

impl StopHandle {
    /// Requests the stop. Has no effect if the server is stopping.
    pub(super) fn stop(&self) {
        if !self.leaving.is_cancelled() {
            self.requested.notify_one();
        }
    }

    /// Waits until the server is stopping.
    pub(super) async fn stopping(&self) {
        self.leaving.cancelled().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_in_which_everyone_can_create_files_is_not_private() {
        for (mode, is_ours, expected) in [
            (0o700, true, Writers::Owner),
            (0o755, true, Writers::Owner),
            (0o770, true, Writers::Group),
            (0o1770, true, Writers::Owner),
            (0o777, true, Writers::Everyone),
            (0o702, true, Writers::Everyone),
            (0o1777, true, Writers::Everyone),
            (0o1777, false, Writers::Everyone),
            (0o777, false, Writers::Owner),
            (0o2775, false, Writers::Owner),
        ] {
            assert_eq!(writers(mode, is_ours), expected, "{mode:o} {is_ours}");
        }
    }

    #[test]
    fn an_address_to_listen_on_has_a_host_and_a_port() {
        for good in ["127.0.0.1:7302", "localhost:0", "[::1]:7117", "0.0.0.0:80"] {
            assert_eq!(parse_listen(good).as_deref(), Ok(good));
        }
        for bad in ["7302", ":7302", "localhost", "::1", "::1:7117", "a:b", "a:70000", ""] {
            let why = parse_listen(bad).unwrap_err();
            assert!(why.contains("expected an address HOST:PORT, for example 127.0.0.1:"), "{why}");
        }
        assert!(parse_listen("7302").unwrap_err().contains("127.0.0.1:7302"));
    }
}

//! `tenure serve`

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::Args;
use tenure_server::auth::Keys;
use tenure_server::keyfile;
use tenure_store::{Embedded, Memory, Store};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use super::Done;
use crate::context::{DEFAULT_LISTEN, Reach};

/// Serve the API on a durable store
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure serve                                   on 127.0.0.1:7117, data in the user's directory
  tenure serve --data /var/lib/tenure --listen 127.0.0.1:7200
  tenure serve --store memory:                   forgets everything when it ends")]
pub(super) struct Serve {
    /// Address to listen on
    #[arg(long, value_name = "ADDR", default_value = DEFAULT_LISTEN)]
    listen: String,
    /// Store: memory: or embedded:PATH [default: a file in the data directory]
    #[arg(long, env = "TENURE_STORE", value_name = "URL")]
    store: Option<String>,
}

impl Serve {
    pub(super) async fn run(&self, reach: &Reach) -> Done {
        let dir = reach.data().dir()?;
        make_dir(&dir)?;
        let (key, key_path) = keyfile::ensure(&dir)?;
        let store = self.open_store(&dir)?;
        let listener = self.bind().await?;
        let url = format!("http://{}", listener.local_addr()?);
        let note = AddressNote::write(reach.data().address_file()?, &url)?;
        self.greet(&url, &key_path, &*store).await?;
        let serve =
            tenure_server::run(listener, Arc::clone(&store), Keys::admin(&key), stop_signal()?);
        serve.await?;
        drop(note);
        close(store).await;
        anstream::eprintln!("tenure: stopped");
        Ok(ExitCode::SUCCESS)
    }

    fn open_store(&self, dir: &Path) -> anyhow::Result<Arc<dyn Store>> {
        let default = || format!("embedded:{}", dir.join("tenure.db").display());
        let url = self.store.clone().unwrap_or_else(default);
        match url.split_once(':') {
            Some(("memory", "")) => Ok(Arc::new(Memory::new())),
            Some(("embedded", path)) if !path.is_empty() => {
                Ok(Arc::new(Embedded::open(Path::new(path))?))
            }
            _ => bail!("{url:?} is not a store; this version has memory: and embedded:PATH"),
        }
    }

    async fn bind(&self) -> anyhow::Result<TcpListener> {
        let listen = &self.listen;
        TcpListener::bind(listen).await.with_context(|| {
            format!(
                "cannot listen on {listen}; another server may run there: stop it, or choose \
                 another address with --listen"
            )
        })
    }

    async fn greet(&self, url: &str, key: &Path, store: &dyn Store) -> anyhow::Result<()> {
        let status = store.status().await?;
        let (kind, safety) = (status.store, status.safety.as_str());
        anstream::eprintln!("tenure: listening on {url}");
        anstream::eprintln!("tenure: store {kind}, safety class: {safety}");
        anstream::eprintln!("tenure: the admin key is in {}", key.display());
        Ok(())
    }
}

/// Waits until nobody else has the store, then closes it, so that everything is in its file.
async fn close(store: Arc<dyn Store>) {
    for _ in 0..500 {
        if Arc::strong_count(&store) == 1 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    tokio::task::block_in_place(|| drop(store));
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

/// Completes on SIGINT or SIGTERM.
fn stop_signal() -> anyhow::Result<impl Future<Output = ()> + Send + 'static> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        anstream::eprintln!("tenure: stopping");
    })
}

//! Where the server is and with what key: named by flags and variables, or found in the data
//! directory of a server on this machine.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Args;
use tenure::client::{DEFAULT_TENANT, tenant_of_key};
use tenure::http::HttpTransport;

/// The address of a server that nobody named.
pub const DEFAULT_LISTEN: &str = "127.0.0.1:7117";

/// Names a file with the admin key of the server on this machine.
pub const ADMIN_KEY_FILE: &str = "TENURE_ADMIN_KEY_FILE";

/// How to reach a server.
#[derive(Args, Clone, Debug)]
pub struct ServerArgs {
    /// Server to talk to; found by itself on the machine that runs it
    #[arg(long, env = "TENURE_SERVER", value_name = "URL", global = true)]
    server: Option<String>,
    /// API key; found by itself on the machine that runs the server
    #[arg(long, env = "TENURE_KEY", value_name = "KEY", global = true, hide_env_values = true)]
    key: Option<String>,
    /// Tenant to act for [default: that of the key]
    #[arg(long, env = "TENURE_TENANT", value_name = "NAME", global = true)]
    tenant: Option<String>,
    #[command(flatten)]
    data: DataDir,
}

/// Where the server keeps its data.
#[derive(Args, Clone, Debug)]
pub struct DataDir {
    /// Data directory of the server
    #[arg(long = "data", env = "TENURE_DATA", value_name = "DIR", global = true)]
    dir: Option<PathBuf>,
}

impl DataDir {
    /// The directory: as named, or the user's data directory.
    pub fn dir(&self) -> anyhow::Result<PathBuf> {
        if let Some(dir) = &self.dir {
            return Ok(dir.clone());
        }
        let var =
            |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let base = var("XDG_DATA_HOME").or_else(|| var("HOME").map(|h| h.join(".local/share")));
        let base =
            base.context("neither HOME nor XDG_DATA_HOME is set; name a directory by --data")?;
        Ok(base.join("tenure"))
    }

    /// Where a running server notes its address.
    pub fn address_file(&self) -> anyhow::Result<PathBuf> {
        Ok(self.dir()?.join("server.url"))
    }
}

impl ServerArgs {
    /// A way to the server.
    pub fn link(&self) -> anyhow::Result<HttpTransport> {
        Ok(HttpTransport::new(&self.server()?, &self.key()?, self.tenant())?)
    }

    /// Where the server keeps its data.
    pub fn data(&self) -> &DataDir {
        &self.data
    }

    /// The tenant to act for.
    pub fn tenant(&self) -> &str {
        let of_key = || self.key.as_deref().and_then(tenant_of_key);
        self.tenant.as_deref().or_else(of_key).unwrap_or(DEFAULT_TENANT)
    }

    fn server(&self) -> anyhow::Result<String> {
        if let Some(server) = &self.server {
            return Ok(server.clone());
        }
        let noted = fs::read_to_string(self.data.address_file()?).ok();
        let noted = noted.map(|url| url.trim().to_owned()).filter(|url| !url.is_empty());
        Ok(noted.unwrap_or_else(|| format!("http://{DEFAULT_LISTEN}")))
    }

    fn key(&self) -> anyhow::Result<String> {
        if let Some(key) = &self.key {
            return Ok(key.clone());
        }
        let named = std::env::var_os(ADMIN_KEY_FILE).filter(|file| !file.is_empty());
        let path = match named {
            Some(file) => PathBuf::from(file),
            None => self.data.dir()?.join("admin.key"),
        };
        match fs::read_to_string(&path) {
            Ok(key) => Ok(key.trim().to_owned()),
            Err(error) => {
                let path = path.display();
                bail!(
                    "no API key: --key and TENURE_KEY are not set, and {path} cannot be read \
                     ({error}); start a server with `tenure serve`, or name a key"
                )
            }
        }
    }
}

/// What this process calls itself: the host, so that people find it, and the process id.
pub fn process_name() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}/{}", std::process::id())
}

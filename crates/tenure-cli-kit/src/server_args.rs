//! Address and key of the server: from flags and environment variables, or from the data directory
//! of a server on this machine.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Args;
use tenure::client::{DEFAULT_TENANT, tenant_of_key};
use tenure::http::HttpTransport;
use tenure_core::ResourceKey;
use tenure_core::session::ALL_TENANTS;

use crate::document::usage_error;
use crate::problem;

/// Default address of a server.
pub const DEFAULT_LISTEN: &str = "127.0.0.1:7117";

/// Environment variable that names the file with the admin key of the server on this machine.
pub const ADMIN_KEY_FILE: &str = "TENURE_ADMIN_KEY_FILE";

/// Options that say how to reach a server.
#[derive(Args, Clone, Debug)]
pub struct ServerArgs {
    /// Server URL [default: the server that runs on this machine]
    #[arg(long, env = "TENURE_SERVER", value_name = "URL", global = true)]
    server: Option<String>,
    /// API key [default: the admin key of the server on this machine]
    #[arg(long, env = "TENURE_KEY", value_name = "KEY", global = true, hide_env_values = true)]
    key: Option<String>,
    /// Tenant to act for [default: the tenant of the key]
    #[arg(long, env = "TENURE_TENANT", value_name = "NAME", global = true)]
    tenant: Option<String>,
    #[command(flatten)]
    data: DataDir,
}

/// The option that names the server's data directory.
#[derive(Args, Clone, Debug)]
pub struct DataDir {
    /// Data directory of the server
    #[arg(long = "data", env = "TENURE_DATA", value_name = "DIR", global = true)]
    dir: Option<PathBuf>,
}

impl DataDir {
    /// Returns the named directory, or the default below the user's data directory.
    pub fn dir(&self) -> anyhow::Result<PathBuf> {
        if let Some(dir) = &self.dir {
            return Ok(dir.clone());
        }
        let var =
            |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let base = var("XDG_DATA_HOME").or_else(|| var("HOME").map(|h| h.join(".local/share")));
        let base =
            base.context("neither HOME nor XDG_DATA_HOME is set; name a directory with --data")?;
        Ok(base.join("tenure"))
    }

    /// Returns the directory that was named.
    pub(crate) fn option(&self) -> Option<&PathBuf> {
        self.dir.as_ref()
    }

    /// Returns the file to which a running server writes its address.
    pub fn address_file(&self) -> anyhow::Result<PathBuf> {
        Ok(self.dir()?.join("server.url"))
    }
}

impl ServerArgs {
    /// Returns a transport to the server.
    pub fn transport(&self) -> anyhow::Result<HttpTransport> {
        self.transport_for(self.tenant())
    }

    /// Returns a transport for a list that a key of all tenants sees in full unless `--tenant`
    /// names a tenant.
    pub fn transport_to_all(&self) -> anyhow::Result<HttpTransport> {
        self.transport_for(self.tenant_or_all())
    }

    fn transport_for(&self, tenant: &str) -> anyhow::Result<HttpTransport> {
        let transport = HttpTransport::new(&self.url()?, &self.key()?, tenant)?;
        Ok(transport.on_problem(problem::remember))
    }

    /// Returns the data directory option.
    pub fn data(&self) -> &DataDir {
        &self.data
    }

    /// Returns the tenant to act for.
    pub fn tenant(&self) -> &str {
        self.named_tenant().unwrap_or(DEFAULT_TENANT)
    }

    /// Returns the one tenant that resources belong to, or an error that asks for one.
    pub fn one_tenant(&self) -> anyhow::Result<&str> {
        let tenant = self.tenant();
        if tenant == ALL_TENANTS {
            let why = "a resource belongs to one tenant: name it with --tenant NAME, not *";
            return Err(usage_error(why.to_owned()));
        }
        ResourceKey::new(tenant, "kind", "name").map_err(|error| usage_error(error.to_string()))?;
        Ok(tenant)
    }

    /// Returns the address that was named.
    pub(crate) fn server_option(&self) -> Option<&str> {
        self.server.as_deref()
    }

    /// Returns the tenant that was named.
    pub(crate) fn tenant_option(&self) -> Option<&str> {
        self.tenant.as_deref()
    }

    /// Returns the tenant of `--tenant` or of the key, or `*` if there is none.
    pub fn tenant_or_all(&self) -> &str {
        self.named_tenant().unwrap_or(ALL_TENANTS)
    }

    /// Returns the tenant of `--tenant`, or of the key.
    fn named_tenant(&self) -> Option<&str> {
        let key_tenant = || self.key.as_deref().and_then(tenant_of_key);
        self.tenant.as_deref().or_else(key_tenant)
    }

    /// Returns the address of the server.
    pub fn url(&self) -> anyhow::Result<String> {
        if let Some(server) = &self.server {
            return Ok(server.clone());
        }
        let published = fs::read_to_string(self.data.address_file()?).ok();
        let published = published.map(|url| url.trim().to_owned()).filter(|url| !url.is_empty());
        Ok(published.unwrap_or_else(|| format!("http://{DEFAULT_LISTEN}")))
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
                     ({error}); start a server with `tenure serve`, or pass a key"
                )
            }
        }
    }
}

/// Returns the name of this process as a holder: `HOST/PID`.
pub fn process_name() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}/{}", std::process::id())
}

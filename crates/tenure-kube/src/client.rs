//! A client from the text of a kubeconfig.
//!
//! Must never follow the environment: no proxy variables, no `KUBECONFIG`. Errors name the problem
//! and leave out what the parser quotes, since the file consists of secrets.

use std::fmt;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError, LoadDataError};
use kube::{Client, Config};
use rustls::crypto::CryptoProvider;

use crate::error::Error;

/// Stands for "no proxy" while the configuration is loaded, which would ask the environment.
const NO_PROXY: &str = "http://proxies-are-not-used.invalid";
const TRIED: &str = "use the kubeconfig";

/// Limits of a client.
#[derive(Clone, Debug)]
pub struct KubeOptions {
    /// Maximum time to connect, with TLS.
    pub connect_timeout: Duration,
    /// Maximum time of one attempt of a request, and of the plugin that gets credentials.
    pub request_timeout: Duration,
    /// Maximum number of attempts of a request.
    pub attempts_max: u32,
    /// Delay before the second attempt; it doubles with each one.
    pub retry_delay: Duration,
    /// Interval of polls while waiting.
    pub poll_interval: Duration,
    /// Minimum time between two polls, if something changes all the time.
    pub poll_gap: Duration,
    /// Whether the kubeconfig may name a program that gets the credentials.
    pub exec_plugins: bool,
}

impl Default for KubeOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(20),
            attempts_max: 4,
            retry_delay: Duration::from_millis(250),
            poll_interval: Duration::from_secs(10),
            poll_gap: Duration::from_secs(1),
            exec_plugins: true,
        }
    }
}

/// A client of one Kubernetes API. Clones share connections.
#[derive(Clone)]
pub struct Kube {
    pub(crate) client: Client,
    pub(crate) options: KubeOptions,
    /// Host and port.
    server: String,
}

impl Kube {
    /// Makes a client from the text of a kubeconfig; nothing is sent yet.
    ///
    /// The client belongs to the tokio runtime that it is made in. Plugins for credentials run in
    /// here, without a terminal. A `proxy-url` is refused; proxies of the environment are ignored.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the text cannot be used, [`Error::Unauthorized`] if a plugin fails.
    pub async fn from_kubeconfig(text: &str, options: KubeOptions) -> Result<Self, Error> {
        let config = load(text, &options).await?;
        let server = config.cluster_url.authority().map(|all| all.as_str().to_owned());
        // What is before the @ is a password.
        let server = server.unwrap_or_default().rsplit('@').next().unwrap_or_default().to_owned();
        if CryptoProvider::get_default().is_none() {
            // Fails if another thread was first, which is as good.
            rustls::crypto::ring::default_provider().install_default().ok();
        }
        // Plugins run in here and block.
        let making = tokio::task::spawn_blocking(move || Client::try_from(config));
        let made = tokio::time::timeout(options.request_timeout, making).await;
        let client = match made {
            Ok(Ok(Ok(client))) => client,
            Ok(Ok(Err(kube::Error::Auth(_)))) => {
                return Err(unauthorized("the credentials of its user cannot be obtained"));
            }
            Ok(Ok(Err(kube::Error::InferKubeconfig(error)))) => return Err(invalid(&error)),
            // Its thread ends with the plugin.
            Err(_) => return Err(unauthorized("its credential plugin does not end")),
            Ok(Ok(Err(_)) | Err(_)) => {
                let message = "its certificates and keys do not make a TLS configuration";
                return Err(Error::invalid(TRIED, message));
            }
        };
        Ok(Self { client, options, server })
    }

    /// Returns host and port of the server.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.server
    }
}

/// Shows no credentials.
impl fmt::Debug for Kube {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kube").field("server", &self.server).finish_non_exhaustive()
    }
}

async fn load(text: &str, options: &KubeOptions) -> Result<Config, Error> {
    let mut file = Kubeconfig::from_yaml(text).map_err(|error| invalid(&error))?;
    let plugins = file.auth_infos.iter().filter_map(|user| user.auth_info.as_ref());
    let has_plugin =
        plugins.into_iter().any(|user| user.exec.is_some() || user.auth_provider.is_some());
    if has_plugin && !options.exec_plugins {
        return Err(Error::invalid(TRIED, "it names a credential plugin, which is not allowed"));
    }
    for cluster in file.clusters.iter_mut().filter_map(|cluster| cluster.cluster.as_mut()) {
        if cluster.proxy_url.as_ref().is_some_and(|url| !url.is_empty()) {
            return Err(Error::invalid(TRIED, "it has a proxy-url, which is not supported"));
        }
        cluster.proxy_url = Some(NO_PROXY.to_owned());
    }
    let loaded = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
    let mut config = loaded.map_err(|error| invalid(&error))?;
    config.proxy_url = None;
    config.connect_timeout = Some(options.connect_timeout);
    // Of one attempt, with the time to read the body: see transport.rs.
    config.read_timeout = None;
    config.write_timeout = Some(options.request_timeout);
    // It would repeat 15 times, up to 1,000 s apart.
    config.default_retry = false;
    Ok(config)
}

fn unauthorized(message: &str) -> Error {
    Error::Unauthorized { tried: TRIED.to_owned(), message: message.to_owned() }
}

/// Returns the error for a kubeconfig, without what it quotes.
fn invalid(error: &KubeconfigError) -> Error {
    let message = match error {
        KubeconfigError::CurrentContextNotSet => "it has no current-context",
        KubeconfigError::LoadContext(_) => "its current-context is not in its contexts",
        KubeconfigError::LoadClusterOfContext(_) => "its context names a cluster that it lacks",
        KubeconfigError::MissingClusterUrl => "its cluster has no server",
        KubeconfigError::ParseClusterUrl(_) => "the server of its cluster is not a URL",
        KubeconfigError::LoadCertificateAuthority(cause)
        | KubeconfigError::LoadClientCertificate(cause)
        | KubeconfigError::LoadClientKey(cause) => match cause {
            LoadDataError::DecodeBase64(_) => "a certificate or key in it is not base64",
            LoadDataError::ReadFile(..) => "a file that it names cannot be read",
            LoadDataError::NoBase64DataOrFile => "a certificate or key in it is empty",
        },
        KubeconfigError::ParseCertificates(_) => "a certificate in it is not PEM",
        _ => "it is not the YAML of a kubeconfig",
    };
    Error::invalid(TRIED, message)
}

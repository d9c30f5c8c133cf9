//! Accepts connections, plain or with TLS, up to a limit, and serves HTTP on them.
//!
//! Slow clients and oversized request heads are cut off here; limits on bodies are in
//! `tenure_app::bodies`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::HeaderValue;
use axum::http::header::CONNECTION;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use rustls::pki_types::pem::{Error, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower_service::Service as _;

/// Default maximum number of open connections.
pub const CONNECTIONS_MAX: usize = 10_000;
/// Default maximum time to read the head, and the body, of a request.
pub const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum time for a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of the head of a request.
const HEAD_BYTES_MAX: usize = 32 * 1024;
/// Maximum number of headers of a request.
const HEADERS_MAX: usize = 100;
/// Time that idle connections stay open after the start of a shutdown: closing one while a request
/// is in transit would lose the request.
const IDLE_GRACE: Duration = Duration::from_millis(250);
/// Maximum time for open requests to complete after the start of a shutdown.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a failed accept, for example when out of file descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// What is wrong with a file that contains something else.
const NONE_FOUND: &str =
    "tls_certificate and tls_key name PEM files, and this one does not contain";

/// Failure to load the TLS certificate or key.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read or parsed.
    #[error("cannot read {what} from {}: {why}", .path.display())]
    File {
        /// What the file should contain.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        why: String,
    },
    /// The certificate and the key do not belong together.
    #[error(
        "the private key in {} does not belong to the first certificate in {}; name the pair that \
         was issued together, with the certificate of the server, not of the CA, first",
        .key.display(), .certificate.display()
    )]
    Mismatch {
        /// The file with the certificate.
        certificate: PathBuf,
        /// The file with the key.
        key: PathBuf,
    },
    /// The certificate or the key is not supported.
    #[error("the certificate and the private key cannot be used: {0}")]
    Invalid(String),
}

/// Loads a certificate chain and its private key from PEM files.
pub fn load_tls(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let bad = |what, path: &Path| {
        let path = path.to_path_buf();
        move |error: Error| TlsError::File {
            what,
            path,
            why: match error {
                Error::NoItemsFound => format!("{NONE_FOUND} {what}"),
                error => error.to_string(),
            },
        }
    };
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(|all| all.collect::<Result<Vec<_>, _>>())
        .and_then(|chain| if chain.is_empty() { Err(Error::NoItemsFound) } else { Ok(chain) })
        .map_err(bad("a certificate", certificate))?;
    let private_key = PrivateKeyDer::from_pem_file(key).map_err(bad("a private key", key))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private_key))
        .map_err(|error| match error {
            rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch) => {
                let (certificate, key) = (certificate.to_path_buf(), key.to_path_buf());
                TlsError::Mismatch { certificate, key }
            }
            error => TlsError::Invalid(error.to_string()),
        })?;
    Ok(Arc::new(config))
}

/// Serves any router over plain HTTP with the limits of the server, until `closing` is cancelled.
/// For benchmarks that compare with the server.
pub async fn serve_plain(listener: TcpListener, router: Router, closing: CancellationToken) {
    let (connections_max, read_timeout, draining) =
        (CONNECTIONS_MAX, READ_TIMEOUT, closing.clone());
    let http = HttpServer { listener, tls: None, connections_max, read_timeout, draining };
    http.serve(router, closing).await;
}

/// Accepts and serves connections.
pub(crate) struct HttpServer {
    pub(crate) listener: TcpListener,
    pub(crate) tls: Option<Arc<ServerConfig>>,
    pub(crate) connections_max: usize,
    pub(crate) read_timeout: Duration,
    /// Cancelled when responses should ask clients to close their connections.
    pub(crate) draining: CancellationToken,
}

impl HttpServer {
    /// Serves until `closing` is cancelled, then drains open requests for [`DRAIN_TIMEOUT`].
    pub(crate) async fn serve(self, router: Router, closing: CancellationToken) {
        let slots = Arc::new(Semaphore::new(self.connections_max));
        let tls = self.tls.map(TlsAcceptor::from);
        loop {
            let slot = Arc::clone(&slots).acquire_owned();
            let accepted = async {
                let slot = slot.await.expect("the semaphore is never closed");
                (self.listener.accept().await, slot)
            };
            let (accepted, slot) = tokio::select! {
                accepted = accepted => accepted,
                () = closing.cancelled() => break,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                    continue;
                }
            };
            let (tls, router) = (tls.clone(), router.clone());
            let (draining, closing) = (self.draining.clone(), closing.clone());
            let connection =
                Connection { peer, router, read_timeout: self.read_timeout, draining, closing };
            tokio::spawn(async move {
                connection.run(stream, tls).await;
                drop(slot);
            });
        }
        drop(self.listener);
        // All slots are free when all connections are closed.
        let all = u32::try_from(self.connections_max).unwrap_or(u32::MAX);
        if tokio::time::timeout(DRAIN_TIMEOUT, slots.acquire_many(all)).await.is_err() {
            tracing::warn!(timeout = ?DRAIN_TIMEOUT, "drain timed out; closing open connections");
        }
    }
}

/// An accepted connection.
struct Connection {
    peer: SocketAddr,
    router: Router,
    read_timeout: Duration,
    draining: CancellationToken,
    closing: CancellationToken,
}

impl Connection {
    async fn run(self, stream: TcpStream, tls: Option<TlsAcceptor>) {
        // Send small responses without delay.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
        let Some(tls) = tls else { return self.serve(stream).await };
        let peer = self.peer;
        match tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
            Ok(Ok(stream)) => self.serve(stream).await,
            Ok(Err(error)) => tracing::debug!(%error, %peer, "TLS handshake failed"),
            Err(_) => tracing::debug!(%peer, "TLS handshake timed out"),
        }
    }

    async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(self, stream: S) {
        let Self { peer, router, read_timeout, draining, closing } = self;
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(ConnectInfo(peer));
            let (response, draining) = (router.clone().call(request), draining.clone());
            async move {
                let mut response = response.await;
                // Keeps the client from sending its next request into a closing connection.
                if draining.is_cancelled()
                    && let Ok(response) = &mut response
                {
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                response
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(read_timeout)
            .max_buf_size(HEAD_BYTES_MAX)
            .max_headers(HEADERS_MAX)
            .serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        let idle_grace = async {
            closing.cancelled().await;
            tokio::time::sleep(IDLE_GRACE).await;
        };
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = idle_grace => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, %peer, "connection closed with an error");
        }
    }
}

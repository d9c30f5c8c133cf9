//! Takes connections: plain or with TLS, so many at once, and none for as long as it likes.
//!
//! A client that is slow to say what it wants, or says too much, is cut off before it costs
//! anything. What a request may then say and how long it may take is for `extract` and `api`.

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
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower_service::Service as _;

/// Connections that are open at once, unless told otherwise.
pub const CONNECTIONS_MAX: usize = 10_000;
/// How long a client may take for each part of a request, unless told otherwise.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// How long a client may take to agree on TLS.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Largest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 32 * 1024;
/// Most headers of a request.
const HEADERS_MAX: usize = 100;
/// How long a connection without a request is kept after a shutdown began: what was sent on it
/// before may still be on its way, and whoever hangs up on it has lost somebody's request.
const LAST_CALL: Duration = Duration::from_millis(250);
/// How long requests may take to end after a shutdown began.
const DRAIN: Duration = Duration::from_secs(5);
/// How long to wait after the system had no connection to give.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Why TLS cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or has something else in it.
    #[error("cannot read {what} from {}: {why}", .path.display())]
    File {
        /// What was looked for.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// They do not fit.
    #[error("the certificate and the private key cannot be used: {0}")]
    Unfit(String),
}

/// A certificate and its key, from files.
pub fn tls(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let bad = |what, path: &Path| {
        let path = path.to_path_buf();
        move |error: rustls::pki_types::pem::Error| TlsError::File {
            what,
            path,
            why: error.to_string(),
        }
    };
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(|all| all.collect::<Result<Vec<_>, _>>())
        .map_err(bad("a certificate", certificate))?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(bad("a private key", key))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(|error| TlsError::Unfit(error.to_string()))?;
    Ok(Arc::new(config))
}

/// Serves somebody else's routes over plain HTTP in the way of a server, until `closing`: for what
/// is measured beside one.
pub async fn plain(listener: TcpListener, router: Router, closing: CancellationToken) {
    let (connections_max, patience, leaving) = (CONNECTIONS_MAX, PATIENCE, closing.clone());
    let door = Door { listener, tls: None, connections_max, patience, leaving };
    door.serve(router, closing).await;
}

/// How connections are taken.
pub(crate) struct Door {
    pub(crate) listener: TcpListener,
    pub(crate) tls: Option<Arc<ServerConfig>>,
    pub(crate) connections_max: usize,
    pub(crate) patience: Duration,
    /// Cancelled when clients should go elsewhere with their next request.
    pub(crate) leaving: CancellationToken,
}

impl Door {
    /// Serves until `closing`, then lets requests end, for a while.
    pub(crate) async fn serve(self, router: Router, closing: CancellationToken) {
        let places = Arc::new(Semaphore::new(self.connections_max));
        let tls = self.tls.map(TlsAcceptor::from);
        loop {
            let place = Arc::clone(&places).acquire_owned();
            let accepted = async {
                let place = place.await.expect("it is never closed");
                (self.listener.accept().await, place)
            };
            let (accepted, place) = tokio::select! {
                accepted = accepted => accepted,
                () = closing.cancelled() => break,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot take a connection");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                    continue;
                }
            };
            let (tls, router) = (tls.clone(), router.clone());
            let (leaving, closing) = (self.leaving.clone(), closing.clone());
            let guest = Guest { peer, router, patience: self.patience, leaving, closing };
            tokio::spawn(async move {
                guest.welcome(stream, tls).await;
                drop(place);
            });
        }
        drop(self.listener);
        // When all places are free, nobody is left.
        let all = u32::try_from(self.connections_max).unwrap_or(u32::MAX);
        if tokio::time::timeout(DRAIN, places.acquire_many(all)).await.is_err() {
            tracing::warn!("connections were still open after {DRAIN:?} and are cut");
        }
    }
}

/// A connection.
struct Guest {
    peer: SocketAddr,
    router: Router,
    patience: Duration,
    leaving: CancellationToken,
    closing: CancellationToken,
}

impl Guest {
    async fn welcome(self, stream: TcpStream, tls: Option<TlsAcceptor>) {
        // Small answers are sent at once.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
        let Some(tls) = tls else { return self.talk(stream).await };
        let peer = self.peer;
        match tokio::time::timeout(HANDSHAKE_MAX, tls.accept(stream)).await {
            Ok(Ok(stream)) => self.talk(stream).await,
            Ok(Err(error)) => tracing::debug!(%error, %peer, "no TLS with a client"),
            Err(_) => tracing::debug!(%peer, "a client was too slow to agree on TLS"),
        }
    }

    async fn talk<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(self, stream: S) {
        let Self { peer, router, patience, leaving, closing } = self;
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(ConnectInfo(peer));
            let (answer, leaving) = (router.clone().call(request), leaving.clone());
            async move {
                let mut answer = answer.await;
                // Whoever is told does not send its next request into a connection that closes.
                if leaving.is_cancelled()
                    && let Ok(answer) = &mut answer
                {
                    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                answer
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(patience)
            .max_buf_size(HEAD_BYTES_MAX)
            .max_headers(HEADERS_MAX)
            .serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        let last_call = async {
            closing.cancelled().await;
            tokio::time::sleep(LAST_CALL).await;
        };
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = last_call => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, %peer, "a connection has ended");
        }
    }
}

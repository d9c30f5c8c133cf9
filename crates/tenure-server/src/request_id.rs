//! Every request has an id: in the log, in the answer, in the audit, in a problem.

use axum::extract::Request;
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::Response;
use tracing::Instrument as _;

/// The header that carries it.
pub(crate) const HEADER: &str = "x-request-id";
/// Longest id of a client that is taken over.
const BYTES_MAX: usize = 64;

tokio::task_local! {
    static CURRENT: String;
}

/// The id of the request at hand; a new one outside of any.
pub(crate) fn current() -> String {
    CURRENT.try_with(Clone::clone).unwrap_or_else(|_| fresh())
}

fn fresh() -> String {
    tenure_store::random::request_id().to_string()
}

/// The layer that gives ids. One that the client brings is kept, so that it can find its own.
pub(crate) async fn give(request: Request, next: Next) -> Response {
    let brought = request.headers().get(HEADER).and_then(|id| id.to_str().ok());
    let plain = |id: &&str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        (1..=BYTES_MAX).contains(&id.len()) && id.chars().all(allowed)
    };
    let id = brought.filter(plain).map_or_else(fresh, str::to_owned);
    let (method, path) = (request.method(), request.uri().path());
    let span = tracing::info_span!("request", %method, path, request_id = id);
    let header = HeaderValue::from_str(&id);
    let mut response = CURRENT.scope(id, next.run(request).instrument(span)).await;
    if let Ok(header) = header {
        response.headers_mut().insert(HEADER, header);
    }
    response
}

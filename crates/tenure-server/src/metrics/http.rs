//! Counts and times requests. It must never look at who asks, nor at a path as it was sent: a path
//! has names of resources in it, and there is no bound on them.

use axum::extract::{MatchedPath, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use prometheus_client::metrics::gauge::Gauge;
use tenure_core::Text;
use tenure_store::clock::stopwatch;

use crate::ServerState;
use tenure_app::metrics::OTHER;

/// The route of a request that matches none.
const NO_ROUTE: &str = "none";

/// Answers a request and notes how it went.
pub(crate) async fn measure(
    State(state): State<ServerState>,
    request: Request,
    next: Next,
) -> Response {
    let metrics = &state.metrics;
    let route = request.extensions().get::<MatchedPath>().map_or(NO_ROUTE, MatchedPath::as_str);
    let route = Text::from(route);
    let method = word(request.method());
    let _underway = Underway::begin(&metrics.http_in_flight);
    let started = stopwatch();
    let response = next.run(request).await;
    let took = started.elapsed().as_secs_f64();
    let status = Text::from(response.status().as_str());
    let labels = [("method", method.into()), ("route", route.clone()), ("status", status)];
    metrics.http_requests.get_or_create(&labels).inc();
    metrics.http_duration.get_or_create(&[("route", route)]).observe(took);
    response
}

/// A request may have any word for a method.
fn word(method: &Method) -> &'static str {
    let known = [
        (Method::GET, "GET"),
        (Method::POST, "POST"),
        (Method::PUT, "PUT"),
        (Method::DELETE, "DELETE"),
        (Method::HEAD, "HEAD"),
        (Method::OPTIONS, "OPTIONS"),
        (Method::PATCH, "PATCH"),
    ];
    known.iter().find(|(one, _)| one == method).map_or(OTHER, |(_, word)| word)
}

/// A request that is being answered. There is no row of it that could be counted; whoever hangs up
/// ends it by dropping this.
struct Underway<'a>(&'a Gauge);

impl<'a> Underway<'a> {
    fn begin(gauge: &'a Gauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

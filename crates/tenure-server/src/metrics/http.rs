//! Counts and times requests. Labels must not contain the caller or the raw path, which has
//! unbounded resource names.

use axum::extract::{MatchedPath, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use prometheus_client::metrics::gauge::Gauge;
use tenure_core::Text;
use tenure_store::clock::stopwatch;

use crate::ServerState;
use tenure_app::metrics::OTHER;

/// Route label of a request that matches no route.
const NO_ROUTE: &str = "none";

/// Middleware that measures each request.
pub(crate) async fn measure(
    State(state): State<ServerState>,
    request: Request,
    next: Next,
) -> Response {
    let metrics = &state.metrics;
    let route = request.extensions().get::<MatchedPath>().map_or(NO_ROUTE, MatchedPath::as_str);
    let route = Text::from(route);
    let method = method_label(request.method());
    let _in_flight = InFlight::start(&metrics.http_in_flight);
    let started = stopwatch();
    let response = next.run(request).await;
    let took = started.elapsed().as_secs_f64();
    let status = Text::from(response.status().as_str());
    let labels = [("method", method.into()), ("route", route.clone()), ("status", status)];
    metrics.http_requests.get_or_create(&labels).inc();
    metrics.http_duration.get_or_create(&[("route", route)]).observe(took);
    response
}

/// Returns the label of a method; a client may invent any.
fn method_label(method: &Method) -> &'static str {
    let methods = [
        (Method::GET, "GET"),
        (Method::POST, "POST"),
        (Method::PUT, "PUT"),
        (Method::DELETE, "DELETE"),
        (Method::HEAD, "HEAD"),
        (Method::OPTIONS, "OPTIONS"),
        (Method::PATCH, "PATCH"),
    ];
    methods.iter().find(|(one, _)| one == method).map_or(OTHER, |(_, label)| label)
}

/// Counts a request in flight until it is dropped, which includes disconnects.
struct InFlight<'a>(&'a Gauge);

impl<'a> InFlight<'a> {
    fn start(gauge: &'a Gauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

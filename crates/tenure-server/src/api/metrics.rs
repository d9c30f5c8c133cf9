//! `/metrics`, for Prometheus.

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;

use crate::ServerState;

/// Content type of the OpenMetrics text format.
const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Exports the metrics of this server for Prometheus.
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "health",
    operation_id = "metrics",
    responses((status = 200, description = "Metrics in the OpenMetrics text format", body = String,
        content_type = "application/openmetrics-text"))
)]
pub(super) async fn metrics(State(state): State<ServerState>) -> impl IntoResponse {
    let store = state.services.store();
    (
        [(CONTENT_TYPE, FORMAT)],
        state.metrics.scrape(store, &state.janitor, &state.services.live.kinds()).await,
    )
}

//! `/metrics`, for Prometheus.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;

use crate::App;

/// The text format of OpenMetrics.
const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Shows the numbers of this server to Prometheus. It needs a key of all tenants.
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "health",
    operation_id = "metrics",
    responses((status = 200, description = "OpenMetrics", body = String,
        content_type = "application/openmetrics-text"))
)]
pub(super) async fn metrics(State(app): State<Arc<App>>) -> impl IntoResponse {
    let store = app.committer.store();
    ([(CONTENT_TYPE, FORMAT)], app.metrics.scrape(store, &app.janitor, &app.kinds()).await)
}

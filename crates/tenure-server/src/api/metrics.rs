//! `/metrics`, for Prometheus.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;

use crate::App;

/// The text format of OpenMetrics.
const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(super) async fn metrics(State(app): State<Arc<App>>) -> impl IntoResponse {
    let store = app.committer.store();
    ([(CONTENT_TYPE, FORMAT)], app.metrics.scrape(store, &app.janitor, &app.kinds()).await)
}

//! `/metrics`, for Prometheus.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE, VARY};
use axum::response::IntoResponse;

use crate::ServerState;
use crate::metrics::to_prometheus_text;

/// Content type of the OpenMetrics text format.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Content type of the text format of Prometheus.
const PROMETHEUS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Exports the metrics of this server for Prometheus.
///
/// In the OpenMetrics format, or in the text format 0.0.4 if the client prefers `text/plain`.
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "health",
    operation_id = "metrics",
    responses((status = 200, description = "Metrics in the preferred text format", content(
        (String = "application/openmetrics-text"),
        (String = "text/plain")
    )))
)]
pub(super) async fn metrics(
    State(state): State<ServerState>,
    headers: HeaderMap,
) -> impl IntoResponse {
    let store = state.services.store();
    let text = state.metrics.scrape(store, &state.janitor, &state.services.live.kinds()).await;
    let (format, text) = match prefers_text(&headers) {
        true => (PROMETHEUS_TEXT, to_prometheus_text(&text)),
        false => (OPEN_METRICS, text),
    };
    ([(CONTENT_TYPE, format), (VARY, "accept")], text)
}

/// Returns whether the client prefers `text/plain` to the OpenMetrics format.
fn prefers_text(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let ranges: Vec<_> = accepted.flat_map(|value| value.split(',')).map(parse_range).collect();
    quality(&ranges, "text", "plain") > quality(&ranges, "application", "openmetrics-text")
}

/// Parses a media range and its quality. An invalid quality counts as zero.
fn parse_range(text: &str) -> (&str, f32) {
    let mut parts = text.split(';').map(str::trim);
    let range = parts.next().unwrap_or_default();
    let quality = parts.find_map(|part| part.strip_prefix("q="));
    (range, quality.map_or(1.0, |quality| quality.trim().parse().unwrap_or(0.0)))
}

/// Returns the quality of a media type: that of the most specific range, zero without one.
fn quality(ranges: &[(&str, f32)], main: &str, sub: &str) -> f32 {
    let specific = [format!("{main}/{sub}"), format!("{main}/*"), "*/*".to_owned()];
    let find = |wanted: &String| {
        let matching = ranges.iter().filter(|(range, _)| range.eq_ignore_ascii_case(wanted));
        matching.map(|(_, quality)| *quality).reduce(f32::max)
    };
    specific.iter().find_map(find).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_negotiated() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;\
                          version=0.0.4;q=0.2,*/*;q=0.1";
        for (accept, expected) in [
            (None, false),
            (Some("*/*"), false),
            (Some("text/plain"), true),
            (Some("Text/Plain; version=0.0.4"), true),
            (Some("text/plain, */*"), false),
            (Some("text/plain, */*;q=0.5"), true),
            (Some("text/*;q=0.9, application/*;q=0.1"), true),
            (Some("text/html,*/*;q=0.8"), false),
            (Some("text/plain;q=0"), false),
            (Some(prometheus), false),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(accept) = accept {
                headers.insert(ACCEPT, accept.parse().unwrap());
            }
            assert_eq!(prefers_text(&headers), expected, "{accept:?}");
        }
    }
}

//! What happens, as it happens: lines of history as server-sent events.
//!
//! A stream reads the history itself, from where it was left, so nothing is missed or told twice;
//! `Last-Event-ID` or `?cursor=` go on after an event.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Sse;
use axum::response::sse::{Event, KeepAlive};
use futures_util::stream::{self, Stream};
use serde::Deserialize;
use tenure_store::StoreError;
use tenure_store::store::{HistoryQuery, PAGE_MAX};
use tenure_wire::{HistoryLine, schema};
use tokio::sync::OwnedSemaphorePermit;
use utoipa::IntoParams;

use super::history::answer;
use crate::ServerState;
use crate::auth::Veil;
use tenure_app::Caller;
use tenure_app::Problem;
use tenure_app::extract::Params;

/// Most streams at once on a server: each reads the history.
pub(crate) const STREAMS_MAX: usize = 256;
/// How often a stream looks for more.
const LOOK_EVERY: Duration = Duration::from_millis(500);

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct EventParams {
    /// Go on after the event of this id; from now on when nothing is said.
    #[param(value_type = schema::Count, required = false, inline)]
    cursor: Option<u64>,
}

/// Streams lines of history as they come, as server-sent events; `Last-Event-ID` goes on.
#[utoipa::path(
    get,
    path = "/v1/events",
    tag = "insight",
    operation_id = "events",
    params(Caller, EventParams),
    responses((status = 200, description = "A stream that does not end", body = String,
        content_type = "text/event-stream"))
)]
pub(super) async fn stream(
    State(state): State<ServerState>,
    caller: Caller,
    Params(params): Params<EventParams>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let permit = Arc::clone(&state.streams).try_acquire_owned().map_err(|_| {
        Problem::unavailable("as many streams are open as this server has; try again later")
    })?;
    let veil = state.veil(&caller);
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    let last = last.and_then(|id| id.parse().ok()).or(params.cursor);
    let shown = |position| veil.as_ref().map_or(position, |veil| veil.show(position));
    let after = match last.map(shown) {
        Some(position) => position,
        None => newest(&state).await?,
    };
    let tail = Tail { state, caller, veil, after, ready: VecDeque::new(), _permit: permit };
    let events = stream::unfold(tail, |mut tail| async move {
        let line = tail.next().await?;
        Some((Ok(event(&line)), tail))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()))
}

/// The position of the newest line of all.
async fn newest(state: &ServerState) -> Result<u64, StoreError> {
    let query = HistoryQuery::Newest { tenant: None, before: None, limit: 1 };
    let lines = state.services.store().reads().history(query).await?;
    Ok(lines.first().map_or(0, |line| line.position))
}

fn event(line: &HistoryLine) -> Event {
    let data = serde_json::to_string(line).expect("it is plain JSON");
    Event::default().event("history").id(line.position.to_string()).data(data)
}

/// Where a stream is.
struct Tail {
    state: ServerState,
    caller: Caller,
    veil: Option<Veil>,
    after: u64,
    ready: VecDeque<HistoryLine>,
    _permit: OwnedSemaphorePermit,
}

impl Tail {
    /// The next line; nothing when the server ends.
    async fn next(&mut self) -> Option<HistoryLine> {
        loop {
            if let Some(line) = self.ready.pop_front() {
                return Some(line);
            }
            // A stream ends with its key, and with the server.
            let revoked = |id| self.state.keys.good(id, None).is_none();
            if self.state.services.closing.is_cancelled()
                || self.caller.key.as_deref().is_some_and(revoked)
            {
                return None;
            }
            let full = match self.read().await {
                Ok(full) => full,
                Err(error) => {
                    // The client goes on from here when it connects again.
                    tracing::debug!(%error, "a stream of events cannot read the history");
                    return None;
                }
            };
            if full || !self.ready.is_empty() {
                continue;
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = self.state.services.closing.cancelled() => return None,
            }
        }
    }

    /// Reads a page. Says whether it was full.
    async fn read(&mut self) -> Result<bool, StoreError> {
        let query = HistoryQuery::Scan { after: self.after, limit: PAGE_MAX };
        let lines = self.state.services.store().reads().history(query).await?;
        let full = lines.len() == PAGE_MAX;
        for line in lines {
            self.after = line.position;
            if self.caller.sees(line.key.tenant())
                && let Ok(line) = answer(line, self.veil.as_ref())
            {
                self.ready.push_back(line);
            }
        }
        Ok(full)
    }
}

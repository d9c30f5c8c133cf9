//! History as a stream of server-sent events.
//!
//! A stream polls the history from its own position, so it neither misses nor repeats an event;
//! `Last-Event-ID` or `?cursor=` resume after an event.

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
use tenure_wire::{HistoryEntry, schema};
use tokio::sync::OwnedSemaphorePermit;
use utoipa::IntoParams;

use crate::ServerState;
use tenure_app::Problem;
use tenure_app::extract::Params;
use tenure_app::pages::history_entry;
use tenure_app::{Caller, PositionCipher};

/// Maximum number of concurrent streams of a server, each of which polls the history.
pub(crate) const STREAMS_MAX: usize = 256;
/// Interval at which a stream polls the history.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct EventParams {
    /// Resume after the event with this id; by default, only new events.
    #[param(value_type = schema::Uint64, required = false, inline)]
    cursor: Option<u64>,
}

/// Streams history as server-sent events; `Last-Event-ID` resumes after an event.
#[utoipa::path(
    get,
    path = "/v1/events",
    tag = "insight",
    operation_id = "events",
    params(Caller, EventParams),
    responses((status = 200, description = "An endless stream of events", body = String,
        content_type = "text/event-stream"))
)]
pub(super) async fn stream(
    State(state): State<ServerState>,
    caller: Caller,
    Params(params): Params<EventParams>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let permit = Arc::clone(&state.streams).try_acquire_owned().map_err(|_| {
        Problem::unavailable("this server has too many open event streams; retry later")
    })?;
    let cipher = state.services.position_cipher(&caller);
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    let last = last.and_then(|id| id.parse().ok()).or(params.cursor);
    let decrypt = |position| cipher.as_ref().map_or(position, |cipher| cipher.decrypt(position));
    let after = match last.map(decrypt) {
        Some(position) => position,
        None => newest(&state).await?,
    };
    let tail = Tail { state, caller, cipher, after, ready: VecDeque::new(), _permit: permit };
    let events = stream::unfold(tail, |mut tail| async move {
        let line = tail.next().await?;
        Some((Ok(event(&line)), tail))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()))
}

/// Returns the position of the newest event of all tenants.
async fn newest(state: &ServerState) -> Result<u64, StoreError> {
    let query = HistoryQuery::Newest { tenant: None, before: None, limit: 1 };
    let lines = state.services.store().reads().history(query).await?;
    Ok(lines.first().map_or(0, |line| line.position))
}

fn event(line: &HistoryEntry) -> Event {
    let data = serde_json::to_string(line).expect("plain JSON");
    Event::default().event("history").id(line.position.to_string()).data(data)
}

/// State of a stream.
struct Tail {
    state: ServerState,
    caller: Caller,
    cipher: Option<PositionCipher>,
    after: u64,
    ready: VecDeque<HistoryEntry>,
    _permit: OwnedSemaphorePermit,
}

impl Tail {
    /// Returns the next event; `None` if the server shuts down or the key is revoked.
    async fn next(&mut self) -> Option<HistoryEntry> {
        loop {
            if let Some(line) = self.ready.pop_front() {
                return Some(line);
            }
            let revoked = |id| self.state.keys.principal(id, None).is_none();
            if self.state.services.closing.is_cancelled()
                || self.caller.key.as_deref().is_some_and(revoked)
            {
                return None;
            }
            let full = match self.read().await {
                Ok(full) => full,
                Err(error) => {
                    // The client reconnects and resumes from here.
                    tracing::debug!(%error, "event stream cannot read the history");
                    return None;
                }
            };
            if full || !self.ready.is_empty() {
                continue;
            }
            tokio::select! {
                () = tokio::time::sleep(POLL_INTERVAL) => {}
                () = self.state.services.closing.cancelled() => return None,
            }
        }
    }

    /// Reads a page and returns whether it was full.
    async fn read(&mut self) -> Result<bool, StoreError> {
        let query = HistoryQuery::Scan { after: self.after, limit: PAGE_MAX };
        let lines = self.state.services.store().reads().history(query).await?;
        let full = lines.len() == PAGE_MAX;
        for line in lines {
            self.after = line.position;
            if self.caller.sees(line.key.tenant())
                && let Ok(line) = history_entry(line, self.cipher.as_ref())
            {
                self.ready.push_back(line);
            }
        }
        Ok(full)
    }
}

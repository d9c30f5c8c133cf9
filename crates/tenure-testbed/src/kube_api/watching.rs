//! Watches: a stream of JSON lines, one for each event that the selection is about.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use futures_util::Stream;
use futures_util::stream::unfold;
use hyper::body::{Bytes, Frame};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::objects::{Change, Event};
use super::refusal::Refusal;
use super::routes::{Query, Selection};
use super::state::{OpenWatch, Shared, Signals, State};

/// An open watch.
struct Watch {
    shared: Arc<Shared>,
    selection: Selection,
    /// Version up to which events were sent.
    seen: u64,
    bookmarks: bool,
    signals: Signals,
    lines: VecDeque<Bytes>,
    ended: bool,
    changes: watch::Receiver<()>,
    /// Counts this watch as open.
    _open: OpenWatch,
}

/// Opens a watch. Without a version, or at version 0, it starts with what exists.
pub(super) fn open(
    shared: &Arc<Shared>,
    selection: Selection,
    query: &Query,
) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send + 'static {
    let from: u64 = query.get("resourceVersion").parse().unwrap_or(0);
    let mut watch = Watch {
        shared: Arc::clone(shared),
        seen: from,
        bookmarks: query.is_true("allowWatchBookmarks"),
        signals: Signals::default(),
        lines: VecDeque::new(),
        ended: false,
        changes: shared.changes(),
        _open: shared.count_watch(),
        selection,
    };
    {
        let state = shared.lock();
        watch.signals = state.signals;
        if from == 0 {
            watch.start_with_all(&state);
        }
    }
    unfold(watch, |mut watch| async move {
        let line = watch.next().await?;
        Some((Ok(Frame::data(line)), watch))
    })
}

impl Watch {
    fn start_with_all(&mut self, state: &State) {
        let Selection { resource, namespace, .. } = &self.selection;
        let all = state.objects.list(*resource, namespace.as_deref());
        let selected = all.filter(|object| self.selection.selects(object));
        self.lines = selected.map(|object| line("ADDED", object)).collect();
        self.seen = state.objects.version();
    }

    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Some(line);
            }
            if self.ended {
                return None;
            }
            // Marked before looking: a change in between wakes at once.
            self.changes.mark_unchanged();
            self.read_events();
            if self.lines.is_empty() && !self.ended {
                self.changes.changed().await.ok()?;
            }
        }
    }

    fn read_events(&mut self) {
        let shared = Arc::clone(&self.shared);
        let state = shared.lock();
        let signals = std::mem::replace(&mut self.signals, state.signals);
        let is_expired = signals.expirations != state.signals.expirations;
        if is_expired || self.seen < state.objects.compacted() {
            self.lines.push_back(line("ERROR", &Refusal::expired().status()));
            self.ended = true;
            return;
        }
        let events = state.objects.events_after(self.seen);
        let lines: Vec<Bytes> = events.filter_map(|event| self.line_of(event)).collect();
        self.lines.extend(lines);
        self.seen = state.objects.version();
        if self.bookmarks && signals.bookmarks != state.signals.bookmarks {
            self.lines.push_back(line("BOOKMARK", &self.bookmark()));
        }
        self.ended = signals.ends != state.signals.ends;
    }

    /// Returns what a watcher learns of an event: an object that no longer matches is deleted.
    fn line_of(&self, event: &Event) -> Option<Bytes> {
        if event.resource != self.selection.resource {
            return None;
        }
        let matches = self.selection.selects(&event.object);
        let matched = event.previous.as_ref().is_some_and(|one| self.selection.selects(one));
        match (event.change, matched, matches) {
            (_, false, false) => None,
            (Change::Deleted, ..) | (_, true, false) => Some(line("DELETED", &event.object)),
            (_, false, true) => Some(line("ADDED", &event.object)),
            (_, true, true) => Some(line("MODIFIED", &event.object)),
        }
    }

    fn bookmark(&self) -> Value {
        let resource = self.selection.resource;
        json!({
            "kind": resource.kind, "apiVersion": resource.api_version(),
            "metadata": {"resourceVersion": self.seen.to_string()},
        })
    }
}

fn line(kind: &str, object: &Value) -> Bytes {
    Bytes::from(format!("{}\n", json!({"type": kind, "object": object})))
}

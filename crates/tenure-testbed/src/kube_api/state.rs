//! What the server and its handle share: objects, the controller, faults, and the request log.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::watch;

use super::faults::Faults;
use super::machines::Machines;
use super::objects::Objects;

/// Requests that are remembered; a test that needs more counts them itself.
const REQUESTS_MAX: usize = 100_000;

/// A request that the server received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// HTTP method.
    pub method: String,
    /// Path with query.
    pub path: String,
}

/// Everything behind the lock.
#[derive(Default)]
pub(super) struct State {
    pub(super) objects: Objects,
    pub(super) machines: Machines,
    pub(super) faults: Faults,
    pub(super) requests: Vec<Request>,
    /// Whether the machine controller runs after every write.
    pub(super) auto: bool,
    /// Rest of lists that were answered in pages, by the token that continues them.
    pub(super) pages: BTreeMap<u64, Vec<Value>>,
    pub(super) next_page: u64,
    pub(super) signals: Signals,
}

/// Signals to open watches: each counts how often it was given.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Signals {
    pub(super) bookmarks: u64,
    pub(super) expirations: u64,
    pub(super) ends: u64,
}

impl State {
    pub(super) fn log(&mut self, method: &str, path: &str) {
        if self.requests.len() < REQUESTS_MAX {
            self.requests.push(Request { method: method.to_owned(), path: path.to_owned() });
        }
    }

    /// Performs one step of the machine controller. Returns whether anything changed.
    pub(super) fn advance(&mut self) -> bool {
        self.machines.advance(&mut self.objects)
    }

    /// Performs steps until nothing changes.
    pub(super) fn settle(&mut self) {
        while self.advance() {}
    }
}

/// The state, and the channels that tell of changes.
pub(super) struct Shared {
    state: Mutex<State>,
    changes: watch::Sender<()>,
    watches: watch::Sender<usize>,
}

impl Shared {
    pub(super) fn new(state: State) -> Arc<Self> {
        let (changes, watches) = (watch::Sender::new(()), watch::Sender::new(0));
        Arc::new(Self { state: Mutex::new(state), changes, watches })
    }

    /// Reads or changes the state; watches look afterwards whether it concerns them.
    pub(super) fn with<R>(&self, use_state: impl FnOnce(&mut State) -> R) -> R {
        let result = use_state(&mut self.lock());
        self.changes.send_replace(());
        result
    }

    /// Reads the state without waking watches.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Returns the number of open watches, as a channel to wait on.
    pub(super) fn open_watches(&self) -> watch::Receiver<usize> {
        self.watches.subscribe()
    }

    pub(super) fn count_watch(self: &Arc<Self>) -> OpenWatch {
        self.watches.send_modify(|open| *open += 1);
        OpenWatch(Arc::clone(self))
    }
}

/// Counts one open watch until it is dropped.
pub(super) struct OpenWatch(Arc<Shared>);

impl Drop for OpenWatch {
    fn drop(&mut self) {
        self.0.watches.send_modify(|open| *open -= 1);
    }
}

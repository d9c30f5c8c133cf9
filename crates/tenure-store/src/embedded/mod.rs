//! The store in a file: SQLite, written by one thread, a flush for each batch.
//!
//! `writer` is the thread, `database` and `jobs` its SQL, `checkpoint` moves its log to the file
//! beside it; `reader` reads lists and history, `prune` drops what is old, `format` knows the
//! versions of the file, `keys` keeps those who ask, `guard` has the lock on it, `error` says what
//! can go wrong.

mod checkpoint;
mod database;
mod error;
mod format;
mod guard;
mod jobs;
mod keys;
mod prune;
mod reader;
mod writer;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use async_trait::async_trait;
use tenure_core::verify::ChainCheckpoint;
use tenure_core::{
    Command, Incarnation, JobId, Kinds, Outcome, ResourceKey, SessionId, TenureView, Text,
};
use tokio::sync::{broadcast, mpsc, oneshot};

use crate::census::{Census, group_of};
use crate::clock::{Clock, ServerClock};
use crate::keys::KeyRing;
use crate::observer::{Observer, Observers};
use crate::store::{
    HINTS_MAX, Hint, HistoryQuery, JobPage, JobQuery, JobShown, Line, ListQuery, LogLine, LogQuery,
    Page, Pruned, Reads, ResourceQuery, ResourceShown, Result, Retention, Shown, Status, Store,
    StoreError, Swept, WorkerShown,
};
use crate::view;
use database::Database;
pub use error::Error;
use guard::Guard;
use reader::Reader;
use writer::{Ask, Told, Writer};

/// Most questions that wait for the writer. Batches are few; this bounds readers.
const ASKS_MAX: usize = 256;

/// How to open an embedded store.
#[derive(Default)]
pub struct Options {
    /// Another clock than the machine's.
    pub clock: Option<Arc<dyn Clock>>,
    /// The most pages of 4 KiB that the file may grow to; no bound but the disk's by default.
    pub pages_max: Option<u32>,
    /// Makes room for the log at once: the flush of a log that does not grow costs half.
    pub roomy_log: bool,
}

/// The file behind symbolic links, so that one file has one lock beside it.
fn resolve(path: &Path) -> PathBuf {
    let whole = path.canonicalize();
    let of_parent = || {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new(".")).canonicalize().ok()?;
        Some(parent.join(path.file_name()?))
    };
    whole.ok().or_else(of_parent).unwrap_or_else(|| path.to_path_buf())
}

/// The store `embedded:PATH`.
pub struct Embedded {
    asks: Option<mpsc::Sender<Ask>>,
    reader: Arc<Mutex<Reader>>,
    hints: broadcast::Sender<Hint>,
    observers: Arc<Observers>,
    incarnation: Incarnation,
    writer: Option<JoinHandle<()>>,
    /// Dropped last: the file is ours until the writer has ended.
    _guard: Arc<Guard>,
}

impl Embedded {
    /// Opens or creates the store in `path`.
    pub fn open(path: &Path) -> std::result::Result<Self, Error> {
        Self::open_with(path, Options { roomy_log: true, ..Options::default() })
    }

    /// Opens or creates the store in `path`, with options.
    pub fn open_with(path: &Path, options: Options) -> std::result::Result<Self, Error> {
        let path = &resolve(path);
        let guard = Arc::new(Guard::take(path)?);
        let mut database = Database::open(path)?;
        if let Some(pages_max) = options.pages_max {
            database.limit_pages(pages_max)?;
        }
        if options.roomy_log {
            database.make_room()?;
        }
        let id = crate::random::request_id().to_string();
        let (kept, last) = (database.life()?, database.last());
        let life = guard::next_life(kept.clone(), last, guard.remembered()?.as_ref(), id);
        let restored = kept.is_some_and(|kept| kept.incarnation != life.incarnation);
        database.set_life(&life, restored)?;
        guard.remember(&life)?;
        let latest = database.latest()?;
        let clock = options.clock.unwrap_or_else(|| Arc::new(ServerClock::starting_after(latest)));
        let (hints, _) = broadcast::channel(HINTS_MAX);
        let reader = Arc::new(Mutex::new(Reader::open(path)?));
        let incarnation = life.incarnation;
        let observers = Arc::<Observers>::default();
        let told = Told { hints: hints.clone(), observers: Arc::clone(&observers) };
        let writer = Writer::new(database, clock, told, Arc::clone(&guard), life)?;
        let (asks, questions) = mpsc::channel(ASKS_MAX);
        let thread = std::thread::Builder::new()
            .name("tenure-writer".to_owned())
            .spawn(move || writer.run(questions))
            .map_err(|source| Error::Io {
                what: "start a thread for",
                path: path.into(),
                source,
            })?;
        Ok(Self {
            asks: Some(asks),
            reader,
            hints,
            observers,
            incarnation,
            writer: Some(thread),
            _guard: guard,
        })
    }

    /// The life of the store between two restores.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    async fn ask<T>(&self, ask: impl FnOnce(oneshot::Sender<Result<T>>) -> Ask) -> Result<T> {
        let gone = || StoreError::Unavailable("the writer has stopped".to_owned());
        let (to, answer) = oneshot::channel();
        let asks = self.asks.as_ref().ok_or_else(gone)?;
        asks.send(ask(to)).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

impl Embedded {
    /// Reads beside the writer, on a thread that may block.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Reader) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let reader = Arc::clone(&self.reader);
        let read = move || read(&reader.lock().expect("nothing panics while it is locked"));
        let done = tokio::task::spawn_blocking(read).await;
        let done = done.map_err(|error| StoreError::Unavailable(error.to_string()))?;
        done.map_err(|error| StoreError::Unavailable(format!("cannot read: {error}")))
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        drop(self.asks.take());
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!("the writer of the embedded store panicked");
        }
    }
}

#[async_trait]
impl Store for Embedded {
    async fn apply(&self, commands: Vec<Command>) -> Result<Vec<Outcome>> {
        self.ask(|to| Ask::Apply(commands, to)).await
    }

    async fn sweep(&self) -> Result<Swept> {
        self.ask(Ask::Sweep).await
    }

    async fn prune(&self, keep: Retention) -> Result<Pruned> {
        self.ask(|to| Ask::Prune(keep, to)).await
    }

    async fn declare(&self, kinds: Arc<Kinds>) -> Result<()> {
        self.ask(|to| Ask::Declare(kinds, to)).await
    }

    fn watch(&self) -> broadcast::Receiver<Hint> {
        self.hints.subscribe()
    }

    fn observe(&self, observer: &Arc<dyn Observer>) {
        self.observers.add(observer);
    }

    async fn status(&self) -> Result<Status> {
        self.ask(Ask::Status).await
    }

    fn reads(&self) -> &dyn Reads {
        self
    }

    fn key_ring(&self) -> &dyn KeyRing {
        self
    }
}

#[async_trait]
impl Reads for Embedded {
    async fn list(&self, query: ListQuery) -> Result<Page<TenureView>> {
        self.ask(|to| Ask::List(query, to)).await
    }

    async fn show(&self, key: &ResourceKey) -> Result<Option<Shown>> {
        self.ask(|to| Ask::Show(key.clone(), to)).await
    }

    async fn keys(&self, after: Option<ResourceKey>, limit: usize) -> Result<Vec<ResourceKey>> {
        self.read(move |reader| reader.keys(after.as_ref(), limit)).await
    }

    async fn history(&self, query: HistoryQuery) -> Result<Vec<Line>> {
        let last = match &query {
            HistoryQuery::Of { key, .. } => self.ask(|to| Ask::LastLine(key.clone(), to)).await?,
            HistoryQuery::Newest { .. } | HistoryQuery::Scan { .. } => 0,
        };
        self.read(move |reader| reader.history(&query, last)).await
    }

    async fn bases(
        &self,
        after: Option<ResourceKey>,
        limit: usize,
    ) -> Result<Vec<(ResourceKey, ChainCheckpoint)>> {
        self.read(move |reader| reader.bases(after.as_ref(), limit)).await
    }

    async fn job(&self, id: JobId) -> Result<Option<JobShown>> {
        if let Some(shown) = self.ask(|to| Ask::Job(id, to)).await? {
            return Ok(Some(shown));
        }
        self.read(move |reader| reader.job(id)).await
    }

    async fn jobs(&self, query: JobQuery) -> Result<JobPage> {
        let asked = query.clone();
        let (live, last) = self.ask(|to| Ask::Jobs(asked, to)).await?;
        self.read(move |reader| match query.resource() {
            Some(_) => view::walk(live, last, &query, |id| reader.job(id)),
            None => Ok(view::page(live, reader.jobs(&query)?, query.limit)),
        })
        .await
    }

    async fn resources(&self, query: ResourceQuery) -> Result<Page<ResourceShown>> {
        let limit = query.limit;
        let asked = query.clone();
        let mut items = self.read(move |reader| reader.resources(&asked)).await?;
        let more = items.len() > limit;
        items.truncate(limit);
        let next = items.last().filter(|_| more).map(|shown| shown.key.clone());
        // Rows in the file may be behind: what is in memory counts.
        let keys = items.iter().map(|shown| shown.key.clone()).collect();
        let fresh = self.ask(|to| Ask::Fresh(keys, to)).await?;
        let mut fresh: HashMap<_, _> = fresh.into_iter().map(|s| (s.key, s.resource)).collect();
        for shown in &mut items {
            if let Some(resource) = fresh.remove(&shown.key) {
                shown.resource = resource;
            }
        }
        items.retain(|shown| query.wants(&shown.key, &shown.resource));
        Ok(Page { items, next })
    }

    async fn logs(&self, query: LogQuery) -> Result<Vec<LogLine>> {
        self.read(move |reader| reader.logs(query)).await
    }

    async fn session(&self, id: SessionId) -> Result<Option<Text>> {
        self.ask(|to| Ask::Session(id, to)).await
    }

    async fn workers(&self) -> Result<Vec<WorkerShown>> {
        self.ask(Ask::Workers).await
    }

    async fn census(&self) -> Result<Census> {
        let (mut census, mut next) = self.ask(|to| Ask::Census(None, to)).await?;
        while let Some(after) = next {
            let (part, further) = self.ask(|to| Ask::Census(Some(after), to)).await?;
            census.merge(part);
            next = further;
        }
        for (key, ended) in self.read(Reader::dead).await? {
            census.add_dead(group_of(&key), 1, ended);
        }
        Ok(census)
    }
}

//! The embedded store: a SQLite file, written by one thread with one flush per batch.
//!
//! `writer` is the writer thread, `database` and `jobs` its SQL, and `checkpoint` the background
//! checkpoints of its log. `reader` has the read-only queries, `prune` the retention, `format` the
//! migrations, `keys` the API keys, `ownership` the file lock and the incarnation, `room` the free
//! room on the disk, and `error` the errors.

mod checkpoint;
mod database;
mod error;
mod forget;
mod format;
mod jobs;
mod keys;
mod ownership;
mod prune;
mod reader;
mod room;
mod writer;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use async_trait::async_trait;
use tenure_core::ready::GroupCounts;
use tenure_core::verify::ChainCheckpoint;
use tenure_core::{Command, Incarnation, JobId, Kinds, Outcome, ResourceKey, TenureView, Text};
use tokio::sync::{broadcast, mpsc, oneshot};

use crate::census::{Census, group_of};
use crate::clock::{Clock, ServerClock};
use crate::keys::KeyRing;
use crate::observer::{Observer, Observers};
use crate::store::{
    HINTS_MAX, Hint, HistoryQuery, HistoryRow, JobPage, JobQuery, JobView, LogLine, LogQuery, Page,
    Pruned, Reads, ResourceDetail, ResourceQuery, ResourceView, Result, Retention, Status, Store,
    StoreError, Swept, TenureQuery, WorkerView,
};
use crate::view;
use database::Database;
pub use error::Error;
use ownership::Ownership;
use reader::Reader;
pub use room::FreeBytes;
use room::Room;
use writer::{Publisher, Writer, WriterRequest};

/// Capacity of the request queue of the writer. There are few batches; this limits readers.
const REQUESTS_MAX: usize = 256;

/// Options of an embedded store.
#[derive(Default)]
pub struct Options {
    /// Clock; the clock of the machine by default.
    pub clock: Option<Arc<dyn Clock>>,
    /// Maximum size of the file in pages of 4 KiB; unlimited by default.
    pub pages_max: Option<u32>,
    /// Preallocates the write-ahead log: flushing a log that does not grow costs half.
    pub preallocate_wal: bool,
    /// Free bytes on the disk; the file system is asked by default.
    pub free_bytes: Option<FreeBytes>,
}

/// Resolves symbolic links, so that a file has one lock file whatever path it is opened by.
fn resolve(path: &Path) -> PathBuf {
    let resolved = path.canonicalize();
    let resolved_parent = || {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new(".")).canonicalize().ok()?;
        Some(parent.join(path.file_name()?))
    };
    resolved.ok().or_else(resolved_parent).unwrap_or_else(|| path.to_path_buf())
}

/// Store `embedded:PATH`.
pub struct Embedded {
    requests: Option<mpsc::Sender<WriterRequest>>,
    reader: Arc<Mutex<Reader>>,
    hints: broadcast::Sender<Hint>,
    observers: Arc<Observers>,
    incarnation: Incarnation,
    writer: Option<JoinHandle<()>>,
    /// Dropped last: the file is owned until the writer has stopped.
    _ownership: Arc<Ownership>,
}

impl Embedded {
    /// Opens or creates the store in `path`.
    pub fn open(path: &Path) -> std::result::Result<Self, Error> {
        Self::open_with(path, Options { preallocate_wal: true, ..Options::default() })
    }

    /// Opens or creates the store in `path`, with options.
    pub fn open_with(path: &Path, options: Options) -> std::result::Result<Self, Error> {
        let path = &resolve(path);
        let room = Room::new(path, options.free_bytes);
        room.check_open(path)?;
        let ownership = Arc::new(Ownership::acquire(path)?);
        let mut database = Database::open(path, &room)?;
        if let Some(pages_max) = options.pages_max {
            database.limit_pages(pages_max)?;
        }
        if options.preallocate_wal {
            let prepared = checkpoint::preallocate(&database.connection, path, &room);
            prepared.map_err(|error| database.error(error))?;
        }
        let new_id = crate::random::request_id().to_string();
        let (stored, sidecar) = (database.incarnation()?, ownership.read_record()?);
        let last = database.last_position();
        let record = ownership::next_incarnation(stored.clone(), last, sidecar.as_ref(), new_id);
        let restored =
            stored.is_some_and(|stored| record.incarnation.ends_sessions_of(stored.incarnation));
        database.set_incarnation(&record, restored)?;
        ownership.write_record_durably(&record)?;
        let latest = database.latest()?;
        let clock = options.clock.unwrap_or_else(|| Arc::new(ServerClock::starting_after(latest)));
        let (hints, _) = broadcast::channel(HINTS_MAX);
        let reader = Arc::new(Mutex::new(Reader::open(path)?));
        let incarnation = record.incarnation;
        let observers = Arc::<Observers>::default();
        let publisher = Publisher { hints: hints.clone(), observers: Arc::clone(&observers) };
        let writer = Writer::new(database, clock, publisher, Arc::clone(&ownership), record)?;
        let (requests, receiver) = mpsc::channel(REQUESTS_MAX);
        let thread = std::thread::Builder::new()
            .name("tenure-writer".to_owned())
            .spawn(move || writer.run(receiver))
            .map_err(|source| Error::Io {
                what: "start a thread for",
                path: path.into(),
                source,
            })?;
        Ok(Self {
            requests: Some(requests),
            reader,
            hints,
            observers,
            incarnation,
            writer: Some(thread),
            _ownership: ownership,
        })
    }

    /// Returns the incarnation, which increases with every restore.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Sends a request to the writer thread and waits for its reply.
    async fn request<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<T>>) -> WriterRequest,
    ) -> Result<T> {
        let stopped = || StoreError::unavailable("the writer has stopped");
        let (reply, receiver) = oneshot::channel();
        let requests = self.requests.as_ref().ok_or_else(stopped)?;
        requests.send(request(reply)).await.map_err(|_| stopped())?;
        receiver.await.map_err(|_| stopped())?
    }
}

impl Embedded {
    /// Runs a read-only query on a blocking thread, concurrently with the writer.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Reader) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let reader = Arc::clone(&self.reader);
        let read = move || read(&reader.lock().expect("no panic while the reader is locked"));
        let result = tokio::task::spawn_blocking(read).await;
        let result =
            result.map_err(|error| StoreError::unavailable(error.to_string()).caused_by(error))?;
        result.map_err(|error| {
            StoreError::unavailable(format!("cannot read: {error}")).caused_by(error)
        })
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        drop(self.requests.take());
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
        self.request(|reply| WriterRequest::Apply(commands, reply)).await
    }

    async fn sweep(&self) -> Result<Swept> {
        self.request(WriterRequest::Sweep).await
    }

    async fn prune(&self, retention: Retention) -> Result<Pruned> {
        self.request(|reply| WriterRequest::Prune(retention, reply)).await
    }

    async fn declare(&self, kinds: Arc<Kinds>) -> Result<()> {
        self.request(|reply| WriterRequest::Declare(kinds, reply)).await
    }

    fn watch(&self) -> broadcast::Receiver<Hint> {
        self.hints.subscribe()
    }

    fn observe(&self, observer: &Arc<dyn Observer>) {
        self.observers.add(observer);
    }

    async fn status(&self) -> Result<Status> {
        self.request(WriterRequest::Status).await
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
    async fn tenures(&self, query: TenureQuery) -> Result<Page<TenureView>> {
        self.request(|reply| WriterRequest::Tenures(query, reply)).await
    }

    async fn show(&self, key: &ResourceKey) -> Result<Option<ResourceDetail>> {
        self.request(|reply| WriterRequest::Show(key.clone(), reply)).await
    }

    async fn keys(&self, after: Option<ResourceKey>, limit: usize) -> Result<Vec<ResourceKey>> {
        self.read(move |reader| reader.keys(after.as_ref(), limit)).await
    }

    async fn history(&self, query: HistoryQuery) -> Result<Vec<HistoryRow>> {
        let last = match &query {
            HistoryQuery::Of { key, .. } => {
                self.request(|reply| WriterRequest::LastPosition(key.clone(), reply)).await?
            }
            HistoryQuery::Newest { .. } | HistoryQuery::Scan { .. } => 0,
        };
        self.read(move |reader| reader.history(&query, last)).await
    }

    async fn checkpoints(
        &self,
        after: Option<ResourceKey>,
        limit: usize,
    ) -> Result<Vec<(ResourceKey, ChainCheckpoint)>> {
        self.read(move |reader| reader.checkpoints(after.as_ref(), limit)).await
    }

    async fn checkpoint(&self, key: &ResourceKey) -> Result<Option<ChainCheckpoint>> {
        let key = key.clone();
        self.read(move |reader| reader.checkpoint(&key)).await
    }

    async fn job(&self, id: JobId) -> Result<Option<JobView>> {
        if let Some(view) = self.request(|reply| WriterRequest::Job(id, reply)).await? {
            return Ok(Some(view));
        }
        self.read(move |reader| reader.job(id)).await
    }

    async fn jobs(&self, query: JobQuery) -> Result<JobPage> {
        let live_query = query.clone();
        let (live, last) = self.request(|reply| WriterRequest::Jobs(live_query, reply)).await?;
        self.read(move |reader| match query.resource() {
            Some(_) => view::page_of_resource(live, last, &query, |id| reader.job(id)),
            None => Ok(view::merge_jobs(live, reader.jobs(&query)?, query.limit)),
        })
        .await
    }

    async fn resources(&self, query: ResourceQuery) -> Result<Page<ResourceView>> {
        let limit = query.limit;
        let reader_query = query.clone();
        let mut items = self.read(move |reader| reader.resources(&reader_query)).await?;
        let more = items.len() > limit;
        items.truncate(limit);
        let next = items.last().filter(|_| more).map(|view| view.key.clone());
        // Rows in the file may be stale: records in memory take precedence.
        let keys = items.iter().map(|view| view.key.clone()).collect();
        let current = self.request(|reply| WriterRequest::Resources(keys, reply)).await?;
        let mut current: HashMap<_, _> =
            current.into_iter().map(|view| (view.key, view.resource)).collect();
        for view in &mut items {
            if let Some(resource) = current.remove(&view.key) {
                view.resource = resource;
            }
        }
        items.retain(|view| query.matches(&view.key, &view.resource));
        Ok(Page { items, next })
    }

    async fn group(&self, tenant: Text, kind: Text, group: Text) -> Result<GroupCounts> {
        self.request(|reply| WriterRequest::Group([tenant, kind, group], reply)).await
    }

    async fn logs(&self, query: LogQuery) -> Result<Vec<LogLine>> {
        self.read(move |reader| reader.logs(query)).await
    }

    async fn workers(&self) -> Result<Vec<WorkerView>> {
        self.request(WriterRequest::Workers).await
    }

    async fn census(&self) -> Result<Census> {
        let (mut census, mut next) =
            self.request(|reply| WriterRequest::Census(None, reply)).await?;
        while let Some(after) = next {
            let (page, following) =
                self.request(|reply| WriterRequest::Census(Some(after), reply)).await?;
            census.merge(page);
            next = following;
        }
        for (key, ended) in self.read(Reader::dead_letters).await? {
            census.add_dead(group_of(&key), 1, ended);
        }
        Ok(census)
    }
}

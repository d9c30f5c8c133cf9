//! Wake-ups between servers: sent after the commit, coalesced, best effort.
//!
//! Every server sends a periodic hello. From the hellos it receives, a server knows whether
//! notifications arrive at all (behind a pooler they may not) and whether it has peers.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tenure_core::{JobId, ResourceKey, SessionId, TenureView};
use tokio::runtime::Handle;
use tokio::sync::{broadcast, mpsc};
use tokio_postgres::AsyncMessage;
use tokio_postgres::types::Type;

use super::connection::{Connection, unavailable};
use super::settings::Settings;
use super::tls::Tls;
use crate::clock::stopwatch;
use crate::store::{Hint, Result};

const CHANNEL: &str = "tenure";
/// Capacity of the send queue. Wake-ups that do not fit are dropped; waiting requests poll.
const QUEUE_CAPACITY: usize = 4_096;
/// Maximum size of the hints of one notification. PostgreSQL limits a payload to 8,000 bytes.
const PAYLOAD_MAX_BYTES: usize = 7_000;
/// Interval between two hellos.
const HELLO_INTERVAL: Duration = Duration::from_secs(1);
/// Time without a hello after which a server counts as gone.
const HELLO_TIMEOUT: Duration = Duration::from_millis(3_500);
/// Delay before the listener reconnects.
const RECONNECT_DELAY: Duration = Duration::from_millis(500);

/// The payload of a notification.
#[derive(Serialize, Deserialize)]
struct Message {
    from: String,
    hints: Vec<HintMessage>,
}

/// A [`Hint`] in a payload.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum HintMessage {
    Granted(Box<TenureView>),
    Ready(ResourceKey),
    Notified(SessionId),
    #[serde(rename = "over")]
    JobEnded(JobId),
}

impl HintMessage {
    fn from_hint(hint: &Hint) -> Vec<Self> {
        match hint {
            Hint::Granted(tenure) => vec![Self::Granted(Box::new((**tenure).clone()))],
            Hint::Ready(key) => vec![Self::Ready(key.clone())],
            Hint::Notified(session) => vec![Self::Notified(*session)],
            Hint::JobsEnded(jobs) => jobs.iter().copied().map(Self::JobEnded).collect(),
            Hint::Lagged => Vec::new(),
        }
    }

    fn into_hint(self) -> Hint {
        match self {
            Self::Granted(tenure) => Hint::Granted(Arc::new(*tenure)),
            Self::Ready(key) => Hint::Ready(key),
            Self::Notified(session) => Hint::Notified(session),
            Self::JobEnded(job) => Hint::JobsEnded([job].into()),
        }
    }
}

/// Listens for notifications on its own connection, which a pooler must not share.
pub(super) struct Listener {
    pub(super) settings: Settings,
    pub(super) tls: Tls,
}

/// When messages were last received, in milliseconds since `start`; zero for never.
struct LastReceived {
    start: Instant,
    /// A message of this server.
    loopback: AtomicU64,
    /// A message of another server.
    peer: AtomicU64,
}

impl LastReceived {
    fn update(&self, instant: &AtomicU64) {
        let ms = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        instant.store(ms.max(1), Ordering::Relaxed);
    }

    fn is_recent(&self, instant: &AtomicU64) -> bool {
        let last = instant.load(Ordering::Relaxed);
        last > 0 && self.start.elapsed() < Duration::from_millis(last) + HELLO_TIMEOUT
    }
}

/// Exchanges wake-ups with other servers.
pub(super) struct Notifier {
    queue: mpsc::Sender<HintMessage>,
    last_received: Arc<LastReceived>,
}

impl Notifier {
    /// Spawns the tasks that send and receive wake-ups. Received ones go to `hints`.
    pub(super) fn start(
        runtime: &Handle,
        id: &str,
        connection: Connection,
        listener: Listener,
        hints: broadcast::Sender<Hint>,
    ) -> Self {
        let (queue, queued) = mpsc::channel(QUEUE_CAPACITY);
        let (loopback, peer) = (AtomicU64::new(0), AtomicU64::new(0));
        let last_received = Arc::new(LastReceived { start: stopwatch(), loopback, peer });
        runtime.spawn(run_sender(connection, id.to_owned(), queued, Arc::clone(&last_received)));
        runtime.spawn(listener.run(id.to_owned(), hints, Arc::clone(&last_received)));
        Self { queue, last_received }
    }

    /// Queues a wake-up for other servers. Drops it if there are none or if the queue is full.
    pub(super) fn send(&self, hint: &Hint) {
        if self.last_received.is_recent(&self.last_received.peer) {
            for message in HintMessage::from_hint(hint) {
                self.queue.try_send(message).ok();
            }
        }
    }

    /// Whether this server receives notifications.
    pub(super) fn is_receiving(&self) -> bool {
        self.last_received.is_recent(&self.last_received.loopback)
    }
}

async fn run_sender(
    connection: Connection,
    id: String,
    mut queued: mpsc::Receiver<HintMessage>,
    last_received: Arc<LastReceived>,
) {
    let mut hello = tokio::time::interval(HELLO_INTERVAL);
    let mut batch = Vec::new();
    loop {
        tokio::select! {
            count = queued.recv_many(&mut batch, QUEUE_CAPACITY) => if count == 0 { return },
            _ = hello.tick() => {}
        }
        if batch.is_empty() && !last_received.is_recent(&last_received.loopback) {
            tracing::debug!("own notifications are not received");
        }
        for payload in build_payloads(&id, batch.drain(..)) {
            // Asynchronous commit: losing a notification is acceptable.
            let sql = "SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)";
            let params = [(&CHANNEL as _, Type::TEXT), (&payload as _, Type::TEXT)];
            if let Err(error) = connection.query(sql, &params).await {
                tracing::debug!(%error, "cannot notify other servers");
                break;
            }
        }
    }
}

/// Packs hints into as few payloads as possible. Returns at least one, which is the hello.
fn build_payloads(id: &str, hints: impl Iterator<Item = HintMessage>) -> Vec<String> {
    // One resource of each kind and group stands for all that became ready.
    let mut ready: BTreeSet<(String, Option<String>)> = BTreeSet::new();
    let hints = hints.filter(|hint| match hint {
        HintMessage::Ready(key) => {
            let kind = format!("{}/{}", key.tenant(), key.kind());
            ready.insert((kind, key.group().map(str::to_owned)))
        }
        _ => true,
    });
    let mut payloads = Vec::new();
    let mut message = Message { from: id.to_owned(), hints: Vec::new() };
    let mut bytes = 0;
    for hint in hints {
        let size = serde_json::to_string(&hint).map_or(0, |json| json.len() + 1);
        if bytes + size > PAYLOAD_MAX_BYTES && !message.hints.is_empty() {
            payloads.push(serde_json::to_string(&message).expect("message serializes to JSON"));
            message.hints.clear();
            bytes = 0;
        }
        if size <= PAYLOAD_MAX_BYTES {
            bytes += size;
            message.hints.push(hint);
        }
    }
    payloads.push(serde_json::to_string(&message).expect("message serializes to JSON"));
    payloads
}

impl Listener {
    /// Listens until the store is dropped, reconnecting after failures.
    async fn run(
        self,
        id: String,
        hints: broadcast::Sender<Hint>,
        last_received: Arc<LastReceived>,
    ) {
        loop {
            if let Err(error) = self.listen(&id, &hints, &last_received).await {
                tracing::debug!(%error, "cannot listen for other servers; waiting requests poll");
            }
            tokio::time::sleep(RECONNECT_DELAY).await;
        }
    }

    /// Listens on one connection until it fails.
    async fn listen(
        &self,
        id: &str,
        hints: &broadcast::Sender<Hint>,
        last_received: &LastReceived,
    ) -> Result<()> {
        let mut config = self.settings.config.clone();
        if let Some((host, port)) = &self.settings.listen {
            let main = config.clone();
            config = tokio_postgres::Config::new();
            config.host(host).port(*port).application_name("tenure listen");
            config.ssl_mode(main.get_ssl_mode());
            main.get_connect_timeout().map(|timeout| config.connect_timeout(*timeout));
            main.get_tcp_user_timeout().map(|timeout| config.tcp_user_timeout(*timeout));
            config.keepalives(main.get_keepalives()).keepalives_idle(main.get_keepalives_idle());
            main.get_user().map(|user| config.user(user));
            main.get_password().map(|password| config.password(password));
            main.get_dbname().map(|name| config.dbname(name));
        }
        let to_store_error = unavailable;
        let connecting = config.connect(self.tls.clone());
        let (client, mut connection) = connecting.await.map_err(to_store_error)?;
        let subscribe = async {
            let sql = format!("LISTEN {CHANNEL}");
            client.batch_execute(&sql).await.map_err(to_store_error)?;
            // Notifications before this point are lost, so waiting requests must poll once.
            hints.send(Hint::Lagged).ok();
            std::future::pending::<Result<()>>().await
        };
        let receive = async {
            while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notification(note) = message.map_err(to_store_error)? {
                    handle_payload(note.payload(), id, hints, last_received);
                }
            }
            Ok(())
        };
        tokio::select! {
            failed = subscribe => failed,
            ended = receive => ended,
        }
    }
}

fn handle_payload(
    payload: &str,
    id: &str,
    hints: &broadcast::Sender<Hint>,
    last_received: &LastReceived,
) {
    // Ignore messages of newer versions that do not parse.
    let Ok(message) = serde_json::from_str::<Message>(payload) else { return };
    if message.from == id {
        last_received.update(&last_received.loopback);
        return;
    }
    last_received.update(&last_received.peer);
    for hint in message.hints {
        hints.send(hint.into_hint()).ok();
    }
}

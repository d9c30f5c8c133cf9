//! Wake-ups between servers: told after the commit, coalesced, and never relied upon.
//!
//! Every server says hello from time to time. So each knows whether it hears anything at all
//! (behind a pooler it may not), and whether there is anybody else worth telling.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tenure_core::{JobId, SessionId, TenureView, Text};
use tokio::runtime::Handle;
use tokio::sync::{broadcast, mpsc};
use tokio_postgres::AsyncMessage;
use tokio_postgres::types::Type;

use super::link::{Link, unavailable};
use super::settings::Settings;
use super::tls::Tls;
use crate::clock::stopwatch;
use crate::store::{Hint, Result};

const CHANNEL: &str = "tenure";
/// Wake-ups that wait to be told; what does not fit is found by asking again.
const QUEUE_MAX: usize = 4_096;
/// A notification may have 8,000 bytes.
const BYTES_MAX: usize = 7_000;
/// How often a server says hello.
const HELLO_EVERY: Duration = Duration::from_secs(1);
/// Whoever was not heard for so long is not there.
const SILENCE_MAX: Duration = Duration::from_millis(3_500);
/// How long to wait before connecting again.
const AGAIN: Duration = Duration::from_millis(500);

/// What one server tells the others.
#[derive(Serialize, Deserialize)]
struct Message {
    from: String,
    hints: Vec<Told>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Told {
    Granted(Box<TenureView>),
    Ready(Text),
    Notified(SessionId),
    Over(JobId),
}

impl Told {
    fn of(hint: &Hint) -> Vec<Self> {
        match hint {
            Hint::Granted(tenure) => vec![Self::Granted(Box::new((**tenure).clone()))],
            Hint::Ready(kind) => vec![Self::Ready(kind.clone())],
            Hint::Notified(session) => vec![Self::Notified(*session)],
            Hint::Over(jobs) => jobs.iter().copied().map(Self::Over).collect(),
            Hint::Missed => Vec::new(),
        }
    }

    fn into_hint(self) -> Hint {
        match self {
            Self::Granted(tenure) => Hint::Granted(Arc::new(*tenure)),
            Self::Ready(kind) => Hint::Ready(kind),
            Self::Notified(session) => Hint::Notified(session),
            Self::Over(job) => Hint::Over([job].into()),
        }
    }
}

/// What is needed to listen: a connection of its own, which no pooler may share.
pub(super) struct Ears {
    pub(super) settings: Settings,
    pub(super) tls: Tls,
}

/// When something was last heard, in milliseconds since the start; zero for never.
struct Heard {
    start: Instant,
    myself: AtomicU64,
    others: AtomicU64,
}

impl Heard {
    fn note(&self, at: &AtomicU64) {
        let ms = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        at.store(ms.max(1), Ordering::Relaxed);
    }

    fn lately(&self, at: &AtomicU64) -> bool {
        let last = at.load(Ordering::Relaxed);
        last > 0 && self.start.elapsed() < Duration::from_millis(last) + SILENCE_MAX
    }
}

/// Tells other servers what they should look at, and is told.
pub(super) struct Notifier {
    queue: mpsc::Sender<Told>,
    heard: Arc<Heard>,
}

impl Notifier {
    pub(super) fn start(
        runtime: &Handle,
        id: &str,
        mouth: Link,
        ears: Ears,
        hints: broadcast::Sender<Hint>,
    ) -> Self {
        let (queue, told) = mpsc::channel(QUEUE_MAX);
        let (myself, others) = (AtomicU64::new(0), AtomicU64::new(0));
        let heard = Arc::new(Heard { start: stopwatch(), myself, others });
        runtime.spawn(speak(mouth, id.to_owned(), told, Arc::clone(&heard)));
        runtime.spawn(listen(ears, id.to_owned(), hints, Arc::clone(&heard)));
        Self { queue, heard }
    }

    /// Tells others, if there are any, unless too much is to be told already.
    pub(super) fn tell(&self, hint: &Hint) {
        if self.heard.lately(&self.heard.others) {
            for told in Told::of(hint) {
                self.queue.try_send(told).ok();
            }
        }
    }

    /// Whether notifications come through.
    pub(super) fn is_up(&self) -> bool {
        self.heard.lately(&self.heard.myself)
    }
}

async fn speak(mouth: Link, id: String, mut told: mpsc::Receiver<Told>, heard: Arc<Heard>) {
    let mut hello = tokio::time::interval(HELLO_EVERY);
    let mut batch = Vec::new();
    loop {
        tokio::select! {
            count = told.recv_many(&mut batch, QUEUE_MAX) => if count == 0 { return },
            _ = hello.tick() => {}
        }
        if batch.is_empty() && !heard.lately(&heard.myself) {
            tracing::debug!("no notification has come back yet");
        }
        for payload in payloads(&id, batch.drain(..)) {
            // Losing one is allowed, so nobody waits for the disk.
            let sql = "SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)";
            let params = [(&CHANNEL as _, Type::TEXT), (&payload as _, Type::TEXT)];
            if let Err(error) = mouth.rows(sql, &params).await {
                tracing::debug!(%error, "cannot tell other servers");
                break;
            }
        }
    }
}

/// Puts wake-ups into as few notifications as they fit in; at least one, which is the hello.
fn payloads(id: &str, told: impl Iterator<Item = Told>) -> Vec<String> {
    let mut kinds = BTreeSet::new();
    let told = told.filter(|told| match told {
        Told::Ready(kind) => kinds.insert(kind.clone()),
        _ => true,
    });
    let mut payloads = Vec::new();
    let mut message = Message { from: id.to_owned(), hints: Vec::new() };
    let mut bytes = 0;
    for told in told {
        let size = serde_json::to_string(&told).map_or(0, |json| json.len() + 1);
        if bytes + size > BYTES_MAX && !message.hints.is_empty() {
            payloads.push(serde_json::to_string(&message).expect("it is plain JSON"));
            message.hints.clear();
            bytes = 0;
        }
        if size <= BYTES_MAX {
            bytes += size;
            message.hints.push(told);
        }
    }
    payloads.push(serde_json::to_string(&message).expect("it is plain JSON"));
    payloads
}

/// Listens for as long as the store lasts, connecting again and again.
async fn listen(ears: Ears, id: String, hints: broadcast::Sender<Hint>, heard: Arc<Heard>) {
    loop {
        if let Err(error) = listen_once(&ears, &id, &hints, &heard).await {
            tracing::debug!(%error, "cannot listen for other servers; waiting requests poll");
        }
        tokio::time::sleep(AGAIN).await;
    }
}

async fn listen_once(
    ears: &Ears,
    id: &str,
    hints: &broadcast::Sender<Hint>,
    heard: &Heard,
) -> Result<()> {
    let mut config = ears.settings.config.clone();
    if let Some((host, port)) = &ears.settings.listen {
        let direct = config.clone();
        config = tokio_postgres::Config::new();
        config.host(host).port(*port).application_name("tenure listen");
        config.ssl_mode(direct.get_ssl_mode());
        direct.get_connect_timeout().map(|most| config.connect_timeout(*most));
        direct.get_tcp_user_timeout().map(|most| config.tcp_user_timeout(*most));
        config.keepalives(direct.get_keepalives()).keepalives_idle(direct.get_keepalives_idle());
        direct.get_user().map(|user| config.user(user));
        direct.get_password().map(|password| config.password(password));
        direct.get_dbname().map(|name| config.dbname(name));
    }
    let away = |error: tokio_postgres::Error| unavailable(&error);
    let (client, mut connection) = config.connect(ears.tls.clone()).await.map_err(away)?;
    let listening = async {
        client.batch_execute(&format!("LISTEN {CHANNEL}")).await.map_err(away)?;
        // What came before is found by asking again.
        hints.send(Hint::Missed).ok();
        std::future::pending::<Result<()>>().await
    };
    let hearing = async {
        while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notification(note) = message.map_err(away)? {
                hear(note.payload(), id, hints, heard);
            }
        }
        Ok(())
    };
    tokio::select! {
        failed = listening => failed,
        ended = hearing => ended,
    }
}

fn hear(payload: &str, id: &str, hints: &broadcast::Sender<Hint>, heard: &Heard) {
    // A newer version may say more than we understand.
    let Ok(message) = serde_json::from_str::<Message>(payload) else { return };
    if message.from == id {
        heard.note(&heard.myself);
        return;
    }
    heard.note(&heard.others);
    for told in message.hints {
        hints.send(told.into_hint()).ok();
    }
}

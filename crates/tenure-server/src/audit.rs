//! The audit: a line for everything that changed something or was refused, on this server.
//!
//! It is a file of JSON lines, for people with `jq` and for whatever collects logs. A line is
//! handed to the writer before the answer is sent, so an answer without a line happens only when
//! the machine fails in between. Old files are numbered and dropped; nothing here has a secret.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, BufWriter, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::response::Response;
use tenure_core::Text;
use tenure_store::clock::{Clock as _, ServerClock};
use tenure_wire::{AuditLine, instant};
use tokio::sync::{mpsc, oneshot};

use crate::auth::keys::Principal;
use tenure_app::Caller;
use tenure_app::problem::ProblemCode;

/// Lines that wait to be written; whoever comes then waits, too.
const QUEUE_MAX: usize = 4_096;
/// How long a line may have to wait for its place; then it is given up, and the server goes on.
const WAIT_MAX: Duration = Duration::from_millis(250);
/// Longest path that is noted.
const PATH_BYTES_MAX: usize = 512;
/// How large a file gets before a new one is begun.
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Old files that are kept.
const FILES_KEPT: usize = 8;

/// What becomes a line.
#[derive(Debug)]
pub(crate) struct Entry {
    line: AuditLine,
}

impl Entry {
    pub(crate) fn new(
        action: &str,
        path: &str,
        address: Option<IpAddr>,
        response: Option<&Response>,
        took: Duration,
    ) -> Self {
        let code = response.and_then(|response| response.extensions().get::<ProblemCode>());
        let outcome = match (response, code) {
            (_, Some(code)) => &code.0,
            (Some(_), None) => "ok",
            (None, None) => "not answered",
        };
        Self {
            line: AuditLine {
                at: String::new(),
                action: action.to_owned(),
                path: path.chars().take(PATH_BYTES_MAX).collect(),
                principal: None,
                key: None,
                role: None,
                tenant: None,
                address: address.map(|address| address.to_string()),
                status: response.map_or(0, |response| response.status().as_u16()),
                outcome: outcome.to_owned(),
                reason: None,
                request_id: tenure_app::request_id::current(),
                took_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            },
        }
    }

    /// Who did it, or tried to.
    pub(crate) fn by(mut self, caller: Option<&Caller>, whoever: Option<&Principal>) -> Self {
        if let Some(principal) = whoever {
            self.line.principal = Some(principal.name.to_string());
            self.line.key = principal.key.as_ref().map(Text::to_string);
            self.line.role = Some(principal.role);
            self.line.tenant = Some(principal.tenant.to_string());
        }
        if let Some(caller) = caller {
            let tenant = caller.audit.tenant.get().unwrap_or(&caller.tenant);
            self.line.tenant = Some(tenant.to_string());
            self.line.reason = caller.audit.reason.get().map(Text::to_string);
        }
        self
    }
}

enum Ask {
    Line(Box<Entry>),
    /// All that was told before is in the file.
    Flush(oneshot::Sender<()>),
}

/// Which lines.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wish {
    /// Only of this tenant.
    pub(crate) tenant: Option<Text>,
    /// Only of this action.
    pub(crate) action: Option<String>,
    /// At most so many.
    pub(crate) limit: usize,
}

impl Wish {
    fn wants(&self, line: &AuditLine) -> bool {
        let tenant = self.tenant.as_deref();
        tenant.is_none_or(|tenant| line.tenant.as_deref() == Some(tenant))
            && self.action.as_ref().is_none_or(|action| *action == line.action)
    }
}

/// The way to the audit; cheap to clone.
#[derive(Clone)]
pub struct Audit(Option<(mpsc::Sender<Ask>, PathBuf)>);

impl Audit {
    /// No audit at all: for tests, and for those who say so.
    #[must_use]
    pub fn off() -> Self {
        Self(None)
    }

    /// An audit in a file, which is made when it is not there.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        let mut book = Book::open(path)?;
        let (asks, mut questions) = mpsc::channel(QUEUE_MAX);
        std::thread::Builder::new().name("tenure-audit".to_owned()).spawn(move || {
            while let Some(ask) = questions.blocking_recv() {
                book.answer(ask);
                // What waits goes in the same write.
                while let Ok(ask) = questions.try_recv() {
                    book.answer(ask);
                }
                book.flush();
            }
        })?;
        Ok(Self(Some((asks, path.to_path_buf()))))
    }

    pub(crate) async fn write(&self, entry: Entry) {
        if let Some((asks, _)) = &self.0
            && asks.send_timeout(Ask::Line(Box::new(entry)), WAIT_MAX).await.is_err()
        {
            tracing::error!("a line of the audit is lost: its file takes too long, or is gone");
        }
    }

    /// The same for one who cannot wait.
    pub(crate) fn write_now(&self, entry: Entry) {
        if let Some((asks, _)) = &self.0
            && asks.try_send(Ask::Line(Box::new(entry))).is_err()
        {
            tracing::error!("a line of the audit is lost: too many wait already");
        }
    }

    /// Sees to it that all lines so far are in the file.
    pub(crate) async fn flush(&self) -> std::io::Result<()> {
        let Some((asks, _)) = &self.0 else { return Ok(()) };
        let gone = || std::io::Error::other("the audit has stopped");
        let (to, flushed) = oneshot::channel();
        asks.send(Ask::Flush(to)).await.map_err(|_| gone())?;
        flushed.await.map_err(|_| gone())
    }

    /// The newest lines, newest first; nothing when there is no audit.
    pub(crate) async fn newest(&self, wish: Wish) -> std::io::Result<Option<Vec<AuditLine>>> {
        let Some((_, path)) = self.0.clone() else { return Ok(None) };
        self.flush().await?;
        let read = tokio::task::spawn_blocking(move || newest(&path, &wish)).await;
        read.map_err(std::io::Error::other)?.map(Some)
    }
}

/// The files.
struct Book {
    path: PathBuf,
    file: BufWriter<File>,
    bytes: u64,
    clock: ServerClock,
    /// Whether the last write failed: it is said once.
    failing: bool,
}

impl Book {
    fn open(path: &Path) -> std::io::Result<Self> {
        let file = append(path)?;
        let bytes = file.metadata()?.len();
        let clock = ServerClock::starting_after(tenure_core::Millis::default());
        let (path, file) = (path.to_path_buf(), BufWriter::new(file));
        Ok(Self { path, file, bytes, clock, failing: false })
    }

    fn answer(&mut self, ask: Ask) {
        match ask {
            Ask::Line(entry) => self.write(*entry),
            Ask::Flush(to) => {
                self.flush();
                // Whoever asked may have gone away.
                to.send(()).ok();
            }
        }
    }

    fn write(&mut self, Entry { mut line }: Entry) {
        line.at = instant(self.clock.now());
        let mut text = serde_json::to_string(&line).expect("it is plain JSON");
        text.push('\n');
        let written = self.turn().and_then(|()| self.file.write_all(text.as_bytes()));
        self.bytes += text.len() as u64;
        self.note(written);
    }

    fn flush(&mut self) {
        let flushed = self.file.flush();
        self.note(flushed);
    }

    fn note(&mut self, result: std::io::Result<()>) {
        match result {
            Err(error) if !self.failing => {
                self.failing = true;
                tracing::error!(%error, "cannot write the audit");
            }
            Err(_) => {}
            Ok(()) => self.failing = false,
        }
    }

    /// Begins a new file when the present one is large.
    fn turn(&mut self) -> std::io::Result<()> {
        if self.bytes < FILE_BYTES_MAX {
            return Ok(());
        }
        self.file.flush()?;
        // After a failure the last one may have been moved away already.
        for n in (0..FILES_KEPT).rev().filter(|_| self.path.exists()) {
            let from = numbered(&self.path, n);
            if from.exists() {
                fs::rename(from, numbered(&self.path, n + 1))?;
            }
        }
        self.file = BufWriter::new(append(&self.path)?);
        self.bytes = 0;
        Ok(())
    }
}

/// The newest lines that are wanted, newest first.
fn newest(path: &Path, wish: &Wish) -> std::io::Result<Vec<AuditLine>> {
    let mut found = Vec::new();
    for n in 0..=FILES_KEPT {
        let path = numbered(path, n);
        if found.len() == wish.limit || !path.exists() {
            break;
        }
        let mut of_file = VecDeque::new();
        for text in BufReader::new(File::open(path)?).lines() {
            // A line that a crash has cut off is nobody's.
            let Ok(line) = serde_json::from_str::<AuditLine>(&text?) else { continue };
            if wish.wants(&line) {
                of_file.push_front(line);
                of_file.truncate(wish.limit - found.len());
            }
        }
        found.extend(of_file);
    }
    Ok(found)
}

/// The present file, or an older one.
fn numbered(path: &Path, n: usize) -> PathBuf {
    if n == 0 { path.to_path_buf() } else { path.with_added_extension(n.to_string()) }
}

fn append(path: &Path) -> std::io::Result<File> {
    File::options().create(true).append(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse as _;

    use super::*;
    use tenure_app::Problem;

    fn entry(action: &str, response: &Response) -> Entry {
        Entry::new(action, "/v1/x", None, Some(response), Duration::ZERO)
    }

    #[tokio::test]
    async fn the_newest_lines_come_first_also_across_files() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("audit.jsonl");
        let mut book = Book::open(&path).expect("it is made");
        let (ok, no) = ("".into_response(), Problem::unauthenticated().into_response());
        book.write(entry("one", &ok));
        book.bytes = FILE_BYTES_MAX;
        book.write(entry("two", &no));
        book.write(entry("three", &ok));
        book.flush();
        assert!(numbered(&path, 1).exists());
        let wish = Wish { limit: 10, ..Wish::default() };
        let found = newest(&path, &wish).expect("it is read");
        let told: Vec<_> =
            found.iter().map(|line| (line.action.as_str(), line.outcome.as_str())).collect();
        assert_eq!(told, [("three", "ok"), ("two", "unauthenticated"), ("one", "ok")]);
        let wish = Wish { limit: 1, action: Some("one".to_owned()), ..Wish::default() };
        assert_eq!(newest(&path, &wish).expect("it is read").len(), 1);
    }

    #[test]
    fn old_files_are_dropped() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("audit.jsonl");
        let mut book = Book::open(&path).expect("it is made");
        for _ in 0..2 * FILES_KEPT {
            book.bytes = FILE_BYTES_MAX;
            book.write(entry("one", &"".into_response()));
        }
        assert_eq!(fs::read_dir(dir.path()).expect("it is there").count(), FILES_KEPT + 1);
    }
}

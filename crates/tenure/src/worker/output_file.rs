//! The output file of a command: all of its output, beside the bounded log of the job.
//!
//! The file is written on a thread of its own, because a disk may hang. The command then waits, as
//! if it wrote the file itself, but its supervision does not. Nothing is missing in the file
//! without a notice in it or in the log.
//!
//! See `streams.rs`, which reads and redacts the lines.

use std::fs::{File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::fs::OFlags;
use tenure_core::run::{ATTEMPT_PLACEHOLDER, JOB_PLACEHOLDER};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::context::Context;

/// Replaces the first line that exceeds the maximum size.
const FULL: &[u8] = b"[the file is full: what follows is dropped]\n";
/// Only the owner may read it: redaction is a last resort.
const MODE: u32 = 0o600;
/// Maximum number of chunks that wait to be written.
const CHUNKS_MAX: usize = 16;
/// Timeout of creating the file, and of writing what is left when the command is dead.
const DISK_TIMEOUT: Duration = Duration::from_secs(5);

/// Where the output of a command is written.
#[derive(Clone, Debug)]
pub(super) struct OutputFile {
    /// May contain [`JOB_PLACEHOLDER`] and [`ATTEMPT_PLACEHOLDER`].
    pub(super) path: PathBuf,
    /// Maximum size, without the notice that it was reached.
    pub(super) bytes_max: Option<u64>,
}

impl OutputFile {
    /// Creates the file of one run, or empties it.
    pub(super) async fn create(&self, job: &Context) -> Result<Writer, String> {
        let path = self.path_for(job);
        let created = match Writer::start(path.clone(), self.bytes_max) {
            Ok((writer, created)) => within(created).await.map(|()| writer),
            Err(error) => Err(error),
        };
        created.map_err(|error| {
            format!(
                "cannot write the output file {}: {error}; create its directory, and permit the \
                 worker to write there",
                path.display()
            )
        })
    }

    fn path_for(&self, job: &Context) -> PathBuf {
        match self.path.to_str() {
            Some(path) => {
                let path = path.replace(JOB_PLACEHOLDER, &job.id().to_string());
                path.replace(ATTEMPT_PLACEHOLDER, &job.attempt().to_string()).into()
            }
            None => self.path.clone(),
        }
    }
}

/// Receives how something ended that the thread does.
type Ended = oneshot::Receiver<io::Result<()>>;

/// Waits for the thread, for a limited time: the disk may hang.
async fn within(ended: Ended) -> io::Result<()> {
    match timeout(DISK_TIMEOUT, ended).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(io::Error::other("the thread that writes it has panicked")),
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the disk does not respond")),
    }
}

/// Output file of one run.
pub(super) struct Writer {
    path: PathBuf,
    chunks: mpsc::Sender<String>,
    /// Number of chunks that wait for capacity; those of a dropped reader wait for ever.
    waiting: AtomicUsize,
    ended: Ended,
    /// Nothing more is written when this is dropped: the next attempt may use the same file.
    _open: Open,
}

/// Set while the file may be written.
struct Open(Arc<AtomicBool>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl Writer {
    /// Starts the thread; the second value receives whether it could create the file.
    fn start(path: PathBuf, bytes_max: Option<u64>) -> io::Result<(Self, Ended)> {
        let (chunks, receiver) = mpsc::channel(CHUNKS_MAX);
        let (created, creation) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let is_open = Arc::new(AtomicBool::new(true));
        let (target, may_write) = (path.clone(), Arc::clone(&is_open));
        thread::Builder::new().name("tenure-output".to_owned()).spawn(move || {
            let opened = open(&target).map(|file| Sink { file, bytes_max, written: 0 });
            // Nobody waits for the thread if the run was dropped.
            match opened {
                Ok(mut sink) => {
                    created.send(Ok(())).ok();
                    end.send(sink.write_all(receiver, &may_write)).ok();
                }
                Err(error) => drop(created.send(Err(error))),
            }
        })?;
        let waiting = AtomicUsize::new(0);
        Ok((Self { path, chunks, waiting, ended, _open: Open(is_open) }, creation))
    }

    /// Appends whole lines. Waits while the disk is slow.
    pub(super) async fn write(&self, lines: String) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // Fails after an error, which `finish` returns.
        self.chunks.send(lines).await.ok();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Waits until everything is written, for a limited time.
    ///
    /// # Errors
    ///
    /// Returns a message if something is missing in the file.
    pub(super) async fn finish(self) -> Result<(), String> {
        let Self { path, chunks, waiting, ended, _open } = self;
        drop(chunks);
        let written = within(ended).await.and_then(|()| match waiting.into_inner() {
            0 => Ok(()),
            _ => Err(io::Error::other("the disk is too slow")),
        });
        written
            .map_err(|error| format!("the output file {} is incomplete: {error}", path.display()))
    }
}

/// Creates or empties a file that only its owner can read.
fn open(path: &Path) -> io::Result<File> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).map_err(io::Error::other)?;
    // Opening a FIFO that nobody reads must fail, not block.
    let mut options = File::options();
    options.write(true).create(true).mode(MODE).custom_flags(flags);
    let file = options.open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    file.set_permissions(Permissions::from_mode(MODE))?;
    file.set_len(0)?;
    Ok(file)
}

/// The file, as its thread sees it.
struct Sink {
    file: File,
    bytes_max: Option<u64>,
    written: u64,
}

impl Sink {
    fn write_all(
        &mut self,
        mut chunks: mpsc::Receiver<String>,
        may_write: &AtomicBool,
    ) -> io::Result<()> {
        while let Some(lines) = chunks.blocking_recv() {
            if !may_write.load(Ordering::Relaxed) {
                break;
            }
            let fitting = self.fitting(&lines);
            self.file.write_all(fitting.as_bytes())?;
            self.written += fitting.len() as u64;
            if fitting.len() < lines.len() {
                self.file.write_all(FULL)?;
                // What follows is received and dropped, so that nobody waits.
                while chunks.blocking_recv().is_some() {}
            }
        }
        Ok(())
    }

    /// Returns the lines that do not exceed the maximum size.
    fn fitting<'a>(&self, lines: &'a str) -> &'a str {
        let left = self.bytes_max.map_or(u64::MAX, |max| max - self.written);
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        if lines.len() <= left {
            return lines;
        }
        let end = lines.as_bytes()[..left].iter().rposition(|byte| *byte == b'\n');
        &lines[..end.map_or(0, |at| at + 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes these chunks to a file of at most `bytes_max` bytes and returns its text.
    async fn write(chunks: &[&str], bytes_max: u64) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("output");
        let (writer, created) = Writer::start(path.clone(), Some(bytes_max)).unwrap();
        within(created).await.unwrap();
        for chunk in chunks {
            writer.write((*chunk).to_owned()).await;
        }
        writer.finish().await.unwrap();
        std::fs::read_to_string(&path).unwrap()
    }

    #[tokio::test]
    async fn a_file_at_its_limit_is_whole_and_a_larger_one_ends_with_a_notice() {
        let full = std::str::from_utf8(FULL).unwrap();
        assert_eq!(write(&["one\n", "two\nthree\n"], 14).await, "one\ntwo\nthree\n");
        assert_eq!(write(&["one\n", "two\nthree\n"], 13).await, format!("one\ntwo\n{full}"));
        assert_eq!(write(&["one\n", "two\n", "3\n"], 3).await, full);
        assert_eq!(write(&["one\n", "two\n", "3\n"], 4).await, format!("one\n{full}"));
    }

    #[tokio::test]
    async fn a_chunk_that_a_slow_disk_did_not_take_is_reported() {
        let (chunks, receiver) = mpsc::channel(1);
        let (end, ended) = oneshot::channel();
        let (path, waiting) = (PathBuf::from("output"), AtomicUsize::new(0));
        let _open = Open(Arc::default());
        let writer = Writer { path, chunks, waiting, ended, _open };
        writer.write("one\n".to_owned()).await;
        timeout(Duration::ZERO, writer.write("two\n".to_owned())).await.expect_err("it is full");
        end.send(Ok(())).unwrap();
        drop(receiver);
        let why = writer.finish().await.unwrap_err();
        assert_eq!(why, "the output file output is incomplete: the disk is too slow");
    }

    #[tokio::test]
    async fn a_failed_write_is_reported_and_nobody_waits() {
        let (chunks, receiver) = mpsc::channel(1);
        let file = File::open("/dev/null").unwrap();
        chunks.send("one\n".to_owned()).await.unwrap();
        let mut sink = Sink { file, bytes_max: None, written: 0 };
        let may_write = AtomicBool::new(true);
        let write = tokio::task::spawn_blocking(move || sink.write_all(receiver, &may_write));
        write.await.unwrap().expect_err("it is open for reading only");
        chunks.send("two\n".to_owned()).await.expect_err("nobody receives it");
    }

    #[test]
    fn a_file_that_cannot_be_written_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .unwrap();
        for path in [dir.path(), &fifo, &dir.path().join("missing/file"), Path::new("/dev/null")] {
            open(path).expect_err("not a regular file");
        }
    }
}

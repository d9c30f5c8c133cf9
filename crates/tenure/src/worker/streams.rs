//! The streams of one run of a command: its arguments on stdin, and the lines that it prints.
//!
//! A line goes to the observer as it is, then to the log and the output file with secrets redacted.
//! Only the output file can make the command wait, and nothing here delays its supervision.
//!
//! See `output.rs` for lines and directives, `command.rs` for the supervision.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard};

use tenure_core::StatusUpdate;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe::{Receiver, Sender};

use super::command::Phase;
use super::context::Context;
use super::exit::CommandOutput;
use super::observer::{RunningObserver, Stream};
use super::output::{Directive, LineSplitter, OutputLine};
use super::output_file::Writer;
use super::redact::StreamState;
use crate::exec::Supervisor;

/// Size of the buffer for reading output.
const READ_BUFFER_BYTES: usize = 16 * 1024;

/// Streams of one run.
pub(super) struct Streams<'a> {
    pub(super) job: &'a Context,
    pub(super) phase: &'a Phase,
    pub(super) observer: Option<RunningObserver>,
    pub(super) file: Option<Writer>,
    pub(super) output: Mutex<CommandOutput>,
}

impl Streams<'_> {
    /// Writes the arguments to the command and reads its output until all pipes are closed.
    pub(super) fn exchange<'s>(
        &'s self,
        args: &'s str,
        supervisor: &mut Supervisor,
    ) -> impl Future<Output = ()> + Send + use<'s> {
        let stdin = supervisor.stdin.take().map(OwnedFd::from).map(Sender::from_owned_fd);
        let stdout = supervisor.stdout.take().map(OwnedFd::from).map(Receiver::from_owned_fd);
        let stderr = supervisor.stderr.take().map(OwnedFd::from).map(Receiver::from_owned_fd);
        async move {
            let stdout = self.read(Stream::Stdout, stdout);
            let stderr = self.read(Stream::Stderr, stderr);
            tokio::join!(write_args(stdin, args), stdout, stderr);
        }
    }

    /// Waits until observer and file have got everything, and returns what was printed.
    pub(super) async fn finish(self) -> CommandOutput {
        if let Some(file) = self.file
            && let Err(why) = file.finish().await
        {
            tracing::warn!(job = %self.job.id(), why);
            self.job.log(&format!("[{why}]"));
        }
        if let Some(observer) = self.observer {
            observer.finish().await;
        }
        self.output.into_inner().expect("nothing panics while it is locked")
    }

    async fn read(&self, stream: Stream, pipe: Option<io::Result<Receiver>>) {
        let Some(Ok(mut pipe)) = pipe else {
            tracing::error!("cannot read the output of a command");
            return;
        };
        let label = self.phase.label();
        let mut reader = Reader {
            streams: self,
            stream,
            label,
            state: StreamState::default(),
            pending: String::new(),
        };
        let (mut lines, mut buffer) = (LineSplitter::default(), vec![0; READ_BUFFER_BYTES]);
        while let Ok(length) = pipe.read(&mut buffer).await
            && length > 0
        {
            lines.push_bytes(&buffer[..length], |line| reader.handle_line(&line));
            reader.write_pending().await;
        }
        if let Some(line) = lines.take_unterminated() {
            reader.handle_line(&line);
            reader.write_pending().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, CommandOutput> {
        self.output.lock().expect("nothing panics while it is locked")
    }
}

/// Writes the arguments to stdin. A command need not read them.
async fn write_args(stdin: Option<io::Result<Sender>>, args: &str) {
    if let Some(Ok(mut stdin)) = stdin {
        stdin.write_all(args.as_bytes()).await.ok();
    }
}

/// Reader of one output stream.
struct Reader<'a> {
    streams: &'a Streams<'a>,
    stream: Stream,
    label: String,
    state: StreamState,
    /// Lines for the output file.
    pending: String,
}

impl Reader<'_> {
    fn handle_line(&mut self, line: &OutputLine) {
        let streams = self.streams;
        if let Some(observer) = &streams.observer {
            observer.observe(self.stream, line);
        }
        let redacted = if self.stream == Stream::Stdout && self.apply_directive(line) {
            streams.file.as_ref().map(|_| streams.job.redact(&line.text))
        } else {
            self.log(line)
        };
        if let Some(redacted) = redacted.filter(|_| streams.file.is_some()) {
            self.pending.push_str(&redacted);
            self.pending.push_str(if line.truncated { " [line truncated]\n" } else { "\n" });
        }
    }

    /// Applies the directive in a line. Returns whether the line is not logged.
    fn apply_directive(&self, line: &OutputLine) -> bool {
        let streams = self.streams;
        match Directive::parse(&line.text).filter(|_| !line.truncated) {
            Some(Directive::Progress { percent, message }) => {
                streams.phase.progress(streams.job, percent, &message);
                return true;
            }
            Some(Directive::Result(json)) => {
                streams.lock().result = Some(json);
                return true;
            }
            Some(Directive::State(state)) => streams.lock().state = Some(state),
            Some(Directive::Error { code, message }) => {
                streams.lock().error = Some((code, message));
            }
            Some(Directive::Update(update)) => self.send_update(update),
            Some(Directive::Defer { delay, code, message }) => {
                let mut output = streams.lock();
                output.error = Some((code, message));
                output.defer = Some(delay);
            }
            None => {}
        }
        false
    }

    fn send_update(&self, update: StatusUpdate) {
        let job = self.streams.job;
        if job.outbox().update(update).is_err() {
            job.log("[too many updates of the status wait: the next is dropped]");
        }
    }

    /// Logs a line. Returns it with secrets redacted, unless all of it is.
    fn log(&mut self, line: &OutputLine) -> Option<String> {
        let Streams { job, .. } = self.streams;
        let redacted = job.log_line(&mut self.state, &self.label, &line.text, line.truncated)?;
        let mut output = self.streams.lock();
        output.push_tail(&redacted);
        if self.stream == Stream::Stderr && !redacted.trim().is_empty() {
            output.last_stderr_line = Some(redacted.clone());
        }
        Some(redacted)
    }

    async fn write_pending(&mut self) {
        if let Some(file) = self.streams.file.as_ref().filter(|_| !self.pending.is_empty()) {
            file.write(std::mem::take(&mut self.pending)).await;
        }
    }
}

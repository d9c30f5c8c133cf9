//! Outbox of an attempt: updates of the status, progress and log lines that wait to be sent to the
//! store.
//!
//! Writers never block. Progress is sent a few times a second at most, and only the latest value;
//! the log is sent in batches. Everything is sent before an attempt is finished. A batch whose
//! response was lost is sent again, so a line may be in the log twice, but none is missing. Memory
//! is bounded, because the log of an attempt is.
//!
//! See `context.rs`, which fills it, and `attempt.rs`, which drains it.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tenure_core::{JobAction, StatusUpdate, Token, limits};
use tokio::sync::Notify;

use super::text::truncate;
use crate::clock::{BootInstant, sleep_until};

/// Minimum interval between two progress updates.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);
/// Maximum delay until a log line is sent.
const LOG_DELAY_MAX: Duration = Duration::from_millis(250);
/// Maximum number of updates of status and timers that wait to be sent.
#[cfg(feature = "exec")]
const UPDATES_MAX: usize = 256;
/// Replaces the first line that exceeds the log.
const LOG_FULL: &str = "[the log is full: what follows is dropped]";
/// Size at which the log is sent at once.
const LOG_BATCH_BYTES: usize = 16 * 1024;

// A batch fits into one request even if JSON escaping doubles its size.
const _: () = assert!(LOG_BATCH_BYTES * 2 <= limits::LOG_CHUNK_BYTES_MAX);

/// The outbox has [`UPDATES_MAX`] updates.
#[cfg(feature = "exec")]
#[derive(Debug)]
pub(crate) struct TooManyUpdates;

/// Updates that wait to be sent.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pending: Mutex<Pending>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Pending {
    /// Updates of status and timers, in order.
    updates: VecDeque<StatusUpdate>,
    progress: Option<(u8, String)>,
    progress_not_before: Option<BootInstant>,
    log: String,
    log_send_at: Option<BootInstant>,
    /// Total bytes logged, except reserved lines.
    logged: u64,
    /// Bytes of the log that are reserved.
    reserved: u64,
    /// Total bytes of reserved lines.
    reserved_used: u64,
    closed: bool,
}

enum Next {
    Send(JobAction),
    WaitUntil(BootInstant),
    Wait,
    Done,
}

impl Outbox {
    /// Sets the latest progress.
    pub(crate) fn progress(&self, percent: u8, message: &str) {
        let message = truncate(message, limits::MESSAGE_BYTES_MAX).to_owned();
        self.pending().progress = Some((percent.min(100), message));
        self.changed.notify_one();
    }

    /// Appends an update of status and timers. Fails if too many wait to be sent.
    #[cfg(feature = "exec")]
    pub(crate) fn update(&self, update: StatusUpdate) -> Result<(), TooManyUpdates> {
        let mut pending = self.pending();
        if pending.updates.len() == UPDATES_MAX {
            return Err(TooManyUpdates);
        }
        pending.updates.push_back(update);
        drop(pending);
        self.changed.notify_one();
        Ok(())
    }

    /// Appends a line to the log; dropped if the log is full.
    pub(crate) fn log(&self, line: &str) {
        let mut pending = self.pending();
        if pending.is_full() {
            return;
        }
        pending.logged += line.len() as u64 + 1;
        // The first line that exceeds the log is still sent: the store then records that the log is
        // full. With a reservation the store would not notice.
        let line = if pending.reserved > 0 && pending.is_full() { LOG_FULL } else { line };
        pending.push(line);
        drop(pending);
        self.changed.notify_one();
    }

    /// Reserves part of the log for lines that must fit when others are dropped.
    pub(crate) fn reserve(&self, bytes: u64) {
        self.pending().reserved = bytes.min(limits::LOG_BYTES_MAX / 2);
    }

    /// Appends a line to the reserved part of the log and sends it at once; dropped if the
    /// reservation is used up.
    pub(crate) fn log_reserved(&self, line: &str) {
        let mut pending = self.pending();
        pending.reserved_used += line.len() as u64 + 1;
        if pending.reserved_used <= pending.reserved {
            pending.push(line);
            pending.log_send_at = Some(BootInstant::now());
        }
        drop(pending);
        self.changed.notify_one();
    }

    /// Returns whether further lines would be dropped.
    pub(crate) fn is_full(&self) -> bool {
        self.pending().is_full()
    }

    /// Flushes without delay from now on; [`Outbox::next`] returns `None` when nothing is left.
    pub(crate) fn close(&self) {
        self.pending().closed = true;
        self.changed.notify_one();
    }

    /// Waits for the next update to send; `None` when the outbox is closed and empty.
    pub(crate) async fn next(&self, token: Token) -> Option<JobAction> {
        loop {
            let next = self.pending().next(token);
            match next {
                Next::Send(action) => return Some(action),
                Next::Done => return None,
                Next::Wait => self.changed.notified().await,
                Next::WaitUntil(at) => tokio::select! {
                    () = sleep_until(at) => {}
                    () = self.changed.notified() => {}
                },
            }
        }
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().expect("nothing panics while the outbox is locked")
    }
}

impl Pending {
    fn is_full(&self) -> bool {
        self.logged > limits::LOG_BYTES_MAX - self.reserved
    }

    fn push(&mut self, line: &str) {
        self.log.push_str(line);
        self.log.push('\n');
        self.log_send_at.get_or_insert_with(|| BootInstant::now() + LOG_DELAY_MAX);
    }

    fn next(&mut self, token: Token) -> Next {
        if let Some(update) = self.updates.pop_front() {
            return Next::Send(JobAction::Status { token, update: Box::new(update) });
        }
        let log_wait =
            self.log_send_at.filter(|_| !self.closed && self.log.len() < LOG_BATCH_BYTES);
        if !self.log.is_empty() && log_wait.is_none_or(BootInstant::has_passed) {
            return Next::Send(JobAction::Log { token, text: self.take_batch().into() });
        }
        let progress_wait = self.progress_not_before.filter(|_| !self.closed);
        if progress_wait.is_none_or(BootInstant::has_passed)
            && let Some((percent, message)) = self.progress.take()
        {
            self.progress_not_before = Some(BootInstant::now() + PROGRESS_INTERVAL);
            return Next::Send(JobAction::Progress { token, percent, message: message.into() });
        }
        let log_send_at = self.log_send_at.filter(|_| !self.log.is_empty());
        let progress_at = self.progress_not_before.filter(|_| self.progress.is_some());
        match [log_send_at, progress_at].into_iter().flatten().min() {
            Some(at) => Next::WaitUntil(at),
            None if self.closed => Next::Done,
            None => Next::Wait,
        }
    }

    /// Takes as many whole lines as fit. A line is never longer than a batch.
    fn take_batch(&mut self) -> String {
        if self.log.len() <= LOG_BATCH_BYTES {
            self.log_send_at = None;
            return std::mem::take(&mut self.log);
        }
        let within = self.log.floor_char_boundary(LOG_BATCH_BYTES);
        let end = self.log[..within].rfind('\n').map_or(within, |at| at + 1);
        let rest = self.log.split_off(end);
        std::mem::replace(&mut self.log, rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: Token = Token(1);

    /// Closes the outbox and returns all that is sent.
    async fn drain(outbox: &Outbox) -> Vec<JobAction> {
        outbox.close();
        let mut sent = Vec::new();
        while let Some(action) = outbox.next(TOKEN).await {
            sent.push(action);
        }
        sent
    }

    fn log(action: &JobAction) -> &str {
        match action {
            JobAction::Log { text, .. } => text,
            other => panic!("{other:?} is not a log action"),
        }
    }

    #[tokio::test]
    async fn only_the_latest_progress_is_sent_and_the_last_is_always_sent() {
        let outbox = Outbox::default();
        outbox.progress(1, "one");
        assert!(matches!(outbox.next(TOKEN).await, Some(JobAction::Progress { percent: 1, .. })));
        (2..=200).for_each(|percent| outbox.progress(percent, "more"));
        let sent = drain(&outbox).await;
        assert!(matches!(sent.as_slice(), [JobAction::Progress { percent: 100, .. }]), "{sent:?}");
    }

    #[tokio::test]
    async fn progress_is_rate_limited() {
        let outbox = Outbox::default();
        outbox.progress(1, "");
        outbox.next(TOKEN).await.unwrap();
        let first = BootInstant::now();
        outbox.progress(2, "");
        outbox.next(TOKEN).await.unwrap();
        let passed = BootInstant::now().saturating_duration_since(first);
        assert!(passed >= PROGRESS_INTERVAL - Duration::from_millis(1), "only {passed:?}");
    }

    #[tokio::test]
    async fn a_small_log_is_sent_after_a_delay_and_a_full_batch_at_once() {
        let outbox = Outbox::default();
        outbox.log("one");
        outbox.log("two");
        assert_eq!(log(&outbox.next(TOKEN).await.unwrap()), "one\ntwo\n");
        let line = "x".repeat(999);
        let start = BootInstant::now();
        (0..40).for_each(|_| outbox.log(&line));
        let piece = outbox.next(TOKEN).await.unwrap();
        assert!(BootInstant::now().saturating_duration_since(start) < LOG_DELAY_MAX);
        assert_eq!(log(&piece).len(), 16_000, "whole lines");
        let rest: usize = drain(&outbox).await.iter().map(|piece| log(piece).len()).sum();
        assert_eq!(rest, 24_000);
    }

    #[tokio::test]
    async fn the_log_accepts_its_limit_and_the_first_line_beyond_it() {
        let outbox = Outbox::default();
        let line = "x".repeat(1023);
        let lines = limits::LOG_BYTES_MAX / 1024;
        (0..lines).for_each(|_| outbox.log(&line));
        assert!(!outbox.is_full());
        (0..10).for_each(|_| outbox.log(&line));
        assert!(outbox.is_full());
        let sent: usize = drain(&outbox).await.iter().map(|piece| log(piece).len()).sum();
        assert_eq!(sent as u64, limits::LOG_BYTES_MAX + 1024);
    }

    #[tokio::test]
    async fn reserved_lines_fit_into_a_full_log() {
        let outbox = Outbox::default();
        outbox.reserve(2_000);
        let line = "x".repeat(1023);
        (0..limits::LOG_BYTES_MAX / 1024 + 10).for_each(|_| outbox.log(&line));
        assert!(outbox.is_full());
        outbox.log_reserved(&"y".repeat(999));
        outbox.log_reserved(&"z".repeat(999));
        outbox.log_reserved("one too many");
        let sent: String = drain(&outbox).await.iter().map(|piece| log(piece).to_owned()).collect();
        assert!(sent.len() as u64 <= limits::LOG_BYTES_MAX, "the store accepts all of it");
        assert!(sent.contains(LOG_FULL) && sent.contains("yyy"));
        assert!(sent.contains("zzz") && !sent.contains("one too many"));
    }

    #[tokio::test]
    async fn a_progress_message_is_truncated_to_the_limit_of_the_store() {
        let outbox = Outbox::default();
        outbox.progress(1, &"ä".repeat(limits::MESSAGE_BYTES_MAX));
        let Some(JobAction::Progress { message, .. }) = outbox.next(TOKEN).await else {
            panic!("no progress");
        };
        assert_eq!(message.len(), limits::MESSAGE_BYTES_MAX);
    }
}

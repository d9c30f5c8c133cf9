//! What an attempt has to say while it runs: progress and log, on their way to the store.
//!
//! Nobody who says something waits. Progress is sent a few times a second at most, and only the
//! latest; the log is sent in batches. Before an attempt is finished everything has been sent. A
//! piece whose answer was lost is sent again, so a line may be in the log twice, but none is
//! missing. Memory is bounded, because the log of an attempt is.
//!
//! Next: `context.rs`, which fills it, `attempt.rs`, which empties it.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tenure_core::{JobAction, Token, limits};
use tokio::sync::Notify;

use super::lines::at_most;
use crate::clock::{BootInstant, sleep_until};

/// Progress is sent no more often.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);
/// The log is sent after this long at the latest.
const LOG_EVERY: Duration = Duration::from_millis(250);
/// Stands in place of the first line that is too much.
const LOG_FULL: &str = "[the log is full: what follows is dropped]";
/// The log is sent at once when there is so much of it.
const LOG_BATCH_BYTES: usize = 16 * 1024;

// A batch is a piece, however its last line ends, also when a server counts its JSON.
const _: () = assert!(LOG_BATCH_BYTES * 2 <= limits::LOG_PIECE_BYTES_MAX);

/// What waits to be sent.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pending: Mutex<Pending>,
    filled: Notify,
}

#[derive(Debug, Default)]
struct Pending {
    progress: Option<(u8, String)>,
    progress_after: Option<BootInstant>,
    log: String,
    log_at: Option<BootInstant>,
    /// What was ever put into the log, apart from marks.
    logged: u64,
    /// How much of the log is kept for marks.
    reserved: u64,
    /// What was ever marked.
    marked: u64,
    closed: bool,
}

enum Next {
    Send(JobAction),
    WaitUntil(BootInstant),
    Wait,
    Done,
}

impl Outbox {
    /// The latest progress.
    pub(crate) fn progress(&self, percent: u8, message: &str) {
        let message = at_most(message, limits::MESSAGE_BYTES_MAX).to_owned();
        self.pending().progress = Some((percent.min(100), message));
        self.filled.notify_one();
    }

    /// One more line of the log; one that comes when the log is full is dropped.
    pub(crate) fn log(&self, line: &str) {
        let mut pending = self.pending();
        if pending.is_full() {
            return;
        }
        pending.logged += line.len() as u64 + 1;
        // The line that is too much is still sent: the store then says that the log is full. With
        // room kept for marks the store would not know.
        let line = if pending.reserved > 0 && pending.is_full() { LOG_FULL } else { line };
        pending.push(line);
        drop(pending);
        self.filled.notify_one();
    }

    /// Keeps some of the log for lines that come when others are dropped.
    pub(crate) fn reserve(&self, bytes: u64) {
        self.pending().reserved = bytes.min(limits::LOG_BYTES_MAX / 2);
    }

    /// One more line of those that room is kept for, sent at once; what does not fit is dropped.
    pub(crate) fn mark(&self, line: &str) {
        let mut pending = self.pending();
        pending.marked += line.len() as u64 + 1;
        if pending.marked <= pending.reserved {
            pending.push(line);
            pending.log_at = Some(BootInstant::now());
        }
        drop(pending);
        self.filled.notify_one();
    }

    /// Whether more lines would be dropped.
    pub(crate) fn is_full(&self) -> bool {
        self.pending().is_full()
    }

    /// From now on everything goes at once; when nothing is left, [`Outbox::next`] says so.
    pub(crate) fn close(&self) {
        self.pending().closed = true;
        self.filled.notify_one();
    }

    /// Waits for something to be sent; nothing when it is closed and empty.
    pub(crate) async fn next(&self, token: Token) -> Option<JobAction> {
        loop {
            let next = self.pending().next(token);
            match next {
                Next::Send(action) => return Some(action),
                Next::Done => return None,
                Next::Wait => self.filled.notified().await,
                Next::WaitUntil(at) => tokio::select! {
                    () = sleep_until(at) => {}
                    () = self.filled.notified() => {}
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
        self.log_at.get_or_insert_with(|| BootInstant::now() + LOG_EVERY);
    }

    fn next(&mut self, token: Token) -> Next {
        let log_due = self.log_at.filter(|_| !self.closed && self.log.len() < LOG_BATCH_BYTES);
        if !self.log.is_empty() && log_due.is_none_or(BootInstant::has_passed) {
            return Next::Send(JobAction::Log { token, text: self.batch().into() });
        }
        let progress_due = self.progress_after.filter(|_| !self.closed);
        if progress_due.is_none_or(BootInstant::has_passed)
            && let Some((percent, message)) = self.progress.take()
        {
            self.progress_after = Some(BootInstant::now() + PROGRESS_EVERY);
            return Next::Send(JobAction::Progress { token, percent, message: message.into() });
        }
        let log_at = self.log_at.filter(|_| !self.log.is_empty());
        let progress_at = self.progress_after.filter(|_| self.progress.is_some());
        match [log_at, progress_at].into_iter().flatten().min() {
            Some(at) => Next::WaitUntil(at),
            None if self.closed => Next::Done,
            None => Next::Wait,
        }
    }

    /// Whole lines, as many as fit. A line is never longer than a batch.
    fn batch(&mut self) -> String {
        if self.log.len() <= LOG_BATCH_BYTES {
            self.log_at = None;
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

    /// All that is sent after it was closed.
    async fn rest(outbox: &Outbox) -> Vec<JobAction> {
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
            other => panic!("{other:?} is no log"),
        }
    }

    #[tokio::test]
    async fn only_the_latest_progress_is_sent_and_the_last_always_is() {
        let outbox = Outbox::default();
        outbox.progress(1, "one");
        assert!(matches!(outbox.next(TOKEN).await, Some(JobAction::Progress { percent: 1, .. })));
        (2..=200).for_each(|percent| outbox.progress(percent, "more"));
        let sent = rest(&outbox).await;
        assert!(matches!(sent.as_slice(), [JobAction::Progress { percent: 100, .. }]), "{sent:?}");
    }

    #[tokio::test]
    async fn progress_keeps_its_distance() {
        let outbox = Outbox::default();
        outbox.progress(1, "");
        outbox.next(TOKEN).await.unwrap();
        let first = BootInstant::now();
        outbox.progress(2, "");
        outbox.next(TOKEN).await.unwrap();
        let passed = BootInstant::now().saturating_duration_since(first);
        assert!(passed >= PROGRESS_EVERY - Duration::from_millis(1), "only {passed:?}");
    }

    #[tokio::test]
    async fn a_little_log_is_sent_soon_and_much_of_it_at_once() {
        let outbox = Outbox::default();
        outbox.log("one");
        outbox.log("two");
        assert_eq!(log(&outbox.next(TOKEN).await.unwrap()), "one\ntwo\n");
        let line = "x".repeat(999);
        let start = BootInstant::now();
        (0..40).for_each(|_| outbox.log(&line));
        let piece = outbox.next(TOKEN).await.unwrap();
        assert!(BootInstant::now().saturating_duration_since(start) < LOG_EVERY);
        assert_eq!(log(&piece).len(), 16_000, "whole lines");
        let rest: usize = rest(&outbox).await.iter().map(|piece| log(piece).len()).sum();
        assert_eq!(rest, 24_000);
    }

    #[tokio::test]
    async fn the_log_is_taken_up_to_its_bound_and_the_line_that_is_too_much() {
        let outbox = Outbox::default();
        let line = "x".repeat(1023);
        let lines = limits::LOG_BYTES_MAX / 1024;
        (0..lines).for_each(|_| outbox.log(&line));
        assert!(!outbox.is_full());
        (0..10).for_each(|_| outbox.log(&line));
        assert!(outbox.is_full());
        let sent: usize = rest(&outbox).await.iter().map(|piece| log(piece).len()).sum();
        assert_eq!(sent as u64, limits::LOG_BYTES_MAX + 1024);
    }

    #[tokio::test]
    async fn marks_find_room_in_a_log_that_is_full() {
        let outbox = Outbox::default();
        outbox.reserve(2_000);
        let line = "x".repeat(1023);
        (0..limits::LOG_BYTES_MAX / 1024 + 10).for_each(|_| outbox.log(&line));
        assert!(outbox.is_full());
        outbox.mark(&"y".repeat(999));
        outbox.mark(&"z".repeat(999));
        outbox.mark("one too many");
        let sent: String = rest(&outbox).await.iter().map(|piece| log(piece).to_owned()).collect();
        assert!(sent.len() as u64 <= limits::LOG_BYTES_MAX, "the store takes all of it");
        assert!(sent.contains(LOG_FULL) && sent.contains("yyy"));
        assert!(sent.contains("zzz") && !sent.contains("one too many"));
    }

    #[tokio::test]
    async fn a_message_is_cut_to_what_the_store_takes() {
        let outbox = Outbox::default();
        outbox.progress(1, &"ä".repeat(limits::MESSAGE_BYTES_MAX));
        let Some(JobAction::Progress { message, .. }) = outbox.next(TOKEN).await else {
            panic!("no progress");
        };
        assert_eq!(message.len(), limits::MESSAGE_BYTES_MAX);
    }
}

//! The files of the audit log: one per class of entries, rotated by size and age.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use tenure_core::Millis;
use tenure_store::audit::{AuditFilter, AuditRow};
use tenure_store::clock::{Clock as _, ServerClock};
use tenure_store::private_file;
use tenure_wire::{AuditEntry, instant};

use super::{
    Attachment, AuditClass, AuditLimits, DENIED_RATE, FILE_FAILED, PendingEntry, STORE_FAILED,
    TOO_MANY, TOO_OLD, WriterRequest, instant_of,
};
use crate::auth::limits::{Buckets, Rate};

/// Number of rotated files that are kept of each class.
pub(super) const FILES_KEPT: usize = 8;
/// Rate of denied calls that are shared with other servers: others decide how many there are.
const SHARED_DENIED_RATE: Rate = Rate { burst: 100, per_s: 10 };

/// Where the entries are.
#[derive(Clone)]
pub(super) struct AuditFiles {
    path: PathBuf,
    pub(super) limits: AuditLimits,
}

impl AuditFiles {
    pub(super) fn new(path: &Path, limits: AuditLimits) -> Self {
        Self { path: path.to_path_buf(), limits }
    }

    /// Returns the current file of a class.
    fn of(&self, class: AuditClass) -> PathBuf {
        if class == AuditClass::Operators {
            return self.path.clone();
        }
        let stem = self.path.file_stem().unwrap_or_default().to_string_lossy();
        let mut path = self.path.with_file_name(format!("{stem}-{}", class.as_str()));
        if let Some(extension) = self.path.extension() {
            path = path.with_added_extension(extension);
        }
        path
    }

    /// Reads the newest matching entries of each class, as JSON.
    pub(super) fn newest(&self, filter: &AuditFilter) -> io::Result<Vec<String>> {
        let mut found = Vec::new();
        for class in AuditClass::ALL {
            found.extend(newest(&self.of(class), filter)?);
        }
        Ok(found)
    }
}

/// Appends entries to the files.
pub(super) struct AuditWriter {
    /// In the order of [`AuditClass::ALL`].
    files: [RotatedFile; 3],
    clock: ServerClock,
    attachment: Attachment,
    shared_denied: Buckets<()>,
    /// Whether the last write failed: a failure is logged once.
    failing: bool,
}

impl AuditWriter {
    pub(super) fn open(files: &AuditFiles, attachment: Attachment) -> io::Result<Self> {
        let open = |class| RotatedFile::open(files.of(class), files.limits);
        let [operators, workers, denied] = AuditClass::ALL;
        let mut writer = Self {
            files: [open(operators)?, open(workers)?, open(denied)?],
            clock: ServerClock::starting_after(Millis::default()),
            attachment,
            shared_denied: Buckets::new(SHARED_DENIED_RATE),
            failing: false,
        };
        writer.expire();
        Ok(writer)
    }

    pub(super) fn handle(&mut self, request: WriterRequest) {
        match request {
            WriterRequest::Append(entry) => self.write(*entry),
            WriterRequest::Flush(ack) => {
                self.flush();
                // The requester may have been cancelled.
                ack.send(()).ok();
            }
        }
    }

    pub(super) fn write(&mut self, PendingEntry { class, mut line }: PendingEntry) {
        let now = self.clock.now();
        line.at = instant(now);
        line.server = self.attachment.get().map(|attached| attached.server.clone());
        let text = serde_json::to_string(&line).expect("plain JSON");
        let written = self.files[class as usize].write(&text, now);
        if written.is_err()
            && let Some(attached) = self.attachment.get()
        {
            attached.count_dropped(class, FILE_FAILED, 1);
        }
        self.report(written);
        self.share(class, line, now, text);
    }

    /// Queues an entry for the log that all servers share. The calls of workers are too many.
    fn share(&self, class: AuditClass, line: AuditEntry, at: Millis, entry: String) {
        let Some(attached) = self.attachment.get() else { return };
        let Some(shared) = attached.shared.as_ref().filter(|_| class != AuditClass::Workers) else {
            return;
        };
        if class == AuditClass::Denied && self.shared_denied.take(&()).is_err() {
            attached.count_dropped(class, DENIED_RATE, 1);
            return;
        }
        let row = AuditRow {
            id: tenure_store::random::request_id(),
            at,
            server: attached.server.clone(),
            class: class.as_str(),
            tenant: line.tenant,
            principal: line.principal,
            key: line.key,
            action: line.action,
            entry,
        };
        if !shared.append(row) {
            attached.count_dropped(class, STORE_FAILED, 1);
        }
    }

    pub(super) fn flush(&mut self) {
        let flushed = self.files.iter_mut().try_for_each(|file| file.file.flush());
        self.report(flushed);
        self.count_evicted();
    }

    /// Counts the entries of deleted files, once the server has started.
    fn count_evicted(&mut self) {
        let Some(attached) = self.attachment.get() else { return };
        for (class, file) in AuditClass::ALL.into_iter().zip(&mut self.files) {
            for (reason, count) in std::mem::take(&mut file.evicted) {
                attached.count_dropped(class, reason, count);
            }
        }
    }

    /// Rotates and deletes files because of their age.
    pub(super) fn expire(&mut self) {
        let now = self.clock.now();
        let expired = self.files.iter_mut().try_for_each(|file| {
            file.rotate(now)?;
            file.delete_expired(now)
        });
        self.report(expired);
        self.count_evicted();
    }

    /// Sets the time of the first entry of a file.
    #[cfg(test)]
    pub(super) fn set_since(&mut self, class: AuditClass, since: Millis) {
        self.files[class as usize].since = Some(since);
    }

    fn report(&mut self, result: io::Result<()>) {
        match result {
            Err(error) if !self.failing => {
                self.failing = true;
                tracing::error!(%error, "cannot write the audit log; check the disk");
            }
            Err(_) => {}
            Ok(()) => self.failing = false,
        }
    }
}

/// A file that is rotated before all of its parts exceed the limits.
struct RotatedFile {
    path: PathBuf,
    file: BufWriter<File>,
    bytes: u64,
    /// Time of its first entry.
    since: Option<Millis>,
    limits: AuditLimits,
    /// Numbers of entries that were deleted and are not counted yet, with the reason.
    evicted: Vec<(&'static str, u64)>,
}

impl RotatedFile {
    fn open(path: PathBuf, limits: AuditLimits) -> io::Result<Self> {
        for n in 0..=FILES_KEPT {
            private_file::restrict(&numbered(&path, n))?;
        }
        let mut first = String::new();
        if path.exists() {
            BufReader::new(File::open(&path)?).read_line(&mut first)?;
        }
        let since = serde_json::from_str(&first).ok().map(|entry| instant_of(&entry));
        let file = append(&path)?;
        let bytes = file.metadata()?.len();
        let evicted = Vec::new();
        Ok(Self { path, file: BufWriter::new(file), bytes, since, limits, evicted })
    }

    fn write(&mut self, text: &str, now: Millis) -> io::Result<()> {
        self.rotate(now)?;
        self.since.get_or_insert(now);
        self.bytes += text.len() as u64 + 1;
        self.file.write_all(text.as_bytes())?;
        self.file.write_all(b"\n")
    }

    /// Rotates the file if it has its share of the maximum size or of the maximum age.
    fn rotate(&mut self, now: Millis) -> io::Result<()> {
        let files = FILES_KEPT as u64 + 1;
        let too_old =
            |since| self.limits.max_age_ms.is_some_and(|ms| now.since(since) > ms / files);
        let is_full = self.bytes >= self.limits.max_bytes / files;
        if !is_full && !self.since.is_some_and(too_old) {
            return Ok(());
        }
        self.file.flush()?;
        // After a failed rotation the current file may have been renamed already.
        let kept = if self.path.exists() { FILES_KEPT } else { 0 };
        for n in (0..kept).rev() {
            let (from, to) = (numbered(&self.path, n), numbered(&self.path, n + 1));
            if from.exists() {
                // Only the oldest file still exists.
                let evicted = count_lines(&to)?;
                fs::rename(from, to)?;
                self.record_evicted(if is_full { TOO_MANY } else { TOO_OLD }, evicted);
            }
        }
        self.file = BufWriter::new(append(&self.path)?);
        (self.bytes, self.since) = (0, None);
        self.delete_expired(now)
    }

    /// Deletes rotated files whose entries are all older than the maximum age.
    fn delete_expired(&mut self, now: Millis) -> io::Result<()> {
        let Some(max_age_ms) = self.limits.max_age_ms else { return Ok(()) };
        let paths: Vec<_> = (1..=FILES_KEPT).map(|n| numbered(&self.path, n)).collect();
        for path in paths.into_iter().filter(|path| path.exists()) {
            let modified = path.metadata()?.modified()?.duration_since(UNIX_EPOCH);
            let modified = modified.unwrap_or_default().as_millis();
            if now.since(Millis(u64::try_from(modified).unwrap_or(u64::MAX))) > max_age_ms {
                let evicted = count_lines(&path)?;
                fs::remove_file(path)?;
                self.record_evicted(TOO_OLD, evicted);
            }
        }
        Ok(())
    }

    fn record_evicted(&mut self, reason: &'static str, count: u64) {
        if count > 0 {
            self.evicted.push((reason, count));
        }
    }
}

/// Returns the number of entries in a file; 0 if it does not exist.
fn count_lines(path: &Path) -> io::Result<u64> {
    let mut file = match File::open(path) {
        Ok(file) => BufReader::new(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    let mut lines = 0;
    while file.skip_until(b'\n')? > 0 {
        lines += 1;
    }
    Ok(lines)
}

/// Reads the newest matching entries of one class, newest first.
fn newest(path: &Path, filter: &AuditFilter) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    // Numbers may be missing: files are deleted because of their age.
    for path in (0..=FILES_KEPT).map(|n| numbered(path, n)).filter(|path| path.exists()) {
        if found.len() == filter.limit {
            break;
        }
        let mut of_file = VecDeque::new();
        for text in BufReader::new(File::open(path)?).lines() {
            let text = text?;
            // A crash can leave a truncated line.
            let Ok(entry) = serde_json::from_str::<AuditEntry>(&text) else { continue };
            if matches(filter, &entry) {
                of_file.push_front(text);
                of_file.truncate(filter.limit - found.len());
            }
        }
        found.extend(of_file);
    }
    Ok(found)
}

fn matches(filter: &AuditFilter, entry: &AuditEntry) -> bool {
    let is = |wanted: &Option<String>, found: Option<&str>| {
        wanted.as_deref().is_none_or(|wanted| found == Some(wanted))
    };
    is(&filter.tenant, entry.tenant.as_deref())
        && is(&filter.action, Some(&entry.action))
        && (is(&filter.who, entry.principal.as_deref()) || is(&filter.who, entry.key.as_deref()))
        && filter.since.is_none_or(|since| instant_of(entry) >= since)
}

/// Returns the path of the current file, `n` = 0, or of a rotated one.
fn numbered(path: &Path, n: usize) -> PathBuf {
    if n == 0 { path.to_path_buf() } else { path.with_added_extension(n.to_string()) }
}

fn append(path: &Path) -> io::Result<File> {
    private_file::options().create(true).append(true).open(path)
}

//! Follows a `tenure.toml` while a process runs: by SIGHUP, or when the file has changed.
//!
//! A file that is wrong is refused loudly and changes nothing: what was read before stays in force.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure::config::Config;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::MissedTickBehavior;

use super::config::{load, size};
use crate::log::say;

/// How often the file is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Tells one content of a file from another without reading it.
type Stamp = Option<(u64, i64, i64, u64)>;

/// A file that is followed; without one, only the signal is.
pub(super) struct Reload {
    path: Option<PathBuf>,
    hang_up: Signal,
    /// The file as it was read last.
    read: Stamp,
    /// The file as it was seen last.
    seen: Stamp,
}

impl Reload {
    /// Follows a file that was read a moment ago. From now on SIGHUP does not end the process.
    pub(super) fn new(path: Option<PathBuf>) -> anyhow::Result<Self> {
        let hang_up = signal(SignalKind::hangup())?;
        let seen = path.as_deref().and_then(stamp);
        Ok(Self { path, hang_up, read: seen, seen })
    }

    /// Waits for a file that says something else and is right. May be dropped at any time.
    pub(super) async fn next(&mut self) -> Config {
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let asked = tokio::select! {
                Some(()) = self.hang_up.recv() => true,
                _ = look.tick() => false,
            };
            let Some(path) = &self.path else {
                if asked {
                    say("there is no tenure.toml to read again; name one with --config");
                }
                continue;
            };
            let before = std::mem::replace(&mut self.seen, stamp(path));
            // A file is read when it has stopped changing: whoever writes it may not be done.
            let settled = self.seen == before && self.seen != self.read;
            if !asked && (!settled || self.seen.is_none()) {
                continue;
            }
            self.read = self.seen;
            match load(path) {
                Ok(config) => return config,
                Err(error) => Self::refused(&format!("{error:#}")),
            }
        }
    }

    /// Says that a file is not put in force.
    pub(super) fn refused(why: &str) {
        say(why);
        say("nothing has changed: what was read before stays in force");
    }

    /// What was read could not be put in force: it is read again at the next look.
    pub(super) fn again(&mut self) {
        self.read = None;
    }

    /// Says that a file is in force.
    pub(super) fn took(&self, config: &Config) {
        if let Some(path) = &self.path {
            say(&format!("{} was read again: {}", path.display(), size(config)));
        }
    }
}

fn stamp(path: &Path) -> Stamp {
    let data = path.metadata().ok()?;
    Some((data.ino(), data.mtime(), data.mtime_nsec(), data.len()))
}

//! Follows a `tenure.toml` and the pipelines that it names while a process runs: by SIGHUP, or when
//! a file has changed.
//!
//! A file that is wrong is refused loudly and changes nothing: what was read before stays in force.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure_apps::pipelines::catalog;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::MissedTickBehavior;

use super::config::{Loaded, load, size};
use crate::log::say;

/// How often the file is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Tells one content of a file, and of the pipelines that it names, from another without reading
/// them; nothing while the file is not there.
type Stamp = Option<Vec<(PathBuf, u64, i64, i64, u64)>>;

/// A file that is followed; without one, only the signal is.
pub(super) struct Reload {
    path: Option<PathBuf>,
    /// Where the pipelines are.
    dir: Option<PathBuf>,
    hang_up: Signal,
    /// The file as it was read last.
    read: Stamp,
    /// The file as it was seen last.
    seen: Stamp,
}

impl Reload {
    /// Follows a file that was read a moment ago. From now on SIGHUP does not end the process.
    pub(super) fn new(path: Option<PathBuf>, loaded: &Loaded) -> anyhow::Result<Self> {
        let hang_up = signal(SignalKind::hangup())?;
        let dir = dir(loaded);
        let seen = path.as_deref().and_then(|path| stamp(path, dir.as_deref()));
        Ok(Self { path, dir, hang_up, read: seen.clone(), seen })
    }

    /// Waits for a file that says something else and is right. May be dropped at any time.
    pub(super) async fn next(&mut self) -> Loaded {
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
            let now = aside(path, self.dir.as_deref(), stamp).await;
            let before = std::mem::replace(&mut self.seen, now);
            // A file is read when it has stopped changing: whoever writes it may not be done.
            let settled = self.seen == before && self.seen != self.read;
            if !asked && (!settled || self.seen.is_none()) {
                continue;
            }
            self.read.clone_from(&self.seen);
            match aside(path, None, |path, _| load(path)).await {
                Ok(loaded) => return loaded,
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
    pub(super) fn took(&mut self, loaded: &Loaded) {
        let Some(path) = &self.path else { return };
        say(&format!("{} was read again: {}", path.display(), size(loaded)));
        let dir = dir(loaded);
        if dir != self.dir {
            // It is not known yet how the other one was when it was read: read it once more.
            self.dir = dir;
            self.read = None;
        }
    }
}

/// Looks at files without keeping anybody waiting: a directory may be far away, and large.
async fn aside<T: Send + 'static>(
    path: &Path,
    dir: Option<&Path>,
    look: fn(&Path, Option<&Path>) -> T,
) -> T {
    let (path, dir) = (path.to_owned(), dir.map(Path::to_owned));
    let looked = tokio::task::spawn_blocking(move || look(&path, dir.as_deref())).await;
    looked.expect("looking at files does not panic")
}

fn dir(loaded: &Loaded) -> Option<PathBuf> {
    loaded.catalog.as_ref().map(|catalog| catalog.settings.dir.clone())
}

fn stamp(path: &Path, pipelines: Option<&Path>) -> Stamp {
    let data = path.metadata().ok()?;
    let file = (path.to_owned(), data.ino(), data.mtime(), data.mtime_nsec(), data.len());
    let pipelines = pipelines.map(catalog::stamp).unwrap_or_default();
    Some([vec![file], pipelines].concat())
}

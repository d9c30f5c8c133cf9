//! Reloads `tenure.toml` and the files of apps while a process runs: on SIGHUP, or when one of them
//! has changed.
//!
//! A file with problems is refused loudly and changes nothing: the live configuration stays.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure_app::{Apps, Loaded};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::MissedTickBehavior;

use super::config::load;
use tenure_cli_kit::message::say;

/// Interval between two looks at the files.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Extensions of the files that count in a watched directory.
const EXTENSIONS: [&str; 3] = ["toml", "yaml", "yml"];
/// Maximum depth of a watched directory.
const DEPTH_MAX: usize = 4;

/// Identity and version of all watched files, without their content; `None` while there is no
/// `tenure.toml`.
type Stamp = Option<Vec<(PathBuf, u64, i64, i64, u64)>>;

/// A `tenure.toml` that is watched; without one, only the signal is.
pub(super) struct Reload {
    apps: Apps,
    path: Option<PathBuf>,
    /// Files and directories of apps.
    watched: Vec<PathBuf>,
    hang_up: Signal,
    /// The files as they were loaded last.
    loaded: Stamp,
    /// The files as they were seen last.
    seen: Stamp,
}

impl Reload {
    /// Watches a file that was just loaded. From now on SIGHUP does not end the process.
    pub(super) fn new(apps: &Apps, path: Option<PathBuf>, loaded: &Loaded) -> anyhow::Result<Self> {
        let (apps, hang_up) = (apps.clone(), signal(SignalKind::hangup())?);
        let watched = loaded.watched_paths();
        let seen = path.as_deref().and_then(|path| stamp(path, &watched));
        Ok(Self { apps, path, watched, hang_up, loaded: seen.clone(), seen })
    }

    /// Waits for a changed configuration without problems. Cancel safe.
    pub(super) async fn next(&mut self) -> Loaded {
        let mut polls = tokio::time::interval(POLL_INTERVAL);
        polls.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let requested = tokio::select! {
                Some(()) = self.hang_up.recv() => true,
                _ = polls.tick() => false,
            };
            let Some(path) = self.path.clone() else {
                if requested {
                    say("there is no tenure.toml to read again; name one with --config");
                }
                continue;
            };
            let watched = self.watched.clone();
            let now = blocking(move || stamp(&path, &watched)).await;
            let before = std::mem::replace(&mut self.seen, now);
            // Loaded once it has stopped changing: it may still be written.
            let settled = self.seen == before && self.seen != self.loaded;
            if !requested && (!settled || self.seen.is_none()) {
                continue;
            }
            self.loaded.clone_from(&self.seen);
            let (apps, path) = (self.apps.clone(), self.path.clone().unwrap_or_default());
            match blocking(move || load(&apps, &path)).await {
                Ok(loaded) => return loaded,
                Err(error) => Self::refused(&format!("{error:#}")),
            }
        }
    }

    /// Reports that a file is not put in force.
    pub(super) fn refused(why: &str) {
        say(why);
        say("nothing has changed: what was read before stays in force");
    }

    /// Has the file loaded again at the next poll, because it could not be put in force.
    pub(super) fn again(&mut self) {
        self.loaded = None;
    }

    /// Reports that a file is in force.
    pub(super) fn took(&mut self, loaded: &Loaded) {
        let Some(path) = &self.path else { return };
        say(&format!("{} was read again: {}", path.display(), loaded.summary()));
        let watched = loaded.watched_paths();
        if watched != self.watched {
            // The state of the new paths at the time of loading is unknown: load once more.
            self.watched = watched;
            self.loaded = None;
        }
    }
}

/// Runs file I/O on a blocking thread: a directory may be remote, and large.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("reading files does not panic")
}

fn stamp(path: &Path, watched: &[PathBuf]) -> Stamp {
    path.metadata().ok()?;
    let mut stamps = Vec::new();
    for path in std::iter::once(path).chain(watched.iter().map(PathBuf::as_path)) {
        add_stamps(path, DEPTH_MAX, &mut stamps);
    }
    stamps.sort();
    Some(stamps)
}

/// Adds the stamp of a file, or of the files below a directory. Hidden ones do not count.
fn add_stamps(path: &Path, depth: usize, stamps: &mut Vec<(PathBuf, u64, i64, i64, u64)>) {
    let Ok(data) = path.metadata() else { return };
    if !data.is_dir() {
        stamps.push((path.to_owned(), data.ino(), data.mtime(), data.mtime_nsec(), data.len()));
        return;
    }
    let Some(depth) = depth.checked_sub(1) else { return };
    for entry in path.read_dir().into_iter().flatten().flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let counts = || {
            let extension = path.extension().and_then(|extension| extension.to_str());
            extension.is_some_and(|extension| EXTENSIONS.contains(&extension)) || path.is_dir()
        };
        if !name.to_string_lossy().starts_with('.') && counts() {
            add_stamps(&path, depth, stamps);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_change_of_a_watched_file_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("tenure.toml", "");
        write("pipelines/acme/billing.toml", "a");
        let (file, watched) = (dir.path().join("tenure.toml"), [dir.path().join("pipelines")]);
        let look = || stamp(&file, &watched).unwrap();
        let before = look();
        assert_eq!((look(), before.len()), (before.clone(), 2));
        write("pipelines/acme/.billing.toml.swp", "hidden");
        write("pipelines/acme/notes.txt", "not a configuration");
        assert_eq!(look(), before);
        write("pipelines/acme/another.toml", "b");
        let two = look();
        assert_ne!(two, before);
        write("pipelines/acme/another.toml", "b, changed");
        assert_ne!(look(), two);
        std::fs::remove_file(&file).unwrap();
        assert_eq!(stamp(&file, &watched), None);
    }
}

//! Reloads `tenure.toml` and the files of apps in a running process: on SIGHUP, or when a file
//! changes.
//!
//! A `tenure.toml` with problems is reported and rejected: the live configuration stays. An invalid
//! file of an app disables only what it declares.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure_app::{Apps, Loaded};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::MissedTickBehavior;

use super::config::load;
use tenure_cli_kit::message::say;

/// Interval between two checks of the files.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Extensions of the files that are watched in a directory.
const EXTENSIONS: [&str; 3] = ["toml", "yaml", "yml"];
/// Maximum depth of a watched directory.
const DEPTH_MAX: usize = 4;

/// Identity and modification time of all watched files; `None` while there is no `tenure.toml`.
type Stamp = Option<Vec<(PathBuf, u64, i64, i64, u64)>>;

/// Watches `tenure.toml`; without one, only SIGHUP.
pub(super) struct Reload {
    apps: Apps,
    path: Option<PathBuf>,
    /// Files and directories of apps.
    watched: Vec<PathBuf>,
    sighup: Signal,
    /// The files as they were loaded last.
    loaded: Stamp,
    /// The files as they were seen last.
    seen: Stamp,
}

impl Reload {
    /// Watches a file that was just loaded. From then on SIGHUP does not end the process.
    pub(super) fn new(apps: &Apps, path: Option<PathBuf>, loaded: &Loaded) -> anyhow::Result<Self> {
        let (apps, sighup) = (apps.clone(), signal(SignalKind::hangup())?);
        let watched = loaded.watched_paths();
        let seen = path.as_deref().and_then(|path| stamp(path, &watched));
        Ok(Self { apps, path, watched, sighup, loaded: seen.clone(), seen })
    }

    /// Waits for a changed configuration without problems. Cancel safe.
    pub(super) async fn next(&mut self) -> Loaded {
        let mut polls = tokio::time::interval(POLL_INTERVAL);
        polls.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let requested = tokio::select! {
                Some(()) = self.sighup.recv() => true,
                _ = polls.tick() => false,
            };
            let Some(path) = self.path.clone() else {
                if requested {
                    say("no tenure.toml to reload; name one with --config");
                }
                continue;
            };
            let watched = self.watched.clone();
            let now = blocking(move || stamp(&path, &watched)).await;
            let before = std::mem::replace(&mut self.seen, now);
            // Loaded once it has stopped changing: a write may be in progress.
            let settled = self.seen == before && self.seen != self.loaded;
            if !requested && (!settled || self.seen.is_none()) {
                continue;
            }
            self.loaded.clone_from(&self.seen);
            let (apps, path) = (self.apps.clone(), self.path.clone().unwrap_or_default());
            match blocking(move || load(&apps, &path)).await {
                Ok(loaded) => return loaded,
                Err(error) => Self::report_rejected(&format!("{error:#}")),
            }
        }
    }

    /// Reports that a changed file was rejected.
    pub(super) fn report_rejected(why: &str) {
        say(why);
        say("reload rejected: the live configuration is unchanged");
    }

    /// Loads the file again at the next poll, because it could not be applied.
    pub(super) fn retry(&mut self) {
        self.loaded = None;
    }

    /// Reports that a changed file was applied.
    pub(super) fn report_applied(&mut self, loaded: &Loaded) {
        let Some(path) = &self.path else { return };
        say(&format!("{} reloaded: {}", path.display(), loaded.summary()));
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
    tokio::task::spawn_blocking(work).await.expect("file I/O does not panic")
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

/// Adds the stamp of a file, or of the files below a directory. Hidden files are ignored.
fn add_stamps(path: &Path, depth: usize, stamps: &mut Vec<(PathBuf, u64, i64, i64, u64)>) {
    let Ok(data) = path.metadata() else { return };
    if !data.is_dir() {
        stamps.push((path.to_owned(), data.ino(), data.mtime(), data.mtime_nsec(), data.len()));
        return;
    }
    let Some(depth) = depth.checked_sub(1) else { return };
    for entry in path.read_dir().into_iter().flatten().flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let is_watched = || {
            let extension = path.extension().and_then(|extension| extension.to_str());
            extension.is_some_and(|extension| EXTENSIONS.contains(&extension)) || path.is_dir()
        };
        if !name.to_string_lossy().starts_with('.') && is_watched() {
            add_stamps(&path, depth, stamps);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_watched_files_change_the_stamp() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("tenure.toml", "");
        write("pipelines/acme/billing.toml", "a");
        let (file, watched) = (dir.path().join("tenure.toml"), [dir.path().join("pipelines")]);
        let take_stamp = || stamp(&file, &watched).unwrap();
        let before = take_stamp();
        assert_eq!((take_stamp(), before.len()), (before.clone(), 2));
        write("pipelines/acme/.billing.toml.swp", "hidden");
        write("pipelines/acme/notes.txt", "not a configuration");
        assert_eq!(take_stamp(), before);
        write("pipelines/acme/another.toml", "b");
        let two = take_stamp();
        assert_ne!(two, before);
        write("pipelines/acme/another.toml", "b, changed");
        assert_ne!(take_stamp(), two);
        std::fs::remove_file(&file).unwrap();
        assert_eq!(stamp(&file, &watched), None);
    }
}

//! `admin.key` in the data directory: the key of the first start, readable by its owner only; or a
//! file that somebody else made and mounted, so that several servers have one key.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A key that is shorter can be guessed.
const KEY_BYTES_MIN: usize = 32;

/// Why there is no admin key.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Others can read it.
    #[error(
        "{0} can be read by others; run `chmod 600` on it, or remove it to have a new one made"
    )]
    Open(PathBuf),
    /// Others than its group can read it, or its group can write it.
    #[error(
        "{0} can be read by everybody or written by its group; give it mode 0440 or 0400 (in \
         Kubernetes: defaultMode of the volume, with fsGroup)"
    )]
    Mounted(PathBuf),
    /// It has nothing a key has.
    #[error("{0} does not hold a key of at least {KEY_BYTES_MIN} characters without blanks")]
    Short(PathBuf),
    /// It has nothing a key has.
    #[error("{0} does not hold a key; remove it to have a new one made")]
    Empty(PathBuf),
    /// The operating system said no.
    #[error("cannot {what} {path}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
}

/// Reads the admin key in `dir`, making one when there is none. Gives the key and its file.
pub fn ensure(dir: &Path) -> Result<(String, PathBuf), Error> {
    let path = dir.join("admin.key");
    let io = |what| {
        let path = path.clone();
        move |source| Error::Io { what, path, source }
    };
    let created = File::options().write(true).create_new(true).mode(0o600).open(&path);
    match created {
        Ok(mut file) => {
            let key = fresh();
            file.write_all(format!("{key}\n").as_bytes()).map_err(io("write"))?;
            file.sync_all().map_err(io("write"))?;
            Ok((key, path))
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let mode = fs::metadata(&path).map_err(io("look at"))?.permissions().mode();
            if mode & 0o077 != 0 {
                return Err(Error::Open(path));
            }
            let key = fs::read_to_string(&path).map_err(io("read"))?.trim().to_owned();
            if key.len() < KEY_BYTES_MIN { Err(Error::Empty(path)) } else { Ok((key, path)) }
        }
        Err(error) => Err(io("create")(error)),
    }
}

/// Reads an admin key that somebody else keeps. A mounted secret belongs to root and is given to
/// the server by its group: so the group may read it, and nobody else.
pub fn read(path: &Path) -> Result<String, Error> {
    let io = |what| move |source| Error::Io { what, path: path.to_owned(), source };
    let mode = fs::metadata(path).map_err(io("look at"))?.permissions().mode();
    if mode & 0o027 != 0 {
        return Err(Error::Mounted(path.to_owned()));
    }
    let key = fs::read_to_string(path).map_err(io("read"))?.trim().to_owned();
    let fits = key.len() >= KEY_BYTES_MIN && key.bytes().all(|byte| byte.is_ascii_graphic());
    if fits { Ok(key) } else { Err(Error::Short(path.to_owned())) }
}

/// A secret behind a mark that scanners for leaked secrets can look for.
fn fresh() -> String {
    format!("tenure_{}", tenure_store::random::secret())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_made_once_and_only_its_owner_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let (key, path) = ensure(dir.path()).unwrap();
        assert_eq!(key.len(), "tenure_".len() + 64);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(ensure(dir.path()).unwrap().0, key);
    }

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (_, path) = ensure(dir.path()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(ensure(dir.path()).unwrap_err().to_string().contains("chmod 600"));
    }

    #[test]
    fn a_mounted_key_may_be_read_by_its_group_and_nobody_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        fs::write(&path, format!("{}\n", "k".repeat(KEY_BYTES_MIN))).unwrap();
        for (mode, good) in [(0o400, true), (0o440, true), (0o640, true), (0o660, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(read(&path).is_ok(), good, "{mode:o}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("mode 0440"));
        fs::remove_file(&path).unwrap();
        assert!(matches!(read(&path), Err(Error::Io { .. })), "none is made");
        for bad in ["k".repeat(KEY_BYTES_MIN - 1), format!("two {}", "k".repeat(40))] {
            fs::write(&path, bad).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
            assert!(matches!(read(&path), Err(Error::Short(_))));
        }
    }

    #[test]
    fn an_empty_key_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (_, path) = ensure(dir.path()).unwrap();
        fs::write(&path, "").unwrap();
        assert!(matches!(ensure(dir.path()), Err(Error::Empty(_))));
    }
}

//! `admin.key` in the data directory: the key of the first start, readable by its owner only.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Why there is no admin key.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Others can read it.
    #[error(
        "{0} can be read by others; run `chmod 600` on it, or remove it to have a new one made"
    )]
    Open(PathBuf),
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
            if key.len() < 32 { Err(Error::Empty(path)) } else { Ok((key, path)) }
        }
        Err(error) => Err(io("create")(error)),
    }
}

/// 256 random bits behind a mark that scanners for leaked secrets can look for.
fn fresh() -> String {
    let halves = [tenure_store::random::request_id(), tenure_store::random::request_id()];
    format!("tenure_{}{}", halves[0], halves[1])
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
    fn an_empty_key_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (_, path) = ensure(dir.path()).unwrap();
        fs::write(&path, "").unwrap();
        assert!(matches!(ensure(dir.path()), Err(Error::Empty(_))));
    }
}

//! The admin key: `admin.key` in the data directory, created on the first start and readable by its
//! owner only; or a mounted file, which gives several servers the same key.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Minimum length of a key: a shorter one can be guessed.
const KEY_BYTES_MIN: usize = 32;

/// Failure to load or create the admin key.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Other users can read the file.
    #[error(
        "{0} can be read by other users; run `chmod 600` on it, or remove it to create a new key"
    )]
    ReadableByOthers(PathBuf),
    /// Other users can read the mounted file, or its group can write it.
    #[error(
        "{0} can be read by other users or written by its group; give it mode 0440 or 0400 (in \
         Kubernetes: defaultMode of the volume, with fsGroup)"
    )]
    WrongMode(PathBuf),
    /// The mounted file does not contain a key.
    #[error("{0} does not contain a key of at least {KEY_BYTES_MIN} characters without blanks")]
    TooShort(PathBuf),
    /// The file does not contain a key.
    #[error("{0} does not contain a key; remove it to create a new one")]
    Empty(PathBuf),
    /// A file operation failed.
    #[error("cannot {what} {path}")]
    Io {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
}

/// Loads the admin key in `dir`, or creates one. Returns the key and its file.
pub fn load_or_create(dir: &Path) -> Result<(String, PathBuf), Error> {
    let path = dir.join("admin.key");
    let io = |what| {
        let path = path.clone();
        move |source| Error::Io { what, path, source }
    };
    let created = File::options().write(true).create_new(true).mode(0o600).open(&path);
    match created {
        Ok(mut file) => {
            let key = generate();
            file.write_all(format!("{key}\n").as_bytes()).map_err(io("write"))?;
            file.sync_all().map_err(io("write"))?;
            Ok((key, path))
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let mode = fs::metadata(&path).map_err(io("stat"))?.permissions().mode();
            if mode & 0o077 != 0 {
                return Err(Error::ReadableByOthers(path));
            }
            let key = fs::read_to_string(&path).map_err(io("read"))?.trim().to_owned();
            if key.len() < KEY_BYTES_MIN { Err(Error::Empty(path)) } else { Ok((key, path)) }
        }
        Err(error) => Err(io("create")(error)),
    }
}

/// Loads an admin key from a mounted file. A mounted secret belongs to root and is readable by the
/// server through its group, so group read permission is allowed.
pub fn load(path: &Path) -> Result<String, Error> {
    let io = |what| move |source| Error::Io { what, path: path.to_owned(), source };
    let mode = fs::metadata(path).map_err(io("stat"))?.permissions().mode();
    if mode & 0o027 != 0 {
        return Err(Error::WrongMode(path.to_owned()));
    }
    let key = fs::read_to_string(path).map_err(io("read"))?.trim().to_owned();
    let valid = key.len() >= KEY_BYTES_MIN && key.bytes().all(|byte| byte.is_ascii_graphic());
    if valid { Ok(key) } else { Err(Error::TooShort(path.to_owned())) }
}

/// Generates a key with a prefix for scanners of leaked secrets.
fn generate() -> String {
    format!("tenure_{}", tenure_store::random::secret())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_created_once_and_readable_by_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let (key, path) = load_or_create(dir.path()).unwrap();
        assert_eq!(key.len(), "tenure_".len() + 64);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(load_or_create(dir.path()).unwrap().0, key);
    }

    #[test]
    fn a_key_that_other_users_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (_, path) = load_or_create(dir.path()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(load_or_create(dir.path()).unwrap_err().to_string().contains("chmod 600"));
    }

    #[test]
    fn a_mounted_key_may_be_readable_by_its_group_but_not_by_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        fs::write(&path, format!("{}\n", "k".repeat(KEY_BYTES_MIN))).unwrap();
        for (mode, ok) in [(0o400, true), (0o440, true), (0o640, true), (0o660, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(load(&path).is_ok(), ok, "{mode:o}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
        assert!(load(&path).unwrap_err().to_string().contains("mode 0440"));
        fs::remove_file(&path).unwrap();
        assert!(matches!(load(&path), Err(Error::Io { .. })), "it is not created");
        for bad in ["k".repeat(KEY_BYTES_MIN - 1), format!("two {}", "k".repeat(40))] {
            fs::write(&path, bad).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
            assert!(matches!(load(&path), Err(Error::TooShort(_))));
        }
    }

    #[test]
    fn an_empty_key_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (_, path) = load_or_create(dir.path()).unwrap();
        fs::write(&path, "").unwrap();
        assert!(matches!(load_or_create(dir.path()), Err(Error::Empty(_))));
    }
}

//! Files that only their owner can read and write, whatever the umask is.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

/// Returns options that create a file with mode 0600.
#[must_use]
pub fn options() -> OpenOptions {
    let mut options = File::options();
    options.mode(0o600);
    options
}

/// Creates an empty file with mode 0600, unless it exists.
pub fn create(path: &Path) -> io::Result<()> {
    match options().write(true).create_new(true).open(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Replaces a file atomically by one with mode 0600. Returns the file, which is not flushed.
pub fn replace(path: &Path, text: &str) -> io::Result<File> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push("-new");
    let temporary = Path::new(&temporary);
    restrict(temporary)?;
    let mut file = options().create(true).write(true).truncate(true).open(temporary)?;
    file.write_all(text.as_bytes())?;
    fs::rename(temporary, path)?;
    Ok(file)
}

/// Takes the access to an existing file away from its group and from other users. A missing file is
/// not an error.
///
/// A file of another user keeps its mode. That is an error only if everyone can access the file: on
/// a volume for a group, such as `fsGroup` of Kubernetes, the group is the server's own.
pub fn restrict(path: &Path) -> io::Result<()> {
    let mode = match fs::metadata(path) {
        Ok(found) => found.permissions().mode(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if mode & 0o077 == 0 {
        return Ok(());
    }
    match fs::set_permissions(path, Permissions::from_mode(mode & 0o600)) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied && mode & 0o007 == 0 => {
            tracing::debug!(%error, path = %path.display(), "the group keeps its access");
            Ok(())
        }
        result => result,
    }
}

//! Which files of an install directory go into a snapshot, and into which part of it.
//!
//! This is an allow-list: the installer also unpacks programs there, and what is not known is not
//! copied. Symbolic links are never followed.
//!
//! See `redact.rs` for what is removed from files that are not secret, and `archive.rs` for the
//! format.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::archive::{ENTRIES_MAX, FILE_BYTES_MAX, NAME_BYTES_MAX};
use super::manifest::LeftOut;
use super::redact::{self, Redactor};

/// Folders with secrets: credentials, keys, and manifests that contain them.
const SECRET_FOLDERS: [&str; 5] = [".clusterapi_output", "auth", "manifests", "openshift", "tls"];
/// Depth of folders below the install directory.
const DEPTH_MAX: usize = 8;

/// How the content of a file is made fit for its part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filter {
    /// As it is.
    Nothing,
    Log,
    InstallConfig,
    Metadata,
}

/// A file that goes into a snapshot.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Source {
    /// Name relative to the install directory, with slashes.
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) filter: Filter,
}

/// The files of a snapshot, each part sorted by name.
#[derive(Debug, Default)]
pub(super) struct Contents {
    pub(super) public: Vec<Source>,
    pub(super) secrets: Vec<Source>,
    pub(super) left_out: Vec<LeftOut>,
}

impl Contents {
    /// Lists the files of an install directory.
    pub(super) fn of(dir: &Path) -> io::Result<Self> {
        let mut contents = Self::default();
        for (name, path) in sorted_entries(dir)? {
            let Some(name) = name.into_string().ok() else { continue };
            if SECRET_FOLDERS.contains(&name.as_str()) {
                contents.add_folder(&name, &path, 1)?;
            } else if let Some((is_secret, filter)) = classify(&name) {
                contents.add(name, path, is_secret, filter);
            }
        }
        Ok(contents)
    }

    fn add_folder(&mut self, folder: &str, path: &Path, depth: usize) -> io::Result<()> {
        let metadata = fs::symlink_metadata(path)?;
        if !metadata.is_dir() || depth > DEPTH_MAX {
            self.leave_out(folder.to_owned(), 0, "it is not a folder, or is too deep");
            return Ok(());
        }
        for (name, path) in sorted_entries(path)? {
            let full = format!("{folder}/{}", name.to_string_lossy());
            if name.to_str().is_none() {
                self.leave_out(full, 0, "its name is not UTF-8");
            } else if fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) {
                self.add_folder(&full, &path, depth + 1)?;
            } else {
                self.add(full, path, true, Filter::Nothing);
            }
        }
        Ok(())
    }

    fn add(&mut self, name: String, path: PathBuf, is_secret: bool, filter: Filter) {
        let part = if is_secret { &mut self.secrets } else { &mut self.public };
        if part.len() == ENTRIES_MAX {
            self.leave_out(name, 0, "there are too many files");
        } else if name.len() > NAME_BYTES_MAX {
            self.leave_out(name, 0, "its name is too long");
        } else {
            part.push(Source { name, path, filter });
        }
    }

    fn leave_out(&mut self, name: String, size: u64, reason: &str) {
        LeftOut::add(&mut self.left_out, name, size, reason);
    }
}

/// Returns whether a file of the install directory is secret, and its filter; none if it is not
/// copied.
fn classify(name: &str) -> Option<(bool, Filter)> {
    let is_state = name == ".openshift_install_state.json"
        || name.contains(".tfvars")
        || name.starts_with("terraform.tfstate")
        || name.ends_with(".ign");
    match name {
        "metadata.json" => Some((false, Filter::Metadata)),
        ".openshift_install.log" => Some((false, Filter::Log)),
        _ if name.starts_with("install-config") && name.contains(".yaml") => {
            Some((false, Filter::InstallConfig))
        }
        _ if is_state => Some((true, Filter::Nothing)),
        _ => None,
    }
}

fn sorted_entries(dir: &Path) -> io::Result<Vec<(std::ffi::OsString, PathBuf)>> {
    let entries = fs::read_dir(dir)?;
    let entries = entries.map(|entry| entry.map(|entry| (entry.file_name(), entry.path())));
    let mut entries = entries.collect::<io::Result<Vec<_>>>()?;
    entries.sort();
    Ok(entries)
}

/// What reading a file gave.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Content {
    Bytes(Vec<u8>),
    /// Size and reason.
    LeftOut(u64, &'static str),
}

impl Source {
    /// Reads the file and removes what must not be in its part.
    pub(super) fn read(&self) -> io::Result<Content> {
        let bytes = match read_regular(&self.path)? {
            Content::Bytes(bytes) => bytes,
            left_out @ Content::LeftOut(..) => return Ok(left_out),
        };
        let size = bytes.len() as u64;
        let filtered = match self.filter {
            Filter::Nothing => Some(bytes),
            Filter::Log => Some(Redactor::text(&bytes)),
            Filter::InstallConfig => redact::install_config(&bytes),
            Filter::Metadata => redact::metadata(&bytes),
        };
        let reason = "its secrets cannot be removed: it is not valid";
        Ok(filtered.map_or(Content::LeftOut(size, reason), Content::Bytes))
    }
}

/// Reads a regular file up to the limit. Neither follows a link nor waits for a pipe.
fn read_regular(path: &Path) -> io::Result<Content> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::NOENT) => return Ok(Content::LeftOut(0, "it has been removed")),
        Err(rustix::io::Errno::LOOP | rustix::io::Errno::NXIO) => {
            return Ok(Content::LeftOut(0, "it is not a regular file"));
        }
        Err(error) => return Err(error.into()),
    };
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Ok(Content::LeftOut(0, "it is not a regular file"));
    }
    let too_large = "it is too large";
    if metadata.len() > FILE_BYTES_MAX {
        return Ok(Content::LeftOut(metadata.len(), too_large));
    }
    let mut bytes = Vec::new();
    // It may grow meanwhile.
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    let size = bytes.len() as u64;
    Ok(if size > FILE_BYTES_MAX {
        Content::LeftOut(size, too_large)
    } else {
        Content::Bytes(bytes)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn names(sources: &[Source]) -> Vec<&str> {
        sources.iter().map(|source| source.name.as_str()).collect()
    }

    fn write(dir: &Path, name: &str) {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "x").unwrap();
    }

    #[test]
    fn known_files_are_split_into_public_and_secret_ones() {
        let dir = tempfile::tempdir().unwrap();
        let public = [".openshift_install.log", "install-config.yaml", "metadata.json"];
        let secrets = [
            ".clusterapi_output/Machine-a.yaml",
            ".openshift_install_state.json",
            "auth/kubeadmin-password",
            "auth/kubeconfig",
            "bootstrap.ign",
            "manifests/a/b.yaml",
            "openshift/c.yaml",
            "terraform.aws.auto.tfvars.json",
            "terraform.tfstate",
            "terraform.tfstate.backup",
            "tls/journal-gateway.key",
        ];
        let others = ["cluster-api/etcd", "terraform/plugin", "notes.txt", "x/auth/kubeconfig"];
        for name in public.iter().chain(&secrets).chain(&others) {
            write(dir.path(), name);
        }
        let contents = Contents::of(dir.path()).unwrap();
        assert_eq!(names(&contents.public), public);
        assert_eq!(names(&contents.secrets), secrets);
        assert_eq!(contents.left_out, []);
    }

    #[test]
    fn links_and_pipes_are_not_read() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "real/kubeconfig");
        symlink(dir.path().join("real"), dir.path().join("auth")).unwrap();
        fs::create_dir(dir.path().join("tls")).unwrap();
        symlink("/etc/hostname", dir.path().join("tls/link")).unwrap();
        let pipe = dir.path().join("tls/pipe");
        let mode = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, mode, Mode::RUSR, 0).unwrap();
        let contents = Contents::of(dir.path()).unwrap();
        assert_eq!(contents.left_out[0].path, "auth");
        assert_eq!(names(&contents.secrets), ["tls/link", "tls/pipe"]);
        for source in &contents.secrets {
            let expected = Content::LeftOut(0, "it is not a regular file");
            assert_eq!(source.read().unwrap(), expected, "{}", source.name);
        }
    }

    #[test]
    fn the_largest_file_is_read_and_a_larger_one_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bootstrap.ign");
        let source = Source { name: String::new(), path: path.clone(), filter: Filter::Nothing };
        let file = File::create(path).unwrap();
        file.set_len(FILE_BYTES_MAX).unwrap();
        assert!(matches!(source.read().unwrap(), Content::Bytes(_)));
        file.set_len(FILE_BYTES_MAX + 1).unwrap();
        let expected = Content::LeftOut(FILE_BYTES_MAX + 1, "it is too large");
        assert_eq!(source.read().unwrap(), expected);
    }

    #[test]
    fn files_beyond_the_limits_are_listed() {
        let mut contents = Contents::default();
        for n in 0..=ENTRIES_MAX {
            contents.add(format!("tls/{n}"), PathBuf::new(), true, Filter::Nothing);
        }
        contents.add("a".repeat(NAME_BYTES_MAX + 1), PathBuf::new(), false, Filter::Nothing);
        assert_eq!(contents.secrets.len(), ENTRIES_MAX);
        assert_eq!(contents.left_out.len(), 2);
    }

    #[test]
    fn files_that_vanish_are_left_out() {
        let source =
            Source { name: "a".into(), path: "/nonexistent/a".into(), filter: Filter::Nothing };
        assert_eq!(source.read().unwrap(), Content::LeftOut(0, "it has been removed"));
    }
}

//! Archives: tar files with nothing but regular files, compressed with zstd.
//!
//! The same files give the same bytes, so that a repeated upload can be recognized. Reading trusts
//! nothing: names stay below the target, links and devices are refused, and all sizes are bounded.
//!
//! See `contents.rs` for the files, and `mod.rs` for the digests that are checked before this.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use tar::{Archive, Builder, EntryType, Header};

use super::contents::{Content, Source};
use super::manifest::{FileEntry, LeftOut};

/// Maximum number of files in an archive.
pub const ENTRIES_MAX: usize = 10_000;
/// Maximum size of a file.
pub const FILE_BYTES_MAX: u64 = 64 << 20;
/// Maximum size of all files of an archive.
pub const UNPACKED_BYTES_MAX: u64 = 128 << 20;
/// Maximum size of a compressed archive: what does not compress grows a little.
pub const ARCHIVE_BYTES_MAX: u64 = UNPACKED_BYTES_MAX + (16 << 20);
/// Maximum length of the name of a file, a limit of the format.
pub(super) const NAME_BYTES_MAX: usize = 255;
/// Size of the headers and the padding of one file, at most.
const OVERHEAD_BYTES_MAX: u64 = 1_024;
/// Maximum size of an archive before compression.
const TAR_BYTES_MAX: u64 = UNPACKED_BYTES_MAX + (ENTRIES_MAX as u64 + 1) * OVERHEAD_BYTES_MAX;

/// An archive that was packed.
#[derive(Debug)]
pub(super) struct Packed {
    pub(super) bytes: Vec<u8>,
    pub(super) files: Vec<FileEntry>,
}

/// Packs files. What cannot be part of it is appended to `left_out`; none if nothing is left.
pub(super) fn pack(sources: &[Source], left_out: &mut Vec<LeftOut>) -> io::Result<Option<Packed>> {
    let mut encoder = zstd::Encoder::new(Vec::new(), zstd::DEFAULT_COMPRESSION_LEVEL)?;
    encoder.include_checksum(true)?;
    let mut builder = Builder::new(encoder);
    let mut files = Vec::new();
    let mut total = 0;
    for source in sources {
        let name = &source.name;
        let content = match source.read()? {
            Content::Bytes(content) => content,
            Content::LeftOut(size, reason) => {
                LeftOut::add(left_out, name.clone(), size, reason);
                continue;
            }
        };
        let size = content.len() as u64;
        let Some(mut header) = header(name, size) else {
            LeftOut::add(left_out, name.clone(), size, "its name cannot be written");
            continue;
        };
        if total + size > UNPACKED_BYTES_MAX {
            LeftOut::add(left_out, name.clone(), size, "the snapshot is too large");
            continue;
        }
        total += size;
        header.set_cksum();
        builder.append(&header, content.as_slice())?;
        files.push(FileEntry { path: name.clone(), size });
    }
    let bytes = builder.into_inner()?.finish()?;
    Ok((!files.is_empty()).then_some(Packed { bytes, files }))
}

/// Returns a header that depends on name and size only.
fn header(name: &str, size: u64) -> Option<Header> {
    check_name(name).ok()?;
    let mut header = Header::new_ustar();
    header.set_path(name).ok()?;
    header.set_entry_type(EntryType::Regular);
    header.set_size(size);
    header.set_mode(0o600);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    Some(header)
}

/// A file of an archive. Its content may be secret.
pub(super) struct Unpacked {
    pub(super) name: String,
    pub(super) content: Vec<u8>,
}

/// Reads all files of an archive, or fails with what is wrong with it.
pub(super) fn unpack(bytes: &[u8]) -> Result<Vec<Unpacked>, String> {
    let invalid = |error: io::Error| format!("it cannot be unpacked: {error}");
    let decoder = zstd::Decoder::with_buffer(bytes).map_err(invalid)?.single_frame();
    let mut archive = Archive::new(Limited { inner: decoder, left: TAR_BYTES_MAX });
    let mut files: Vec<Unpacked> = Vec::new();
    let mut total = 0;
    // Raw: extensions such as long names are entries of their own, and refused like links.
    for entry in archive.entries().map_err(invalid)?.raw(true) {
        let entry = entry.map_err(invalid)?;
        let name = String::from_utf8(entry.path_bytes().into_owned());
        let name = name.map_err(|_| "a name in it is not UTF-8".to_owned())?;
        check_name(&name)?;
        let kind = entry.header().entry_type();
        if kind != EntryType::Regular {
            return Err(format!("{name:?} is not a regular file but {kind:?}"));
        }
        total += entry.size();
        if entry.size() > FILE_BYTES_MAX || total > UNPACKED_BYTES_MAX {
            return Err(format!("{name:?} makes it too large"));
        }
        if files.len() == ENTRIES_MAX {
            return Err(format!("it has more than {ENTRIES_MAX} files"));
        }
        let mut content = Vec::new();
        let size = entry.size();
        entry.take(FILE_BYTES_MAX).read_to_end(&mut content).map_err(invalid)?;
        if content.len() as u64 != size {
            return Err(format!("{name:?} is cut off"));
        }
        files.push(Unpacked { name, content });
    }
    check_distinct(&files)?;
    Ok(files)
}

/// Checks that no name is there twice, or is also a folder of another one.
fn check_distinct(files: &[Unpacked]) -> Result<(), String> {
    let mut names = HashSet::new();
    for Unpacked { name, .. } in files {
        if !names.insert(name.as_str()) {
            return Err(format!("it has {name:?} twice"));
        }
    }
    for Unpacked { name, .. } in files {
        let folders = name.match_indices('/').map(|(at, _)| &name[..at]);
        if let Some(folder) = folders.into_iter().find(|folder| names.contains(folder)) {
            return Err(format!("{folder:?} is a file and a folder"));
        }
    }
    Ok(())
}

/// Checks that a name is relative and stays below its folder.
fn check_name(name: &str) -> Result<(), String> {
    let is_unsafe = |part: &str| matches!(part, "" | "." | "..");
    if name.split('/').any(is_unsafe) || name.contains(|c: char| c.is_control() || c == '\\') {
        return Err(format!("the name {name:?} is not relative and plain"));
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(format!("a name in it has {} bytes", name.len()));
    }
    Ok(())
}

/// Writes files below a folder that only this user can read. Existing files are not replaced, and
/// links are not followed.
pub(super) fn write_files(into: &Path, files: &[Unpacked]) -> io::Result<()> {
    create_folder(into)?;
    for Unpacked { name, content } in files {
        for (at, _) in name.match_indices('/') {
            create_folder(&into.join(&name[..at]))?;
        }
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(into.join(name))?;
        file.write_all(content)?;
    }
    Ok(())
}

fn create_folder(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            if fs::symlink_metadata(path)?.is_dir() { Ok(()) } else { Err(error) }
        }
        done => done,
    }
}

/// Fails, rather than ends, after a number of bytes.
struct Limited<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        let left = self.left.checked_sub(read as u64);
        self.left = left.ok_or_else(|| {
            io::Error::other(format!("it unpacks to more than {TAR_BYTES_MAX} bytes"))
        })?;
        Ok(read)
    }
}

#[cfg(test)]
mod tests;

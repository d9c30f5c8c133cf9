//! Archives that were made to do harm, and those at the limits.

use std::os::unix::fs::{MetadataExt as _, symlink};

use super::super::contents::Filter;
use super::*;

fn compress(tar: &[u8]) -> Vec<u8> {
    zstd::encode_all(tar, 1).unwrap()
}

/// An entry whose name is written as it is, without the checks of the library.
fn raw_entry(kind: EntryType, name: &[u8], link: &str, content: &[u8]) -> (Header, Vec<u8>) {
    let mut header = Header::new_ustar();
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.set_entry_type(kind);
    header.set_size(content.len() as u64);
    header.set_mode(0o777);
    if !link.is_empty() {
        header.set_link_name(link).unwrap();
    }
    header.set_cksum();
    (header, content.to_vec())
}

fn archive(entries: &[(Header, Vec<u8>)]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (header, content) in entries {
        builder.append(header, content.as_slice()).unwrap();
    }
    compress(&builder.into_inner().unwrap())
}

fn file(name: &[u8]) -> (Header, Vec<u8>) {
    raw_entry(EntryType::Regular, name, "", b"x")
}

#[track_caller]
fn refuses(entries: &[(Header, Vec<u8>)], part: &str) {
    let error = unpack(&archive(entries)).err().expect("a refusal");
    assert!(error.contains(part), "{error}");
}

#[test]
fn names_that_leave_the_folder_are_refused() {
    for name in [
        &b"/etc/passwd"[..],
        b"../a",
        b"a/../../b",
        b"a/..",
        b"..",
        b".",
        b"./a",
        b"a//b",
        b"a/",
        b"",
        b"a\\b",
        b"a\nb",
    ] {
        refuses(&[file(name)], "is not relative and plain");
    }
    refuses(&[file(b"a\xff")], "not UTF-8");
}

#[test]
fn everything_but_regular_files_is_refused() {
    for kind in [
        EntryType::Symlink,
        EntryType::Link,
        EntryType::Char,
        EntryType::Block,
        EntryType::Fifo,
        EntryType::Directory,
        EntryType::Continuous,
        EntryType::GNULongName,
        EntryType::GNULongLink,
        EntryType::GNUSparse,
        EntryType::XHeader,
        EntryType::XGlobalHeader,
    ] {
        let link = if kind.is_symlink() || kind.is_hard_link() { "/etc/passwd" } else { "" };
        refuses(&[raw_entry(kind, b"a", link, b"")], "is not a regular file");
        refuses(&[file(b"ok"), raw_entry(kind, b"a", link, b"")], "is not a regular file");
    }
}

#[test]
fn names_that_collide_are_refused() {
    refuses(&[file(b"a"), file(b"a")], "twice");
    refuses(&[file(b"a"), file(b"a/b")], "a file and a folder");
    refuses(&[file(b"a/b/c"), file(b"a/b")], "a file and a folder");
}

#[test]
fn too_many_files_are_refused() {
    let mut entries: Vec<_> = (0..ENTRIES_MAX).map(|n| file(format!("f{n}").as_bytes())).collect();
    assert_eq!(unpack(&archive(&entries)).ok().unwrap().len(), ENTRIES_MAX);
    entries.push(file(b"last"));
    refuses(&entries, "more than 10000 files");
}

#[test]
fn a_zip_bomb_is_refused_before_it_is_read() {
    let mut header = file(b"bomb").0;
    header.set_size(FILE_BYTES_MAX + 1);
    header.set_cksum();
    let claims = [header.as_bytes().as_slice(), &[0; 1_024]].concat();
    let error = unpack(&compress(&claims)).err().unwrap();
    assert!(error.contains("too large"), "{error}");

    let part = vec![0; FILE_BYTES_MAX.try_into().unwrap()];
    let entries: Vec<_> =
        (0..3).map(|n| raw_entry(EntryType::Regular, &[b'a' + n], "", &part)).collect();
    refuses(&entries[..], "\"c\" makes it too large");
}

#[test]
fn endless_padding_is_refused() {
    struct Zeros(u64);
    impl Read for Zeros {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let read = buffer.len().min(usize::try_from(self.0).unwrap());
            buffer[..read].fill(0);
            self.0 -= read as u64;
            Ok(read)
        }
    }
    // The reader skips what an entry claims to have.
    let mut header = file(b"a").0;
    header.set_size(u64::MAX >> 4);
    header.set_cksum();
    let bomb = header.as_bytes().as_slice().chain(Zeros(1 << 30));
    let error = unpack(&zstd::encode_all(bomb, 1).unwrap()).err().unwrap();
    assert!(error.contains("too large"), "{error}");
    let mut limited = Limited { inner: Zeros(10), left: 9 };
    assert!(io::copy(&mut limited, &mut io::sink()).is_err());
    let mut limited = Limited { inner: Zeros(9), left: 9 };
    assert_eq!(io::copy(&mut limited, &mut io::sink()).unwrap(), 9);
}

#[test]
fn damaged_archives_are_refused() {
    let good = archive(&[raw_entry(EntryType::Regular, b"a", "", &[b'x'; 5_000])]);
    assert!(unpack(&good[..good.len() / 2]).is_err());
    assert!(unpack(b"not zstd").is_err());
    let tar = zstd::decode_all(good.as_slice()).unwrap();
    let error = unpack(&compress(&tar[..2_048])).err().unwrap();
    assert!(error.contains("cut off") || error.contains("cannot be unpacked"), "{error}");
    let mut tar = tar;
    tar[0] = b'b';
    assert!(unpack(&compress(&tar)).is_err(), "the header has a checksum");
}

fn source(dir: &Path, name: &str, content: &[u8]) -> Source {
    let path = dir.join(name.replace('/', "-"));
    fs::write(&path, content).unwrap();
    Source { name: name.to_owned(), path, filter: Filter::Nothing }
}

#[test]
fn what_is_packed_is_unpacked_with_its_exact_names() {
    let dir = tempfile::tempdir().unwrap();
    let long = format!("manifests/{}/{}", "a".repeat(90), "b".repeat(90));
    let sources = [".openshift_install_state.json", "auth/kubeconfig", &long]
        .map(|name| source(dir.path(), name, name.as_bytes()));
    let mut left_out = Vec::new();
    let packed = pack(&sources, &mut left_out).unwrap().unwrap();
    let again = pack(&sources, &mut left_out).unwrap().unwrap();
    assert_eq!(packed.bytes, again.bytes);
    assert_eq!(left_out, []);
    let into = dir.path().join("new");
    write_files(&into, &unpack(&packed.bytes).unwrap()).unwrap();
    for source in &sources {
        assert_eq!(fs::read(into.join(&source.name)).unwrap(), source.name.as_bytes());
    }
    let mode = |name: &str| fs::metadata(into.join(name)).unwrap().mode() & 0o777;
    assert_eq!((mode(""), mode("auth"), mode("auth/kubeconfig")), (0o700, 0o700, 0o600));
}

#[test]
fn empty_archives_are_not_made_and_long_names_are_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let mut left_out = Vec::new();
    assert!(pack(&[], &mut left_out).unwrap().is_none());
    // The format splits names at a slash, into at most 155 and 100 bytes.
    let mut sources = [source(dir.path(), "a", b"")];
    sources[0].name = format!("tls/{}", "a".repeat(101));
    assert!(pack(&sources, &mut left_out).unwrap().is_none());
    assert_eq!(left_out[0].reason, "its name cannot be written");
}

#[test]
fn files_beyond_the_total_are_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let sources = ["a", "b", "c", "d"].map(|name| source(dir.path(), name, b"x"));
    for source in &sources[..2] {
        let file = OpenOptions::new().write(true).open(&source.path).unwrap();
        file.set_len(FILE_BYTES_MAX).unwrap();
    }
    let mut left_out = Vec::new();
    let packed = pack(&sources, &mut left_out).unwrap().unwrap();
    assert_eq!(packed.files.len(), 2);
    assert_eq!(left_out.len(), 2);
    assert_eq!(left_out[0].reason, "the snapshot is too large");
    assert_eq!(unpack(&packed.bytes).ok().unwrap().len(), 2);
}

#[test]
fn existing_files_and_links_are_not_written_through() {
    let dir = tempfile::tempdir().unwrap();
    let outside = dir.path().join("outside");
    let into = dir.path().join("into");
    fs::create_dir(&outside).unwrap();
    fs::create_dir(&into).unwrap();
    symlink(&outside, into.join("auth")).unwrap();
    symlink(outside.join("b"), into.join("b")).unwrap();
    fs::write(into.join("c"), "old").unwrap();
    for name in ["auth/kubeconfig", "b", "c"] {
        let files = [Unpacked { name: name.to_owned(), content: b"new".to_vec() }];
        write_files(&into, &files).unwrap_err();
    }
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    assert_eq!(fs::read(into.join("c")).unwrap(), b"old");
}

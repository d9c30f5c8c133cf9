//! Limits of the machine: no durable lock server can be faster than its disk and its loopback.
//!
//! Measures nothing of Tenure, and leaves no file behind. Both measurements use blocking calls, so
//! `rows` runs them outside of the runtime.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result, anyhow};

use crate::clock::now;
use crate::histogram::{Latencies, Spread};
use crate::table::Row;

/// One page, as a small commit appends to a log.
const APPEND_LEN: usize = 4096;
const APPENDS: usize = 200;

const ROUND_TRIPS: usize = 20_000;

/// Measures the machine. Also returns the time of a flush, the lower bound of durable writes.
pub async fn rows(dir: &Path) -> Result<(Spread, [Row; 2])> {
    let dir = dir.to_owned();
    let flush = tokio::task::spawn_blocking(move || fdatasync(&dir)).await??;
    let trip = tokio::task::spawn_blocking(round_trip).await??;
    let rows = [
        Row::floor("machine: fdatasync of 4 KiB", flush),
        Row::floor("machine: loopback round trip", trip),
    ];
    Ok((flush, rows))
}

/// Measures appending one page to a file in `dir` with fdatasync.
///
/// The file grows like a log that is not preallocated, so the file system also writes its new
/// length.
fn fdatasync(dir: &Path) -> Result<Spread> {
    let mut probe = Probe::create(dir)?;
    let mut latencies = Latencies::new()?;
    for _ in 0..APPENDS {
        let started = now();
        probe.append().with_context(|| format!("append to {}", probe.path.display()))?;
        latencies.record(now() - started);
    }
    Ok(latencies.spread())
}

/// Measures the round trip of one byte over TCP on 127.0.0.1 between two threads.
fn round_trip() -> Result<Spread> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("bind a loopback port")?;
    let address = listener.local_addr().context("read the loopback port")?;
    let echo = thread::spawn(move || echo(&listener));
    let spread = ping(TcpStream::connect(address).context("connect to the echo thread")?)?;
    echo.join().map_err(|_| anyhow!("join the echo thread: it panicked"))??;
    Ok(spread)
}

/// Measures round trips. Consumes the stream, since closing it ends the echo thread.
fn ping(mut stream: TcpStream) -> Result<Spread> {
    stream.set_nodelay(true).context("set TCP_NODELAY")?;
    let mut latencies = Latencies::new()?;
    let mut byte = [0];
    for _ in 0..ROUND_TRIPS {
        let started = now();
        stream.write_all(&byte).context("send a byte")?;
        stream.read_exact(&mut byte).context("receive a byte")?;
        latencies.record(now() - started);
    }
    Ok(latencies.spread())
}

fn echo(listener: &TcpListener) -> Result<()> {
    let (mut stream, _) = listener.accept().context("accept the pinging thread")?;
    stream.set_nodelay(true).context("set TCP_NODELAY")?;
    let mut byte = [0];
    while stream.read(&mut byte).context("receive a byte")? > 0 {
        stream.write_all(&byte).context("send a byte back")?;
    }
    Ok(())
}

/// A temporary file, removed on drop.
struct Probe {
    path: PathBuf,
    file: File,
}

impl Probe {
    fn create(dir: &Path) -> Result<Self> {
        let path = dir.join(format!(".tenure-bench-{}.probe", std::process::id()));
        let file = OpenOptions::new().append(true).create_new(true).open(&path);
        let file = file.with_context(|| format!("create {}", path.display()))?;
        Ok(Self { path, file })
    }

    /// `sync_data` is fdatasync.
    fn append(&mut self) -> std::io::Result<()> {
        self.file.write_all(&[0x5a; APPEND_LEN])?;
        self.file.sync_data()
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            eprintln!("cannot remove {}: {error}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::servers::Scratch;

    #[test]
    fn flush_is_measured_and_the_probe_is_removed() {
        let dir = Scratch::create(&std::env::temp_dir()).unwrap();
        let spread = fdatasync(dir.path()).unwrap();
        assert!(0.0 < spread.p50_us && spread.p50_us <= spread.p99_us, "{spread:?}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn missing_directory_is_named() {
        let error = fdatasync(Path::new("/nowhere")).unwrap_err();
        assert!(format!("{error:#}").starts_with("create /nowhere/"), "{error:#}");
    }

    #[test]
    fn loopback_is_measured() {
        let spread = round_trip().unwrap();
        assert!(0.0 < spread.p50_us && spread.p50_us <= spread.p99_us, "{spread:?}");
    }
}

//! Child processes and directories that do not outlive this process.

use std::fs::{self, DirBuilder, File};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread::{self, Thread};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

/// A child process that the kernel kills when this process exits.
pub(crate) struct Process {
    child: Child,
    /// Thread that spawned the child: the parent-death signal is sent when it exits.
    parent_thread: Thread,
}

impl Process {
    /// Spawns a command with its output in a log file.
    pub(crate) fn start(mut command: Command, log: &Path) -> Result<Self> {
        let log = File::create(log).context("create the log of a server")?;
        let stderr_log = log.try_clone().context("share the log of a server")?;
        command.stdin(Stdio::null()).stdout(log).stderr(stderr_log);
        let (started, child) = mpsc::channel();
        let parent_thread = thread::Builder::new().name("keeper".to_owned()).spawn(move || {
            started.send(command.spawn()).ok();
            thread::park();
        });
        let parent_thread = parent_thread.context("start a thread")?.thread().clone();
        let child = child.recv().context("start a server")?.context("start a server")?;
        Ok(Self { child, parent_thread })
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).ok();
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends `signal` and waits for the process to exit.
    pub(crate) fn terminate(&mut self, signal: Signal) {
        if !self.has_ended() {
            self.signal(signal);
            // A stopped process handles the signal only after SIGCONT.
            self.signal(Signal::CONT);
            self.child.wait().ok();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.terminate(Signal::QUIT);
        self.parent_thread.unpark();
    }
}

/// Builds a command that runs as the database user and dies with its parent.
pub(crate) fn as_database_user(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    if is_root() {
        command.args(["--reuid=postgres", "--regid=postgres", "--init-groups", "--reset-env"]);
    }
    command.arg("--pdeathsig=QUIT").arg("--").arg(program);
    command
}

fn is_root() -> bool {
    Path::new("/proc/self").metadata().is_ok_and(|process| process.uid() == 0)
}

/// A directory that only its owner can read; removed on drop.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// Creates a directory that only the database user can read.
    pub(crate) fn create() -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        remove_orphaned_directories();
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        // Short: the path of a unix socket has at most 107 bytes.
        let path = std::env::temp_dir().join(format!("tenure-db-{}-{n}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("create {}", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700))
            .context("set its permissions")?;
        let scratch = Self(path);
        chown_to_database_user(scratch.path())?;
        Ok(scratch)
    }

    /// Creates a directory that only this user can read.
    pub(crate) fn create_private(prefix: &str) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("{prefix}-{}-{n}", std::process::id()));
        let mut builder = DirBuilder::new();
        builder.mode(0o700).create(&path).with_context(|| format!("create {}", path.display()))?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

/// Changes the owner of `path` to the database user, if running as root.
pub(crate) fn chown_to_database_user(path: &Path) -> Result<()> {
    if is_root() {
        let home = Path::new("/var/lib/postgresql");
        let owner = home
            .metadata()
            .context("the user postgres is missing; on Debian: apt-get install postgresql-15")?;
        chown(path, Some(owner.uid()), Some(owner.gid()))
            .context("change its owner to postgres")?;
    }
    Ok(())
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// Removes directories left by killed processes.
fn remove_orphaned_directories() {
    let Ok(entries) = fs::read_dir(std::env::temp_dir()) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix("tenure-db-")?.split('-').next());
        let orphaned = pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists());
        if orphaned {
            fs::remove_dir_all(entry.path()).ok();
        }
    }
}

/// Returns a free port.
pub(crate) fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("find a free port")?;
    Ok(listener.local_addr().context("find a free port")?.port())
}

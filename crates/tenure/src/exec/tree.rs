//! Finding the processes of a command and sending them signals.
//!
//! The tree is found by parent links in `/proc`. A scan is not atomic: it may miss a process that
//! is born during it. So a scan tells whom to signal, but never proves that nobody is left: the
//! watchdog asks the kernel for that (`wait` says that it has no children), and [`Orphans`] wants
//! several scans in a row to be empty.
//!
//! Nothing here may signal a process that is not known to belong to the command; process ids are
//! reused, so every signal is tied to the start time seen in the scan.
//!
//! Next: `watchdog.rs` for when the signals are sent.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::{fs, io};

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpid, kill_process, pidfd_open,
    pidfd_send_signal, waitpid,
};

use super::ExitKind;

/// Environment variable with the identities of all commands that a process belongs to, outermost
/// first, separated by colons.
pub(super) const MARK: &str = "TENURE_EXEC_ID";

/// A process as a scan saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: Pid,
    parent: i32,
    session: i32,
    /// In clock ticks since boot; together with the process id this names a process for ever.
    start: u64,
    stopped: bool,
}

impl Process {
    /// What a process is remembered by.
    pub(super) fn name(&self) -> (Pid, u64) {
        (self.pid, self.start)
    }

    /// Signals this process, or nobody if it is gone.
    pub(super) fn signal(&self, signal: Signal) {
        let pidfd = match pidfd_open(self.pid, PidfdFlags::empty()) {
            Ok(pidfd) => Some(pidfd),
            Err(Errno::SRCH) => return,
            // A kernel or a sandbox that has none.
            Err(_) => None,
        };
        // The descriptor pins whoever has the id now; the start time says whether it is ours.
        if read(self.pid).is_none_or(|now| now.start != self.start) {
            return;
        }
        let sent = match pidfd {
            Some(pidfd) => pidfd_send_signal(pidfd, signal),
            None => kill_process(self.pid, signal),
        };
        // It died, or is not ours to signal; who needs it dead looks again anyway.
        sent.ok();
    }

    /// Sends TERM, and wakes the process if it is stopped, since it could not react otherwise.
    pub(super) fn terminate(&self) {
        self.signal(Signal::TERM);
        if self.stopped {
            self.signal(Signal::CONT);
        }
    }
}

/// All living descendants of this process, and the dead ones that nobody reaped.
pub(super) fn descendants() -> io::Result<Vec<Process>> {
    Ok(trees(scan(|_| {})?, is_child))
}

/// Sends KILL to all descendants of this process, and returns them.
pub(super) fn kill_descendants() -> io::Result<Vec<Process>> {
    kill(is_child)
}

fn is_child(process: &Process) -> bool {
    process.parent == getpid().as_raw_pid()
}

/// Kills the trees of the given roots. Whoever can be recognised during the scan is killed during
/// it: on a busy machine each one that is gone makes the rest faster.
fn kill(is_root: impl Fn(&Process) -> bool) -> io::Result<Vec<Process>> {
    let mut killed = HashSet::new();
    let all = scan(|process| {
        if killed.contains(&process.parent) || is_root(process) {
            process.signal(Signal::KILL);
            killed.insert(process.pid.as_raw_pid());
        }
    })?;
    let found = trees(all, is_root);
    let late = found.iter().filter(|process| !killed.contains(&process.pid.as_raw_pid()));
    late.for_each(|process| process.signal(Signal::KILL));
    Ok(found)
}

/// The roots and everything under them.
fn trees(all: Vec<Process>, is_root: impl Fn(&Process) -> bool) -> Vec<Process> {
    let mut found: Vec<Process> = all.iter().filter(|process| is_root(process)).copied().collect();
    let roots = found.iter().map(|root| root.pid.as_raw_pid()).collect();
    found.extend(below(roots, &by_parent(all)));
    found
}

/// Everything under the given processes; not the processes themselves.
fn below(mut roots: Vec<i32>, children: &HashMap<i32, Vec<Process>>) -> Vec<Process> {
    let mut found = Vec::new();
    while let Some(parent) = roots.pop() {
        for child in children.get(&parent).into_iter().flatten() {
            roots.push(child.pid.as_raw_pid());
            found.push(*child);
        }
    }
    found
}

fn by_parent(processes: Vec<Process>) -> HashMap<i32, Vec<Process>> {
    let mut children: HashMap<i32, Vec<Process>> = HashMap::new();
    for process in processes {
        children.entry(process.parent).or_default().push(process);
    }
    children
}

/// Every process that this one may see, in the order of their ids, so nearly always parents first.
fn scan(mut meet: impl FnMut(&Process)) -> io::Result<Vec<Process>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let pid = name.to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        if let Some(process) = pid.and_then(read) {
            meet(&process);
            found.push(process);
        }
    }
    Ok(found)
}

fn read(pid: Pid) -> Option<Process> {
    let stat = fs::read(file_of(pid, "stat")).ok()?;
    parse(pid, &String::from_utf8_lossy(&stat))
}

fn file_of(pid: Pid, name: &str) -> PathBuf {
    format!("/proc/{pid}/{name}").into()
}

/// Reads `PID (NAME) STATE PPID PGRP SESSION ... START ...`; the name may contain anything, but
/// nothing after it contains a parenthesis.
fn parse(pid: Pid, stat: &str) -> Option<Process> {
    const START: usize = 19;
    let (_, rest) = stat.rsplit_once(") ")?;
    let words: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(Process {
        pid,
        parent: words.get(1)?.parse().ok()?,
        session: words.get(3)?.parse().ok()?,
        start: words.get(START)?.parse().ok()?,
        stopped: matches!(*words.first()?, "T" | "t"),
    })
}

/// The processes of a command whose watchdog is dead: they have fallen to this process, which may
/// have other children as well.
#[derive(Debug)]
pub(super) struct Orphans {
    /// Their mark, a member of [`MARK`].
    id: String,
    /// Their session, unless they left it.
    watchdog: Pid,
    /// Whether every child of this process is one of them.
    alone: bool,
    /// Those already recognised: a dead process has no environment any more.
    known: HashSet<(Pid, u64)>,
}

impl Orphans {
    pub(super) fn new(id: String, watchdog: Pid, alone: bool) -> Self {
        Self { id, watchdog, alone, known: HashSet::new() }
    }

    /// Kills all that are there, reaps the children of this process among them, and returns whom
    /// it saw. `reaped` hears how each child ended.
    pub(super) fn sweep(
        &mut self,
        mut reaped: impl FnMut(Pid, ExitKind),
    ) -> io::Result<Vec<Process>> {
        let seen = kill(|process| is_child(process) && self.owns(process))?;
        self.known.extend(seen.iter().map(Process::name));
        for child in seen.iter().filter(|process| is_child(process)) {
            reap(child.pid).into_iter().for_each(|kind| reaped(child.pid, kind));
        }
        Ok(seen)
    }

    fn owns(&self, process: &Process) -> bool {
        self.alone
            || process.session == self.watchdog.as_raw_pid()
            || self.known.contains(&process.name())
            || marks(process.pid).is_some_and(|marks| marks.split(':').any(|mark| mark == self.id))
    }
}

/// The value of [`MARK`] that a process was started with.
fn marks(pid: Pid) -> Option<String> {
    let environ = fs::read(file_of(pid, "environ")).ok()?;
    let mut variables = environ.split(|byte| *byte == 0);
    let value = variables.find_map(|variable| {
        variable.strip_prefix(MARK.as_bytes()).and_then(|rest| rest.strip_prefix(b"="))
    })?;
    Some(String::from_utf8_lossy(value).into_owned())
}

fn reap(child: Pid) -> Option<ExitKind> {
    let (_, status) = waitpid(Some(child), WaitOptions::NOHANG).ok().flatten()?;
    exit_kind(status)
}

/// How a reaped process ended.
pub(super) fn exit_kind(status: WaitStatus) -> Option<ExitKind> {
    let code = status.exit_status().map(ExitKind::Code);
    code.or_else(|| status.terminating_signal().map(ExitKind::Signal))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32) -> Process {
        let pid = Pid::from_raw(pid).expect("not zero");
        Process { pid, parent, session: 0, start: 0, stopped: false }
    }

    #[test]
    fn a_process_may_be_called_anything() {
        let tail = "T 7 8 9 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 4711 1000 1 2 3";
        for name in ["sh", "a b", ") R 1 2 3", "((", "x) "] {
            let found = parse(Pid::INIT, &format!("1 ({name}) {tail}\n"));
            let expected =
                Process { pid: Pid::INIT, parent: 7, session: 9, start: 4711, stopped: true };
            assert_eq!(found, Some(expected), "{name:?}");
        }
        assert_eq!(parse(Pid::INIT, "1 (sh) S 1 2"), None);
    }

    #[test]
    fn the_tree_is_everything_below() {
        let all = vec![process(5, 4), process(2, 1), process(4, 2), process(3, 1), process(6, 3)];
        let mut found: Vec<i32> =
            below(vec![2], &by_parent(all)).iter().map(|found| found.pid.as_raw_pid()).collect();
        found.sort_unstable();
        assert_eq!(found, [4, 5]);
    }

    #[test]
    fn this_process_is_found_by_a_scan() {
        assert!(scan(|_| {}).expect("/proc").iter().any(|found| found.pid == getpid()));
    }

    #[test]
    fn a_reused_process_id_is_left_alone() {
        let mut stranger = read(getpid()).expect("/proc");
        stranger.start += 1;
        stranger.signal(Signal::KILL);
    }
}

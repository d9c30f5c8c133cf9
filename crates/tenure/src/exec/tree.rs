//! Finds the processes of a command and sends them signals.
//!
//! The tree is built from the parent ids in `/proc`. A scan is not atomic: it may miss a process
//! that is forked meanwhile. So a scan finds processes to signal, but never proves that none is
//! left: the watchdog asks the kernel for that (`wait` returns ECHILD), and [`Orphans`] requires
//! several empty scans in a row.
//!
//! No process may be signalled that is not known to belong to the command. Process ids are reused,
//! so every signal is bound to the start time seen in the scan.
//!
//! See `watchdog.rs` for when the signals are sent.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::{fs, io};

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpid, kill_process, pidfd_open,
    pidfd_send_signal, waitpid,
};

use super::ExitKind;

/// Number of consecutive scans that must find no process, because one scan can miss a new one.
pub(super) const EMPTY_SCANS_MIN: u32 = 3;

/// Environment variable with the exec ids of all commands that a process belongs to, outermost
/// first, separated by colons.
pub(super) const EXEC_IDS_VARIABLE: &str = "TENURE_EXEC_ID";

/// Process as seen by a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: Pid,
    parent: i32,
    pub(super) group: i32,
    session: i32,
    /// In clock ticks since boot; together with the process id it identifies a process uniquely.
    start: u64,
    stopped: bool,
    zombie: bool,
}

impl Process {
    /// Returns the identity of the process.
    pub(super) fn identity(&self) -> (Pid, u64) {
        (self.pid, self.start)
    }

    /// Sends a signal to this process, unless it is gone.
    pub(super) fn signal(&self, signal: Signal) {
        let pidfd = match pidfd_open(self.pid, PidfdFlags::empty()) {
            Ok(pidfd) => Some(pidfd),
            Err(Errno::SRCH) => return,
            // The kernel or sandbox does not support pidfds.
            Err(_) => None,
        };
        // The pidfd pins the process that has the id now; the start time tells whether it is the
        // right one.
        if read(self.pid).is_none_or(|now| now.start != self.start) {
            return;
        }
        let sent = match pidfd {
            Some(pidfd) => pidfd_send_signal(pidfd, signal),
            None => kill_process(self.pid, signal),
        };
        // It died, or may not be signalled; callers that need it dead scan again.
        sent.ok();
    }

    /// Sends TERM, and CONT if the process is stopped, since it could not react otherwise.
    pub(super) fn terminate(&self) {
        self.signal(Signal::TERM);
        if self.stopped {
            self.signal(Signal::CONT);
        }
    }
}

/// Returns all descendants of this process, including zombies.
pub(super) fn descendants() -> io::Result<Vec<Process>> {
    Ok(with_descendants(scan(|_| {})?, is_child))
}

/// Sends KILL to all descendants of this process and returns them.
pub(super) fn kill_descendants() -> io::Result<Vec<Process>> {
    kill(is_child)
}

/// Returns all children of this process.
pub(super) fn children() -> io::Result<Vec<Process>> {
    Ok(scan(|_| {})?.into_iter().filter(is_child).collect())
}

/// Returns whether a process is stopped, as by Ctrl-Z.
pub(super) fn is_stopped(pid: Pid) -> bool {
    read(pid).is_some_and(|process| process.stopped)
}

/// Returns whether a shell could resume the group of this process: the parent of a member is in
/// another group of the same session.
pub(super) fn can_be_resumed() -> bool {
    let (Ok(all), Some(own)) = (scan(|_| {}), read(getpid())) else {
        return false;
    };
    let parents: HashSet<i32> =
        all.iter().filter(|member| member.group == own.group).map(|member| member.parent).collect();
    let is_shell = |process: &Process| {
        process.session == own.session
            && process.group != own.group
            && parents.contains(&process.pid.as_raw_pid())
    };
    all.iter().any(is_shell)
}

/// Returns whether a process is alive and not stopped.
pub(super) fn is_running(pid: Pid) -> bool {
    read(pid).is_some_and(|process| !process.stopped && !process.zombie)
}

fn is_child(process: &Process) -> bool {
    process.parent == getpid().as_raw_pid()
}

/// Kills the trees of the given roots. Processes that are recognized during the scan are killed
/// during it: on a busy machine that makes the rest of the scan faster.
fn kill(is_root: impl Fn(&Process) -> bool) -> io::Result<Vec<Process>> {
    let mut killed = HashSet::new();
    let all = scan(|process| {
        if killed.contains(&process.parent) || is_root(process) {
            process.signal(Signal::KILL);
            killed.insert(process.pid.as_raw_pid());
        }
    })?;
    let found = with_descendants(all, is_root);
    let remaining = found.iter().filter(|process| !killed.contains(&process.pid.as_raw_pid()));
    remaining.for_each(|process| process.signal(Signal::KILL));
    Ok(found)
}

/// Returns the roots and all their descendants.
fn with_descendants(all: Vec<Process>, is_root: impl Fn(&Process) -> bool) -> Vec<Process> {
    let mut found: Vec<Process> = all.iter().filter(|process| is_root(process)).copied().collect();
    let roots = found.iter().map(|root| root.pid.as_raw_pid()).collect();
    found.extend(descendants_of(roots, &by_parent(all)));
    found
}

/// Returns the descendants of the given processes, without the processes themselves.
fn descendants_of(mut roots: Vec<i32>, children: &HashMap<i32, Vec<Process>>) -> Vec<Process> {
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

/// Returns every visible process, ordered by id, so parents nearly always come first.
fn scan(mut visit: impl FnMut(&Process)) -> io::Result<Vec<Process>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let pid = name.to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        if let Some(process) = pid.and_then(read) {
            visit(&process);
            found.push(process);
        }
    }
    Ok(found)
}

fn read(pid: Pid) -> Option<Process> {
    let stat = fs::read(proc_file(pid, "stat")).ok()?;
    parse(pid, &String::from_utf8_lossy(&stat))
}

fn proc_file(pid: Pid, name: &str) -> PathBuf {
    format!("/proc/{pid}/{name}").into()
}

/// Parses `PID (NAME) STATE PPID PGRP SESSION ... START ...`. The name may contain anything, but
/// nothing after it contains a parenthesis.
fn parse(pid: Pid, stat: &str) -> Option<Process> {
    const START: usize = 19;
    let (_, rest) = stat.rsplit_once(") ")?;
    let words: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(Process {
        pid,
        parent: words.get(1)?.parse().ok()?,
        group: words.get(2)?.parse().ok()?,
        session: words.get(3)?.parse().ok()?,
        start: words.get(START)?.parse().ok()?,
        stopped: matches!(*words.first()?, "T" | "t"),
        zombie: matches!(*words.first()?, "Z" | "X"),
    })
}

/// Processes of a command whose watchdog is dead: they were reparented to this process, which may
/// have other children as well.
#[derive(Debug)]
pub(super) struct Orphans {
    /// Their exec id, one of those in [`EXEC_IDS_VARIABLE`].
    id: String,
    /// Id of their process session, unless they left it.
    watchdog: Pid,
    /// Not part of the command, although it is a child of this process.
    guard: Pid,
    /// Whether every other child of this process belongs to the command.
    sole_child: bool,
    /// Processes already recognized: a zombie has no environment any more.
    recognized: HashSet<(Pid, u64)>,
}

impl Orphans {
    pub(super) fn new(id: String, watchdog: Pid, guard: Pid, sole_child: bool) -> Self {
        Self { id, watchdog, guard, sole_child, recognized: HashSet::new() }
    }

    /// Kills all orphans, reaps those that are children of this process, and returns all that were
    /// seen. Calls `on_reaped` with the exit status of each child.
    pub(super) fn kill_and_reap(
        &mut self,
        mut on_reaped: impl FnMut(Pid, ExitKind),
    ) -> io::Result<Vec<Process>> {
        let seen =
            kill(|process| is_child(process) && process.pid != self.guard && self.owns(process))?;
        self.recognized.extend(seen.iter().map(Process::identity));
        for child in seen.iter().filter(|process| is_child(process)) {
            reap(child.pid).into_iter().for_each(|kind| on_reaped(child.pid, kind));
        }
        Ok(seen)
    }

    fn owns(&self, process: &Process) -> bool {
        self.sole_child
            || process.session == self.watchdog.as_raw_pid()
            || self.recognized.contains(&process.identity())
            || has_exec_id(process.pid, &self.id)
    }
}

/// The command as the guard sees it: it is neither parent nor subreaper of any of its processes.
#[derive(Debug)]
pub(super) struct Guarded {
    id: String,
    watchdog: Process,
}

impl Guarded {
    /// Returns `None` if the watchdog does not exist.
    pub(super) fn new(id: &str, watchdog: Pid) -> Option<Self> {
        Some(Self { id: id.to_owned(), watchdog: read(watchdog)? })
    }

    /// Kills everything below the watchdog and every process with the exec id, but not the watchdog
    /// itself. Returns those that were alive. A stopped watchdog does not reap the zombies.
    pub(super) fn kill(&self) -> io::Result<Vec<Process>> {
        let watchdog = read(self.watchdog.pid).filter(|now| now.start == self.watchdog.start);
        let is_watchdog = |pid: i32| watchdog.is_some_and(|now| now.pid.as_raw_pid() == pid);
        let mut found = kill(|process| {
            !is_watchdog(process.pid.as_raw_pid())
                && (is_watchdog(process.parent) || has_exec_id(process.pid, &self.id))
        })?;
        found.retain(|process| !process.zombie);
        Ok(found)
    }

    pub(super) fn signal_watchdog(&self, signal: Signal) {
        self.watchdog.signal(signal);
    }
}

fn has_exec_id(pid: Pid, id: &str) -> bool {
    exec_ids(pid).is_some_and(|ids| ids.split(':').any(|other| other == id))
}

/// Returns the value of [`EXEC_IDS_VARIABLE`] that a process was started with.
fn exec_ids(pid: Pid) -> Option<String> {
    let environ = fs::read(proc_file(pid, "environ")).ok()?;
    let mut variables = environ.split(|byte| *byte == 0);
    let value = variables.find_map(|variable| {
        variable.strip_prefix(EXEC_IDS_VARIABLE.as_bytes()).and_then(|rest| rest.strip_prefix(b"="))
    })?;
    Some(String::from_utf8_lossy(value).into_owned())
}

fn reap(child: Pid) -> Option<ExitKind> {
    let (_, status) = waitpid(Some(child), WaitOptions::NOHANG).ok().flatten()?;
    exit_kind(status)
}

/// Converts the status of a reaped process.
pub(super) fn exit_kind(status: WaitStatus) -> Option<ExitKind> {
    let code = status.exit_status().map(ExitKind::Code);
    code.or_else(|| status.terminating_signal().map(ExitKind::Signal))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32) -> Process {
        let pid = Pid::from_raw(pid).expect("not zero");
        Process { pid, parent, group: 8, session: 0, start: 0, stopped: false, zombie: false }
    }

    #[test]
    fn process_names_may_contain_any_character() {
        let tail = "T 7 8 9 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 4711 1000 1 2 3";
        for name in ["sh", "a b", ") R 1 2 3", "((", "x) "] {
            let found = parse(Pid::INIT, &format!("1 ({name}) {tail}\n"));
            let expected = Process { session: 9, start: 4711, stopped: true, ..process(1, 7) };
            assert_eq!(found, Some(expected), "{name:?}");
        }
        assert_eq!(parse(Pid::INIT, "1 (sh) S 1 2"), None);
    }

    #[test]
    fn descendants_are_found_at_every_depth() {
        let all = vec![process(5, 4), process(2, 1), process(4, 2), process(3, 1), process(6, 3)];
        let mut found: Vec<i32> = descendants_of(vec![2], &by_parent(all))
            .iter()
            .map(|found| found.pid.as_raw_pid())
            .collect();
        found.sort_unstable();
        assert_eq!(found, [4, 5]);
    }

    #[test]
    fn a_scan_finds_this_process() {
        assert!(scan(|_| {}).expect("/proc").iter().any(|found| found.pid == getpid()));
    }

    #[test]
    fn a_reused_process_id_is_not_signalled() {
        let mut other = read(getpid()).expect("/proc");
        other.start += 1;
        other.signal(Signal::KILL);
    }
}

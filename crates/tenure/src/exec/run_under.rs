//! Running a command under a tenure.

use std::time::Duration;

use tokio::sync::mpsc;

use super::{CommandEnd, Deadlines, Error, Event, Spec, StopReason, Supervisor, tree};
use crate::clock::BootInstant;
use crate::tenure::{Lost, Tenure};

/// What [`run_under`] is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Stop the command, because the tenure is lost.
    Lost(Lost),
    /// Stop the command, because it exceeded its time limit.
    TimeLimit,
    /// Suspend this process, because the command was suspended on its terminal. The command is
    /// stopped at this instant unless both are resumed before.
    Suspend(BootInstant),
    /// Resume the command, which was suspended on its terminal, because no shell could do so.
    Resume,
}

/// How [`run_under`] treats the command.
pub struct RunUnder<'a> {
    /// Time after which the command is stopped.
    pub limit: Option<Duration>,
    /// Signals to forward to the command.
    pub signals: &'a mut mpsc::Receiver<i32>,
    /// Those signals after which the command is stopped if it does not end by itself.
    pub stop_signals: &'a [i32],
    /// Called when the command is about to be stopped, or this process to be suspended.
    pub notify: &'a mut (dyn FnMut(Notice) + Send),
}

/// Runs a command under a tenure until it has ended.
///
/// The command and everything it started are dead before the store can grant the lock to another
/// holder: its deadlines count from the lease of the session's heartbeat, and a watchdog process
/// enforces them even if this process is stopped or killed. The tenure is not released.
///
/// # Errors
///
/// Fails if the command cannot be started. After [`Error::Scan`] it is unknown whether the command
/// is dead: let the session expire instead of closing it.
pub async fn run_under(
    tenure: &Tenure,
    spec: Spec,
    options: RunUnder<'_>,
) -> Result<CommandEnd, Error> {
    let RunUnder { limit, signals, stop_signals, notify } = options;
    let session = tenure.session();
    let first = Deadlines::for_session(session.ttl(), session.deadline());
    let mut supervisor = Supervisor::start(spec, first).await?;
    let handle = supervisor.handle();
    let _registration = handle.follow(session);
    let timeout = tokio::time::sleep(limit.unwrap_or(Duration::MAX));
    tokio::pin!(timeout);
    let (mut held, mut in_time) = (true, limit.is_some());
    loop {
        tokio::select! {
            event = supervisor.next() => match event? {
                Event::Ended(ended) => return Ok(ended),
                Event::Suspended => {
                    let deadlines = Deadlines::for_session(session.ttl(), session.deadline());
                    if tree::can_be_resumed() {
                        notify(Notice::Suspend(deadlines.term_at));
                    } else {
                        notify(Notice::Resume);
                    }
                    supervisor.suspend().await;
                }
            },
            lost = tenure.lost(), if held => {
                held = false;
                handle.stop(StopReason::Lost);
                notify(Notice::Lost(lost));
            }
            () = &mut timeout, if in_time => {
                in_time = false;
                handle.stop(StopReason::TimeLimit);
                notify(Notice::TimeLimit);
            }
            Some(signal) = signals.recv() => {
                handle.signal(signal);
                if stop_signals.contains(&signal) {
                    handle.stop(StopReason::Requested);
                }
            }
        }
    }
}

//! `tenure elect`: runs a command on one of several machines, the leader; and shows an election.

use std::ffi::OsString;
use std::mem::ManuallyDrop;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use rustix::process::Signal;
use serde::Serialize;
use tenure::election::{CampaignUpdate, ElectionStatus, Leadership};
use tenure::exec::{CommandEnd, EndReason, TTL_MIN, Terminal};
use tenure::{Client, Election, Error};
use tenure_core::{LockPath, Refusal};

use tenure_cli_kit::color::{self, Tone};
use tenure_cli_kit::status_line::StatusLine;
use tenure_cli_kit::text::{format_duration, parse_duration, print_line, sanitize, tenant_table};
use tenure_cli_kit::{Done, Output, ServerArgs, message, print_json, process_name};

use super::under_lock::{
    LockedCommand, Messages, Signals, catch_signals, end_if_interrupted, error_exit_code,
    exit_code, may_be_alive, program_name, say, show_waiting, signal_exit_code,
};

/// Interval at which a candidate looks at the queue, to show its position.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of terms that are read to count hand-overs.
const TERMS_MAX: usize = 10_000;
/// Signals that end the command and the leadership.
const STOP_SIGNALS: [i32; 2] = [Signal::INT.as_raw(), Signal::TERM.as_raw()];

/// Run a command on one of several machines: the leader
///
/// Waits until this candidate leads, then runs the command. Its whole process tree is dead before
/// another candidate can lead, even if this process is stopped or killed. Its environment has
/// TENURE_TERM, the number of the term, which rises with every leader: pass it with every write
/// that must be fenced. It also has what `tenure exec` gives. When the leadership is lost, the
/// command is killed, and this process stands for election again. When the command ends, or on
/// SIGTERM or SIGINT after it was stopped, this process resigns and exits.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure elect service/api -- ./serve.sh         on every machine; it runs on one
  tenure elect service/api --holder b --transfer-to a -- ./serve.sh
  tenure elect service/api --status              leader, term, candidates

Exit codes: that of the command, or 122 leadership lost (with --once), 123 another one leads and
--wait is over, 125 Tenure failed, 126 not executable, 127 not found, 128+N command or wait ended
by signal N. With --status those of other verbs.")]
pub(super) struct Elect {
    /// KIND/NAME or KIND/NAME#LOCK
    election: LockPath,
    /// Time after which the leader is replaced without a heartbeat
    #[arg(long, value_parser = parse_duration, value_name = "DUR", default_value = "15s")]
    ttl: Duration,
    /// Interval between heartbeats, at most half of the TTL [default: a third of it]
    #[arg(long, value_parser = parse_duration, value_name = "DUR")]
    heartbeat: Option<Duration>,
    /// Name of this candidate, shown to others [default: HOST/PID]
    #[arg(long, value_name = "NAME")]
    holder: Option<String>,
    /// When this leader ends, hand over to this candidate if it waits: its name or the id of its
    /// session. Nobody else leads in between
    #[arg(long, value_name = "HOLDER")]
    transfer_to: Option<String>,
    /// Maximum time to wait for the leadership, and for a server that is down [default: no limit,
    /// once the server has answered]
    #[arg(long, value_parser = parse_duration, value_name = "DUR")]
    wait: Option<Duration>,
    /// Exit when the leadership is lost, instead of standing for election again
    #[arg(long)]
    once: bool,
    /// Purpose, shown to others [default: name of the program]
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Age above which the leadership is reported; it lasts [default: that of its kind]
    #[arg(long, value_parser = parse_duration, value_name = "DUR")]
    max_age: Option<Duration>,
    /// Show the leader, its term, the number of hand-overs, and the candidates
    #[arg(long, conflicts_with_all = ["transfer_to", "wait", "once", "command"])]
    status: bool,
    /// The command and its arguments
    #[arg(last = true, required_unless_present = "status", value_name = "CMD")]
    command: Vec<OsString>,
}

/// Answer of `tenure elect --status`.
#[derive(Serialize)]
struct StatusAnswer {
    tenant: String,
    election: String,
    #[serde(flatten)]
    status: ElectionStatus,
    /// Number of earlier terms in history.
    handovers: usize,
}

impl Elect {
    /// Returns whether the election is only shown.
    pub(super) fn is_query(&self) -> bool {
        self.status
    }

    /// Takes part in the election, and returns the exit code.
    pub(super) async fn run(&self, server: &ServerArgs, output: Output) -> u8 {
        self.try_run(server).await.unwrap_or_else(|error| {
            message::error(&error, output);
            error_exit_code(&error)
        })
    }

    async fn try_run(&self, server: &ServerArgs) -> anyhow::Result<u8> {
        if self.ttl < TTL_MIN {
            anyhow::bail!(
                "--ttl must be at least {TTL_MIN:?}, so that a command can be stopped in time"
            );
        }
        let terminal = Terminal::foreground();
        let mut signals = catch_signals(terminal.is_some())?;
        let client = Client::with_transport(Arc::new(server.transport()?), server.tenant());
        let election = self.election(&client)?;
        loop {
            let leadership = tokio::select! {
                elected = self.campaign(&election) => {
                    elected.with_context(|| self.election.to_string())?
                }
                // Dropping the future leaves the queue.
                Some(signal) = signals.receiver.recv() => return Ok(signal_exit_code(signal)),
            };
            let ended = self.lead(leadership, terminal.clone(), &mut signals).await?;
            if ended.reason == EndReason::Lost && !self.once {
                continue;
            }
            if terminal.is_some() {
                end_if_interrupted(&ended, &signals);
            }
            return Ok(exit_code(&ended));
        }
    }

    fn election(&self, client: &Client) -> Result<Election, Error> {
        let name = self.holder.clone().unwrap_or_else(process_name);
        let mut election = client.election(&self.election.to_string())?.candidate(&name);
        election = election.ttl(self.ttl).poll_interval(POLL_INTERVAL);
        if let Some(interval) = self.heartbeat {
            election = election.heartbeat(interval);
        }
        if let Some(wait) = self.wait {
            election = election.wait(wait);
        }
        if let Some(max_age) = self.max_age {
            election = election.max_age(max_age);
        }
        let purpose = self.reason.clone();
        Ok(match self.command.is_empty() {
            true => election,
            false => election.purpose(&purpose.unwrap_or_else(|| program_name(&self.command))),
        })
    }

    async fn campaign(&self, election: &Election) -> Result<Leadership, Error> {
        let mut status = StatusLine::new();
        let show = |update: CampaignUpdate<'_>| match update {
            CampaignUpdate::Waiting(waiting) => show_waiting(&self.election, waiting, &mut status),
            CampaignUpdate::Interrupted(error) => {
                status.show(&format!("waiting for {}: {error}", self.election), "unavailable");
            }
            _ => {}
        };
        let leadership = election.campaign_with_updates(show).await?;
        status.clear();
        Ok(leadership)
    }

    /// Runs the command for one term, and ends the term when the command is dead.
    async fn lead(
        &self,
        leadership: Leadership,
        terminal: Option<Terminal>,
        signals: &mut Signals,
    ) -> anyhow::Result<CommandEnd> {
        let term = leadership.term();
        say(&format!("leading {} in term {term}", self.election));
        // The term must not end before the process tree is known to be dead, not even on a panic:
        // then it expires, after the watchdog has killed the tree.
        let leadership = ManuallyDrop::new(leadership);
        let command = LockedCommand {
            lock: &self.election,
            noun: "leadership",
            command: &self.command,
            limit: None,
            env: vec![("TENURE_TERM".into(), term.to_string().into())],
            stop_signals: &STOP_SIGNALS,
        };
        let mut messages = Messages::default();
        let tenure = leadership.tenure();
        let ended = command.run(tenure, terminal, &mut signals.receiver, &mut messages).await;
        if may_be_alive(&ended) {
            return ended.context("cannot watch the command; its leadership is left to expire");
        }
        self.end_term(ManuallyDrop::into_inner(leadership)).await;
        messages.flush();
        ended
    }

    /// Hands over to the candidate that was named, or resigns.
    async fn end_term(&self, leadership: Leadership) {
        if let Some(to) = self.transfer_to.as_deref().filter(|_| leadership.check().is_ok()) {
            match leadership.transfer_to(to).await {
                Ok(()) => say(&format!("handed {} over to {}", self.election, sanitize(to))),
                Err(Error::Refused(Refusal::NotWaiting { .. })) => {
                    let to = sanitize(to);
                    say(&format!("{to} does not wait for {}: resigning", self.election));
                }
                Err(error) => say(&format!("cannot hand over to {}: {error}", sanitize(to))),
            }
        }
        if let Err(error) = leadership.resign().await {
            say(&format!("cannot resign, the leadership will expire: {error}"));
        }
    }

    /// Shows the election.
    pub(super) async fn show(&self, server: &ServerArgs, output: Output) -> Done {
        let client = Client::with_transport(Arc::new(server.transport()?), server.tenant());
        let election = self.election(&client)?;
        let status = election.status().await?;
        let mut terms = election.terms();
        let mut count = 0;
        while count < TERMS_MAX
            && let Some(term) = terms.next().await
        {
            term?;
            count += 1;
        }
        let (tenant, name) = (server.tenant().to_owned(), self.election.to_string());
        let handovers = count.saturating_sub(1);
        let answer = StatusAnswer { tenant, election: name, status, handovers };
        match output {
            Output::Json => print_json(&answer)?,
            Output::Table => answer.print()?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl StatusAnswer {
    fn print(&self) -> anyhow::Result<()> {
        let ElectionStatus { leader, term, candidates, .. } = &self.status;
        match leader {
            None => {
                let (name, none) = (&self.election, color::state("no leader"));
                anstream::println!("{name} has {none}; its last term was {term}");
            }
            Some(leader) => {
                let row = vec![
                    Tone::Active.paint(&self.election),
                    sanitize(&leader.name),
                    leader.term.to_string(),
                    leader.since.clone(),
                    format_duration(leader.age_ms),
                    format_duration(leader.heartbeat_age_ms),
                    self.handovers.to_string(),
                    candidates.len().to_string(),
                ];
                let header = [
                    "ELECTION",
                    "LEADER",
                    "TERM",
                    "SINCE",
                    "AGE",
                    "HEARTBEAT",
                    "HAND-OVERS",
                    "CANDIDATES",
                ];
                let rows = [(&*self.tenant, row)];
                print_line(&tenant_table(&self.tenant, &header, rows.into_iter()))?;
            }
        }
        for (n, candidate) in candidates.iter().enumerate() {
            let (name, waited) = (sanitize(&candidate.name), format_duration(candidate.waiting_ms));
            anstream::println!("{}. {name} has been waiting for {waited}", n + 1);
        }
        Ok(())
    }
}

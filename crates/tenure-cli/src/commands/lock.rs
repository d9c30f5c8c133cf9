//! `tenure lock`

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use comfy_table::{Table, presets};
use tenure::http::HttpTransport;
use tenure::{Error, Transport};
use tenure_core::{
    Acquire, Claimant, Command, LockAction, LockPath, LockSet, Outcome, TenureView, Token,
};
use tenure_wire::{ListAnswer, ResourceLocks, TenureAnswer};

use tenure_cli_kit::text::{human, parse_duration};
use tenure_cli_kit::{Done, Output, print_json};
use tenure_cli_kit::{ServerArgs, process_name};

/// Look at locks and handle them by hand
#[derive(Subcommand)]
#[command(after_help = "\
Examples:
  tenure lock ls --kind cluster
  tenure lock show cluster/c1
  TOKEN=$(tenure lock acquire cluster/c1 --ttl 1h --reason maintenance -o json | jq .token)
  tenure lock renew cluster/c1 --token $TOKEN
  tenure lock release cluster/c1 --token $TOKEN
  tenure lock break cluster/c1 --token 7 --reason \"host is gone for good\"")]
pub(super) enum Lock {
    /// List the locks that are held
    Ls(Ls),
    /// Show who holds and who waits for the locks of a resource
    Show {
        /// KIND/NAME
        resource: LockPath,
    },
    /// Take a lock by hand; it must be renewed before its time to live is over
    Acquire(AcquireArgs),
    /// Renew a lock that was taken by hand
    Renew {
        /// KIND/NAME or KIND/NAME#LOCK
        lock: LockPath,
        /// The token of the tenure
        #[arg(long)]
        token: u64,
        /// Another time to live
        #[arg(long, value_parser = parse_duration, value_name = "DUR")]
        ttl: Option<Duration>,
    },
    /// Give a lock back
    Release {
        /// KIND/NAME for all locks of the tenure, KIND/NAME#LOCK for one of them
        lock: LockPath,
        /// The token of the tenure
        #[arg(long)]
        token: u64,
    },
    /// End a tenure, with all its locks, against its holder's will
    ///
    /// The holder is told at its next heartbeat; until then only its token gives it away.
    Break {
        /// KIND/NAME or KIND/NAME#LOCK
        lock: LockPath,
        /// The exact token of the present tenure, as `tenure lock show` prints it
        #[arg(long)]
        token: u64,
        /// Why; kept in the history
        #[arg(long)]
        reason: String,
    },
}

/// Which locks to list
#[derive(Args)]
pub(super) struct Ls {
    /// Only of this kind
    #[arg(long)]
    kind: Option<String>,
    /// Only of this resource name
    #[arg(long)]
    name: Option<String>,
    /// Only of this holder
    #[arg(long)]
    holder: Option<String>,
    /// At most so many
    #[arg(long, default_value_t = 100)]
    limit: usize,
}

/// What to take
#[derive(Args)]
pub(super) struct AcquireArgs {
    /// KIND/NAME or KIND/NAME#LOCK; several locks of one resource are taken all or none
    #[arg(required = true)]
    locks: Vec<LockPath>,
    /// How long it lasts without a renewal
    #[arg(long, value_parser = parse_duration, value_name = "DUR", default_value = "5m")]
    ttl: Duration,
    /// How long to wait for it
    #[arg(long, value_parser = parse_duration, value_name = "DUR", default_value = "0s")]
    wait: Duration,
    /// Under what name [default: this host and process]
    #[arg(long)]
    holder: Option<String>,
    /// What for
    #[arg(long)]
    reason: Option<String>,
}

impl Lock {
    pub(super) async fn run(&self, server: &ServerArgs, output: Output) -> Done {
        let link = server.link()?;
        match self {
            Self::Ls(ls) => ls.run(&link, output).await,
            Self::Show { resource } => show(&link, resource, output).await,
            Self::Acquire(args) => args.run(server, &link, output).await,
            Self::Renew { lock, token, ttl } => {
                let ttl_ms = ttl.map(millis);
                let action = LockAction::Renew { token: Token(*token), ttl_ms };
                match send(server, &link, lock, action).await? {
                    Outcome::Renewed(view) => print_tenure(&view, output),
                    other => Err(unexpected(&other)),
                }
            }
            Self::Release { lock, token } => {
                let action = LockAction::Release { token: Token(*token), locks: only(lock) };
                let said = match send(server, &link, lock, action).await? {
                    Outcome::Released { already: true } => "was released before",
                    _ => "released",
                };
                said_of(lock, said);
                Ok(ExitCode::SUCCESS)
            }
            Self::Break { lock, token, reason } => {
                let (token, locks) = (Token(*token), only(lock));
                let (by, reason) = (process_name().into(), reason.as_str().into());
                send(
                    server,
                    &link,
                    lock,
                    LockAction::Break { token, locks, by, reason, end_job: false },
                )
                .await?;
                said_of(lock, "broken");
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

/// The lock that was named beside `main`, if any: a token alone names the whole tenure.
fn only(path: &LockPath) -> Option<LockSet> {
    (!path.lock.is_main()).then(|| path.lock.clone().into())
}

fn said_of(lock: &LockPath, what: &str) {
    anstream::eprintln!("{lock}: {what}");
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn unexpected(outcome: &Outcome) -> anyhow::Error {
    Error::Protocol(format!("{outcome:?} answers another question")).into()
}

async fn send(
    server: &ServerArgs,
    link: &HttpTransport,
    path: &LockPath,
    action: LockAction,
) -> anyhow::Result<Outcome> {
    let key = path.resource(server.tenant())?;
    match link.send(Command::Lock { key, action }, Duration::ZERO).await? {
        Outcome::Refused(refusal) => Err(Error::Refused(refusal).into()),
        outcome => Ok(outcome),
    }
}

impl AcquireArgs {
    async fn run(&self, server: &ServerArgs, link: &HttpTransport, output: Output) -> Done {
        let key = self.locks[0].resource(server.tenant())?;
        if let Some(other) =
            self.locks.iter().find(|l| l.resource(server.tenant()) != Ok(key.clone()))
        {
            anyhow::bail!("{other} is of another resource; only locks of one come together");
        }
        let locks = LockSet::new(self.locks.iter().map(|path| path.lock.clone()).collect())?;
        let name = self.holder.clone().unwrap_or_else(process_name).into();
        let acquire = Acquire {
            locks,
            claimant: Claimant::Solo { name, ttl_ms: millis(self.ttl) },
            request: tenure_store::random::request_id(),
            wait_ms: millis(self.wait),
            purpose: self.reason.as_deref().map(Into::into),
        };
        let command = Command::Lock { key, action: LockAction::Acquire(acquire) };
        match link.send(command, self.wait).await? {
            Outcome::Granted(view) => print_tenure(&view, output),
            Outcome::Refused(refusal) => Err(Error::Refused(refusal).into()),
            other => Err(unexpected(&other)),
        }
    }
}

fn print_tenure(view: &TenureView, output: Output) -> Done {
    let answer = TenureAnswer::of(view);
    match output {
        Output::Json => print_json(&answer)?,
        Output::Table => print_tenures(&[answer]),
    }
    Ok(ExitCode::SUCCESS)
}

impl Ls {
    async fn run(&self, link: &HttpTransport, output: Output) -> Done {
        let filter = |name: &str, value: &Option<String>| {
            value.as_ref().map_or_else(String::new, |value| format!("&{name}={value}"))
        };
        let (kind, name) = (filter("kind", &self.kind), filter("name", &self.name));
        let holder = filter("holder", &self.holder);
        let path = format!("/v1/locks?limit={}{kind}{name}{holder}", self.limit);
        let page: ListAnswer<TenureAnswer> = link.get(&path).await?;
        match output {
            Output::Json => print_json(&page)?,
            Output::Table => {
                print_tenures(&page.items);
                if page.next.is_some() {
                    anstream::eprintln!(
                        "there are more; see them with --limit, or narrow the list"
                    );
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn show(link: &HttpTransport, resource: &LockPath, output: Output) -> Done {
    let path = format!("/v1/locks/{}/{}", resource.kind, resource.name);
    let answer: ResourceLocks = link.get(&path).await?;
    if output == Output::Json {
        print_json(&answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    if answer.tenures.is_empty() {
        anstream::println!("{} is free; its last token was {}", answer.resource, answer.token);
    } else {
        print_tenures(&answer.tenures);
    }
    for waiter in &answer.queue {
        let (name, since) = (&waiter.name, human(waiter.waiting_ms));
        let locks = waiter.locks.join(" ");
        anstream::println!("{}. {name} waits for {locks} since {since}", waiter.position);
    }
    Ok(ExitCode::SUCCESS)
}

fn print_tenures(tenures: &[TenureAnswer]) {
    if tenures.is_empty() {
        anstream::eprintln!("no lock is held");
        return;
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["LOCK", "TOKEN", "HOLDER", "PURPOSE", "AGE", "EXPIRES IN", "WAITERS"]);
    for tenure in tenures {
        table.add_row([
            tenure.lock.clone(),
            tenure.token.to_string(),
            tenure.holder.name.clone(),
            tenure.holder.purpose.clone().unwrap_or_default(),
            human(tenure.age_ms),
            human(tenure.expires_in_ms),
            tenure.waiters.to_string(),
        ]);
    }
    anstream::println!("{}", table.trim_fmt());
}

//! `tenure lock`: shows locks, and acquires, renews, releases and breaks them.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use tenure::http::HttpTransport;
use tenure::{Error, Transport};
use tenure_core::{
    Acquire, Claimant, Command, LockAction, LockPath, LockSet, Outcome, TenureView, Token,
};
use tenure_wire::{ResourceLocksResponse, TenureInfo};

use tenure_cli_kit::color::{self, Tone};
use tenure_cli_kit::document::usage_error;
use tenure_cli_kit::listing::{Empty, fetch, print_more_hint};
use tenure_cli_kit::text::{format_duration, parse_duration, print_line, sanitize, tenant_table};
use tenure_cli_kit::{Done, Output, print_json};
use tenure_cli_kit::{ServerArgs, process_name};

const NO_LOCKS: Empty<'_> = Empty {
    none: "no locks are held",
    item: "lock",
    hint: "try: tenure exec demo/a -- sleep 60",
    hint_in_one_tenant: true,
    list: "tenure lock ls",
};

/// Show locks, acquire and release them manually
#[derive(Subcommand)]
#[command(after_help = "\
Examples:
  tenure lock ls --kind cluster
  tenure lock ls --tenant '*'                    locks of all tenants
  tenure lock show cluster/c1
  TOKEN=$(tenure lock acquire cluster/c1 --ttl 1h --reason maintenance -o json | jq .token)
  tenure lock renew cluster/c1 --token $TOKEN
  tenure lock release cluster/c1 --token $TOKEN
  tenure lock break cluster/c1 --token 7 --reason \"host is gone for good\"")]
pub(super) enum Lock {
    /// List held locks
    Ls(Ls),
    /// Show the holders and waiters of a resource's locks
    Show {
        /// KIND/NAME
        resource: LockPath,
    },
    /// Acquire a lock manually; it expires unless renewed within its TTL
    Acquire(AcquireArgs),
    /// Renew a lock that was acquired manually
    Renew {
        /// KIND/NAME or KIND/NAME#LOCK
        lock: LockPath,
        /// Token of the tenure
        #[arg(long)]
        token: u64,
        /// New time to live
        #[arg(long, value_parser = parse_duration, value_name = "DUR")]
        ttl: Option<Duration>,
    },
    /// Release a lock
    Release {
        /// KIND/NAME for all locks of the tenure, KIND/NAME#LOCK for one of them
        lock: LockPath,
        /// Token of the tenure
        #[arg(long)]
        token: u64,
        /// Waiter to grant it to, ahead of all others: name or id of its session
        #[arg(long, value_name = "HOLDER")]
        to: Option<String>,
    },
    /// Forcibly end a tenure, with all its locks
    ///
    /// The holder learns of it at its next heartbeat. Until then only guards that check its token
    /// reject its writes.
    Break {
        /// KIND/NAME or KIND/NAME#LOCK
        lock: LockPath,
        /// Token of the current tenure, as printed by `tenure lock show`
        #[arg(long)]
        token: u64,
        /// Reason, recorded in the history
        #[arg(long)]
        reason: String,
        /// End the job that holds the lock too, whatever its retry rule says
        #[arg(long)]
        end_job: bool,
    },
}

/// Which locks to list
#[derive(Args)]
pub(super) struct Ls {
    /// Only this kind
    #[arg(long)]
    kind: Option<String>,
    /// Only this resource name
    #[arg(long)]
    name: Option<String>,
    /// Only this group of a grouped kind
    #[arg(long, requires = "kind")]
    group: Option<String>,
    /// Only this holder
    #[arg(long)]
    holder: Option<String>,
    /// Maximum number of locks
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

/// Which locks to acquire
#[derive(Args)]
pub(super) struct AcquireArgs {
    /// KIND/NAME or KIND/NAME#LOCK; several locks of one resource are acquired atomically
    #[arg(required = true)]
    locks: Vec<LockPath>,
    /// Time after which the lock expires without a renewal
    #[arg(long, value_parser = parse_duration, value_name = "DUR", default_value = "5m")]
    ttl: Duration,
    /// Maximum time to wait for the lock
    #[arg(long, value_parser = parse_duration, value_name = "DUR", default_value = "0s")]
    wait: Duration,
    /// Name of the holder [default: host and process id]
    #[arg(long)]
    holder: Option<String>,
    /// Purpose, shown to others who wait for the lock
    #[arg(long)]
    reason: Option<String>,
    /// Age above which the held lock is reported; it stays held [default: that of its kind]
    #[arg(long, value_parser = parse_duration, value_name = "DUR")]
    max_age: Option<Duration>,
}

impl Lock {
    pub(super) async fn run(&self, server: &ServerArgs, output: Output) -> Done {
        let transport = server.transport()?;
        match self {
            Self::Ls(ls) => ls.run(server, &transport, output).await,
            Self::Show { resource } => show(server, &transport, resource, output).await,
            Self::Acquire(args) => args.run(server, &transport, output).await,
            Self::Renew { lock, token, ttl } => {
                let ttl_ms = ttl.map(millis);
                let action = LockAction::Renew { token: Token(*token), ttl_ms };
                match send(server, &transport, lock, action).await? {
                    Outcome::Renewed(view) => print_tenure(server, &view, output),
                    other => Err(unexpected(&other)),
                }
            }
            Self::Release { lock, token, to } => {
                let (token, to) = (Token(*token), to.as_deref().map(Into::into));
                let action = LockAction::Release { token, locks: named_lock(lock), to };
                let result = match send(server, &transport, lock, action).await? {
                    Outcome::Released { already: true } => "already released",
                    _ => "released",
                };
                print_result(lock, result);
                Ok(ExitCode::SUCCESS)
            }
            Self::Break { lock, token, reason, end_job } => {
                let (token, locks) = (Token(*token), named_lock(lock));
                let (by, reason) = (process_name().into(), reason.as_str().into());
                let end_job = *end_job;
                let action = LockAction::Break { token, locks, by, reason, end_job };
                send(server, &transport, lock, action).await?;
                print_result(lock, "broken");
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

/// Returns the lock if it is not `main`. A token without a lock stands for the whole tenure.
fn named_lock(path: &LockPath) -> Option<LockSet> {
    (!path.lock.is_main()).then(|| path.lock.clone().into())
}

fn print_result(lock: &LockPath, result: &str) {
    anstream::eprintln!("{lock}: {result}");
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn unexpected(outcome: &Outcome) -> anyhow::Error {
    Error::Protocol(format!("unexpected outcome {outcome:?}")).into()
}

async fn send(
    server: &ServerArgs,
    transport: &HttpTransport,
    path: &LockPath,
    action: LockAction,
) -> anyhow::Result<Outcome> {
    let key = path.resource(server.one_tenant()?)?;
    match transport.send(Command::Lock { key, action }, Duration::ZERO).await? {
        Outcome::Refused(refusal) => Err(Error::Refused(refusal)).with_context(|| path.to_string()),
        outcome => Ok(outcome),
    }
}

impl AcquireArgs {
    /// Returns the locks as they were named, for messages.
    fn lock_list(&self) -> String {
        let locks: Vec<_> = self.locks.iter().map(LockPath::to_string).collect();
        locks.join(" ")
    }

    async fn run(&self, server: &ServerArgs, transport: &HttpTransport, output: Output) -> Done {
        let tenant = server.one_tenant()?;
        let key = self.locks[0].resource(tenant)?;
        let of_other = |lock: &&LockPath| lock.resource(tenant) != Ok(key.clone());
        if let Some(other) = self.locks.iter().find(of_other) {
            return Err(usage_error(format!(
                "{other} belongs to another resource; locks acquired together must share one"
            )));
        }
        let locks = LockSet::new(self.locks.iter().map(|path| path.lock.clone()).collect())?;
        let name = self.holder.clone().unwrap_or_else(process_name).into();
        let acquire = Acquire {
            locks,
            claimant: Claimant::Solo { name, ttl_ms: millis(self.ttl) },
            request: tenure_store::random::request_id(),
            wait_ms: millis(self.wait),
            purpose: self.reason.as_deref().map(Into::into),
            max_age_ms: self.max_age.map(millis),
            tenant: None,
        };
        let command = Command::Lock { key, action: LockAction::Acquire(acquire) };
        match transport.send(command, self.wait).await? {
            Outcome::Granted(view) => print_tenure(server, &view, output),
            Outcome::Refused(refusal) => {
                Err(Error::Refused(refusal)).with_context(|| self.lock_list())
            }
            other => Err(unexpected(&other)),
        }
    }
}

fn print_tenure(server: &ServerArgs, view: &TenureView, output: Output) -> Done {
    let answer = TenureInfo::new(view);
    match output {
        Output::Json => print_json(&answer)?,
        Output::Table => print_tenures(server, &[answer])?,
    }
    Ok(ExitCode::SUCCESS)
}

impl Ls {
    async fn run(&self, server: &ServerArgs, transport: &HttpTransport, output: Output) -> Done {
        let filters = [
            ("kind", self.kind.clone()),
            ("name", self.name.clone()),
            ("group", self.group.clone()),
            ("holder", self.holder.clone()),
        ];
        let limit = self.limit.try_into().unwrap_or(usize::MAX);
        let list = fetch::<TenureInfo>(transport, "/v1/locks", &filters, limit).await?;
        match output {
            Output::Json => print_json(&list)?,
            Output::Table if list.items.is_empty() => NO_LOCKS.print(server.tenant(), &filters),
            Output::Table => {
                print_tenures(server, &list.items)?;
                print_more_hint(&list);
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn show(
    server: &ServerArgs,
    transport: &HttpTransport,
    resource: &LockPath,
    output: Output,
) -> Done {
    let path = format!("/v1/locks/{}/{}", resource.kind, resource.name);
    let answer: ResourceLocksResponse = transport.get(&path).await?;
    if output == Output::Json {
        print_json(&answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    if answer.tenures.is_empty() {
        let (resource, free, token) = (&answer.resource, color::state("free"), answer.token);
        anstream::println!("{resource} is {free}; its last token was {token}");
    } else {
        print_tenures(server, &answer.tenures)?;
    }
    for waiter in &answer.queue {
        let (name, waited) = (&waiter.name, format_duration(waiter.waiting_ms));
        let locks = waiter.locks.join(" ");
        let (position, waiting) = (waiter.position, color::state("waiting"));
        anstream::println!("{position}. {name} has been {waiting} for {locks} for {waited}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the age, with the maximum age if that has passed.
fn format_age(tenure: &TenureInfo) -> String {
    let age = format_duration(tenure.age_ms);
    match tenure.max_age_ms.filter(|_| tenure.is_over_age()) {
        Some(max_age_ms) => format!("{age} (over {})", format_duration(max_age_ms)),
        None => age,
    }
}

/// Returns a cell that may need attention.
fn attention(is_needed: bool, text: String) -> String {
    if is_needed { Tone::Attention.paint(&text) } else { text }
}

fn print_tenures(server: &ServerArgs, tenures: &[TenureInfo]) -> anyhow::Result<()> {
    let row = |tenure: &TenureInfo| {
        vec![
            Tone::Active.paint(&tenure.lock),
            tenure.token.to_string(),
            sanitize(&tenure.holder.name),
            tenure.holder.purpose.as_deref().map(sanitize).unwrap_or_default(),
            attention(tenure.is_over_age(), format_age(tenure)),
            attention(tenure.expires_in_ms == 0, format_duration(tenure.expires_in_ms)),
            attention(tenure.waiters > 0, tenure.waiters.to_string()),
        ]
    };
    let header = ["LOCK", "TOKEN", "HOLDER", "PURPOSE", "AGE", "EXPIRES IN", "WAITERS"];
    let rows = tenures.iter().map(|tenure| (&*tenure.tenant, row(tenure)));
    print_line(&tenant_table(server.tenant(), &header, rows))
}

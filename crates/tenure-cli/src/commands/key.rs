//! `tenure key`: who may ask, for which tenant, and for what.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use tenure_core::Role;
use tenure_wire::{KeyAnswer, KeyBody, ListAnswer, NewKeyAnswer, ReasonBody};

use tenure_cli_kit::ServerArgs;
use tenure_cli_kit::text::{out, parse_duration, plain, table};
use tenure_cli_kit::{Done, Output, print_json};

/// Make keys, list and revoke them
#[derive(Subcommand)]
#[command(after_help = "\
Examples:
  tenure key create --tenant acme --role worker --name ci --reason \"the build fleet\"
  tenure key create --tenant '*' --role viewer --name prometheus --reason metrics
  tenure key create --role operator --name ann --expires 30d --reason \"on call in May\"
  tenure key ls
  tenure key revoke 3f2a9c41d07b --reason \"it was in a log\"

A key is shown once, when it is made. Roles: viewer < worker < operator < admin.")]
pub(super) enum Key {
    /// Make a key; it is printed once and kept nowhere
    Create(Create),
    /// Show all keys: whose, what for, when last used
    Ls,
    /// Take a key back; servers refuse it within seconds
    Revoke(Revoke),
}

/// What the key is to be
#[derive(Args)]
pub(super) struct Create {
    /// What people call it
    #[arg(long)]
    name: String,
    /// What it may do: viewer, worker, operator or admin
    #[arg(long)]
    role: Role,
    /// How long it is good for, such as 90d [default: for ever]
    #[arg(long, value_parser = parse_duration, value_name = "DUR")]
    expires: Option<Duration>,
    /// Why it is made; kept in the audit
    #[arg(long)]
    reason: String,
}

/// Which one
#[derive(Args)]
pub(super) struct Revoke {
    /// Its id, from `tenure key ls`
    id: String,
    /// Why; kept in the audit
    #[arg(long)]
    reason: String,
}

impl Key {
    pub(super) async fn run(&self, server: &ServerArgs, output: Output) -> Done {
        match self {
            Self::Create(create) => create.run(server, output).await,
            Self::Ls => list(server, output).await,
            Self::Revoke(revoke) => revoke.run(server, output).await,
        }
    }
}

impl Create {
    async fn run(&self, server: &ServerArgs, output: Output) -> Done {
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let body = KeyBody {
            name: self.name.clone(),
            tenant: Some(server.tenant().to_owned()),
            role: self.role,
            expires_in_ms: self.expires.map(millis),
            reason: Some(self.reason.clone()),
        };
        let made: NewKeyAnswer =
            server.link()?.post("/v1/keys", None, &body, Duration::ZERO).await?;
        match output {
            Output::Json => print_json(&made)?,
            Output::Table => {
                let KeyAnswer { id, tenant, role, .. } = &made.key;
                let (id, tenant) = (plain(id), plain(tenant));
                anstream::eprintln!("key {id}: {role} of {tenant}. It is not shown again:");
                out(&made.secret)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Revoke {
    async fn run(&self, server: &ServerArgs, output: Output) -> Done {
        let path = format!("/v1/keys/{}/revoke", self.id);
        let body = ReasonBody { reason: Some(self.reason.clone()) };
        let key: KeyAnswer = server.link()?.post(&path, None, &body, Duration::ZERO).await?;
        match output {
            Output::Json => print_json(&key)?,
            Output::Table => anstream::eprintln!("key {} is revoked", plain(&key.id)),
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn list(server: &ServerArgs, output: Output) -> Done {
    let keys: ListAnswer<KeyAnswer> = server.link()?.get("/v1/keys").await?;
    if output == Output::Json {
        print_json(&keys)?;
        return Ok(ExitCode::SUCCESS);
    }
    let rows = keys.items.iter().map(|key| {
        let state = match (&key.revoked_at, key.good) {
            (Some(_), _) => "revoked",
            (None, false) => "expired",
            (None, true) => "good",
        };
        let or_never = |at: &Option<String>| at.clone().unwrap_or_else(|| "never".to_owned());
        [
            plain(&key.id),
            plain(&key.name),
            plain(&key.tenant),
            key.role.to_string(),
            state.to_owned(),
            key.created_at.clone(),
            or_never(&key.used_at),
            or_never(&key.expires_at),
        ]
    });
    let head = ["id", "name", "tenant", "role", "state", "created", "last used", "expires"];
    out(&table(head, rows))?;
    Ok(ExitCode::SUCCESS)
}

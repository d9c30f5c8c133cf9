//! `tenure key`: API keys.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use tenure_core::Role;
use tenure_wire::{CreateKeyRequest, CreateKeyResponse, KeyInfo, ListResponse, ReasonRequest};

use tenure_cli_kit::ServerArgs;
use tenure_cli_kit::color;
use tenure_cli_kit::document::usage_error;
use tenure_cli_kit::listing::Empty;
use tenure_cli_kit::text::{parse_duration, print_line, sanitize, table};
use tenure_cli_kit::{Done, Output, print_json, resolve_key};

/// The admin key of the data directory is not listed.
const NO_KEYS: Empty<'_> = Empty {
    none: "no keys were created",
    item: "key",
    hint: "try: tenure key create --role operator --name ann --reason \"on call\"",
    hint_in_one_tenant: true,
    list: "tenure key ls",
};

/// Create, list and revoke API keys
#[derive(Subcommand)]
#[command(after_help = "\
Examples:
  tenure key create --tenant acme --role worker --name ci --reason \"the build fleet\"
  tenure key create --tenant '*' --role viewer --name prometheus --reason metrics
  tenure key create --role operator --name ann --expires 30d --reason \"on call in May\"
  tenure key ls
  tenure key ls --tenant acme
  tenure key revoke 3f2a9c41d07b --reason \"it was in a log\"

A key is printed only when it is created. Roles: viewer < worker < operator < admin.")]
pub(super) enum Key {
    /// Create a key and print it; only its hash is stored
    Create(Create),
    /// List keys with tenant, role, state and last use: all, or those of --tenant
    Ls,
    /// Revoke a key; servers reject it within seconds
    Revoke(Revoke),
}

/// Properties of the key
#[derive(Args)]
pub(super) struct Create {
    /// Name of the key
    #[arg(long)]
    name: String,
    /// Role: viewer, worker, operator or admin
    #[arg(long)]
    role: Role,
    /// Time after which the key expires, such as 90d [default: never]
    #[arg(long, value_parser = parse_duration, value_name = "DUR")]
    expires: Option<Duration>,
    /// Reason, recorded in the audit log
    #[arg(long)]
    reason: String,
}

/// Which key to revoke
#[derive(Args)]
pub(super) struct Revoke {
    /// Id of the key, from `tenure key ls`, or at least 8 digits from its start or its end
    id: String,
    /// Reason, recorded in the audit log
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
        if self.expires.is_some_and(|expires| expires.is_zero()) {
            let why = "--expires must be more than 0s; without it the key does not expire";
            return Err(usage_error(why.to_owned()));
        }
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let body = CreateKeyRequest {
            name: self.name.clone(),
            tenant: Some(server.tenant().to_owned()),
            role: self.role,
            expires_in_ms: self.expires.map(millis),
            reason: Some(self.reason.clone()),
        };
        let created: CreateKeyResponse =
            server.transport()?.post("/v1/keys", None, &body, Duration::ZERO).await?;
        match output {
            Output::Json => print_json(&created)?,
            Output::Table => {
                let KeyInfo { id, tenant, role, .. } = &created.key;
                let (id, tenant) = (sanitize(id), sanitize(tenant));
                anstream::eprintln!("key {id}: {role} of {tenant}. It is not shown again:");
                print_line(&created.secret)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Revoke {
    async fn run(&self, server: &ServerArgs, output: Output) -> Done {
        let transport = server.transport()?;
        let id = resolve_key(&server.transport_to_all()?, &self.id).await?;
        let path = format!("/v1/keys/{id}/revoke");
        let body = ReasonRequest { reason: Some(self.reason.clone()) };
        let key: KeyInfo = transport.post(&path, None, &body, Duration::ZERO).await?;
        match output {
            Output::Json => print_json(&key)?,
            Output::Table => anstream::eprintln!("key {} revoked", sanitize(&key.id)),
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn list(server: &ServerArgs, output: Output) -> Done {
    let keys: ListResponse<KeyInfo> = server.transport_to_all()?.get("/v1/keys").await?;
    if output == Output::Json {
        print_json(&keys)?;
        return Ok(ExitCode::SUCCESS);
    }
    if keys.items.is_empty() {
        NO_KEYS.print(server.tenant_or_all(), &[]);
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
            sanitize(&key.id),
            sanitize(&key.name),
            sanitize(&key.tenant),
            key.role.to_string(),
            color::state(state),
            key.created_at.clone(),
            or_never(&key.used_at),
            or_never(&key.expires_at),
        ]
    });
    let head = ["ID", "NAME", "TENANT", "ROLE", "STATE", "CREATED", "LAST USED", "EXPIRES"];
    print_line(&table(head, rows))?;
    Ok(ExitCode::SUCCESS)
}

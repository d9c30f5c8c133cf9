//! `tenure migrate`

use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use serde_json::json;
use tenure_store::postgres::{self, Plan};

use super::serve::store_url;
use tenure_cli_kit::ServerArgs;
use tenure_cli_kit::message::say;
use tenure_cli_kit::store::{STORES, explain};
use tenure_cli_kit::text;
use tenure_cli_kit::{Done, Output, print_json};

/// Bring the tables of a database up to date
///
/// Servers do it by themselves when they start, if their role may change tables. This is for
/// deployments where it may not. Embedded stores always migrate themselves.
#[derive(Args)]
#[command(after_help = "\
Examples:
  export TENURE_STORE=postgres://owner@db/ops    and the password in PGPASSWORD
  tenure migrate --plan                          print the SQL that would run
  tenure migrate                                 run it; servers may go on meanwhile
  tenure migrate --roles | psql -h db -U owner ops
  tenure migrate --new-incarnation               after a restore that nobody can notice

A new incarnation makes every token to come higher than all that were ever given out. A restore
into another cluster and a fail-over are noticed, and begin one by themselves; after any other
restore, begin one before the first server starts.")]
pub(super) struct Migrate {
    /// Print the SQL of the migrations to come, and change nothing
    #[arg(long, conflicts_with_all = ["new_incarnation", "roles"])]
    plan: bool,
    /// Begin a new incarnation, so that no old token comes again
    #[arg(long, conflicts_with = "roles")]
    new_incarnation: bool,
    /// Print a script that makes roles with no more than they need, and change nothing
    #[arg(long)]
    roles: bool,
    /// Store: postgres://… or embedded:PATH [default: a file in the data directory]
    #[arg(long, env = "TENURE_STORE", hide_env_values = true, value_name = "URL")]
    store: Option<String>,
}

impl Migrate {
    pub(super) async fn run(&self, server: &ServerArgs, output: Output) -> Done {
        if self.roles {
            text::out(postgres::ROLES.trim_end())?;
            return Ok(ExitCode::SUCCESS);
        }
        // A store that is named needs no data directory.
        let url = match &self.store {
            Some(url) => url.clone(),
            None => store_url(None, &server.data().dir()?),
        };
        match url.split_once(':') {
            Some(("postgres" | "postgresql", _)) => self.postgres(&url, output).await?,
            Some(("embedded" | "memory", _)) => self.own(output)?,
            // What it is may be an address with a password.
            Some((scheme, _)) => bail!("{scheme}: is not a store; {STORES}"),
            None => bail!("this is not a store; {STORES}"),
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn postgres(&self, url: &str, output: Output) -> anyhow::Result<()> {
        if self.plan {
            let plan = postgres::plan(url).await.map_err(|error| explain(&error))?;
            return print_plan(&plan, output);
        }
        let (plan, incarnation) =
            postgres::migrate(url, self.new_incarnation).await.map_err(|error| explain(&error))?;
        let names: Vec<_> = plan.steps.iter().map(|(name, _)| *name).collect();
        if output == Output::Json {
            let (before, now) = (plan.version, plan.version + names.len());
            return print_json(&json!({
                "version_before": before, "version": now, "steps": names,
                "incarnation": incarnation.0, "new_incarnation": self.new_incarnation,
            }));
        }
        match names.len() {
            0 => text::out(&format!("nothing to do: the tables have version {}", plan.version))?,
            count => {
                let (before, now) = (plan.version, plan.version + count);
                let names = names.join(", ");
                text::out(&format!("tables brought from version {before} to {now}: {names}"))?;
            }
        }
        let number = incarnation.0;
        if self.new_incarnation {
            text::out(&format!("incarnation {number} has begun"))?;
            say("every token from now on is higher than all that were given out before");
            say("see that whoever held a lock in the forgotten time has stopped: only its token \
                 gives it away");
        }
        Ok(())
    }

    /// The stores that see to it themselves.
    fn own(&self, output: Output) -> anyhow::Result<()> {
        if self.new_incarnation {
            bail!(
                "an embedded store begins a new incarnation when the file of its life is gone: \
                 stop the server, remove tenure.db.life, and start it again"
            );
        }
        if output == Output::Json {
            return print_json(&json!({ "steps": [], "by_itself": true }));
        }
        text::out("nothing to do: this store brings itself up to date when a server opens it")
    }
}

fn print_plan(plan: &Plan, output: Output) -> anyhow::Result<()> {
    let Plan { version, steps } = plan;
    if output == Output::Json {
        let steps: Vec<_> =
            steps.iter().map(|(name, sql)| json!({ "name": name, "sql": sql })).collect();
        return print_json(&json!({ "version": version, "steps": steps }));
    }
    if steps.is_empty() {
        return text::out(&format!("nothing to do: the tables have version {version}"));
    }
    let mut at = *version;
    for (name, sql) in steps {
        let schema = if at == 0 { "CREATE SCHEMA IF NOT EXISTS tenure;\n\n" } else { "" };
        at += 1;
        text::out(&format!("-- {name}: makes version {at}\n\n{schema}{}", sql.trim_end()))?;
    }
    Ok(())
}

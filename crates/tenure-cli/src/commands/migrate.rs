//! `tenure migrate`: schema migrations of a PostgreSQL store.

use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use serde_json::json;
use tenure_store::postgres::{self, Plan};

use super::serve::store_url;
use tenure_cli_kit::ServerArgs;
use tenure_cli_kit::message::say;
use tenure_cli_kit::store::{STORE_FORMS, explain};
use tenure_cli_kit::text;
use tenure_cli_kit::{Done, Output, print_json};

/// Migrate the schema of a database
///
/// Servers migrate when they start, if their role is permitted to. This is for deployments where it
/// is not. Embedded stores always migrate themselves.
#[derive(Args)]
#[command(after_help = "\
Examples:
  export TENURE_STORE=postgres://owner@db/ops    and the password in PGPASSWORD
  tenure migrate --plan                          print the SQL that would run
  tenure migrate                                 run it; servers may keep running
  tenure migrate --roles | psql -h db -U owner ops
  tenure migrate --new-incarnation               after a restore that is not detected

In a new incarnation all tokens are higher than every token granted before. A restore into another
cluster and a fail-over are detected and start one automatically; after any other restore, start
one before the first server starts.")]
pub(super) struct Migrate {
    /// Print the SQL of the pending migrations without running it
    #[arg(long, conflicts_with_all = ["new_incarnation", "roles"])]
    plan: bool,
    /// Start a new incarnation, so that no token is granted twice
    #[arg(long, conflicts_with = "roles")]
    new_incarnation: bool,
    /// Print a SQL script that creates least-privilege roles, without running it
    #[arg(long)]
    roles: bool,
    /// Store: postgres://… or embedded:PATH [default: a file in the data directory]
    #[arg(long, env = "TENURE_STORE", hide_env_values = true, value_name = "URL")]
    store: Option<String>,
}

impl Migrate {
    pub(super) async fn run(&self, server: &ServerArgs, output: Output) -> Done {
        if self.roles {
            text::print_line(postgres::ROLES.trim_end())?;
            return Ok(ExitCode::SUCCESS);
        }
        // A named store needs no data directory.
        let url = match &self.store {
            Some(url) => url.clone(),
            None => store_url(None, &server.data().dir()?),
        };
        match url.split_once(':') {
            Some(("postgres" | "postgresql", _)) => self.migrate_postgres(&url, output).await?,
            Some(("embedded" | "memory", _)) => self.skip_migration(output)?,
            // The rest of the URL may contain a password.
            Some((scheme, _)) => bail!("{scheme}: is not a store; {STORE_FORMS}"),
            None => bail!("this is not a store; {STORE_FORMS}"),
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn migrate_postgres(&self, url: &str, output: Output) -> anyhow::Result<()> {
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
            0 => text::print_line(&format!(
                "nothing to do: the schema has version {}",
                plan.version
            ))?,
            count => {
                let (before, now) = (plan.version, plan.version + count);
                let names = names.join(", ");
                text::print_line(&format!("migrated from version {before} to {now}: {names}"))?;
            }
        }
        let number = incarnation.0;
        if self.new_incarnation {
            text::print_line(&format!("incarnation {number} started"))?;
            say("all tokens are now higher than every token granted before");
            say("make sure that holders of locks granted in the lost period have stopped: only \
                 guards that check their token reject their writes");
        }
        Ok(())
    }

    /// Reports that the store migrates itself.
    fn skip_migration(&self, output: Output) -> anyhow::Result<()> {
        if self.new_incarnation {
            bail!(
                "an embedded store starts a new incarnation when its incarnation file is missing: \
                 stop the server, remove tenure.db.life, and start the server again"
            );
        }
        if output == Output::Json {
            return print_json(&json!({ "steps": [], "by_itself": true }));
        }
        text::print_line("nothing to do: this store migrates itself when a server opens it")
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
        return text::print_line(&format!("nothing to do: the schema has version {version}"));
    }
    let mut at = *version;
    for (name, sql) in steps {
        let schema = if at == 0 { "CREATE SCHEMA IF NOT EXISTS tenure;\n\n" } else { "" };
        at += 1;
        text::print_line(&format!(
            "-- {name}: migrates to version {at}\n\n{schema}{}",
            sql.trim_end()
        ))?;
    }
    Ok(())
}

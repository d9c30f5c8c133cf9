//! `tenure cluster views`: read-only views for what still reads the tables of older systems.

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::json;
use tenure_cli_kit::store::explain;
use tenure_cli_kit::text::print_line;
use tenure_cli_kit::{Done, Output, print_json};
use tenure_store::postgres;

/// The views.
const VIEWS: &str = include_str!("../views.sql");
/// Their names.
const NAMES: [&str; 3] = ["ocpctl.clusters", "ocpctl.jobs", "ocpctl.job_locks"];

/// Print or create the views ocpctl.clusters, ocpctl.jobs and ocpctl.job_locks on PostgreSQL
///
/// They are read-only, for dashboards and scripts that read the tables of older systems. Applying
/// them again changes nothing.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure cluster views                           print the SQL
  tenure cluster views --apply --database postgres://owner@db/ops

A reader needs no more than this:
  GRANT USAGE ON SCHEMA ocpctl TO dashboard;
  GRANT SELECT ON ALL TABLES IN SCHEMA ocpctl TO dashboard;")]
pub(super) struct Views {
    /// Create the views
    #[arg(long)]
    apply: bool,
    /// Database of the server: postgres://…, with a role that owns the tables of Tenure
    #[arg(long, env = "TENURE_STORE", hide_env_values = true, value_name = "URL")]
    database: Option<String>,
}

impl Views {
    pub(super) async fn run(&self, output: Output) -> Done {
        if self.apply {
            self.create().await?;
        }
        match (output, self.apply) {
            (Output::Json, true) => print_json(&json!({ "views": NAMES }))?,
            (Output::Json, false) => print_json(&json!({ "views": NAMES, "sql": VIEWS }))?,
            (Output::Table, true) => print_line(&format!("created {}", NAMES.join(", ")))?,
            (Output::Table, false) => print_line(VIEWS.trim_end())?,
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn create(&self) -> anyhow::Result<()> {
        let url = self.database.as_deref();
        let url = url.context("name the database with --database or TENURE_STORE")?;
        // The rest of the URL may contain a password.
        match url.split_once(':') {
            Some(("postgres" | "postgresql", _)) => {}
            Some((scheme, _)) => bail!("{scheme}: has no views; they need postgres://…"),
            None => bail!("this is not a database; expected postgres://USER@HOST/DATABASE"),
        }
        let client = postgres::connect(url).await.map_err(|error| explain(&error))?;
        // All or none: several statements in one message are one transaction.
        client.batch_execute(VIEWS).await.map_err(|error| refused(&error))
    }
}

/// Adds the remedy to an error of the database.
fn refused(error: &tokio_postgres::Error) -> anyhow::Error {
    let Some(found) = error.as_db_error() else {
        return anyhow::anyhow!("the connection to the database broke: {error}");
    };
    let remedy = match found.code().code() {
        "42P01" | "3F000" => "; a server creates the tables of Tenure, or `tenure migrate`",
        "42501" => "; use the role that owns the tables of Tenure",
        "42P16" => "; drop the schema ocpctl, whose views have other columns",
        _ => "",
    };
    anyhow::anyhow!("cannot create the views: the database says: {}{remedy}", found.message())
}

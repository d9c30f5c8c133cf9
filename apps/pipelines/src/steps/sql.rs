//! A step that sends statements to a PostgreSQL database, all in one transaction.
//!
//! When the database is the one that the store is in, the last statement before the commit is
//! `tenure.assert_held`: the commit and a take-over of the run cannot both happen. It comes last
//! because whatever changes the run has to wait from there on. Elsewhere the run is checked right
//! before the commit, and `:run_token` is there for a guard of one's own.
//!
//! What a trigger says never becomes a part of a statement: `:name` is a value that is sent apart.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

use serde_json::Value;
use tenure::worker::Failure;
use tenure::worker::command::STOPPED;
use tenure_config::report::Report;
use tenure_config::section::Section;
use tenure_store::postgres::{self, Client};
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{Format, IsNull, ToSql, Type};
use tokio_postgres::{Error, error::SqlState};

use super::statement::Statement;
use super::{STEP_TIME_LIMIT, Try};
use crate::declare::{Allowed, Declared};
use crate::template::{Template, secret};

/// How long to wait for the database to confirm that it has stopped.
const STOP_MAX: Duration = Duration::from_secs(1);
/// Most statements of a step.
const STATEMENTS_MAX: usize = 64;

/// No connection, or it broke before the commit.
const SQL_UNREACHABLE: &str = "SQL_UNREACHABLE";
/// The address of the database is none.
const SQL_INVALID_ADDRESS: &str = "SQL_INVALID_ADDRESS";
/// The connection broke during the commit, or it took too long: nobody knows whether it happened.
const SQL_COMMIT_UNKNOWN: &str = "SQL_COMMIT_UNKNOWN";
/// The run was lost before the commit.
const SQL_NOT_HELD: &str = "SQL_NOT_HELD";
/// The role of the step may not ask whether the run is held.
const SQL_GUARD_DENIED: &str = "SQL_GUARD_DENIED";

/// Whether a database has the function that transactions rely on.
const HAS_GUARD: &str = "SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_proc p \
     JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace \
     WHERE n.nspname = 'tenure' AND p.proname = 'assert_held')";

/// Statements on a database.
#[derive(Clone, Debug, PartialEq)]
pub struct Transaction {
    url: Template,
    statements: Vec<Statement>,
    guard: bool,
}

/// How far a transaction has come.
#[derive(Default)]
struct Stage {
    /// The process of the database that does it; zero before there is one.
    backend: AtomicI32,
    /// The commit is on its way: nobody can stop it any more.
    committing: AtomicBool,
}

impl Transaction {
    pub(super) async fn perform(&self, with: &Try<'_>) -> Result<Option<Value>, Failure> {
        let url = self.url.fill(with.values);
        postgres::validate_url(&url).map_err(|_| {
            let why = "the address of the database cannot be read: postgres://USER@HOST/DATABASE";
            Failure::permanent(SQL_INVALID_ADDRESS, why)
        })?;
        let connect = async {
            let away = |error| Failure::transient(SQL_UNREACHABLE, error);
            postgres::connect(&url).await.map_err(away)
        };
        let client = with.held(connect).await?;
        let stage = Stage::default();
        match with.held(self.run(&client, with, &stage)).await {
            Ok(()) => Ok(None),
            Err(failure) => Err(stage.stop(&url, failure).await),
        }
    }

    async fn run(&self, client: &Client, with: &Try<'_>, stage: &Stage) -> Result<(), Failure> {
        let guard = self.guard && with.guarded && has_guard(client).await?;
        // Whoever is frozen must not keep rows that the next run needs.
        let idle_ms = with.job.session().ttl().as_millis();
        let begin = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; \
             SET LOCAL idle_in_transaction_session_timeout = {idle_ms}"
        );
        client.batch_execute(&begin).await.map_err(failed)?;
        let backend = client.query_typed("SELECT pg_backend_pid()", &[]).await.map_err(failed)?;
        let backend = backend.first().map_or(0, |row| row.get(0));
        stage.backend.store(backend, Ordering::Relaxed);
        for (at, statement) in self.statements.iter().enumerate() {
            let values: Vec<Param> =
                statement.places().map(|place| Param::of(&with.values.json(place))).collect();
            let params: Vec<(&(dyn ToSql + Sync), Type)> =
                values.iter().map(|value| (value as _, Type::UNKNOWN)).collect();
            let rows = client.execute_typed(statement.sql(), &params).await.map_err(failed)?;
            with.log(&format!("statement {}: {rows} rows", at + 1));
        }
        if guard {
            assert_held(client, with).await?;
        }
        // Right before the effect.
        with.job.check()?;
        stage.committing.store(true, Ordering::Relaxed);
        let committed = client.batch_execute("COMMIT").await;
        committed.map_err(|error| match error.as_db_error() {
            Some(_) => failed(error),
            None => unknown(),
        })
    }

    pub(super) fn secrets(&self) -> Vec<&str> {
        self.url.places().filter_map(secret).collect()
    }
}

impl Stage {
    /// Sees to it that nothing of a transaction that failed or was given up goes on, and says why
    /// it failed.
    async fn stop(&self, url: &str, failure: Failure) -> Failure {
        if self.committing.load(Ordering::Relaxed) {
            // To do it once more would do it twice.
            return if failure.code == STEP_TIME_LIMIT { unknown() } else { failure };
        }
        let backend = self.backend.load(Ordering::Relaxed);
        if backend != 0 && matches!(failure.code.as_str(), STOPPED | STEP_TIME_LIMIT) {
            // What is not committed is nothing, but it may hold rows that the next run needs.
            let end = async {
                let client = postgres::connect(url).await.ok()?;
                let sql = "SELECT pg_terminate_backend($1, 900)";
                client.query_typed(sql, &[(&backend, Type::INT4)]).await.ok()
            };
            if tokio::time::timeout(STOP_MAX, end).await.ok().flatten().is_none() {
                tracing::warn!(backend, "cannot end a transaction of a step that was stopped");
            }
        }
        failure
    }
}

fn unknown() -> Failure {
    let why = "nobody knows whether the transaction was committed: look before you run it again";
    Failure::permanent(SQL_COMMIT_UNKNOWN, why)
}

async fn has_guard(client: &Client) -> Result<bool, Failure> {
    let rows = client.query_typed(HAS_GUARD, &[]).await.map_err(failed)?;
    Ok(rows.first().is_some_and(|row| row.get(0)))
}

async fn assert_held(client: &Client, with: &Try<'_>) -> Result<(), Failure> {
    let (lock, token) = (with.job.key().as_str(), with.job.token().0);
    let token = i64::try_from(token).unwrap_or(i64::MAX);
    let params: [(&(dyn ToSql + Sync), Type); 2] = [(&lock, Type::TEXT), (&token, Type::INT8)];
    let asked = client.query_typed("SELECT tenure.assert_held($1, $2)", &params).await;
    let Err(error) = asked else { return Ok(()) };
    match error.code().map(SqlState::code) {
        Some("TN001") => Err(Failure::transient(SQL_NOT_HELD, failed(error).message)),
        Some("42501") => {
            let why = "the role of this step may not call tenure.assert_held: GRANT tenure_guard \
                       to it, or say `guard = false` if this is the database of another Tenure";
            Err(Failure::permanent(SQL_GUARD_DENIED, why))
        }
        _ => Err(failed(error)),
    }
}

/// What an error of the database means. Classes of SQLSTATE that may be gone the next time are
/// transient.
#[expect(clippy::needless_pass_by_value, reason = "it is for map_err")]
fn failed(error: Error) -> Failure {
    let Some(db) = error.as_db_error() else {
        return Failure::transient(SQL_UNREACHABLE, error.to_string());
    };
    let state = db.code().code();
    let code = format!("SQL_{state}");
    let transient = ["08", "40", "53", "55", "57"].iter().any(|class| state.starts_with(class));
    if transient {
        Failure::transient(&code, db.message())
    } else {
        Failure::permanent(&code, db.message())
    }
}

/// A value as text: the database finds out its type from where it stands.
#[derive(Debug)]
struct Param(Option<String>);

impl Param {
    fn of(value: &Value) -> Self {
        Self(match value {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        })
    }
}

impl ToSql for Param {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        let Some(text) = &self.0 else { return Ok(IsNull::Yes) };
        out.extend_from_slice(text.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn to_sql_checked(
        &self,
        ty: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        self.to_sql(ty, out)
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }
}

pub(super) fn read(
    step: &Section<'_>,
    declared: &Declared<'_>,
    report: &mut Report<'_>,
) -> Option<Transaction> {
    let section = step.section("sql", report)?;
    section.known(&["url", "run", "guard"], report);
    let url = section.text("url", report);
    if !section.has("url") {
        report.add(&section.place, "`url` is missing: postgres://…, or \"{{ secrets.NAME }}\"");
    }
    if url.is_some_and(|url| {
        !["postgres://", "postgresql://", "{{"].iter().any(|p| url.starts_with(p))
    }) {
        let why = "an address begins with postgres://, or is a secret".to_owned();
        section.refuse::<()>("url", why, report);
    }
    let texts = section.one_or_more("run", report).unwrap_or_default();
    if !(1..=STATEMENTS_MAX).contains(&texts.len()) {
        let why = format!("`run` has between 1 and {STATEMENTS_MAX} statements, one text each");
        report.add(&section.place, why);
    }
    let mut statements = Vec::new();
    for text in texts {
        match Statement::parse(text, |name| declared.has(name)) {
            Ok(statement) => statements.push(statement),
            Err(why) => drop(section.refuse::<()>("run", why, report)),
        }
    }
    let guard = section.flag("guard", report).unwrap_or(true);
    let url = declared.template((&section, "url"), url?, Allowed::Secrets, report);
    Some(Transaction { url, statements, guard })
}

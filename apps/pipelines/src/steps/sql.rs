//! Steps that execute SQL statements on a PostgreSQL database in one transaction.
//!
//! If the database contains the store, the last statement before the commit is
//! `tenure.assert_held`, so that the commit and a take-over of the run cannot both happen. It comes
//! last because it blocks changes of the run until the commit. On other databases, the tenure is
//! checked right before the commit, and `:run_token` is available for a guard of the user.
//!
//! Parameters never become part of a statement: `:name` is sent as a bind parameter.

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
use super::{STEP_TIME_LIMIT, StepContext};
use crate::declare::{DeclaredNames, SecretUse};
use crate::template::{Template, Values, secret};

/// Time limit for terminating the backend of a stopped step.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of statements of a step.
const STATEMENTS_MAX: usize = 64;

/// Failure code: no connection, or it broke before the commit.
const SQL_UNREACHABLE: &str = "SQL_UNREACHABLE";
/// Failure code: the database URL is invalid.
const SQL_INVALID_ADDRESS: &str = "SQL_INVALID_ADDRESS";
/// Failure code: the connection broke or timed out during the commit, whose outcome is unknown.
const SQL_COMMIT_UNKNOWN: &str = "SQL_COMMIT_UNKNOWN";
/// Failure code: the run lost its tenure before the commit.
const SQL_NOT_HELD: &str = "SQL_NOT_HELD";
/// Failure code: the result of a query is not an id.
const SQL_INVALID_ID: &str = "SQL_INVALID_ID";
/// Failure code: the role of the step may not call the guard function.
const SQL_GUARD_DENIED: &str = "SQL_GUARD_DENIED";

/// Query for the existence of the guard function.
const HAS_GUARD: &str = "SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_proc p \
     JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace \
     WHERE n.nspname = 'tenure' AND p.proname = 'assert_held')";

/// SQL statements of one transaction.
#[derive(Clone, Debug, PartialEq)]
pub struct Transaction {
    url: Template,
    statements: Vec<Statement>,
    guard: bool,
}

/// State of a transaction.
#[derive(Default)]
struct TransactionState {
    /// Process id of the backend; zero before it is known.
    backend: AtomicI32,
    /// The commit has been sent and cannot be stopped.
    committing: AtomicBool,
}

impl Transaction {
    pub(super) async fn perform(&self, cx: &StepContext<'_>) -> Result<Option<Value>, Failure> {
        let url = self.url.fill(cx.values);
        let client = cx.run_while_active(connect(&url)).await?;
        let state = TransactionState::default();
        match cx.run_while_active(self.run(&client, cx, &state)).await {
            Ok(()) => Ok(None),
            Err(failure) => Err(state.stop(&url, failure).await),
        }
    }

    async fn run(
        &self,
        client: &Client,
        cx: &StepContext<'_>,
        state: &TransactionState,
    ) -> Result<(), Failure> {
        let guard = self.guard && cx.guarded && has_guard(client).await?;
        // A frozen worker must not keep rows locked that the next run needs.
        let idle_ms = cx.job.session().ttl().as_millis();
        let begin = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; \
             SET LOCAL idle_in_transaction_session_timeout = {idle_ms}"
        );
        client.batch_execute(&begin).await.map_err(to_failure)?;
        let backend =
            client.query_typed("SELECT pg_backend_pid()", &[]).await.map_err(to_failure)?;
        let backend = backend.first().map_or(0, |row| row.get(0));
        state.backend.store(backend, Ordering::Relaxed);
        for (index, statement) in self.statements.iter().enumerate() {
            let values = params(statement, cx.values);
            let rows = client.execute_typed(statement.sql(), &typed(&values)).await;
            let rows = rows.map_err(to_failure)?;
            cx.log(&format!("statement {}: {rows} rows", index + 1));
        }
        if guard {
            assert_held(client, cx).await?;
        }
        // Right before the effect.
        cx.job.check()?;
        state.committing.store(true, Ordering::Relaxed);
        let committed = client.batch_execute("COMMIT").await;
        committed.map_err(|error| match error.as_db_error() {
            Some(_) => to_failure(error),
            None => commit_unknown(),
        })
    }

    pub(super) fn secrets(&self) -> Vec<&str> {
        self.url.placeholders().filter_map(secret).collect()
    }
}

impl TransactionState {
    /// Terminates the backend of a transaction that was stopped, and returns the failure.
    async fn stop(&self, url: &str, failure: Failure) -> Failure {
        if self.committing.load(Ordering::Relaxed) {
            // A retry could apply the transaction twice.
            return if failure.code == STEP_TIME_LIMIT { commit_unknown() } else { failure };
        }
        let backend = self.backend.load(Ordering::Relaxed);
        if backend != 0 && matches!(failure.code.as_str(), STOPPED | STEP_TIME_LIMIT) {
            // The transaction is rolled back anyway, but it may hold row locks that the next run
            // needs.
            let terminate = async {
                let client = postgres::connect(url).await.ok()?;
                let sql = "SELECT pg_terminate_backend($1, 900)";
                client.query_typed(sql, &[(&backend, Type::INT4)]).await.ok()
            };
            if tokio::time::timeout(STOP_TIMEOUT, terminate).await.ok().flatten().is_none() {
                tracing::warn!(backend, "cannot terminate the backend of a stopped step");
            }
        }
        failure
    }
}

async fn connect(url: &str) -> Result<Client, Failure> {
    postgres::validate_url(url).map_err(|_| {
        let why = "the database URL is invalid; expected postgres://USER@HOST/DATABASE";
        Failure::permanent(SQL_INVALID_ADDRESS, why)
    })?;
    postgres::connect(url).await.map_err(|error| Failure::transient(SQL_UNREACHABLE, error))
}

fn params(statement: &Statement, values: &Values) -> Vec<Param> {
    let param = |placeholder| Param::new(&values.json(placeholder));
    statement.placeholders().map(param).collect()
}

fn typed(params: &[Param]) -> Vec<(&(dyn ToSql + Sync), Type)> {
    params.iter().map(|param| (param as _, Type::UNKNOWN)).collect()
}

/// A query for one value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Query {
    url: Template,
    statement: Statement,
}

impl Query {
    /// Returns the first column of the first row; `None` if there is no row, or if it is null.
    /// The database stops the query at its time limit.
    pub(crate) async fn first(
        &self,
        values: &Values,
        limit: Duration,
    ) -> Result<Option<String>, Failure> {
        let client = connect(&self.url.fill(values)).await?;
        let limit_ms = limit.as_millis();
        let begin = format!("BEGIN READ ONLY; SET LOCAL statement_timeout = {limit_ms}");
        client.batch_execute(&begin).await.map_err(to_failure)?;
        let params = params(&self.statement, values);
        let rows = client.query_typed(self.statement.sql(), &typed(&params)).await;
        let rows = rows.map_err(to_failure)?;
        let Some(row) = rows.first() else { return Ok(None) };
        let text = row.try_get::<_, Option<String>>(0);
        let long = || Ok(row.try_get::<_, Option<i64>>(0)?.map(|id| id.to_string()));
        let short = || Ok(row.try_get::<_, Option<i32>>(0)?.map(|id| id.to_string()));
        let id: Result<_, Error> = text.or_else(|_| long()).or_else(|_: Error| short());
        id.map_err(|_| {
            let why = "the first column must be a text or an integer; cast it: `id::text`";
            Failure::permanent(SQL_INVALID_ID, why)
        })
    }

    pub(crate) fn secrets(&self) -> Vec<&str> {
        self.url.placeholders().filter_map(secret).collect()
    }
}

fn commit_unknown() -> Failure {
    let why = "it is unknown whether the transaction was committed; check before you run it again";
    Failure::permanent(SQL_COMMIT_UNKNOWN, why)
}

async fn has_guard(client: &Client) -> Result<bool, Failure> {
    let rows = client.query_typed(HAS_GUARD, &[]).await.map_err(to_failure)?;
    Ok(rows.first().is_some_and(|row| row.get(0)))
}

async fn assert_held(client: &Client, cx: &StepContext<'_>) -> Result<(), Failure> {
    let (lock, token) = (cx.job.key().as_str(), cx.job.token().0);
    let token = i64::try_from(token).unwrap_or(i64::MAX);
    let params: [(&(dyn ToSql + Sync), Type); 2] = [(&lock, Type::TEXT), (&token, Type::INT8)];
    let result = client.query_typed("SELECT tenure.assert_held($1, $2)", &params).await;
    let Err(error) = result else { return Ok(()) };
    match error.code().map(SqlState::code) {
        Some("TN001") => Err(Failure::transient(SQL_NOT_HELD, to_failure(error).message)),
        Some("42501") => {
            let why = "the role of this step may not call tenure.assert_held; GRANT tenure_guard \
                       to it, or set `guard = false` if the database belongs to another Tenure";
            Err(Failure::permanent(SQL_GUARD_DENIED, why))
        }
        _ => Err(to_failure(error)),
    }
}

/// Converts a database error. SQLSTATE classes of conditions that may pass are transient.
#[expect(clippy::needless_pass_by_value, reason = "used with map_err")]
fn to_failure(error: Error) -> Failure {
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

/// A bind parameter in text format: the database infers its type from the context.
#[derive(Debug)]
struct Param(Option<String>);

impl Param {
    fn new(value: &Value) -> Self {
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

/// Reads the URL of a database.
fn read_url(
    section: &Section<'_>,
    names: &DeclaredNames<'_>,
    report: &mut Report<'_>,
) -> Option<Template> {
    let url = section.text("url", report);
    if !section.has("url") {
        report.add(&section.place, "`url` is missing: postgres://…, or \"{{ secrets.NAME }}\"");
    }
    if url.is_some_and(|url| {
        !["postgres://", "postgresql://", "{{"].iter().any(|p| url.starts_with(p))
    }) {
        let why = "a URL must start with postgres://, or be a secret".to_owned();
        section.reject::<()>("url", why, report);
    }
    Some(names.template((section, "url"), url?, SecretUse::Allowed, report))
}

/// Parses statements.
fn read_statements(
    section: &Section<'_>,
    texts: Vec<&str>,
    names: &DeclaredNames<'_>,
    report: &mut Report<'_>,
) -> Vec<Statement> {
    let mut statements = Vec::new();
    for text in texts {
        let parsed = Statement::parse(text, |name| names.has(name)).and_then(|statement| {
            let mut placeholders = statement.placeholders();
            placeholders.try_for_each(|one| names.check(one, SecretUse::Forbidden))?;
            drop(placeholders);
            Ok(statement)
        });
        match parsed {
            Ok(statement) => statements.push(statement),
            Err(why) => drop(section.reject::<()>("run", why, report)),
        }
    }
    statements
}

pub(super) fn read(
    step: &Section<'_>,
    names: &DeclaredNames<'_>,
    report: &mut Report<'_>,
) -> Option<Transaction> {
    let section = step.section("sql", report)?;
    section.check_keys(&["url", "run", "guard"], report);
    let url = read_url(&section, names, report);
    let texts = section.one_or_more("run", report).unwrap_or_default();
    if !(1..=STATEMENTS_MAX).contains(&texts.len()) {
        let why =
            format!("`run` must have between 1 and {STATEMENTS_MAX} statements, one string each");
        report.add(&section.place, why);
    }
    let statements = read_statements(&section, texts, names, report);
    let guard = section.flag("guard", report).unwrap_or(true);
    Some(Transaction { url: url?, statements, guard })
}

/// Reads the query of a precheck.
pub(crate) fn read_query(
    precheck: &Section<'_>,
    names: &DeclaredNames<'_>,
    report: &mut Report<'_>,
) -> Option<Query> {
    let section = precheck.section("sql", report)?;
    section.check_keys(&["url", "run"], report);
    let url = read_url(&section, names, report);
    let text = section.text("run", report);
    if !section.has("run") {
        report.add(&section.place, "`run` is missing: a query for the id of the active run");
    }
    let statement = read_statements(&section, text.into_iter().collect(), names, report).pop();
    Some(Query { url: url?, statement: statement? })
}

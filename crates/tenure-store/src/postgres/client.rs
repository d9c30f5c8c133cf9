//! A client that prepares statements where possible.
//!
//! Planning a statement costs as much as executing it on a few rows, so a direct connection keeps
//! prepared statements. A pooler in transaction mode assigns every transaction to another server
//! connection, which does not have them; behind one, statements are sent unnamed and typed, in one
//! round trip. A pooler is detected by its errors.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, OnceLock};

use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row, Statement};

/// A statement parameter with its type.
pub(super) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// A client of one open connection.
pub(super) struct PgClient {
    client: Client,
    /// The SQL that begins a transaction.
    begin_sql: String,
    /// `None` behind a pooler.
    statements: Option<Mutex<StatementCache>>,
    /// The identity of the database server, once it is known.
    server_id: OnceLock<String>,
}

#[derive(Default)]
struct StatementCache {
    prepared: HashMap<String, Statement>,
    /// Statements that were sent unprepared and can be prepared.
    unprepared: BTreeMap<String, Vec<Type>>,
}

impl PgClient {
    pub(super) fn new(client: Client, begin_sql: String, is_direct: bool) -> Self {
        let statements = is_direct.then(Mutex::default);
        Self { client, begin_sql, statements, server_id: OnceLock::new() }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Begins a transaction.
    pub(super) async fn begin(&self) -> Result<(), Error> {
        self.client.batch_execute(&self.begin_sql).await
    }

    /// Begins a transaction and runs statements without parameters, in one round trip.
    pub(super) async fn begin_with(&self, sql: &str) -> Result<(), Error> {
        self.client.batch_execute(&format!("{}; {sql}", self.begin_sql)).await
    }

    /// Returns the identity of the database server, if it is known. It is never known behind a
    /// pooler, which may switch servers.
    pub(super) fn server_id(&self) -> Option<&str> {
        self.server_id.get().map(String::as_str)
    }

    /// Caches the identity of the database server on a direct connection.
    pub(super) fn cache_server_id(&self, server_id: &str) {
        if self.statements.is_some() {
            self.server_id.get_or_init(|| server_id.to_owned());
        }
    }

    pub(super) async fn batch_execute(&self, sql: &str) -> Result<(), Error> {
        self.client.batch_execute(sql).await
    }

    /// Completes when the connection answers or is closed.
    pub(super) async fn ping(&self) {
        self.client.batch_execute("").await.ok();
    }

    /// Runs a query. It is sent at once, prepared or not, so that later statements of a pipelined
    /// transaction cannot overtake it.
    pub(super) async fn query_typed(
        &self,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, Error> {
        match self.statement(sql, params) {
            Some(statement) => self.client.query(&statement, &values(params)).await,
            None => self.client.query_typed(sql, params).await,
        }
    }

    /// Like [`PgClient::query_typed`], but returns the number of affected rows.
    pub(super) async fn execute_typed(
        &self,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<u64, Error> {
        match self.statement(sql, params) {
            Some(statement) => self.client.execute(&statement, &values(params)).await,
            None => self.client.execute_typed(sql, params).await,
        }
    }

    fn statement(&self, sql: &str, params: &[Param<'_>]) -> Option<Statement> {
        let mut cache = lock(self.statements.as_ref()?);
        let found = cache.prepared.get(sql).cloned();
        if found.is_none() && !cache.unprepared.contains_key(sql) {
            let types = params.iter().map(|(_, kind)| kind.clone()).collect();
            cache.unprepared.insert(sql.to_owned(), types);
        }
        found
    }

    /// Prepares the statements that were recently sent unprepared. Must not be called while the
    /// transaction holds locks that others wait for.
    pub(super) async fn prepare_recent(&self) -> Result<(), Error> {
        let Some(cache) = &self.statements else { return Ok(()) };
        let unprepared = std::mem::take(&mut lock(cache).unprepared);
        for (sql, types) in unprepared {
            let statement = self.client.prepare_typed(&sql, &types).await?;
            lock(cache).prepared.insert(sql, statement);
        }
        Ok(())
    }
}

fn lock(cache: &Mutex<StatementCache>) -> MutexGuard<'_, StatementCache> {
    cache.lock().expect("lock is never poisoned")
}

fn values<'a>(params: &[Param<'a>]) -> Vec<&'a (dyn ToSql + Sync)> {
    params.iter().map(|(value, _)| *value).collect()
}

/// Whether an error indicates that a pooler sits in front of the database.
pub(super) fn indicates_pooler(error: &Error) -> bool {
    let statement = [SqlState::INVALID_SQL_STATEMENT_NAME, SqlState::DUPLICATE_PSTATEMENT];
    let startup = |message: &str| message.contains("unsupported startup parameter");
    error.as_db_error().is_some_and(|db| statement.contains(db.code()) || startup(db.message()))
}

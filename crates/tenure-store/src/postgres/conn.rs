//! One connection: statements, prepared where that is possible.
//!
//! Planning a statement costs as much as running it on a few rows, so a direct connection keeps
//! them prepared. A pooler in transaction mode hands every transaction to another connection, which
//! knows nothing of that: behind one, statements are sent whole. Whether there is one is found out.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, OnceLock};

use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row, Statement};

/// A parameter with its type.
pub(super) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// A connection.
pub(super) struct Conn {
    client: Client,
    /// What begins a transaction.
    begin: String,
    /// Nothing behind a pooler.
    prepared: Option<Mutex<Prepared>>,
    /// The database server at the other end.
    host: OnceLock<String>,
}

#[derive(Default)]
struct Prepared {
    statements: HashMap<String, Statement>,
    /// Statements that were sent and could be prepared.
    wanted: BTreeMap<String, Vec<Type>>,
}

impl Conn {
    pub(super) fn new(client: Client, begin: String, direct: bool) -> Self {
        let prepared = direct.then(Mutex::default);
        Self { client, begin, prepared, host: OnceLock::new() }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Begins a transaction.
    pub(super) async fn begin(&self) -> Result<(), Error> {
        self.client.batch_execute(&self.begin).await
    }

    /// Begins a transaction with statements that take no parameters.
    pub(super) async fn begin_with(&self, sql: &str) -> Result<(), Error> {
        self.client.batch_execute(&format!("{}; {sql}", self.begin)).await
    }

    /// The database server at the other end, if it is known. Behind a pooler it may be another one
    /// each time.
    pub(super) fn host(&self) -> Option<&str> {
        self.host.get().map(String::as_str)
    }

    /// Notes which database server is at the other end.
    pub(super) fn note_host(&self, host: &str) {
        if self.prepared.is_some() {
            self.host.get_or_init(|| host.to_owned());
        }
    }

    pub(super) async fn batch_execute(&self, sql: &str) -> Result<(), Error> {
        self.client.batch_execute(sql).await
    }

    /// Completes when the connection answers, or is closed.
    pub(super) async fn ping(&self) {
        self.client.batch_execute("").await.ok();
    }

    /// The rows of a statement. It is sent at once, also when it is not prepared yet: what comes
    /// after it in a transaction must not overtake it.
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

    /// Runs a statement and says how many rows it changed; likewise.
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
        let mut prepared = lock(self.prepared.as_ref()?);
        let found = prepared.statements.get(sql).cloned();
        if found.is_none() && !prepared.wanted.contains_key(sql) {
            let types = params.iter().map(|(_, kind)| kind.clone()).collect();
            prepared.wanted.insert(sql.to_owned(), types);
        }
        found
    }

    /// Prepares what was sent lately. Not to be called inside a transaction that others rely on.
    pub(super) async fn prepare(&self) -> Result<(), Error> {
        let Some(prepared) = &self.prepared else { return Ok(()) };
        let wanted = std::mem::take(&mut lock(prepared).wanted);
        for (sql, types) in wanted {
            let statement = self.client.prepare_typed(&sql, &types).await?;
            lock(prepared).statements.insert(sql, statement);
        }
        Ok(())
    }
}

fn lock(prepared: &Mutex<Prepared>) -> MutexGuard<'_, Prepared> {
    prepared.lock().expect("nothing panics while it is locked")
}

fn values<'a>(params: &[Param<'a>]) -> Vec<&'a (dyn ToSql + Sync)> {
    params.iter().map(|(value, _)| *value).collect()
}

/// Whether an error says that a pooler stands between.
pub(super) fn says_pooler(error: &Error) -> bool {
    let unknown = [SqlState::INVALID_SQL_STATEMENT_NAME, SqlState::DUPLICATE_PSTATEMENT];
    let startup = |message: &str| message.contains("unsupported startup parameter");
    error.as_db_error().is_some_and(|db| unknown.contains(db.code()) || startup(db.message()))
}

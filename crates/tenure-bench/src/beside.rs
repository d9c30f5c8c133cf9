//! A transaction of somebody else, which is idle and keeps an old view of the database.
//!
//! While it lasts the database may forget no row that it could still see.

use anyhow::{Context as _, Result, ensure};
use tenure_store::postgres::{Client, connect};

/// Begins it. No setting of the database may end it early.
const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ; \
                     SET LOCAL idle_in_transaction_session_timeout = 0";
/// Takes its view, and looks whether it still has it.
const LOOK: &str = "SELECT count(*) FROM tenure.journal";

/// A transaction that is idle. Dropping it ends its connection.
pub(crate) struct Idle {
    client: Client,
    /// How many entries the journal has in its view.
    seen: i64,
}

impl Idle {
    /// Begins one on the database of a store.
    pub(crate) async fn begin(url: &str) -> Result<Self> {
        let client = connect(url).await?;
        client.batch_execute(BEGIN).await.context("begin an idle transaction")?;
        let seen = look(&client).await?;
        Ok(Self { client, seen })
    }

    /// Ends it, and fails unless it had its view until now.
    pub(crate) async fn end(self) -> Result<()> {
        let seen = look(&self.client).await.context("the idle transaction was over too early")?;
        ensure!(seen == self.seen, "the idle transaction saw {seen} entries, not {}", self.seen);
        self.client.batch_execute("ROLLBACK").await.context("end the idle transaction")
    }
}

/// How many entries of the journal a transaction sees.
async fn look(client: &Client) -> Result<i64> {
    let rows = client.query_typed(LOOK, &[]).await.context("count the entries of the journal")?;
    Ok(rows.first().context("count the entries of the journal: no row")?.try_get(0)?)
}

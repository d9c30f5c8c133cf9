//! An idle foreign transaction that keeps an old snapshot of the database.
//!
//! While it is open, VACUUM cannot remove rows that its snapshot may still see.

use anyhow::{Context as _, Result, ensure};
use tenure_store::postgres::{Client, connect};

/// Begins the transaction. No setting of the database may end it early.
const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ; \
                     SET LOCAL idle_in_transaction_session_timeout = 0";
/// Takes the snapshot, and verifies it later.
const COUNT_ENTRIES: &str = "SELECT count(*) FROM tenure.journal";

/// An idle transaction. Dropping it closes its connection.
pub(crate) struct IdleTransaction {
    client: Client,
    /// Number of journal entries in its snapshot.
    entries: i64,
}

impl IdleTransaction {
    /// Begins a transaction on the database of a store.
    pub(crate) async fn begin(url: &str) -> Result<Self> {
        let client = connect(url).await?;
        client.batch_execute(BEGIN).await.context("begin an idle transaction")?;
        let entries = count_entries(&client).await?;
        Ok(Self { client, entries })
    }

    /// Ends the transaction. Fails unless it has kept its snapshot until now.
    pub(crate) async fn end(self) -> Result<()> {
        let entries =
            count_entries(&self.client).await.context("the idle transaction ended too early")?;
        let expected = self.entries;
        ensure!(entries == expected, "the idle transaction saw {entries} entries, not {expected}");
        self.client.batch_execute("ROLLBACK").await.context("end the idle transaction")
    }
}

/// Counts the journal entries that a transaction sees.
async fn count_entries(client: &Client) -> Result<i64> {
    let rows =
        client.query_typed(COUNT_ENTRIES, &[]).await.context("count the entries of the journal")?;
    Ok(rows.first().context("count the entries of the journal: no row")?.try_get(0)?)
}

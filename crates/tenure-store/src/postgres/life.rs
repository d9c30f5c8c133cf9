//! The life of the database between two restores.
//!
//! Every batch reads who the database is: its system identifier and timeline, which a restore into
//! another cluster or a fail-over change, and how far its log is flushed, which never goes back in
//! one life. When it is another one, a new incarnation begins, whose tokens lie above all that were
//! ever given out. When it has gone back without being another, nobody may go on: a person has to
//! say so.

use tenure_core::Incarnation;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use super::batch::Failure;
use super::migrate;
use super::{Postgres, corrupt};
use crate::store::{Result, StoreError};

/// Who the database is: three columns for [`Life::parse`].
pub(super) const COLUMNS: &str = "\
    (SELECT value::bigint FROM tenure.meta WHERE key = 'incarnation'), \
    (SELECT value FROM tenure.meta WHERE key = 'identity'), \
    (SELECT system_identifier FROM pg_control_system())::text || '/' \
        || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8), \
    pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '0/0')::bigint";

/// What a server has seen of the database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Life {
    pub(super) incarnation: Incarnation,
    identity: String,
    /// How far its log was flushed.
    flushed: i64,
}

impl Life {
    /// Reads the [`COLUMNS`] from a position on. Fails when a new life has to begin first.
    pub(super) fn parse(row: &Row, at: usize) -> std::result::Result<Self, Failure> {
        let incarnation: Option<i64> = row.get(at);
        let known: Option<&str> = row.get(at + 1);
        let identity: String = row.get(at + 2);
        if known != Some(&*identity) {
            return Err(Failure::Reborn);
        }
        let incarnation = u32::try_from(incarnation.unwrap_or(0));
        let incarnation = incarnation.map_err(|error| corrupt("the incarnation", &error))?;
        Ok(Self { incarnation: Incarnation(incarnation), identity, flushed: row.get(at + 3) })
    }

    /// Goes on to what was seen now.
    pub(super) fn follow(&mut self, now: Self) -> Result<Incarnation> {
        let same = self.identity == now.identity && self.incarnation == now.incarnation;
        let back = same && now.flushed < self.flushed || now.incarnation < self.incarnation;
        if back {
            return Err(StoreError::Unavailable(
                "the database has gone back in time: an old backup or snapshot was put in its \
                 place. Tokens that were given out since could come again, so nothing is granted. \
                 If this is what you want, run: tenure migrate --new-incarnation"
                    .to_owned(),
            ));
        }
        *self = now;
        Ok(self.incarnation)
    }
}

impl Postgres {
    /// Begins a new life, because the database is another one than the tables say.
    pub(super) async fn begin_life(&self, client: &Client) -> Result<()> {
        let incarnation = begin(client, false).await?.0;
        self.horizon.store(0, std::sync::atomic::Ordering::Relaxed);
        tracing::warn!(incarnation, "the database was restored or failed over: a new incarnation");
        Ok(())
    }
}

/// Begins a new life if the database is another one than the tables say, or in any case.
pub(super) async fn begin(client: &Client, in_any_case: bool) -> Result<Incarnation> {
    let sql = format!("SELECT {COLUMNS}");
    let work = async {
        client.batch_execute(&migrate::begin()).await?;
        let rows = client.query_typed(&sql, &[]).await?;
        let row = rows.first().ok_or_else(|| corrupt("the life", &"no row"))?;
        let (known, identity): (Option<&str>, String) = (row.get(1), row.get(2));
        let before: i64 = row.get::<_, Option<i64>>(0).unwrap_or(0);
        let other = known.is_some_and(|known| known != identity);
        let now = before + i64::from(other || in_any_case);
        let set = "INSERT INTO tenure.meta VALUES ('identity', $1), ('incarnation', $2::text) \
                   ON CONFLICT (key) DO UPDATE SET value = excluded.value";
        let number = now.to_string();
        client
            .execute_typed(set, &[(&identity as _, Type::TEXT), (&number as _, Type::TEXT)])
            .await?;
        client.batch_execute("COMMIT").await?;
        let now = u32::try_from(now).map_err(|error| corrupt("the incarnation", &error))?;
        Ok::<_, Failure>(Incarnation(now))
    };
    work.await.map_err(Failure::into_store)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(incarnation: u32, identity: &str, flushed: i64) -> Life {
        Life { incarnation: Incarnation(incarnation), identity: identity.to_owned(), flushed }
    }

    #[test]
    fn a_database_that_goes_back_is_refused_until_somebody_begins_a_new_life() {
        let mut seen = Life::default();
        seen.follow(life(0, "7/00000001", 100)).unwrap();
        seen.follow(life(0, "7/00000001", 200)).unwrap();
        let error = seen.follow(life(0, "7/00000001", 150)).unwrap_err().to_string();
        assert!(error.contains("tenure migrate --new-incarnation"), "{error}");
        // A fail-over to a standby that was behind begins one by itself.
        seen.follow(life(1, "7/00000002", 150)).unwrap();
        seen.follow(life(2, "7/00000002", 100)).unwrap();
        assert!(seen.follow(life(1, "7/00000002", 300)).is_err(), "an older life");
    }
}

//! The life of the database between two restores.
//!
//! Every batch reads who the database is: its system identifier, its timeline and the number of a
//! table, which a fail-over, a restore into another cluster or a load of a dump change; how far its
//! log is flushed and which batch of ours it has, which never go back in one life. When it is
//! another one, a new incarnation begins, whose tokens lie above all that were ever given out. When
//! it has gone back without being another, nobody may go on: a person has to say so.

use tenure_core::{Incarnation, Millis};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::batch::Failure;
use super::conn::Conn;
use super::migrate;
use super::prune::SERVERS_MS;
use super::{Postgres, corrupt};
use crate::store::{Result, StoreError};

/// Who the database is: three columns for [`Life::parse`].
pub(super) const COLUMNS: &str = "\
    (SELECT value::bigint FROM tenure.meta WHERE key = 'incarnation'), \
    (SELECT value FROM tenure.meta WHERE key = 'identity'), \
    (SELECT system_identifier FROM pg_control_system())::text || '/' \
        || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) || '/' \
        || 'tenure.meta'::regclass::oid::text, \
    pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '0/0')::bigint";

/// What a server has seen of the database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Life {
    pub(super) incarnation: Incarnation,
    identity: String,
    /// How far its log was flushed.
    flushed: i64,
}

/// The last batch of a lane that is surely committed, when that was, and in which life.
#[derive(Debug, Default)]
pub(super) struct Mark {
    batch: i64,
    noted: Millis,
    incarnation: Incarnation,
}

impl Mark {
    /// Notes that a batch is committed.
    pub(super) fn note(&mut self, batch: i64, now: Millis) {
        (self.batch, self.noted) = (self.batch.max(batch), now);
    }

    /// Whether the database, in the same life, does not know of it.
    fn is_lost(&self, batch: Option<i64>, now: Millis) -> bool {
        // A row that nobody writes is dropped after a day.
        let fresh = now.since(self.noted) < SERVERS_MS / 2;
        self.batch > 0 && batch.map_or(fresh, |batch| batch < self.batch)
    }
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
        let (incarnation, flushed) = (Incarnation(incarnation), row.get(at + 3));
        Ok(Self { incarnation, identity, flushed })
    }

    /// Goes on to what was seen now: of the database, and of the last batch of a lane in it.
    pub(super) fn follow(
        &mut self,
        seen: Self,
        mark: &mut Mark,
        batch: Option<i64>,
        now: Millis,
    ) -> Result<Incarnation> {
        let same = self.identity == seen.identity && self.incarnation == seen.incarnation;
        let known = mark.incarnation == seen.incarnation;
        let lost = known && mark.is_lost(batch, now);
        let back = same && seen.flushed < self.flushed || lost;
        if back || seen.incarnation < self.incarnation {
            return Err(StoreError::Unavailable(
                "the database has gone back in time: an old backup or snapshot was put in its \
                 place. Tokens that were given out since could come again, so nothing is granted. \
                 If this is what you want, run: tenure migrate --new-incarnation"
                    .to_owned(),
            ));
        }
        if !known {
            *mark = Mark { incarnation: seen.incarnation, ..Mark::default() };
        }
        *self = seen;
        Ok(self.incarnation)
    }
}

impl Postgres {
    /// Begins a new life, because the database is another one than the tables say.
    pub(super) async fn begin_life(&self, client: &Conn) -> Result<()> {
        let incarnation = begin(client, false).await?.0;
        self.horizon.store(0, std::sync::atomic::Ordering::Relaxed);
        tracing::warn!(incarnation, "the database was restored or failed over: a new incarnation");
        Ok(())
    }
}

/// Who got a lock in the time that was forgotten must not go on beside who has it in the old rows:
/// everybody begins anew.
const END_SESSIONS: &str = "\
    UPDATE tenure.sessions SET over = 'lapsed', \
        over_at = (extract(epoch FROM clock_timestamp()) * 1000)::bigint, \
        body = (body::jsonb || '{\"over\": \"lapsed\"}')::text \
    WHERE over IS NULL";

/// Begins a new life if the database is another one than the tables say, or in any case.
pub(super) async fn begin(client: &Conn, in_any_case: bool) -> Result<Incarnation> {
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
        if now > before {
            client.batch_execute(END_SESSIONS).await?;
        }
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
        let (incarnation, identity) = (Incarnation(incarnation), identity.to_owned());
        Life { incarnation, identity, flushed }
    }

    #[test]
    fn a_database_that_goes_back_is_refused_until_somebody_begins_a_new_life() {
        let (mut seen, mut mark) = (Life::default(), Mark::default());
        let now = Millis(1_000);
        seen.follow(life(0, "7/00000001", 100), &mut mark, None, now).unwrap();
        seen.follow(life(0, "7/00000001", 200), &mut mark, None, now).unwrap();
        let error =
            seen.follow(life(0, "7/00000001", 150), &mut mark, None, now).unwrap_err().to_string();
        assert!(error.contains("tenure migrate --new-incarnation"), "{error}");
        // A fail-over to a standby that was behind begins one by itself.
        seen.follow(life(1, "7/00000002", 150), &mut mark, None, now).unwrap();
        seen.follow(life(2, "7/00000002", 100), &mut mark, None, now).unwrap();
        assert!(
            seen.follow(life(1, "7/00000002", 300), &mut mark, None, now).is_err(),
            "an older life"
        );
    }

    #[test]
    fn a_batch_of_ours_that_is_missing_is_noticed_whatever_others_have_written() {
        let (mut seen, mut mark) = (Life::default(), Mark::default());
        let (now, tomorrow) = (Millis(1_000), Millis(1_000 + SERVERS_MS));
        seen.follow(life(0, "7", 100), &mut mark, None, now).unwrap();
        mark.note(4, now);
        seen.follow(life(0, "7", 200), &mut mark, Some(4), now).unwrap();
        assert!(seen.follow(life(0, "7", 300), &mut mark, Some(3), now).is_err());
        assert!(seen.follow(life(0, "7", 300), &mut mark, None, now).is_err());
        seen.follow(life(0, "7", 300), &mut mark, None, tomorrow).unwrap();
        seen.follow(life(1, "7", 50), &mut mark, Some(3), now).unwrap();
    }
}

//! The life of the database between two restores.
//!
//! Every batch reads who the database is: its system identifier, its timeline and the number of a
//! table, which a fail-over, a restore into another cluster or a load of a dump change; and whether
//! the journal still has the entry that was last seen, which never goes in one life. When it is
//! another one, a new incarnation begins, whose tokens lie above all that were ever given out. When
//! it has gone back without being another, nobody may go on: a person has to say so.

use tenure_core::Incarnation;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::conn::Conn;
use super::failure::Failure;
use super::journal::Position;
use super::look::WRITER;
use super::{corrupt, migrate};
use crate::store::{Result, StoreError};

/// Who the database is: three columns for [`Life::parse`]. What cannot change as long as a
/// connection lasts need not be asked again.
pub(super) fn columns(host: Option<&str>) -> String {
    let ask = "(SELECT system_identifier FROM pg_control_system())::text || '/' \
               || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)";
    let host = host.map_or_else(|| ask.to_owned(), |host| format!("'{host}'"));
    format!(
        "(SELECT value::bigint FROM tenure.meta WHERE key = 'incarnation'), \
         (SELECT value FROM tenure.meta WHERE key = 'identity'), \
         {host} || '/' || 'tenure.meta'::regclass::oid::text"
    )
}

/// What a server has seen of the database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Life {
    pub(super) incarnation: Incarnation,
    identity: String,
    /// Where the journal was.
    pub(super) mark: Position,
}

/// What the journal says of the last entry that was seen of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trace {
    /// The number of its last entry.
    pub(super) head: i64,
    /// How the entry is to be known that was last seen, if it is still there.
    pub(super) nonce: Option<i64>,
}

impl Life {
    /// Reads the [`columns`] from a position on. Fails when a new life has to begin first.
    pub(super) fn parse(row: &Row, at: usize) -> std::result::Result<Self, Failure> {
        let incarnation: Option<i64> = row.get(at);
        let known: Option<&str> = row.get(at + 1);
        let identity: String = row.get(at + 2);
        if known != Some(&*identity) {
            return Err(Failure::Reborn);
        }
        let incarnation = u32::try_from(incarnation.unwrap_or(0));
        let incarnation = incarnation.map_err(|error| corrupt("the incarnation", &error))?;
        Ok(Self { incarnation: Incarnation(incarnation), identity, mark: Position::default() })
    }

    /// The database server, without the tables on it.
    pub(super) fn host(&self) -> &str {
        self.identity.rsplit_once('/').map_or("", |(host, _)| host)
    }

    /// Goes on to what was seen now of the database and of its journal.
    pub(super) fn follow(&mut self, seen: Self, trace: Trace) -> Result<Incarnation> {
        let same = self.identity == seen.identity && self.incarnation == seen.incarnation;
        let other = trace.nonce.is_some_and(|nonce| nonce != self.mark.nonce);
        let lost = trace.head < self.mark.id || other;
        let back = same && lost;
        if back || seen.incarnation < self.incarnation {
            return Err(StoreError::Unavailable(
                "the database has gone back in time: an old backup or snapshot was put in its \
                 place. Tokens that were given out since could come again, so nothing is granted. \
                 If this is what you want, run: tenure migrate --new-incarnation"
                    .to_owned(),
            ));
        }
        let mark = if same { self.mark } else { Position::default() };
        *self = Self { mark, ..seen };
        Ok(self.incarnation)
    }
}

/// Begins a new life if the database is another one than the tables say, or in any case.
pub(super) async fn begin(client: &Conn, in_any_case: bool) -> Result<Incarnation> {
    let sql = format!("SELECT {}", columns(None));
    let work = async {
        client.batch_execute(&migrate::begin()).await?;
        client.batch_execute(&format!("SELECT pg_advisory_xact_lock({WRITER})")).await?;
        let rows = client.query_typed(&sql, &[]).await?;
        let row = rows.first().ok_or_else(|| corrupt("the life", &"no row"))?;
        let (known, identity): (Option<&str>, String) = (row.get(1), row.get(2));
        let before: i64 = row.get::<_, Option<i64>>(0).unwrap_or(0);
        let other = known.is_some_and(|known| known != identity);
        let now = before + i64::from(other || in_any_case);
        // Who got a lock in the time that was forgotten must not go on beside who has it in the old
        // rows: everybody begins anew.
        let set = "INSERT INTO tenure.meta VALUES ('identity', $1), ('incarnation', $2::text), \
                       ('born', (SELECT max(id) FROM tenure.journal)::text) \
                   ON CONFLICT (key) DO UPDATE SET value = excluded.value \
                   WHERE meta.key <> 'born' OR $3";
        let number = now.to_string();
        let params = [
            (&identity as _, Type::TEXT),
            (&number as _, Type::TEXT),
            (&(now > before) as _, Type::BOOL),
        ];
        client.execute_typed(set, &params).await?;
        client.batch_execute("COMMIT").await?;
        let now = u32::try_from(now).map_err(|error| corrupt("the incarnation", &error))?;
        Ok::<_, Failure>(Incarnation(now))
    };
    work.await.map_err(Failure::into_store)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(incarnation: u32, identity: &str) -> Life {
        let (incarnation, identity) = (Incarnation(incarnation), identity.to_owned());
        Life { incarnation, identity, mark: Position::default() }
    }

    fn at(head: i64, nonce: i64) -> Trace {
        Trace { head, nonce: Some(nonce) }
    }

    #[test]
    fn a_database_that_goes_back_is_refused_until_somebody_begins_a_new_life() {
        let mut seen = Life::default();
        seen.follow(life(0, "7/00000001"), at(0, 0)).unwrap();
        seen.mark = Position { id: 4, nonce: 44, ..Position::default() };
        let error = seen.follow(life(0, "7/00000001"), at(3, 33)).unwrap_err().to_string();
        assert!(error.contains("tenure migrate --new-incarnation"), "{error}");
        // A fail-over to a standby that was behind begins one by itself.
        seen.follow(life(1, "7/00000002"), at(3, 33)).unwrap();
        assert_eq!(seen.mark, Position::default());
        seen.follow(life(2, "7/00000002"), at(3, 33)).unwrap();
        assert!(seen.follow(life(1, "7/00000002"), at(9, 0)).is_err(), "an older life");
    }

    #[test]
    fn an_entry_that_is_missing_is_noticed_whatever_others_have_written() {
        let mut seen = Life::default();
        seen.follow(life(0, "7"), at(0, 0)).unwrap();
        seen.mark = Position { id: 4, nonce: 44, ..Position::default() };
        seen.follow(life(0, "7"), at(4, 44)).unwrap();
        // It was dropped, because it is old.
        seen.follow(life(0, "7"), Trace { head: 9, nonce: None }).unwrap();
        assert!(seen.follow(life(0, "7"), Trace { head: 3, nonce: None }).is_err());
        assert!(seen.follow(life(0, "7"), at(9, 45)).is_err());
    }
}

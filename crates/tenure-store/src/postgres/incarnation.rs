//! Detection of restores and fail-overs.
//!
//! Every transaction reads the database's identity: its system identifier, its timeline and the oid
//! of a table. A fail-over, a restore into another cluster or the load of a dump changes it. The
//! transaction also checks that the journal still has the entry that this server saw last, which
//! never disappears within an incarnation. If the identity has changed, a new incarnation starts,
//! whose tokens are greater than all earlier ones. If the journal went back under the same
//! identity, the store refuses to continue until an operator starts a new incarnation. The last
//! identity is kept in a file, so that a server which restarts does not continue on an old primary.

use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tenure_core::Incarnation;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::catch_up::WRITER_LOCK;
use super::client::PgClient;
use super::failure::Failure;
use super::journal::Position;
use super::{Shared, corrupt, migrate};
use crate::private_file;
use crate::store::{Result, StoreError};

/// Returns the three columns for [`Identity::parse`]. `server_id` is the part of the identity that
/// cannot change during a connection, if it is known.
pub(super) fn identity_columns(server_id: Option<&str>) -> String {
    let read_server_id = "(SELECT system_identifier FROM pg_control_system())::text || '/' \
                          || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)";
    let server_id = server_id.map_or_else(|| read_server_id.to_owned(), |id| format!("'{id}'"));
    format!(
        "(SELECT value::bigint FROM tenure.meta WHERE key = 'incarnation'), \
         (SELECT value FROM tenure.meta WHERE key = 'identity'), \
         {server_id} || '/' || 'tenure.meta'::regclass::oid::text"
    )
}

/// The identity of the database as this server last saw it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Identity {
    pub(super) incarnation: Incarnation,
    /// System identifier, timeline and table oid.
    fingerprint: String,
    /// The last journal position that this server has seen.
    #[serde(skip)]
    pub(super) last_seen: Position,
    /// Whether it was read from a file, and may be that of another database.
    #[serde(skip)]
    is_from_file: bool,
}

/// The file that keeps the last identity, if there is one.
#[derive(Debug)]
pub(super) struct IdentityFile(pub(super) Option<PathBuf>);

impl IdentityFile {
    /// Reads the identity. An unreadable one counts as missing.
    pub(super) fn read(&self) -> Identity {
        let Some(path) = &self.0 else { return Identity::default() };
        let parse = |text: String| serde_json::from_str(&text).map_err(io::Error::from);
        match std::fs::read_to_string(path).and_then(parse) {
            Ok(identity) => Identity { is_from_file: true, ..identity },
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    let path = path.display();
                    tracing::warn!(%error, %path, "cannot read the identity of the database");
                }
                Identity::default()
            }
        }
    }

    /// Replaces the identity. Without the file, a server that restarts may use an old primary.
    pub(super) fn write(&self, identity: &Identity) {
        let Some(path) = &self.0 else { return };
        let text = serde_json::to_string(identity).expect("it serializes to JSON");
        let written = private_file::replace(path, &text).and_then(|file| file.sync_all());
        if let Err(error) = written {
            let path = path.display();
            tracing::warn!(%error, %path, "cannot write the identity of the database");
        }
    }
}

/// What the journal says about the entry that this server saw last.
#[derive(Clone, Copy, Debug)]
pub(super) struct JournalProbe {
    /// The id of the newest entry.
    pub(super) head: i64,
    /// The nonce of the entry that was seen last, unless that entry has been truncated.
    pub(super) nonce: Option<i64>,
}

impl Identity {
    /// Parses the [`identity_columns`] that start at column `at`. Fails if a new incarnation has to
    /// start first.
    pub(super) fn parse(row: &Row, at: usize) -> std::result::Result<Self, Failure> {
        let incarnation: Option<i64> = row.get(at);
        let stored: Option<&str> = row.get(at + 1);
        let fingerprint: String = row.get(at + 2);
        if stored != Some(&*fingerprint) {
            return Err(Failure::IdentityChanged);
        }
        let incarnation = u32::try_from(incarnation.unwrap_or(0));
        let incarnation = incarnation.map_err(|error| corrupt("the incarnation", &error))?;
        let (incarnation, last_seen) = (Incarnation(incarnation), Position::default());
        Ok(Self { incarnation, fingerprint, last_seen, is_from_file: false })
    }

    /// Returns the part of the fingerprint that identifies the database server and its timeline.
    pub(super) fn server_id(&self) -> &str {
        self.fingerprint.rsplit_once('/').map_or("", |(server_id, _)| server_id)
    }

    /// Returns the system identifier, the timeline and the table oid.
    fn parts(&self) -> Option<(&str, u32, &str)> {
        let (system, rest) = self.fingerprint.split_once('/')?;
        let (timeline, table) = rest.split_once('/')?;
        Some((system, u32::from_str_radix(timeline, 16).ok()?, table))
    }

    /// Returns both timelines if `current` is the same database on any timeline.
    fn timelines(&self, current: &Self) -> Option<(u32, u32)> {
        let ((system, seen, table), current) = (self.parts()?, current.parts()?);
        (system == current.0 && table == current.2).then_some((seen, current.1))
    }

    /// Returns `true` if `current` is the same database in the same incarnation.
    fn is_same(&self, current: &Self) -> bool {
        self.fingerprint == current.fingerprint && self.incarnation == current.incarnation
    }

    /// Fails if `current` is another timeline of the same database without a higher incarnation:
    /// an old primary that was started again after its standby was promoted, or one that was
    /// restored to before that.
    fn check_timeline(&self, current: &Self) -> Result<()> {
        let Some((seen, found)) = self.timelines(current) else { return Ok(()) };
        if found == seen || current.incarnation > self.incarnation {
            return Ok(());
        }
        let (what, remedy) = if found < seen {
            ("an old primary", "Stop the old primary, or remove its address. If the newer one is")
        } else {
            ("from before a fail-over", "If the state that this server has seen is")
        };
        Err(StoreError::unavailable(format!(
            "the database is {what}: it is on timeline {found}, and this server has used timeline \
             {seen}. Both could grant the same tokens, so nothing is granted. {remedy} lost for \
             good, run `tenure migrate --new-incarnation` until the incarnation is above {}",
            self.incarnation.0
        )))
    }

    /// Advances to the identity that was just read. Fails if the database went back in time.
    pub(super) fn advance(&mut self, current: Self, journal: JournalProbe) -> Result<Incarnation> {
        if self.is_from_file && self.timelines(&current).is_none() {
            *self = Self::default();
        }
        let is_same = self.is_same(&current);
        if !is_same {
            self.check_timeline(&current)?;
        }
        let is_other_entry = journal.nonce.is_some_and(|nonce| nonce != self.last_seen.nonce);
        // The file does not have the last entry.
        let lost_entries =
            !self.is_from_file && (journal.head < self.last_seen.id || is_other_entry);
        if is_same && lost_entries || current.incarnation < self.incarnation {
            return Err(StoreError::unavailable(
                "the database went back in time: an old backup or snapshot was restored. Tokens \
                 granted since then could be issued again, so nothing is granted. To continue \
                 from the restored state, run: tenure migrate --new-incarnation"
                    .to_owned(),
            ));
        }
        let last_seen = if is_same { self.last_seen } else { Position::default() };
        *self = Self { last_seen, ..current };
        Ok(self.incarnation)
    }
}

impl Shared {
    /// Advances to the identity that was just read, and keeps it in the file.
    pub(super) fn advance_identity(
        &self,
        current: Identity,
        journal: JournalProbe,
    ) -> Result<Incarnation> {
        let mut identity = self.identity();
        let is_same = identity.is_same(&current);
        let incarnation = identity.advance(current, journal)?;
        if !is_same {
            self.identity_file.write(&identity);
        }
        Ok(incarnation)
    }
}

/// Starts a new incarnation, above `seen`, if the identity of the database has changed or `force`
/// is set. Returns the current incarnation.
pub(super) async fn ensure_current(
    client: &PgClient,
    seen: Incarnation,
    force: bool,
) -> Result<Incarnation> {
    let sql = format!("SELECT {}", identity_columns(None));
    let work = async {
        client.batch_execute(&migrate::begin_exclusive()).await?;
        client.batch_execute(&format!("SELECT pg_advisory_xact_lock({WRITER_LOCK})")).await?;
        let rows = client.query_typed(&sql, &[]).await?;
        let row = rows.first().ok_or_else(|| corrupt("the incarnation", &"no row"))?;
        let (stored, fingerprint): (Option<&str>, String) = (row.get(1), row.get(2));
        let before: i64 = row.get::<_, Option<i64>>(0).unwrap_or(0);
        let has_changed = stored.is_some_and(|stored| stored != fingerprint);
        let now = if has_changed || force { before.max(seen.0.into()) + 1 } else { before };
        // A holder whose grant was lost in the restore must not run beside the holder in the old
        // rows, so all sessions up to the entry `born` end.
        let upsert = "INSERT INTO tenure.meta VALUES ('identity', $1), ('incarnation', $2::text), \
                       ('born', (SELECT max(id) FROM tenure.journal)::text) \
                   ON CONFLICT (key) DO UPDATE SET value = excluded.value \
                   WHERE meta.key <> 'born' OR $3";
        let number = now.to_string();
        let now = u32::try_from(now).map(Incarnation);
        let now = now.map_err(|error| corrupt("the incarnation", &error))?;
        let before = u32::try_from(before).map(Incarnation);
        let before = before.map_err(|error| corrupt("the incarnation", &error))?;
        let ends_sessions = now.ends_sessions_of(before);
        let params = [
            (&fingerprint as _, Type::TEXT),
            (&number as _, Type::TEXT),
            (&ends_sessions as _, Type::BOOL),
        ];
        client.execute_typed(upsert, &params).await?;
        client.batch_execute("COMMIT").await?;
        Ok::<_, Failure>(now)
    };
    work.await.map_err(Failure::into_store)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(incarnation: u32, fingerprint: &str) -> Identity {
        let (incarnation, fingerprint) = (Incarnation(incarnation), fingerprint.to_owned());
        Identity { incarnation, fingerprint, ..Identity::default() }
    }

    fn probe(head: i64, nonce: i64) -> JournalProbe {
        JournalProbe { head, nonce: Some(nonce) }
    }

    #[test]
    fn database_that_goes_back_is_refused_until_a_new_incarnation_starts() {
        let mut seen = Identity::default();
        seen.advance(identity(0, "7/00000001"), probe(0, 0)).unwrap();
        seen.last_seen = Position { id: 4, nonce: 44, ..Position::default() };
        let error = seen.advance(identity(0, "7/00000001"), probe(3, 33)).unwrap_err().to_string();
        assert!(error.contains("tenure migrate --new-incarnation"), "{error}");
        // A fail-over to a lagging standby starts a new incarnation by itself.
        seen.advance(identity(1, "7/00000002"), probe(3, 33)).unwrap();
        assert_eq!(seen.last_seen, Position::default());
        seen.advance(identity(2, "7/00000002"), probe(3, 33)).unwrap();
        assert!(
            seen.advance(identity(1, "7/00000002"), probe(9, 0)).is_err(),
            "an older incarnation"
        );
    }

    #[test]
    fn old_primary_is_refused_unless_its_incarnation_is_newer() {
        let mut seen = Identity::default();
        seen.advance(identity(3, "7/0000000A/16"), probe(0, 0)).unwrap();
        for incarnation in [2, 3] {
            let old = identity(incarnation, "7/00000009/16");
            let error = seen.advance(old, probe(9, 0)).unwrap_err().to_string();
            assert!(error.contains("on timeline 9"), "{error}");
            assert!(error.contains("until the incarnation is above 3"), "{error}");
        }
        seen.advance(identity(4, "7/00000009/16"), probe(9, 0)).unwrap();
    }

    #[test]
    fn later_timeline_needs_a_higher_incarnation() {
        let mut seen = Identity::default();
        seen.advance(identity(1, "7/00000002/16"), probe(0, 0)).unwrap();
        // Restored to before the fail-over that started incarnation 1, and promoted.
        let again = identity(1, "7/00000003/16");
        let error = seen.advance(again, probe(9, 0)).unwrap_err().to_string();
        assert!(error.contains("from before a fail-over"), "{error}");
        seen.advance(identity(2, "7/00000003/16"), probe(9, 0)).unwrap();
    }

    #[test]
    fn identity_in_a_file_applies_to_the_same_database_only() {
        let dir = tempfile::tempdir().unwrap();
        let file = IdentityFile(Some(dir.path().join("identity")));
        assert_eq!(file.read(), Identity::default());
        file.write(&identity(3, "7/0000000A/16"));
        assert!(file.read().advance(identity(2, "7/00000009/16"), probe(0, 0)).is_err());
        assert!(file.read().advance(identity(2, "7/0000000A/16"), probe(0, 0)).is_err());
        file.read().advance(identity(3, "7/0000000A/16"), probe(9, 5)).unwrap();
        for other in ["8/00000001/16", "7/00000001/17"] {
            file.read().advance(identity(0, other), probe(0, 0)).unwrap();
        }
    }

    #[test]
    fn missing_entry_is_detected_whatever_other_servers_have_written() {
        let mut seen = Identity::default();
        seen.advance(identity(0, "7"), probe(0, 0)).unwrap();
        seen.last_seen = Position { id: 4, nonce: 44, ..Position::default() };
        seen.advance(identity(0, "7"), probe(4, 44)).unwrap();
        // The entry was truncated because of its age.
        seen.advance(identity(0, "7"), JournalProbe { head: 9, nonce: None }).unwrap();
        assert!(seen.advance(identity(0, "7"), JournalProbe { head: 3, nonce: None }).is_err());
        assert!(seen.advance(identity(0, "7"), probe(9, 45)).is_err());
    }
}

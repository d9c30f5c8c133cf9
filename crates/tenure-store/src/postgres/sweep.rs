//! What has lapsed, run out or come due, on any server's behalf.

use tenure_core::{Command, LockAction, Millis, Outcome, SessionId};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::conn::Param;
use super::lane::Lane;
use super::rows::parse_key;
use super::{Postgres, bigint, corrupt, millis};
use crate::ledger::STALL_MS;
use crate::store::{Result, StoreError, Swept};

/// Most rows that one sweep looks at; the rest follow in the next.
const ROWS_MAX: i64 = 1_000;
/// Most such pages of what ended sessions left.
const ROUNDS_MAX: usize = 8;

impl Postgres {
    pub(super) async fn sweep_once(&self) -> Result<Swept> {
        let now = self.look().await?;
        let mut swept = Swept::default();
        let lapsed = "SELECT id FROM tenure.sessions WHERE over IS NULL AND expires_at <= $1 \
                      ORDER BY expires_at, id LIMIT $2";
        let params = [(&bigint(now) as _, Type::INT8), (&ROWS_MAX as _, Type::INT8)];
        let lapsed = self.reader.rows(lapsed, &params).await?;
        let lapse = |row: &Row| Ok(Command::Lapse { session: session(row)? });
        let lapsed = lapsed.iter().map(lapse).collect::<Result<Vec<_>>>()?;
        let (ended, tenures) = self.send(lapsed).await?;
        swept.tenures += tenures;
        swept.sessions = ended.iter().filter(|o| **o == Outcome::Closed).count();
        for _ in 0..ROUNDS_MAX {
            let ended = self.settle_over().await?;
            swept.tenures += ended;
            if ended < usize::try_from(ROWS_MAX).unwrap_or(usize::MAX) {
                break;
            }
        }
        self.forget_over(now).await?;
        let wake = "SELECT key FROM tenure.resources WHERE wake_at <= $1 ORDER BY wake_at LIMIT $2";
        let due = self.reader.rows(wake, &params).await?;
        swept.due = due.len();
        swept.tenures += self.settle(&due).await?;
        Ok(swept)
    }

    /// Notes that somebody looks at a store that is new.
    pub(super) async fn look_first(&self) -> Result<()> {
        let sql = "INSERT INTO tenure.meta SELECT 'looked', \
                   coalesce($1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)::text \
                   ON CONFLICT (key) DO NOTHING";
        self.lanes[0].link.rows(sql, &[(&self.other_time() as _, Type::INT8)]).await.map(drop)
    }

    /// Notes that somebody looks; when nobody did for a while, everybody gets full time.
    async fn look(&self) -> Result<Millis> {
        let sql = "\
            WITH fast AS (SELECT set_config('synchronous_commit', 'off', true)), \
                 before AS (SELECT value::bigint AS looked FROM tenure.meta, fast \
                            WHERE key = 'looked' FOR UPDATE OF meta), \
                 now AS (SELECT coalesce($2, (extract(epoch FROM clock_timestamp()) \
                                              * 1000)::bigint) AS now FROM before), \
                 grace AS (UPDATE tenure.sessions s \
                           SET expires_at = greatest(s.expires_at, now.now + s.ttl_ms) \
                           FROM before, now \
                           WHERE s.over IS NULL AND now.now - before.looked > $1), \
                 note AS (UPDATE tenure.meta m SET value = now.now::text FROM now, before \
                          WHERE m.key = 'looked' AND now.now > before.looked) \
            SELECT now FROM now";
        let stall = i64::try_from(STALL_MS).unwrap_or(i64::MAX);
        let params = [(&stall as _, Type::INT8), (&self.other_time() as _, Type::INT8)];
        // As a writer: somebody whose transaction waits for this one is not kept waiting by a read.
        let _turn = self.lanes[0].turn.lock().await;
        let rows = self.lanes[0].link.rows(sql, &params).await?;
        let row =
            rows.first().ok_or_else(|| StoreError::Corrupt("nobody ever looked".to_owned()))?;
        Ok(millis(row.get(0)))
    }

    /// Settles what ended sessions left.
    async fn settle_over(&self) -> Result<usize> {
        let sql = "SELECT l.key FROM tenure.sessions s JOIN tenure.locks l ON l.session = s.id \
                   WHERE s.over IS NOT NULL \
                   UNION SELECT w.key FROM tenure.sessions s \
                   JOIN tenure.waiters w ON w.session = s.id WHERE s.over IS NOT NULL \
                   ORDER BY key LIMIT $1";
        let left = self.reader.rows(sql, &[(&ROWS_MAX as _, Type::INT8)]).await?;
        self.settle(&left).await
    }

    /// Forgets sessions that ended long ago and left nothing.
    async fn forget_over(&self, now: Millis) -> Result<()> {
        let sql = "SELECT s.id FROM tenure.sessions s \
                   WHERE s.over IS NOT NULL AND coalesce(s.over_at, 0) <= $1 \
                   AND NOT EXISTS (SELECT FROM tenure.locks l WHERE l.session = s.id) \
                   AND NOT EXISTS (SELECT FROM tenure.waiters w WHERE w.session = s.id) LIMIT $2";
        let old = bigint(Millis(now.0.saturating_sub(self.forget_ms)));
        let params = [(&old as _, Type::INT8), (&ROWS_MAX as _, Type::INT8)];
        let over = self.reader.rows(sql, &params).await?;
        let forget = |row: &Row| Ok(Command::Forget { session: session(row)? });
        let forget = over.iter().map(forget).collect::<Result<Vec<_>>>()?;
        self.send(forget).await.map(drop)
    }

    /// Settles what sessions that have just ended left, so that others need not wait for the sweep.
    /// Says how many tenures that were.
    pub(super) async fn settle_ended(&self, lane: &Lane, sessions: Vec<String>) -> usize {
        if sessions.is_empty() {
            return 0;
        }
        let settle = async {
            let keys = self.reader.rows(LEFT, &left(&sessions)).await?;
            if keys.is_empty() {
                return Ok(0);
            }
            let commands = keys.iter().map(settle).collect::<Result<Vec<_>>>()?;
            let done = self.try_hard(lane, &commands).await?;
            self.publish(done.batch);
            Ok::<_, StoreError>(done.outcomes.iter().flatten().map(ended).sum())
        };
        settle.await.unwrap_or_else(|error| {
            tracing::debug!(%error, "what ended sessions left is for the sweep");
            0
        })
    }

    /// Looks at resources: what is dead there is settled, and who may go on does.
    async fn settle(&self, rows: &[Row]) -> Result<usize> {
        let commands = rows.iter().map(settle).collect::<Result<Vec<_>>>()?;
        let (outcomes, more) = self.send(commands).await?;
        Ok(outcomes.iter().map(ended).sum::<usize>() + more)
    }

    /// Looks again at every resource with jobs: what kinds allow has changed.
    pub(super) async fn look_again(&self) -> Result<()> {
        let mut after = String::new();
        loop {
            let sql = "SELECT DISTINCT key FROM tenure.jobs WHERE ended IS NULL AND key > $1 \
                       ORDER BY key LIMIT $2";
            let params = [(&after as _, Type::TEXT), (&ROWS_MAX as _, Type::INT8)];
            let rows = self.reader.rows(sql, &params).await?;
            let Some(last) = rows.last() else { return Ok(()) };
            after = last.get(0);
            self.settle(&rows).await?;
        }
    }

    /// Steps commands, and says how many tenures ended with the sessions that they ended.
    async fn send(&self, commands: Vec<Command>) -> Result<(Vec<Outcome>, usize)> {
        if commands.is_empty() { Ok((Vec::new(), 0)) } else { self.transact(&commands).await }
    }
}

/// The resources that sessions hold or want something of.
const LEFT: &str = "\
    SELECT key FROM tenure.locks WHERE session = ANY($1) \
    UNION SELECT key FROM tenure.waiters WHERE session = ANY($1) ORDER BY key LIMIT $2";

fn left(sessions: &Vec<String>) -> [Param<'_>; 2] {
    [(sessions as _, Type::TEXT_ARRAY), (&ROWS_MAX as _, Type::INT8)]
}

fn settle(row: &Row) -> Result<Command> {
    Ok(Command::Lock { key: parse_key(row.get(0))?, action: LockAction::Settle })
}

/// How many tenures settling has ended.
fn ended(outcome: &Outcome) -> usize {
    if let Outcome::Settled { ended } = outcome { *ended } else { 0 }
}

fn session(row: &Row) -> Result<SessionId> {
    row.get::<_, &str>(0).parse().map_err(|error| corrupt("a session", &error))
}

//! What claims look for: ready resources that nobody else is at.
//!
//! Only ready resources are in the index, so idle ones, blocked lanes and jobs that are over cost
//! nothing. Tenants with something ready are found one after the other by the index, so the many
//! of one tenant are not read before the few of another.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::{Claim, Command, Kinds, Text};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::Postgres;
use super::conn::Conn;
use super::load::{COLUMNS, Loaded, Loading};
use super::rows::text;

/// Most tenants of a kind that one batch looks at; the next one goes on after them.
const TENANTS_MAX: usize = 64;

/// What the claims of a batch found.
#[derive(Default)]
pub(super) struct Found {
    /// Kinds of which there is more than was seen: whoever got nothing should ask again at once.
    pub(super) again: BTreeSet<Text>,
}

const WANT: &str = "\
    want AS MATERIALIZED ( \
        SELECT kind, after, sum(max)::bigint AS max, tenant = '*' AS every, \
               CASE WHEN tenant = '*' THEN '' ELSE tenant END AS low, \
               CASE WHEN tenant = '*' THEN chr(1114111) ELSE tenant END AS high \
        FROM (SELECT w.kind, w.after, w.max, coalesce(s.tenant, w.opened) AS tenant \
              FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::text[]) \
                       AS w (session, kind, max, after, opened) \
              LEFT JOIN tenure.sessions s ON s.id = w.session) AS known \
        WHERE tenant IS NOT NULL GROUP BY kind, after, tenant)";

impl Postgres {
    /// Ready resources for claims, and those that have come due.
    pub(super) async fn ready(
        &self,
        client: &Conn,
        claims: &[&Claim],
        commands: &[Command],
        found: &mut Found,
    ) -> Loading<Vec<Row>> {
        if claims.is_empty() {
            return Ok(Vec::new());
        }
        let wanted = self.wanted(claims, commands);
        let params = wanted.params();
        let sql = format!(
            "WITH {WANT} SELECT r.* FROM want CROSS JOIN LATERAL ( \
                 WITH RECURSIVE tenants (tenant, n) AS ( \
                     (SELECT t.tenant, 1 FROM tenure.resources t \
                      WHERE t.kind = want.kind AND t.ready_since IS NOT NULL \
                      AND t.tenant >= want.low AND t.tenant <= want.high \
                      AND (NOT want.every OR t.tenant > want.after) ORDER BY t.tenant LIMIT 1) \
                     UNION ALL \
                     SELECT (SELECT t.tenant FROM tenure.resources t WHERE t.kind = want.kind \
                             AND t.ready_since IS NOT NULL AND t.tenant > tenants.tenant \
                             AND t.tenant <= want.high ORDER BY t.tenant LIMIT 1), n + 1 \
                     FROM tenants WHERE tenants.tenant IS NOT NULL AND n < {TENANTS_MAX}) \
                 SELECT x.* FROM tenants CROSS JOIN LATERAL ( \
                     SELECT {COLUMNS} FROM tenure.resources r \
                     WHERE r.kind = want.kind AND r.tenant = tenants.tenant \
                     AND r.ready_since IS NOT NULL \
                     ORDER BY r.priority DESC, r.ready_since, r.key \
                     LIMIT (SELECT 1 + 2 * want.max / greatest(2, count(*)) FROM tenants) \
                     FOR UPDATE SKIP LOCKED) x \
                 WHERE tenants.tenant IS NOT NULL) r"
        );
        let due = format!(
            "SELECT {COLUMNS} FROM tenure.resources r WHERE r.kind = ANY($1) AND r.wake_at <= \
                 coalesce($2, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) \
             ORDER BY r.wake_at LIMIT 64 FOR UPDATE SKIP LOCKED"
        );
        let time = self.other_time();
        let due_params = [(&wanted.kinds as _, Type::TEXT_ARRAY), (&time as _, Type::INT8)];
        let (rows, due) = tokio::join!(
            biased;
            client.query_typed(&sql, &params),
            client.query_typed(&due, &due_params)
        );
        let (mut rows, due) = (rows?, due?);
        self.turn_tenants(&wanted, &rows, found);
        if rows.is_empty() {
            let exists = format!(
                "WITH {WANT} SELECT DISTINCT want.kind FROM want WHERE EXISTS ( \
                     SELECT FROM tenure.resources r WHERE r.kind = want.kind \
                     AND r.ready_since IS NOT NULL \
                     AND r.tenant >= want.low AND r.tenant <= want.high)"
            );
            let kinds = client.query_typed(&exists, &params).await?;
            found.again.extend(kinds.iter().map(|row| Text::from(row.get::<_, &str>(0))));
        }
        rows.extend(due);
        Ok(rows)
    }

    fn wanted(&self, claims: &[&Claim], commands: &[Command]) -> Wanted {
        // A session may be opened by the very batch that claims for it.
        let opened = |claim: &Claim| {
            commands.iter().find_map(|command| match command {
                Command::Open { session, tenant, .. } if *session == claim.session => {
                    Some(tenant.to_string())
                }
                _ => None,
            })
        };
        let cursors = self.cursors.lock().expect("nothing panics while it is locked");
        let mut wanted = Wanted::default();
        for claim in claims {
            for kind in &claim.kinds {
                wanted.opened.push(opened(claim));
                wanted.sessions.push(text(&claim.session));
                wanted.kinds.push(kind.to_string());
                wanted.max.push(i64::try_from(claim.max).unwrap_or(i64::MAX));
                wanted.after.push(cursors.get(kind).map(Text::to_string).unwrap_or_default());
            }
        }
        wanted
    }

    /// Remembers where to go on when there are more tenants than one batch looks at.
    fn turn_tenants(&self, wanted: &Wanted, rows: &[Row], found: &mut Found) {
        let mut tenants: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for row in rows {
            tenants.entry(row.get(6)).or_default().insert(row.get(7));
        }
        let mut cursors = self.cursors.lock().expect("nothing panics while it is locked");
        if cursors.is_empty() && tenants.values().all(|seen| seen.len() < TENANTS_MAX) {
            return;
        }
        let kinds: BTreeSet<&str> = wanted.kinds.iter().map(String::as_str).collect();
        for kind in kinds {
            let seen = tenants.get(kind);
            if let Some(last) = seen.filter(|s| s.len() >= TENANTS_MAX).and_then(BTreeSet::last) {
                cursors.insert(kind.into(), (*last).into());
            } else if cursors.remove(kind).is_some() {
                found.again.insert(kind.into());
            }
        }
    }

    /// Claims of capped kinds come one after the other, so that what they count stays true.
    pub(super) async fn lock_caps(
        &self,
        client: &Conn,
        claims: &[&Claim],
        kinds: &Kinds,
    ) -> Loading<Vec<String>> {
        let capped = |name: &&Text| kinds.get(name).is_some_and(|kind| kind.is_capped());
        let names = claims.iter().flat_map(|claim| &claim.kinds);
        let names: BTreeSet<String> = names.filter(capped).map(text).collect();
        let names: Vec<String> = names.into_iter().collect();
        if !names.is_empty() {
            let sql = "SELECT pg_advisory_xact_lock(hashtextextended('tenure kind ' || k, 0)) \
                       FROM (SELECT k FROM unnest($1::text[]) AS k ORDER BY k) AS kinds";
            client.query_typed(sql, &[(&names as _, Type::TEXT_ARRAY)]).await?;
        }
        Ok(names)
    }

    /// Counts what runs of capped kinds on resources that are not at hand.
    pub(super) async fn count_caps(
        &self,
        client: &Conn,
        kinds: &[String],
        loaded: &mut Loaded,
    ) -> Loading<()> {
        if kinds.is_empty() {
            return Ok(());
        }
        let sql = "SELECT kind, tenant, sum(running)::bigint FROM tenure.resources \
                   WHERE kind = ANY($1) AND running > 0 GROUP BY kind, tenant";
        for row in client.query_typed(sql, &[(&kinds as _, Type::TEXT_ARRAY)]).await? {
            let (kind, tenant): (&str, &str) = (row.get(0), row.get(1));
            let mine = loaded.stored.iter();
            let mine = mine.filter(|(key, _)| key.kind() == kind && key.tenant() == tenant);
            let here: usize = mine.map(|(_, stored)| stored.place.running).sum();
            let all = usize::try_from(row.get::<_, i64>(2)).unwrap_or(0);
            loaded.world.ready.elsewhere(kind, tenant, all.saturating_sub(here));
        }
        Ok(())
    }
}

/// The wishes of claims, as columns.
#[derive(Default)]
struct Wanted {
    sessions: Vec<String>,
    kinds: Vec<String>,
    max: Vec<i64>,
    after: Vec<String>,
    /// The tenants of sessions that the batch opens.
    opened: Vec<Option<String>>,
}

impl Wanted {
    fn params(&self) -> [super::conn::Param<'_>; 5] {
        [
            (&self.sessions as _, Type::TEXT_ARRAY),
            (&self.kinds as _, Type::TEXT_ARRAY),
            (&self.max as _, Type::INT8_ARRAY),
            (&self.after as _, Type::TEXT_ARRAY),
            (&self.opened as _, Type::TEXT_ARRAY),
        ]
    }
}

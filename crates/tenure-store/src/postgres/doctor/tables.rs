//! Checks of Tenure's own tables: schema version, privileges, vacuum.

use tokio_postgres::Row;

use super::{Finding, single_row};
use crate::postgres::connection::Connection;
use crate::postgres::migrate::SCHEMA_VERSION;
use crate::store::Result;

/// Time after which an idle transaction is reported.
const IDLE_TRANSACTION_MAX_S: i64 = 60;
/// Number of dead rows up to which a table is not reported as bloated.
const DEAD_ROWS_MIN: i64 = 10_000;

/// Selects whether `tenure.meta` is readable, and the privileges that a server lacks. Returns no
/// row without the tables. Append-only tables need no UPDATE, and `meta` needs no DELETE.
const MISSING_PRIVILEGES: &str = "\
    SELECT coalesce(has_schema_privilege(n.oid, 'USAGE') \
               AND has_table_privilege(m.oid, 'SELECT'), false), \
           concat_ws(', ', \
               CASE WHEN NOT has_schema_privilege(n.oid, 'USAGE') THEN 'USAGE on the schema' END, \
               CASE WHEN NOT has_function_privilege('pg_control_system()', 'EXECUTE') \
                    THEN 'EXECUTE on pg_control_system' END, \
               (SELECT string_agg(p || ' on ' || c.relname, ', ' ORDER BY c.relname, p) \
                FROM pg_class c, unnest('{SELECT,INSERT,UPDATE,DELETE}'::text[]) p \
                WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'p') \
                  AND NOT (p = 'UPDATE' \
                           AND c.relname IN ('journal', 'flushes', 'pages', 'logs', 'audit')) \
                  AND NOT (p = 'DELETE' AND c.relname = 'meta') \
                  AND NOT has_table_privilege(c.oid, p))) \
    FROM pg_namespace n JOIN pg_class m ON m.relnamespace = n.oid AND m.relname = 'meta' \
    WHERE n.nspname = 'tenure'";

const META: &str = "\
    SELECT coalesce((SELECT value::bigint FROM tenure.meta WHERE key = 'version'), 0), \
           coalesce((SELECT value FROM tenure.meta WHERE key = 'incarnation'), '0')";

const ROW_COUNTS: &str = "\
    SELECT relname::text, n_live_tup, n_dead_tup FROM pg_stat_user_tables \
    WHERE schemaname = 'tenure'";

const SIZE: &str = "\
    SELECT coalesce(sum(pg_total_relation_size(relid)) / 1024 / 1024, 0)::bigint, \
           current_setting('autovacuum') = 'on' \
    FROM pg_stat_user_tables WHERE schemaname = 'tenure'";

/// Selects the session that has been idle in a transaction for longest, and whether this role sees
/// all sessions.
const LONGEST_IDLE: &str = "\
    SELECT a.pid, extract(epoch FROM clock_timestamp() - a.state_change)::bigint, \
           pg_has_role('pg_read_all_stats', 'USAGE') \
    FROM (SELECT 1) one LEFT JOIN pg_stat_activity a \
         ON a.datname = current_database() AND a.state LIKE 'idle in transaction%' \
    ORDER BY a.state_change NULLS LAST LIMIT 1";

pub(super) async fn examine(connection: &Connection) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let missing = connection.query(MISSING_PRIVILEGES, &[]).await?;
    match missing.first() {
        None => findings.push(check_version(0, "")),
        Some(row) => {
            if row.get(0) {
                let meta = single_row(connection.query(META, &[]).await?)?;
                findings.push(check_version(meta.get(0), meta.get(1)));
            }
            findings.push(check_privileges(row.get(1)));
            let size = single_row(connection.query(SIZE, &[]).await?)?;
            let tables = query_row_counts(connection).await?;
            findings.push(check_vacuum(size.get(0), size.get(1), &tables));
        }
    }
    let longest = single_row(connection.query(LONGEST_IDLE, &[]).await?)?;
    findings.push(check_idle_transactions(longest.get(0), longest.get(1), longest.get(2)));
    Ok(findings)
}

fn check_version(version: i64, incarnation: &str) -> Finding {
    let name = "tables";
    let found = format!("version {version}, this program supports {SCHEMA_VERSION}");
    match version {
        0 => Finding::warn(
            name,
            "not created yet",
            "nothing is stored here yet",
            "run: tenure migrate",
        ),
        SCHEMA_VERSION => {
            Finding::ok(name, format!("version {version}, incarnation {incarnation}"))
        }
        older if older < SCHEMA_VERSION => Finding::warn(
            name,
            found,
            "the first server of this version migrates the tables, if its role is permitted to",
            "run: tenure migrate",
        ),
        _ => Finding::bad(
            name,
            found,
            "this version of the program refuses to write here",
            "use the newer program that migrated the tables",
        ),
    }
}

fn check_privileges(missing: &str) -> Finding {
    if missing.is_empty() {
        return Finding::ok("privileges", "sufficient for a server");
    }
    Finding::bad(
        "privileges",
        format!("missing: {missing}"),
        "a server with this role does not work",
        "let the owner run: tenure migrate --roles | psql; and make this role a member of \
         tenure_app",
    )
}

/// The name of a table and the numbers of its live and dead rows.
type RowCounts = (String, i64, i64);

async fn query_row_counts(connection: &Connection) -> Result<Vec<RowCounts>> {
    let counts = |row: &Row| (row.get(0), row.get(1), row.get(2));
    Ok(connection.query(ROW_COUNTS, &[]).await?.iter().map(counts).collect())
}

fn check_vacuum(megabytes: i64, autovacuum: bool, tables: &[RowCounts]) -> Finding {
    let (name, voids) = ("vacuum", "all queries get slower, and the tables grow");
    let is_bloated = |(_, live, dead): &&RowCounts| *dead > DEAD_ROWS_MIN && dead > live;
    if let Some((table, live, dead)) = tables.iter().filter(is_bloated).max_by_key(|row| row.2) {
        return Finding::warn(
            name,
            format!("tenure.{table} has {dead} dead rows and {live} live ones"),
            voids,
            "end long-running transactions, then run: VACUUM (ANALYZE) on the table",
        );
    }
    if !autovacuum {
        return Finding::warn(name, "autovacuum is off", voids, "switch autovacuum on");
    }
    Finding::ok(name, format!("keeps up, the tables have {megabytes} MB"))
}

fn check_idle_transactions(pid: Option<i32>, seconds: Option<i64>, sees_all: bool) -> Finding {
    let name = "idle transactions";
    match (pid, seconds) {
        (Some(pid), Some(seconds)) if seconds > IDLE_TRANSACTION_MAX_S => Finding::warn(
            name,
            format!("process {pid} has been idle in a transaction for {seconds} s"),
            "vacuum cannot remove newer dead rows, so queries get slower; its locks stay held",
            "end it with pg_terminate_backend, and set idle_in_transaction_session_timeout",
        ),
        (Some(pid), Some(seconds)) => {
            Finding::ok(name, format!("the longest is process {pid}, for {seconds} s"))
        }
        _ if sees_all => Finding::ok(name, "none"),
        _ => Finding::ok(name, "none of this role; seeing others needs pg_read_all_stats"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn newer_schema_is_bad_and_missing_schema_is_a_warning() {
        let versions = [0, SCHEMA_VERSION, SCHEMA_VERSION + 1];
        let verdicts = versions.map(|version| check_version(version, "0").verdict);
        assert_eq!(verdicts, [Verdict::Warn, Verdict::Ok, Verdict::Bad]);
    }

    #[test]
    fn transaction_that_is_idle_for_over_a_minute_is_a_warning() {
        assert_eq!(check_idle_transactions(Some(7), Some(60), true).verdict, Verdict::Ok);
        let finding = check_idle_transactions(Some(7), Some(61), true);
        assert_eq!(finding.verdict, Verdict::Warn);
        assert!(finding.found.contains("process 7"), "{finding:?}");
        assert_eq!(check_idle_transactions(None, None, false).verdict, Verdict::Ok);
    }

    #[test]
    fn many_dead_rows_are_reported_if_they_outnumber_live_ones() {
        let table = |live, dead| [("resources".to_owned(), live, dead)];
        let verdict = |rows: [RowCounts; 1]| check_vacuum(1, true, &rows).verdict;
        assert_eq!(verdict(table(0, 10_000)), Verdict::Ok);
        assert_eq!(verdict(table(10_001, 10_001)), Verdict::Ok);
        assert_eq!(verdict(table(10_000, 10_001)), Verdict::Warn);
        assert_eq!(check_vacuum(1, false, &[]).verdict, Verdict::Warn);
    }
}

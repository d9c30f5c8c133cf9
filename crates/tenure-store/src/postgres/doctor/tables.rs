//! What is about our own tables: their version, who may use them, and whether vacuum keeps up.

use tokio_postgres::Row;

use super::{Finding, only};
use crate::postgres::link::Link;
use crate::postgres::migrate::VERSION;
use crate::store::Result;

/// A transaction that did nothing for longer was forgotten by somebody.
const IDLE_MAX_S: i64 = 60;
/// So many dead rows are nothing to worry about.
const DEAD_MIN: i64 = 10_000;

/// What servers need, where they do not have it; no row without the tables. History and logs are
/// only appended to, and what the store knows of itself is never removed.
const MISSING: &str = "\
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
                           AND c.relname IN ('journal', 'flushes', 'pages', 'logs')) \
                  AND NOT (p = 'DELETE' AND c.relname = 'meta') \
                  AND NOT has_table_privilege(c.oid, p))) \
    FROM pg_namespace n JOIN pg_class m ON m.relnamespace = n.oid AND m.relname = 'meta' \
    WHERE n.nspname = 'tenure'";

const META: &str = "\
    SELECT coalesce((SELECT value::bigint FROM tenure.meta WHERE key = 'version'), 0), \
           coalesce((SELECT value FROM tenure.meta WHERE key = 'incarnation'), '0')";

const DEAD: &str = "\
    SELECT relname::text, n_live_tup, n_dead_tup FROM pg_stat_user_tables \
    WHERE schemaname = 'tenure'";

const SIZE: &str = "\
    SELECT coalesce(sum(pg_total_relation_size(relid)) / 1024 / 1024, 0)::bigint, \
           current_setting('autovacuum') = 'on' \
    FROM pg_stat_user_tables WHERE schemaname = 'tenure'";

/// The session that has done nothing in its transaction for longest, and whether we see them all.
const IDLE: &str = "\
    SELECT a.pid, extract(epoch FROM clock_timestamp() - a.state_change)::bigint, \
           pg_has_role('pg_read_all_stats', 'USAGE') \
    FROM (SELECT 1) one LEFT JOIN pg_stat_activity a \
         ON a.datname = current_database() AND a.state LIKE 'idle in transaction%' \
    ORDER BY a.state_change NULLS LAST LIMIT 1";

pub(super) async fn examine(link: &Link) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let missing = link.rows(MISSING, &[]).await?;
    match missing.first() {
        None => findings.push(version(0, "")),
        Some(row) => {
            if row.get(0) {
                let meta = only(link.rows(META, &[]).await?)?;
                findings.push(version(meta.get(0), meta.get(1)));
            }
            findings.push(privileges(row.get(1)));
            findings.push(vacuum(&only(link.rows(SIZE, &[]).await?)?, &dead(link).await?));
        }
    }
    let idlest = only(link.rows(IDLE, &[]).await?)?;
    findings.push(idle(idlest.get(0), idlest.get(1), idlest.get(2)));
    Ok(findings)
}

fn version(version: i64, incarnation: &str) -> Finding {
    let name = "tables";
    let found = format!("version {version}, this program knows {VERSION}");
    match version {
        0 => Finding::warn(
            name,
            "there are none yet",
            "nothing is kept here yet",
            "run: tenure migrate",
        ),
        VERSION => Finding::ok(name, format!("version {version}, incarnation {incarnation}")),
        older if older < VERSION => Finding::warn(
            name,
            found,
            "the first server of this version changes the tables, if its role may",
            "run: tenure migrate",
        ),
        _ => Finding::bad(
            name,
            found,
            "this version of the program must not write here, and refuses to",
            "use the newer program that has been here",
        ),
    }
}

fn privileges(missing: &str) -> Finding {
    if missing.is_empty() {
        return Finding::ok("privileges", "all that a server needs");
    }
    Finding::bad(
        "privileges",
        format!("missing: {missing}"),
        "a server with this role does not work",
        "let the owner run: tenure migrate --roles | psql; and make this role a member of \
         tenure_app",
    )
}

/// A table with its living and its dead rows.
type Rows = (String, i64, i64);

async fn dead(link: &Link) -> Result<Vec<Rows>> {
    let row = |row: &Row| (row.get(0), row.get(1), row.get(2));
    Ok(link.rows(DEAD, &[]).await?.iter().map(row).collect())
}

fn vacuum(size: &Row, tables: &[Rows]) -> Finding {
    judge_vacuum(size.get(0), size.get(1), tables)
}

fn judge_vacuum(megabytes: i64, autovacuum: bool, tables: &[Rows]) -> Finding {
    let (name, slower) = ("vacuum", "everything gets slower, and the tables grow");
    let bloated = |(_, living, dead): &&Rows| *dead > DEAD_MIN && dead > living;
    if let Some((table, living, dead)) = tables.iter().filter(bloated).max_by_key(|row| row.2) {
        return Finding::warn(
            name,
            format!("tenure.{table} has {dead} dead rows beside {living} living"),
            slower,
            "see which transactions are open for long, then run: VACUUM (ANALYZE) on the table",
        );
    }
    if !autovacuum {
        return Finding::warn(name, "autovacuum is off", slower, "switch autovacuum on");
    }
    Finding::ok(name, format!("keeps up, the tables have {megabytes} MB"))
}

fn idle(pid: Option<i32>, seconds: Option<i64>, sees_all: bool) -> Finding {
    let name = "idle transactions";
    match (pid, seconds) {
        (Some(pid), Some(seconds)) if seconds > IDLE_MAX_S => Finding::warn(
            name,
            format!("process {pid} has done nothing in its transaction for {seconds} s"),
            "vacuum cannot remove what died since: everything gets slower; what it has locked \
             stays locked",
            "end it with pg_terminate_backend, and set idle_in_transaction_session_timeout",
        ),
        (Some(pid), Some(seconds)) => {
            Finding::ok(name, format!("the longest is process {pid}, for {seconds} s"))
        }
        _ if sees_all => Finding::ok(name, "none"),
        _ => Finding::ok(name, "none of this role; others are seen with pg_read_all_stats"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn tables_of_a_newer_program_are_a_problem_and_older_ones_are_not() {
        let verdicts = [0, VERSION, VERSION + 1].map(|found| version(found, "0").verdict);
        assert_eq!(verdicts, [Verdict::Warn, Verdict::Ok, Verdict::Bad]);
    }

    #[test]
    fn a_minute_in_an_idle_transaction_is_too_long() {
        assert_eq!(idle(Some(7), Some(60), true).verdict, Verdict::Ok);
        let finding = idle(Some(7), Some(61), true);
        assert_eq!(finding.verdict, Verdict::Warn);
        assert!(finding.found.contains("process 7"), "{finding:?}");
        assert_eq!(idle(None, None, false).verdict, Verdict::Ok);
    }

    #[test]
    fn more_dead_rows_than_living_are_said_when_they_are_many() {
        let table = |living, dead| [("resources".to_owned(), living, dead)];
        let verdict = |rows: [Rows; 1]| judge_vacuum(1, true, &rows).verdict;
        assert_eq!(verdict(table(0, 10_000)), Verdict::Ok);
        assert_eq!(verdict(table(10_001, 10_001)), Verdict::Ok);
        assert_eq!(verdict(table(10_000, 10_001)), Verdict::Warn);
        assert_eq!(judge_vacuum(1, false, &[]).verdict, Verdict::Warn);
    }
}

//! Deployment checks: which guarantees a database weakens. `tenure doctor` prints the findings.
//!
//! Checks are read-only. Probing is separate from evaluation, so that each evaluation can be
//! tested.
//!
//! This module checks the settings of the database and maps errors to remedies; `tables` checks
//! Tenure's own tables, `wakeups` checks that notifications are delivered.

mod tables;
mod wakeups;

use serde::Serialize;
use tenure_core::Millis;
use tokio::runtime::Handle;
use tokio_postgres::Row;
use tokio_postgres::config::{Host, SslMode};

use super::connection::{Connection, Connector};
use super::settings::{Settings, Trust};
use super::{millis, tls};
use crate::clock::{Clock as _, ServerClock};
use crate::store::{Result, SafetyClass, StoreError};

/// The oldest supported `server_version_num`.
const SERVER_VERSION_MIN: i32 = 140_000;
/// Maximum tolerated difference between the database clock and the local one.
const CLOCK_SKEW_MAX_MS: u64 = 5_000;

/// SQL script that creates least-privilege roles. The owner of the tables runs it.
pub const ROLES: &str = include_str!("roles.sql");

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// No problem.
    Ok,
    /// Needs attention, but no guarantee is void yet.
    Warn,
    /// A guarantee is void.
    Bad,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The name of the check.
    pub name: &'static str,
    /// How bad it is.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// The guarantee that it voids.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub voids: Option<&'static str>,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<&'static str>,
}

impl Finding {
    /// Returns a finding without a problem.
    #[must_use]
    pub fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Ok, found: found.into(), voids: None, remedy: None }
    }

    /// Returns a finding that needs attention.
    #[must_use]
    pub fn warn(
        name: &'static str,
        found: impl Into<String>,
        voids: &'static str,
        remedy: &'static str,
    ) -> Self {
        let (voids, remedy) = (Some(voids), Some(remedy));
        Self { name, verdict: Verdict::Warn, found: found.into(), voids, remedy }
    }

    /// Returns a finding that voids a guarantee.
    #[must_use]
    pub fn bad(
        name: &'static str,
        found: impl Into<String>,
        voids: &'static str,
        remedy: &'static str,
    ) -> Self {
        Self { verdict: Verdict::Bad, ..Self::warn(name, found, voids, remedy) }
    }
}

/// Checks the database at `url`. A database that cannot be reached is a finding; an invalid URL is
/// an error.
pub async fn examine(url: &str) -> Result<Vec<Finding>> {
    let settings = Settings::parse(url)?;
    let tls_enabled = settings.config.get_ssl_mode() != SslMode::Disable;
    let tls = tls::connector(&settings.trust, tls_enabled)?;
    let connector = Connector::diagnostic(settings.config.clone(), tls.clone(), Handle::current());
    let connection = Connection::new(&connector);
    let mut findings = vec![check_encryption(&settings)];
    let facts = match connection.query(SERVER_FACTS, &[]).await {
        Ok(rows) => ServerFacts::parse(&single_row(rows)?),
        Err(error) => {
            let voids = "no server can start, and running ones answer 503";
            let remedy = remedy(&error);
            let remedy = remedy.unwrap_or("see that it runs, and that the URL is correct");
            findings.push(Finding::bad("connection", error.to_string(), voids, remedy));
            return Ok(findings);
        }
    };
    findings.extend(facts.evaluate(ServerClock::starting_after(Millis(0)).now()));
    findings.extend(tables::examine(&connection).await?);
    if !facts.is_standby {
        let queue_percent = facts.notify_queue_percent;
        findings.push(wakeups::examine(&settings, &tls, &connection, queue_percent).await);
    }
    let safety = safety(&connection).await?;
    findings.push(match safety {
        SafetyClass::Exclusive => Finding::ok("safety class", safety.as_str()),
        _ => Finding::bad(
            "safety class",
            safety.as_str(),
            "a grant can be lost, and the same lock granted to another holder",
            "fix the settings reported above",
        ),
    });
    Ok(findings)
}

/// Determines the safety class of locks on a database.
pub(super) async fn safety(connection: &Connection) -> Result<SafetyClass> {
    let row = single_row(connection.query(SERVER_FACTS, &[]).await?)?;
    let facts = ServerFacts::parse(&row);
    let is_writable = !facts.is_standby && !facts.read_only;
    let is_durable = facts.synchronous_commit != "off" && facts.fsync && facts.full_page_writes;
    let is_exclusive = is_writable && is_durable;
    Ok(if is_exclusive { SafetyClass::Exclusive } else { SafetyClass::BestEffort })
}

/// Returns the remedy for a database error, if one is known.
#[must_use]
pub fn remedy(error: &StoreError) -> Option<&'static str> {
    let text = error.to_string();
    REMEDIES.iter().find(|(pattern, _)| text.contains(pattern)).map(|(_, remedy)| *remedy)
}

const PRIMARY: &str = "this is a standby: name the primary; or name all hosts, with commas, and \
                       add target_session_attrs=read-write";
/// Texts in error messages, and their remedies.
const REMEDIES: [(&str, &str); 16] = [
    ("password", "put user and password into the URL, or the password into PGPASSWORD"),
    ("no pg_hba.conf entry", "allow this host, user and database in pg_hba.conf"),
    (
        "permission denied",
        "migrate as the owner with: tenure migrate; then grant the servers' role its \
         privileges with: tenure migrate --roles | psql",
    ),
    ("must be owner", "migrate as the owner of the tables"),
    ("recovery is in progress", PRIMARY),
    ("read-only transaction", PRIMARY),
    ("session does not permit writes", PRIMARY),
    (
        "UnknownIssuer",
        "the certificate of the database is not signed by a known authority: name its CA file \
         with sslrootcert=FILE",
    ),
    (
        "CaUsedAsEndEntity",
        "the certificate of the database is a CA certificate: issue one that it signs, or one \
         with basicConstraints=CA:FALSE",
    ),
    (
        "not valid for name",
        "the certificate of the database is for another host: use the name in it, or \
         sslmode=verify-ca",
    ),
    ("server does not support TLS", "switch ssl on in postgresql.conf, or use sslmode=prefer"),
    ("connection slots", "raise max_connections, lower pool= in the URL, or use a pooler"),
    ("too many clients", "raise max_connections, lower pool= in the URL, or use a pooler"),
    ("database \"", "create the database first with: createdb NAME"),
    ("role \"", "create the role first with: createuser NAME"),
    ("error connecting to server", "see that it runs, and that host and port are correct"),
];

fn single_row(rows: Vec<Row>) -> Result<Row> {
    let row = rows.into_iter().next();
    row.ok_or_else(|| StoreError::corrupt("a query returned no row"))
}

const SERVER_FACTS: &str = "\
    SELECT pg_is_in_recovery(), current_setting('transaction_read_only') = 'on', \
           current_setting('synchronous_commit'), current_setting('fsync') = 'on', \
           current_setting('full_page_writes') = 'on', \
           current_setting('synchronous_standby_names'), \
           (SELECT count(*) FROM pg_stat_replication \
            WHERE application_name IS DISTINCT FROM 'pg_basebackup'), \
           current_setting('server_version_num')::int, \
           (extract(epoch FROM clock_timestamp()) * 1000)::bigint, \
           (pg_notification_queue_usage() * 100)::int";

/// Settings and state of the database server.
#[derive(Clone, Debug)]
struct ServerFacts {
    is_standby: bool,
    read_only: bool,
    synchronous_commit: String,
    fsync: bool,
    full_page_writes: bool,
    synchronous_standby_names: String,
    attached_standbys: i64,
    version: i32,
    now: Millis,
    notify_queue_percent: i32,
}

impl ServerFacts {
    fn parse(row: &Row) -> Self {
        Self {
            is_standby: row.get(0),
            read_only: row.get(1),
            synchronous_commit: row.get(2),
            fsync: row.get(3),
            full_page_writes: row.get(4),
            synchronous_standby_names: row.get(5),
            attached_standbys: row.get(6),
            version: row.get(7),
            now: millis(row.get(8)),
            notify_queue_percent: row.get(9),
        }
    }

    fn evaluate(&self, local_time: Millis) -> Vec<Finding> {
        vec![
            self.check_version(),
            self.check_primary(),
            self.check_synchronous_commit(),
            check_enabled("fsync", self.fsync),
            check_enabled("full_page_writes", self.full_page_writes),
            self.check_standbys(),
            self.check_clock(local_time),
        ]
    }

    fn check_version(&self) -> Finding {
        let found = format!("PostgreSQL {}.{}", self.version / 10_000, self.version % 10_000);
        if self.version >= SERVER_VERSION_MIN {
            return Finding::ok("connection", found);
        }
        let voids = "the tables cannot be created";
        Finding::bad("connection", found, voids, "use PostgreSQL 14 or newer")
    }

    fn check_primary(&self) -> Finding {
        match (self.is_standby, self.read_only) {
            (true, _) => {
                Finding::bad("primary", "a standby", "nothing can be written here", PRIMARY)
            }
            (false, true) => Finding::bad(
                "primary",
                "a read-only primary",
                "nothing can be written here",
                "set default_transaction_read_only = off, for this role and database",
            ),
            (false, false) => Finding::ok("primary", "yes"),
        }
    }

    fn check_synchronous_commit(&self) -> Finding {
        let (name, found) = ("synchronous_commit", &*self.synchronous_commit);
        match found {
            "off" => Finding::bad(
                name,
                found,
                "a crash of the database loses acknowledged grants, releases and jobs",
                "set synchronous_commit = on, also for this role and database (ALTER ROLE … SET)",
            ),
            "local" | "remote_write" if !self.synchronous_standby_names.is_empty() => {
                Finding::warn(
                    name,
                    found,
                    "a fail-over can lose acknowledged writes: standbys may not have them on disk",
                    "set synchronous_commit = on",
                )
            }
            _ => Finding::ok(name, found),
        }
    }

    fn check_standbys(&self) -> Finding {
        let (name, found) = ("standbys", format!("{} attached", self.attached_standbys));
        match (self.synchronous_standby_names.is_empty(), self.attached_standbys) {
            (true, 1..) => Finding::warn(
                name,
                format!("{found}, none synchronous"),
                "a fail-over can lose the last commits: a new incarnation keeps tokens safe, but \
                 acknowledged jobs may be lost",
                "set synchronous_standby_names, or accept it if you never fail over to them",
            ),
            (false, 0) if !self.is_standby => Finding::bad(
                name,
                format!("{found}, but commits wait for one"),
                "commits block until a standby attaches",
                "attach a standby, or empty synchronous_standby_names",
            ),
            (false, _) => Finding::ok(name, format!("{found}, synchronous")),
            _ => Finding::ok(name, found),
        }
    }

    fn check_clock(&self, local_time: Millis) -> Finding {
        let skew = local_time.since(self.now).max(self.now.since(local_time));
        let found = format!("{skew} ms from this machine's");
        if skew <= CLOCK_SKEW_MAX_MS {
            return Finding::ok("clock", found);
        }
        Finding::bad(
            "clock",
            found,
            "locks are safe, since only the database's clock counts; but run_at is off by the \
             difference, and ages are displayed problems",
            "synchronize both clocks with NTP",
        )
    }
}

/// Checks a setting without which a crash can corrupt the database.
fn check_enabled(name: &'static str, is_on: bool) -> Finding {
    if is_on {
        return Finding::ok(name, "on");
    }
    Finding::bad(
        name,
        "off",
        "a crash of the machine can corrupt the database, and loses acknowledged writes",
        "switch it on in postgresql.conf; off is only for disposable databases",
    )
}

fn check_encryption(settings: &Settings) -> Finding {
    let is_local = |host: &Host| match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => name == "localhost" || name == "::1" || name.starts_with("127."),
    };
    let hosts = settings.config.get_hosts();
    let required = settings.config.get_ssl_mode() == SslMode::Require;
    match (&settings.trust, required) {
        (Trust::Signed { .. }, true) => Finding::ok("encryption", "required and verified"),
        _ if hosts.iter().all(is_local) => Finding::ok("encryption", "not needed on this machine"),
        (_, true) => Finding::warn(
            "encryption",
            "required, but any certificate is accepted",
            "a man in the middle can impersonate the database",
            "set sslmode=verify-full in the URL, and sslrootcert=FILE for a private CA",
        ),
        (_, false) => Finding::warn(
            "encryption",
            "not required",
            "an eavesdropper can read job arguments, and may get the password",
            "set sslmode=verify-full in the URL",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> ServerFacts {
        ServerFacts {
            is_standby: false,
            read_only: false,
            synchronous_commit: "on".to_owned(),
            fsync: true,
            full_page_writes: true,
            synchronous_standby_names: String::new(),
            attached_standbys: 0,
            version: 150_004,
            now: Millis(1_000_000),
            notify_queue_percent: 0,
        }
    }

    /// Returns the names and verdicts of the findings that are not `Ok`.
    fn problems(facts: &ServerFacts, local_time: u64) -> Vec<(&'static str, Verdict)> {
        let findings = facts.evaluate(Millis(local_time)).into_iter();
        let problems = findings.filter(|finding| finding.verdict != Verdict::Ok);
        problems
            .map(|finding| {
                assert!(finding.voids.is_some() && finding.remedy.is_some(), "{finding:?}");
                (finding.name, finding.verdict)
            })
            .collect()
    }

    #[test]
    fn exactly_the_settings_that_weaken_a_guarantee_are_reported() {
        use Verdict::{Bad, Warn};
        let now = 1_000_000;
        assert_eq!(problems(&facts(), now), []);
        let off = ServerFacts {
            synchronous_commit: "off".into(),
            fsync: false,
            full_page_writes: false,
            ..facts()
        };
        let bad = ["synchronous_commit", "fsync", "full_page_writes"].map(|name| (name, Bad));
        assert_eq!(problems(&off, now), bad);
        let standby = ServerFacts { is_standby: true, read_only: true, ..facts() };
        assert_eq!(problems(&standby, now), [("primary", Bad)]);
        assert_eq!(problems(&ServerFacts { read_only: true, ..facts() }, now), [("primary", Bad)]);
        let asynchronous = ServerFacts { attached_standbys: 2, ..facts() };
        assert_eq!(problems(&asynchronous, now), [("standbys", Warn)]);
        let names = "ANY 1 (*)".into();
        let synchronous = ServerFacts { synchronous_standby_names: names, ..asynchronous };
        assert_eq!(problems(&synchronous, now), []);
        let local = ServerFacts { synchronous_commit: "local".into(), ..synchronous.clone() };
        assert_eq!(problems(&local, now), [("synchronous_commit", Warn)]);
        let detached = ServerFacts { attached_standbys: 0, ..synchronous };
        assert_eq!(problems(&detached, now), [("standbys", Bad)]);
        assert_eq!(
            problems(&ServerFacts { version: 130_012, ..facts() }, now),
            [("connection", Bad)]
        );
    }

    #[test]
    fn clock_skew_of_up_to_five_seconds_is_tolerated() {
        for local_time in [995_000, 1_005_000] {
            assert_eq!(problems(&facts(), local_time), []);
        }
        for local_time in [994_999, 1_005_001] {
            assert_eq!(problems(&facts(), local_time), [("clock", Verdict::Bad)]);
        }
    }

    #[test]
    fn missing_encryption_is_reported_only_between_machines() {
        let verdict = |url| check_encryption(&Settings::parse(url).unwrap()).verdict;
        assert_eq!(verdict("postgres://u@127.0.0.1/d"), Verdict::Ok);
        assert_eq!(verdict("postgres://u@db/d"), Verdict::Warn);
        assert_eq!(verdict("postgres://u@db/d?sslmode=require"), Verdict::Warn);
        assert_eq!(verdict("postgres://u@db/d?sslmode=verify-full"), Verdict::Ok);
    }
}

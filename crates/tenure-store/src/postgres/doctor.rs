//! What a deployment is worth: probes of a database, as data for people and programs.
//!
//! It only looks: nothing of what it does stays in the database. What is judged is apart from how
//! it is found out, so that each judgement can be tested.
//!
//! Here are the settings of the database and what errors mean; `tables` has what is about our own
//! tables, `wakeups` whether notifications come through. `tenure doctor` prints it all.

mod tables;
mod wakeups;

use serde::Serialize;
use tenure_core::Millis;
use tokio::runtime::Handle;
use tokio_postgres::Row;
use tokio_postgres::config::{Host, SslMode};

use super::link::{Link, Ways};
use super::settings::{Settings, Trust};
use super::{millis, tls};
use crate::clock::{Clock as _, ServerClock};
use crate::store::{Result, SafetyClass, StoreError};

/// The oldest PostgreSQL whose SQL the tables are written in.
const SERVER_MIN: i32 = 140_000;
/// Clocks that are further apart than this mislead people.
const CLOCKS_MAX_MS: u64 = 5_000;

/// A script that makes roles with no more than they need, to be run by the owner of the tables.
pub const ROLES: &str = include_str!("roles.sql");

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Somebody should look at it; nothing that was promised is void yet.
    Warn,
    /// Something that was promised is void.
    Bad,
}

/// What one probe came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub name: &'static str,
    /// How bad it is.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// Which promise does not hold with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub voids: Option<&'static str>,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<&'static str>,
}

impl Finding {
    /// All is well.
    #[must_use]
    pub fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Ok, found: found.into(), voids: None, remedy: None }
    }

    /// Somebody should look at it.
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

    /// A promise is void.
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

/// Probes the database at an address. That it cannot be reached is a finding, too; an address that
/// cannot be read is an error.
pub async fn examine(url: &str) -> Result<Vec<Finding>> {
    let settings = Settings::parse(url)?;
    let wanted = settings.config.get_ssl_mode() != SslMode::Disable;
    let tls = tls::connector(&settings.trust, wanted)?;
    let link = Link::new(&Ways::plain(settings.config.clone(), tls.clone(), Handle::current()));
    let mut findings = vec![encryption(&settings)];
    let facts = match link.rows(FACTS, &[]).await {
        Ok(rows) => Facts::parse(&only(rows)?),
        Err(error) => {
            let voids = "no server can start, and running ones answer 503";
            let what = remedy(&error).unwrap_or("see that it runs, and that the address is right");
            findings.push(Finding::bad("connection", error.to_string(), voids, what));
            return Ok(findings);
        }
    };
    findings.extend(facts.judge(ServerClock::starting_after(Millis(0)).now()));
    findings.extend(tables::examine(&link).await?);
    if !facts.standby {
        findings.push(wakeups::examine(&settings, &tls, &link, facts.queue).await);
    }
    let safety = safety(&link).await?;
    findings.push(match safety {
        SafetyClass::Exclusive => Finding::ok("safety class", safety.as_str()),
        _ => Finding::bad(
            "safety class",
            safety.as_str(),
            "a grant can be forgotten, and the same lock given to another",
            "do what is said about the settings above",
        ),
    });
    Ok(findings)
}

/// What locks are worth on the database at the other end of a connection.
pub(super) async fn safety(link: &Link) -> Result<SafetyClass> {
    let row = only(link.rows(FACTS, &[]).await?)?;
    let Facts { standby, read_only, ref commit, fsync, full_pages, .. } = Facts::parse(&row);
    let sound = !standby && !read_only && commit != "off" && fsync && full_pages;
    Ok(if sound { SafetyClass::Exclusive } else { SafetyClass::BestEffort })
}

/// What a person can do about an error of the database, if that is known.
#[must_use]
pub fn remedy(error: &StoreError) -> Option<&'static str> {
    let text = error.to_string();
    KNOWN.iter().find(|(says, _)| text.contains(says)).map(|(_, remedy)| *remedy)
}

const PRIMARY: &str = "this is a standby: name the primary; or name all hosts, with commas, and \
                       add target_session_attrs=read-write";
/// What errors say, and what to do about it.
const KNOWN: [(&str, &str); 16] = [
    ("password", "put user and password into the address, or the password into PGPASSWORD"),
    ("no pg_hba.conf entry", "let this machine, user and database in, in pg_hba.conf"),
    (
        "permission denied",
        "migrate as the owner, with: tenure migrate; then give servers what \
                           they need, with: tenure migrate --roles | psql",
    ),
    ("must be owner", "migrate as the owner of the tables"),
    ("recovery is in progress", PRIMARY),
    ("read-only transaction", PRIMARY),
    ("session does not permit writes", PRIMARY),
    (
        "UnknownIssuer",
        "no authority known here has signed the certificate of the database: name \
                       the file of the right one with sslrootcert=FILE",
    ),
    (
        "CaUsedAsEndEntity",
        "the certificate of the database is that of an authority: make one \
                           that it signs, or one with basicConstraints=CA:FALSE",
    ),
    (
        "not valid for name",
        "the certificate of the database is for another host: use the name \
                            that is in it, or sslmode=verify-ca",
    ),
    ("server does not support TLS", "switch ssl on in postgresql.conf, or say sslmode=prefer"),
    ("connection slots", "raise max_connections, lower pool= in the address, or use a pooler"),
    ("too many clients", "raise max_connections, lower pool= in the address, or use a pooler"),
    ("database \"", "make the database first, with: createdb NAME"),
    ("role \"", "make the role first, with: createuser NAME"),
    ("error connecting to server", "see that it runs, and that host and port are right"),
];

fn only(rows: Vec<Row>) -> Result<Row> {
    rows.into_iter().next().ok_or_else(|| StoreError::Corrupt("a query gave no row".to_owned()))
}

const FACTS: &str = "\
    SELECT pg_is_in_recovery(), current_setting('transaction_read_only') = 'on', \
           current_setting('synchronous_commit'), current_setting('fsync') = 'on', \
           current_setting('full_page_writes') = 'on', \
           current_setting('synchronous_standby_names'), \
           (SELECT count(*) FROM pg_stat_replication \
            WHERE application_name IS DISTINCT FROM 'pg_basebackup'), \
           current_setting('server_version_num')::int, \
           (extract(epoch FROM clock_timestamp()) * 1000)::bigint, \
           (pg_notification_queue_usage() * 100)::int";

/// What the database says of itself.
#[derive(Clone, Debug)]
struct Facts {
    standby: bool,
    read_only: bool,
    commit: String,
    fsync: bool,
    full_pages: bool,
    synchronous: String,
    standbys: i64,
    version: i32,
    now: Millis,
    queue: i32,
}

impl Facts {
    fn parse(row: &Row) -> Self {
        Self {
            standby: row.get(0),
            read_only: row.get(1),
            commit: row.get(2),
            fsync: row.get(3),
            full_pages: row.get(4),
            synchronous: row.get(5),
            standbys: row.get(6),
            version: row.get(7),
            now: millis(row.get(8)),
            queue: row.get(9),
        }
    }

    fn judge(&self, wall: Millis) -> Vec<Finding> {
        vec![
            self.server(),
            self.primary(),
            self.commit(),
            switch("fsync", self.fsync),
            switch("full_page_writes", self.full_pages),
            self.standbys(),
            self.clock(wall),
        ]
    }

    fn server(&self) -> Finding {
        let found = format!("PostgreSQL {}.{}", self.version / 10_000, self.version % 10_000);
        if self.version >= SERVER_MIN {
            return Finding::ok("connection", found);
        }
        let voids = "the tables cannot be made";
        Finding::bad("connection", found, voids, "use PostgreSQL 14 or newer")
    }

    fn primary(&self) -> Finding {
        match (self.standby, self.read_only) {
            (true, _) => {
                Finding::bad("primary", "a standby", "nothing can be written here", PRIMARY)
            }
            (false, true) => Finding::bad(
                "primary",
                "a primary that only reads",
                "nothing can be written here",
                "set default_transaction_read_only = off, for this role and database",
            ),
            (false, false) => Finding::ok("primary", "yes"),
        }
    }

    fn commit(&self) -> Finding {
        let (name, found) = ("synchronous_commit", &*self.commit);
        match found {
            "off" => Finding::bad(
                name,
                found,
                "a crash of the database loses what was acknowledged: grants, releases, jobs",
                "set synchronous_commit = on, also for this role and database (ALTER ROLE … SET)",
            ),
            "local" | "remote_write" if !self.synchronous.is_empty() => Finding::warn(
                name,
                found,
                "a fail-over can lose what was acknowledged: a standby need not have it on disk",
                "set synchronous_commit = on",
            ),
            _ => Finding::ok(name, found),
        }
    }

    fn standbys(&self) -> Finding {
        let (name, found) = ("standbys", format!("{} attached", self.standbys));
        match (self.synchronous.is_empty(), self.standbys) {
            (true, 1..) => Finding::warn(
                name,
                format!("{found}, none is waited for"),
                "a fail-over can lose the tail: tokens stay safe by a new incarnation, but \
                 acknowledged jobs may be gone",
                "set synchronous_standby_names, or accept it if you never fail over to them",
            ),
            (false, 0) if !self.standby => Finding::bad(
                name,
                format!("{found}, but commits wait for one"),
                "commits do not end until a standby comes",
                "attach a standby, or empty synchronous_standby_names",
            ),
            (false, _) => Finding::ok(name, format!("{found}, synchronous")),
            _ => Finding::ok(name, found),
        }
    }

    fn clock(&self, wall: Millis) -> Finding {
        let apart = wall.since(self.now).max(self.now.since(wall));
        let found = format!("{apart} ms from this machine's");
        if apart <= CLOCKS_MAX_MS {
            return Finding::ok("clock", found);
        }
        Finding::bad(
            "clock",
            found,
            "locks are safe, only the database's clock counts; but run_at means another instant \
             than it says, and ages are shown wrong",
            "let NTP keep both clocks",
        )
    }
}

/// A setting without which a crash can damage the database.
fn switch(name: &'static str, on: bool) -> Finding {
    if on {
        return Finding::ok(name, "on");
    }
    Finding::bad(
        name,
        "off",
        "a crash of the machine can damage the database, and loses what was acknowledged",
        "switch it on in postgresql.conf; it is only for databases that nobody needs",
    )
}

fn encryption(settings: &Settings) -> Finding {
    let here = |host: &Host| match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => name == "localhost" || name == "::1" || name.starts_with("127."),
    };
    let hosts = settings.config.get_hosts();
    let required = settings.config.get_ssl_mode() == SslMode::Require;
    match (&settings.trust, required) {
        (Trust::Signed { .. }, true) => Finding::ok("encryption", "required, with a check"),
        _ if hosts.iter().all(here) => Finding::ok("encryption", "not needed on this machine"),
        (_, true) => Finding::warn(
            "encryption",
            "required, but any certificate will do",
            "whoever can stand in the way can pass for the database",
            "say sslmode=verify-full in the address, and sslrootcert=FILE for an authority of \
             your own",
        ),
        (_, false) => Finding::warn(
            "encryption",
            "not required",
            "whoever can read the line reads job arguments, and may get the password",
            "say sslmode=verify-full in the address",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            standby: false,
            read_only: false,
            commit: "on".to_owned(),
            fsync: true,
            full_pages: true,
            synchronous: String::new(),
            standbys: 0,
            version: 150_004,
            now: Millis(1_000_000),
            queue: 0,
        }
    }

    /// The names of what is not as it should be.
    fn wrong(facts: &Facts, wall: u64) -> Vec<(&'static str, Verdict)> {
        let findings = facts.judge(Millis(wall)).into_iter();
        let wrong = findings.filter(|finding| finding.verdict != Verdict::Ok);
        wrong
            .map(|finding| {
                assert!(finding.voids.is_some() && finding.remedy.is_some(), "{finding:?}");
                (finding.name, finding.verdict)
            })
            .collect()
    }

    #[test]
    fn each_setting_that_voids_something_is_found_and_nothing_else() {
        use Verdict::{Bad, Warn};
        let now = 1_000_000;
        assert_eq!(wrong(&facts(), now), []);
        let off = Facts { commit: "off".into(), fsync: false, full_pages: false, ..facts() };
        let bad = ["synchronous_commit", "fsync", "full_page_writes"].map(|name| (name, Bad));
        assert_eq!(wrong(&off, now), bad);
        let standby = Facts { standby: true, read_only: true, ..facts() };
        assert_eq!(wrong(&standby, now), [("primary", Bad)]);
        assert_eq!(wrong(&Facts { read_only: true, ..facts() }, now), [("primary", Bad)]);
        let behind = Facts { standbys: 2, ..facts() };
        assert_eq!(wrong(&behind, now), [("standbys", Warn)]);
        let waited = Facts { synchronous: "ANY 1 (*)".into(), ..behind };
        assert_eq!(wrong(&waited, now), []);
        let local = Facts { commit: "local".into(), ..waited.clone() };
        assert_eq!(wrong(&local, now), [("synchronous_commit", Warn)]);
        assert_eq!(wrong(&Facts { standbys: 0, ..waited }, now), [("standbys", Bad)]);
        assert_eq!(wrong(&Facts { version: 130_012, ..facts() }, now), [("connection", Bad)]);
    }

    #[test]
    fn clocks_may_be_five_seconds_apart_in_either_direction() {
        for wall in [995_000, 1_005_000] {
            assert_eq!(wrong(&facts(), wall), []);
        }
        for wall in [994_999, 1_005_001] {
            assert_eq!(wrong(&facts(), wall), [("clock", Verdict::Bad)]);
        }
    }

    #[test]
    fn an_unencrypted_line_matters_only_between_machines() {
        let verdict = |url| encryption(&Settings::parse(url).unwrap()).verdict;
        assert_eq!(verdict("postgres://u@127.0.0.1/d"), Verdict::Ok);
        assert_eq!(verdict("postgres://u@db/d"), Verdict::Warn);
        assert_eq!(verdict("postgres://u@db/d?sslmode=require"), Verdict::Warn);
        assert_eq!(verdict("postgres://u@db/d?sslmode=verify-full"), Verdict::Ok);
    }
}

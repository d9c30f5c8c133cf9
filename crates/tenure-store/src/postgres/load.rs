//! Loading the rows of a batch, under their locks.
//!
//! Rows of resources are never waited for: what another transaction has is left to the next try.
//! Rows of sessions are locked when the batch changes them, in the order of their ids, so nobody
//! waits in a circle; others are only looked at. The clock is read last: no step happens before one
//! that its locks were waited for.
//!
//! Most batches need one round trip, because the records are in the cache. What is not there, or
//! has changed since, is read in a second one.

use std::collections::{BTreeSet, HashMap};

use tenure_core::history::Entry;
use tenure_core::ready::Place;
use tenure_core::record::{Tenure, Waiter};
use tenure_core::{
    Claim, Claimant, Command, JobId, LockAction, Millis, Record, ResourceKey, Session, SessionId,
    World,
};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::batch::Failure;
use super::cache::Known;
use super::conn::Conn;
use super::lane::Lane;
use super::life::{self, Life};
use super::rows::{parse_body, parse_key, parse_session, text};
use super::{Postgres, corrupt, millis, read, ready};
use crate::ledger::STALL_MS;

pub(super) type Loading<T> = std::result::Result<T, Failure>;

/// The rows of a batch.
#[derive(Default)]
pub(super) struct Loaded {
    pub(super) world: World,
    pub(super) now: Millis,
    /// The resources at hand, as they were.
    pub(super) stored: HashMap<ResourceKey, Stored>,
    /// The sessions at hand, as they were.
    pub(super) sessions: HashMap<SessionId, Session>,
    /// Those whose rows are locked.
    pub(super) locked: BTreeSet<SessionId>,
    /// Resources that somebody else is at.
    pub(super) busy: BTreeSet<ResourceKey>,
    /// The resources of the jobs that commands name.
    pub(super) job_keys: HashMap<JobId, ResourceKey>,
    /// The last batch of this process that was committed.
    pub(super) batch: i64,
    /// What claims of this batch found.
    pub(super) found: ready::Found,
}

/// What the database says of one resource beside its record.
pub(super) struct Stored {
    pub(super) version: i64,
    /// The last line of history that the body in the row has in it.
    pub(super) body_n: u64,
    pub(super) place: Place,
    pub(super) tenures: Vec<Tenure>,
    pub(super) waiters: Vec<Waiter>,
}

/// The columns of a resource for [`Found::parse`], without its record.
pub(super) const COLUMNS: &str =
    "r.key, r.version, r.priority, r.ready_since, r.wake_at, r.running, r.kind, r.tenant";

/// A row of a resource.
struct Found {
    key: ResourceKey,
    version: i64,
    place: Place,
}

impl Found {
    fn parse(row: &Row) -> Loading<Self> {
        let since: Option<i64> = row.get(3);
        let priority = i32::try_from(row.get::<_, Option<i64>>(2).unwrap_or(0)).unwrap_or(0);
        let place = Place {
            ready: since.map(|since| (priority, millis(since))),
            later: row.get::<_, Option<i64>>(4).map(millis),
            running: usize::try_from(row.get::<_, i64>(5)).unwrap_or(0),
        };
        Ok(Self { key: parse_key(row.get(0))?, version: row.get(1), place })
    }
}

const JOBS: &str = "SELECT key, CASE WHEN ended IS NOT NULL THEN body END, id FROM tenure.jobs \
                    WHERE id = ANY($1)";

const SESSIONS: &str = "SELECT body, expires_at, kinds, asked_at, claims FROM tenure.sessions \
                        WHERE id = ANY($1)";

const CLOCK: &str = "\
    SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint, \
           (SELECT value::bigint FROM tenure.meta WHERE key = 'looked'), \
           (SELECT batch FROM tenure.servers WHERE id = $1), ";

impl Postgres {
    /// Begins a transaction and loads what the commands are about. The rows of sessions in `lock`
    /// are locked, too.
    pub(super) async fn load(
        &self,
        lane: &Lane,
        client: &Conn,
        commands: &[Command],
        lock: &BTreeSet<SessionId>,
    ) -> Loading<Loaded> {
        let claims: Vec<&Claim> = commands.iter().filter_map(as_claim).collect();
        let mut loaded = Loaded::default();
        loaded.world.declare(self.kinds(), Millis::default());
        loaded.locked =
            commands.iter().filter_map(changed_session).chain(lock.iter().copied()).collect();
        let looked_at = self.guess_sessions(commands, &loaded.locked);
        let named: BTreeSet<&str> =
            commands.iter().filter_map(Command::key).map(ResourceKey::as_str).collect();
        let named: Vec<&str> = named.into_iter().collect();
        let jobs: Vec<String> =
            commands.iter().filter_map(Command::job).map(|id| text(&id)).collect();
        let found = &mut loaded.found;
        let (begun, caps, rows, ready, past, sessions) = tokio::join!(
            biased;
            client.begin(),
            self.lock_caps(client, &claims, &loaded.world.kinds),
            named_rows(client, &named, &jobs, &claims),
            self.ready(client, &claims, commands, found),
            job_rows(client, &jobs),
            self.session_rows(lane, client, &loaded.locked, &looked_at),
        );
        begun?;
        let caps = caps?;
        let mut found = Vec::new();
        for row in rows?.iter().chain(&ready?) {
            found.push(Found::parse(row)?);
        }
        note_jobs(&past?, &mut loaded)?;
        self.note_sessions(lane, &sessions?, &mut loaded)?;
        let mut records = self.records_at_hand(lane, client, &named, found, &mut loaded).await?;
        let keys = commands.iter().filter_map(Command::key).chain(loaded.job_keys.values());
        loaded.busy = keys.filter(|key| !loaded.stored.contains_key(*key)).cloned().collect();
        let now = loaded.now;
        for (key, record) in records.drain(..) {
            loaded.world.admit(&key, *record, now);
        }
        self.count_caps(client, &caps, &mut loaded).await?;
        loaded.world.ready.follow(&self.served.lock().expect("nothing panics while it is locked"));
        Ok(loaded)
    }

    /// Sessions to look at: those that commands name, and the holders as far as they are known.
    fn guess_sessions(
        &self,
        commands: &[Command],
        locked: &BTreeSet<SessionId>,
    ) -> BTreeSet<SessionId> {
        let mut ids: BTreeSet<SessionId> = commands.iter().filter_map(session).collect();
        for key in commands.iter().filter_map(Command::key) {
            self.cache.peek(key, |record| ids.extend(sessions_of(record)));
        }
        ids.retain(|id| !locked.contains(id));
        ids
    }

    /// Locks sessions, looks at others, and reads the clock after that.
    async fn session_rows(
        &self,
        lane: &Lane,
        client: &Conn,
        locked: &BTreeSet<SessionId>,
        looked_at: &BTreeSet<SessionId>,
    ) -> Loading<(Vec<Row>, Row)> {
        let locked: Vec<String> = locked.iter().map(text).collect();
        let looked_at: Vec<String> = looked_at.iter().map(text).collect();
        let lock = format!("{SESSIONS} ORDER BY id FOR UPDATE");
        let clock = format!("{CLOCK}{}", life::COLUMNS);
        let me = [(&lane.id as _, Type::TEXT)];
        let (locked, seen, clock) = tokio::join!(
            biased;
            read::unless_empty(client, &lock, &locked),
            read::unless_empty(client, SESSIONS, &looked_at),
            client.query_typed(&clock, &me),
        );
        let mut rows = locked?;
        rows.extend(seen?);
        let clock = clock?.pop().ok_or_else(|| corrupt("the clock", &"no row"))?;
        Ok((rows, clock))
    }

    fn note_sessions(
        &self,
        lane: &Lane,
        rows: &(Vec<Row>, Row),
        loaded: &mut Loaded,
    ) -> Loading<()> {
        let (rows, clock) = rows;
        loaded.now = self.time(clock.get(0));
        let life = Life::parse(clock, 3)?;
        let batch: Option<i64> = clock.get(2);
        let mut mark = lane.mark.lock().expect("nothing panics while it is locked");
        loaded.world.incarnation = self.life().follow(life, &mut mark, batch, loaded.now)?;
        drop(mark);
        loaded.batch = batch.unwrap_or(0);
        let looked = millis(clock.get::<_, Option<i64>>(1).unwrap_or(0));
        let stalled = loaded.now.since(looked) > STALL_MS;
        for row in rows {
            let mut session = parse_session(row)?;
            loaded.sessions.insert(session.id, session.clone());
            if stalled && session.over.is_none() {
                // Nobody was looking: nobody may lose a lock for that.
                session.extend(loaded.now);
            }
            loaded.world.sessions.insert(session);
        }
        Ok(())
    }

    /// The records of rows that are locked, and of blank rows that are made for named resources
    /// that have none, so that there is something to lock.
    async fn records_at_hand(
        &self,
        lane: &Lane,
        client: &Conn,
        named: &[&str],
        mut found: Vec<Found>,
        loaded: &mut Loaded,
    ) -> Loading<Vec<(ResourceKey, Box<Record>)>> {
        let have: BTreeSet<&str> = found.iter().map(|found| found.key.as_str()).collect();
        let missing: Vec<&str> = named.iter().copied().filter(|key| !have.contains(key)).collect();
        if !missing.is_empty() {
            for row in &make(client, &missing).await? {
                found.push(Found::parse(row)?);
            }
        }
        let mut seen = HashMap::with_capacity(found.len());
        let mut stale = Vec::new();
        for Found { key, version, place } in found {
            if loaded.stored.contains_key(&key) {
                continue;
            }
            match self.cache.take(&key, loaded.world.incarnation, version) {
                Some(known) => drop(seen.insert(key.clone(), known)),
                None => stale.push(key.as_str().to_owned()),
            }
            let (tenures, waiters) = (Vec::new(), Vec::new());
            loaded.stored.insert(key, Stored { version, body_n: 0, place, tenures, waiters });
        }
        if !stale.is_empty() {
            seen.extend(read_records(client, &stale).await?);
        }
        let holders = seen.values().flat_map(|seen| sessions_of(&seen.record));
        let unknown: BTreeSet<SessionId> =
            holders.filter(|id| !loaded.sessions.contains_key(id)).collect();
        if !missing.is_empty() || !stale.is_empty() || !unknown.is_empty() {
            // Time has passed since the clock was read.
            let rows = self.session_rows(lane, client, &BTreeSet::new(), &unknown).await?;
            self.note_sessions(lane, &rows, loaded)?;
        }
        let mut records = Vec::with_capacity(seen.len());
        for (key, Known { body_n, record }) in seen {
            if let Some(stored) = loaded.stored.get_mut(&key) {
                stored.body_n = body_n;
                stored.tenures.clone_from(&record.tenures);
                stored.waiters = record.queue.iter().cloned().collect();
            }
            records.push((key, record));
        }
        Ok(records)
    }
}

/// Notes the jobs that commands name: those that are over, and where the others are.
fn note_jobs(rows: &[Row], loaded: &mut Loaded) -> Loading<()> {
    for row in rows {
        let key: ResourceKey = parse_key(row.get(0))?;
        let id = row.get::<_, &str>(2).parse().map_err(|e| corrupt("a job", &e))?;
        loaded.job_keys.insert(id, key.clone());
        if let Some(body) = row.get::<_, Option<&str>>(1) {
            loaded.world.past.insert(id, (key, parse_body("a job", body)?));
        }
    }
    Ok(())
}

/// The resources that commands name, and those that a claim has got before.
async fn named_rows(
    client: &Conn,
    keys: &[&str],
    jobs: &[String],
    claims: &[&Claim],
) -> Loading<Vec<Row>> {
    if keys.is_empty() && jobs.is_empty() && claims.is_empty() {
        return Ok(Vec::new());
    }
    let sessions: Vec<String> = claims.iter().map(|claim| text(&claim.session)).collect();
    let requests: Vec<String> = claims.iter().map(|claim| text(&claim.request)).collect();
    let sql = format!(
        "SELECT {COLUMNS} FROM tenure.resources r WHERE r.key = ANY(ARRAY( \
             SELECT unnest($1::text[]) \
             UNION ALL SELECT key FROM tenure.jobs WHERE id = ANY($2) \
             UNION ALL SELECT l.key FROM unnest($3::text[], $4::text[]) AS c (session, request) \
                 JOIN tenure.locks l ON l.session = c.session AND l.request = c.request)) \
         ORDER BY r.key FOR UPDATE SKIP LOCKED"
    );
    let params = [
        (&keys as _, Type::TEXT_ARRAY),
        (&jobs as _, Type::TEXT_ARRAY),
        (&sessions as _, Type::TEXT_ARRAY),
        (&requests as _, Type::TEXT_ARRAY),
    ];
    Ok(client.query_typed(&sql, &params).await?)
}

/// The jobs that commands name: those that are over, and where the others are.
async fn job_rows(client: &Conn, ids: &[String]) -> Loading<Vec<Row>> {
    Ok(read::unless_empty(client, JOBS, ids).await?)
}

/// Makes blank rows where there are none, and locks them. The insert by itself would wait for
/// whoever is changing a row that is there.
async fn make(client: &Conn, keys: &[&str]) -> Loading<Vec<Row>> {
    let blank = |key: &&str| -> Loading<String> {
        let record = Record::new(&parse_key(key)?);
        Ok(serde_json::to_string(&record).expect("a record is plain JSON"))
    };
    let bodies = keys.iter().map(blank).collect::<Loading<Vec<String>>>()?;
    let insert = "INSERT INTO tenure.resources \
                      (key, tenant, kind, name, version, token, running, body_n, body) \
                  SELECT key, split_part(key, '/', 1), split_part(key, '/', 2), \
                  split_part(key, '/', 3), 0, 0, 0, 0, body \
                  FROM unnest($1::text[], $2::text[]) AS new (key, body) \
                  WHERE NOT EXISTS (SELECT FROM tenure.resources r WHERE r.key = new.key) \
                  ORDER BY key ON CONFLICT (key) DO NOTHING";
    let select = format!(
        "SELECT {COLUMNS} FROM tenure.resources r WHERE r.key = ANY($1) \
         ORDER BY r.key FOR UPDATE SKIP LOCKED"
    );
    let keys = keys.to_vec();
    let params = [(&keys as _, Type::TEXT_ARRAY), (&bodies as _, Type::TEXT_ARRAY)];
    let (made, rows) = tokio::join!(
        biased;
        client.execute_typed(insert, &params),
        client.query_typed(&select, &params[..1]),
    );
    made?;
    Ok(rows?)
}

/// Reads records: the body of the row, and the lines of history after it.
pub(super) async fn read_records(
    client: &Conn,
    keys: &[String],
) -> Loading<HashMap<ResourceKey, Known>> {
    let sql = "SELECT r.key, r.body_n, r.body, h.line, h.hash FROM tenure.resources r \
               LEFT JOIN tenure.history h ON h.key = r.key AND h.n > r.body_n \
               WHERE r.key = ANY($1) ORDER BY r.key, h.n";
    let mut records: HashMap<ResourceKey, Known> = HashMap::with_capacity(keys.len());
    for row in client.query_typed(sql, &[(&keys as _, Type::TEXT_ARRAY)]).await? {
        let key = parse_key(row.get(0))?;
        let body_n = u64::try_from(row.get::<_, i64>(1)).unwrap_or(0);
        if !records.contains_key(&key) {
            let record = parse_body(&format!("resource {key}"), row.get(2))?;
            records.insert(key.clone(), Known { body_n, record });
        }
        if let (Some(line), Some(known)) = (row.get::<_, Option<&str>>(3), records.get_mut(&key)) {
            let entry = Entry::parse(line).map_err(|error| corrupt("a line", &error))?;
            known.record.replay(&entry, read::hash(row.get(4))?);
        }
    }
    Ok(records)
}

fn as_claim(command: &Command) -> Option<&Claim> {
    if let Command::Claim(claim) = command { Some(claim) } else { None }
}

/// The session that a command surely changes.
pub(super) fn changed_session(command: &Command) -> Option<SessionId> {
    match command {
        Command::Lock { .. } => None,
        other => session(other),
    }
}

/// The session that a command names.
pub(super) fn session(command: &Command) -> Option<SessionId> {
    match command {
        Command::Open { session, .. }
        | Command::Beat { session, .. }
        | Command::Close { session }
        | Command::Lapse { session }
        | Command::Forget { session } => Some(*session),
        Command::Claim(claim) => Some(claim.session),
        Command::Lock { action: LockAction::Acquire(ask), .. } => Some(match ask.claimant {
            Claimant::Session(id) => id,
            Claimant::Solo { .. } => SessionId(ask.request.0),
        }),
        Command::Lock { .. } | Command::Resource { .. } | Command::Job { .. } => None,
    }
}

/// Who holds or wants something of a record.
fn sessions_of(record: &Record) -> impl Iterator<Item = SessionId> {
    let holders = record.tenures.iter().map(|tenure| tenure.session);
    holders.chain(record.queue.iter().map(|waiter| waiter.session))
}

/// What is written down of a resource: what the index knows of it, and when its first wait ends.
pub(super) fn place(world: &World, key: &ResourceKey, record: &Record) -> Place {
    let place = world.ready.place(key);
    let waits = record.queue.iter().map(|waiter| waiter.until).min();
    Place { later: [place.later, waits].into_iter().flatten().min(), ..place }
}

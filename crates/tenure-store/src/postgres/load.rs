//! Loading the rows of a batch, under their locks.
//!
//! Rows of resources are never waited for: what another transaction has is left to the next try.
//! Rows of sessions are, in the order of their ids and after everything else, so nobody waits in a
//! circle. The clock is read last: no step happens before one that its locks were waited for.

use std::collections::{BTreeSet, HashMap};

use tenure_core::ready::Place;
use tenure_core::record::{Tenure, Waiter};
use tenure_core::session::Worker;
use tenure_core::{
    Claim, Claimant, Command, Job, JobId, LockAction, Millis, Record, ResourceKey, Session,
    SessionId, Text, World,
};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use super::batch::Failure;
use super::life::{self, Life};
use super::{Postgres, bigint, corrupt, millis, ready};
use crate::ledger::STALL_MS;
use crate::store::Result;

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
#[derive(Default)]
pub(super) struct Stored {
    pub(super) place: Place,
    pub(super) tenures: Vec<Tenure>,
    pub(super) waiters: Vec<Waiter>,
}

/// The columns that make a resource.
pub(super) const COLUMNS: &str = "r.key, r.body, r.priority, r.ready_since, r.wake_at, r.running";

const JOBS: &str = "SELECT key, CASE WHEN ended IS NOT NULL THEN body END, id FROM tenure.jobs \
                    WHERE id = ANY($1)";

const SESSIONS: &str = "SELECT body, expires_at, kinds, asked_at, claims FROM tenure.sessions \
                        WHERE id = ANY($1) ORDER BY id FOR UPDATE";

const CLOCK: &str = "\
    SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint, \
           (SELECT value::bigint FROM tenure.meta WHERE key = 'looked'), \
           (SELECT batch FROM tenure.servers WHERE id = $1), ";

impl Postgres {
    /// Begins a transaction and loads what the commands are about.
    pub(super) async fn load(&self, client: &Client, commands: &[Command]) -> Loading<Loaded> {
        let kinds = self.kinds();
        let claims: Vec<&Claim> = commands.iter().filter_map(as_claim).collect();
        let mut loaded = Loaded::default();
        loaded.world.declare(kinds, Millis::default());
        let (begun, capped, rows) = tokio::join!(
            client.batch_execute(&self.begin),
            self.lock_caps(client, &claims, &loaded.world.kinds),
            self.named(client, commands, &claims),
        );
        begun?;
        let caps = capped?;
        let mut rows = rows?;
        rows.extend(self.ready(client, &claims, &mut loaded.found).await?);
        let mut records = HashMap::with_capacity(rows.len());
        for row in &rows {
            let (key, record, place) = parse_resource(row)?;
            let waiters = record.queue.iter().cloned().collect();
            let tenures = record.tenures.clone();
            loaded.stored.insert(key.clone(), Stored { place, tenures, waiters });
            records.insert(key, record);
        }
        self.jobs(client, commands, &mut loaded).await?;
        self.sessions(client, commands, &records, &mut loaded).await?;
        let now = loaded.now;
        for (key, record) in records {
            loaded.world.admit(&key, record, now);
        }
        self.count_caps(client, &caps, &mut loaded).await?;
        loaded.world.ready.follow(&self.served.lock().expect("nothing panics while it is locked"));
        Ok(loaded)
    }

    /// The resources that commands name, and those that a claim has got before. Rows are made for
    /// resources that have none, so that there is something to lock.
    async fn named(
        &self,
        client: &Client,
        commands: &[Command],
        claims: &[&Claim],
    ) -> Loading<Vec<Row>> {
        let keys: BTreeSet<&str> =
            commands.iter().filter_map(Command::key).map(ResourceKey::as_str).collect();
        let keys: Vec<&str> = keys.into_iter().collect();
        let jobs: Vec<String> = commands.iter().filter_map(Command::job).map(text).collect();
        if keys.is_empty() && jobs.is_empty() && claims.is_empty() {
            return Ok(Vec::new());
        }
        let sessions: Vec<String> = claims.iter().map(|claim| text(claim.session)).collect();
        let requests: Vec<String> = claims.iter().map(|claim| text(claim.request)).collect();
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
        let mut rows = client.query_typed(&sql, &params).await?;
        let found: BTreeSet<&str> = rows.iter().map(|row| row.get(0)).collect();
        let missing: Vec<&str> = keys.into_iter().filter(|key| !found.contains(key)).collect();
        if !missing.is_empty() {
            rows.extend(make(client, &missing).await?);
        }
        Ok(rows)
    }

    /// The jobs that commands name: those that are over, and where the others are.
    async fn jobs(
        &self,
        client: &Client,
        commands: &[Command],
        loaded: &mut Loaded,
    ) -> Loading<()> {
        let ids: Vec<String> = commands.iter().filter_map(Command::job).map(text).collect();
        if !ids.is_empty() {
            for row in client.query_typed(JOBS, &[(&ids as _, Type::TEXT_ARRAY)]).await? {
                let key: ResourceKey = parse_key(row.get(0))?;
                let id = row.get::<_, &str>(2).parse().map_err(|e| corrupt("a job", &e))?;
                loaded.job_keys.insert(id, key.clone());
                if let Some(body) = row.get::<_, Option<&str>>(1) {
                    loaded.world.past.insert(id, (key, parse_body("a job", body)?));
                }
            }
        }
        let named = commands.iter().filter_map(Command::key).chain(loaded.job_keys.values());
        let busy = named.filter(|key| !loaded.stored.contains_key(*key)).cloned();
        loaded.busy = busy.collect();
        Ok(())
    }

    /// Loads the sessions that the commands and the records name, and the time.
    async fn sessions(
        &self,
        client: &Client,
        commands: &[Command],
        records: &HashMap<ResourceKey, Record>,
        loaded: &mut Loaded,
    ) -> Loading<()> {
        let mut ids: BTreeSet<String> = commands.iter().filter_map(session).map(text).collect();
        for record in records.values() {
            ids.extend(record.tenures.iter().map(|tenure| text(tenure.session)));
            ids.extend(record.queue.iter().map(|waiter| text(waiter.session)));
        }
        let ids: Vec<String> = ids.into_iter().collect();
        let sessions = [(&ids as _, Type::TEXT_ARRAY)];
        let clock = [(&self.id as _, Type::TEXT)];
        let sql = format!("{CLOCK}{}", life::COLUMNS);
        let (rows, clock) =
            tokio::join!(client.query_typed(SESSIONS, &sessions), client.query_typed(&sql, &clock));
        let (rows, clock) = (rows?, clock?);
        let clock = clock.first().ok_or_else(|| corrupt("the clock", &"no row"))?;
        loaded.now = self.time(clock.get(0));
        let life = Life::parse(clock, 3)?;
        let mut seen = self.life.lock().expect("nothing panics while it is locked");
        loaded.world.incarnation = seen.follow(life)?;
        drop(seen);
        loaded.batch = clock.get::<_, Option<i64>>(2).unwrap_or(0);
        let looked = millis(clock.get::<_, Option<i64>>(1).unwrap_or(0));
        let stalled = loaded.now.since(looked) > STALL_MS;
        for row in &rows {
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
}

/// Makes blank rows and locks them.
async fn make(client: &Client, keys: &[&str]) -> Loading<Vec<Row>> {
    let blank = |key: &&str| -> Loading<String> {
        let record = Record::new(&parse_key(key)?);
        Ok(serde_json::to_string(&record).expect("a record is plain JSON"))
    };
    let bodies = keys.iter().map(blank).collect::<Loading<Vec<String>>>()?;
    let insert = "INSERT INTO tenure.resources (key, tenant, kind, name, token, running, body) \
                  SELECT key, split_part(key, '/', 1), split_part(key, '/', 2), \
                  split_part(key, '/', 3), 0, 0, body \
                  FROM unnest($1::text[], $2::text[]) AS new (key, body) ORDER BY key \
                  ON CONFLICT (key) DO NOTHING";
    let select = format!(
        "SELECT {COLUMNS} FROM tenure.resources r WHERE r.key = ANY($1) \
         ORDER BY r.key FOR UPDATE SKIP LOCKED"
    );
    let keys = keys.to_vec();
    let params = [(&keys as _, Type::TEXT_ARRAY), (&bodies as _, Type::TEXT_ARRAY)];
    let (made, rows) = tokio::join!(
        client.execute_typed(insert, &params),
        client.query_typed(&select, &params[..1]),
    );
    made?;
    Ok(rows?)
}

fn as_claim(command: &Command) -> Option<&Claim> {
    if let Command::Claim(claim) = command { Some(claim) } else { None }
}

/// The session that a command names.
fn session(command: &Command) -> Option<SessionId> {
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

pub(super) fn text(id: impl ToString) -> String {
    id.to_string()
}

pub(super) fn parse_key(text: &str) -> Result<ResourceKey> {
    text.parse().map_err(|error| corrupt(&format!("the key {text:?}"), &error))
}

pub(super) fn parse_body<'a, T: serde::Deserialize<'a>>(what: &str, body: &'a str) -> Result<T> {
    serde_json::from_str(body).map_err(|error| corrupt(what, &error))
}

/// A resource from its [`COLUMNS`].
pub(super) fn parse_resource(row: &Row) -> Result<(ResourceKey, Record, Place)> {
    let key = parse_key(row.get(0))?;
    let record = parse_body(&format!("resource {key}"), row.get(1))?;
    let since: Option<i64> = row.get(3);
    let priority = i32::try_from(row.get::<_, Option<i64>>(2).unwrap_or(0)).unwrap_or(0);
    let place = Place {
        ready: since.map(|since| (priority, millis(since))),
        later: row.get::<_, Option<i64>>(4).map(millis),
        running: usize::try_from(row.get::<_, i64>(5)).unwrap_or(0),
    };
    Ok((key, record, place))
}

/// What is written down of a resource: what the index knows of it, and when its first wait ends.
pub(super) fn place(world: &World, key: &ResourceKey, record: &Record) -> Place {
    let place = world.ready.place(key);
    let waits = record.queue.iter().map(|waiter| waiter.until).min();
    Place { later: [place.later, waits].into_iter().flatten().min(), ..place }
}

/// A session, with what it says of itself when it claims jobs.
pub(super) fn parse_session(row: &Row) -> Result<Session> {
    let mut session: Session = parse_body("a session", row.get(0))?;
    session.expires_at = millis(row.get(1));
    if let (Some(kinds), Some(asked_at)) = (row.get::<_, Option<&str>>(2), row.get(3)) {
        let kinds: Vec<Text> = parse_body("the kinds of a session", kinds)?;
        let claims: Option<&str> = row.get(4);
        let claims = claims.map(|claims| parse_body("the claims of a session", claims));
        let claims = claims.transpose()?.unwrap_or_default();
        session.worker = Some(Box::new(Worker { kinds, asked_at: millis(asked_at), claims }));
    }
    Ok(session)
}

/// A job from its key and body.
pub(super) fn parse_job(row: &Row) -> Result<(ResourceKey, Box<Job>)> {
    Ok((parse_key(row.get(0))?, parse_body("a job", row.get(1))?))
}

impl Postgres {
    /// The time: what the database says, unless a test says otherwise.
    pub(super) fn time(&self, database: i64) -> Millis {
        self.clock.as_ref().map_or_else(|| millis(database), |clock| clock.now())
    }

    /// The time of a test, for statements that compare with it.
    pub(super) fn other_time(&self) -> Option<i64> {
        self.clock.as_ref().map(|clock| bigint(clock.now()))
    }
}

//! The journal: what is true, batch after batch.
//!
//! An entry tells everything that a batch changed: lines of history, records that history does not
//! tell, sessions, jobs that are over, pieces of logs. Whoever has the state before an entry and
//! follows it has the state after it.

use std::fmt::Write as _;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use tenure_core::history::{self, SealedEntry};
use tenure_core::map::Map;
use tenure_core::session::Worker;
use tenure_core::world::LogChunk;
use tenure_core::{
    Job, JobId, Millis, Record, RequestId, ResourceKey, Session, SessionId, Text, World,
};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::conn::Conn;
use super::replica::Over;
use super::rows::{parse_body, parse_key, parse_line};
use super::{bigint, corrupt, millis};
use crate::ledger::Batch;
use crate::random;
use crate::store::Result;

/// The columns of an entry for [`Change::parse`], before its body.
pub(super) const COLUMNS: &str = "id, nonce, at, grace, lines, logs";

/// Room for most of what is told as JSON, so that it need not be moved while it is made.
const JSON_ROOM: usize = 768;

/// A session that asked for jobs is told of when so much time has passed, or more has changed.
const ASKED_MS: u64 = 1_000;

/// Where the journal is: how much of everything there was, and how to know it again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) id: i64,
    pub(super) nonce: i64,
    pub(super) at: Millis,
    /// How many lines of history there are.
    pub(super) lines: i64,
    /// How many pieces of logs.
    pub(super) logs: i64,
}

/// A batch, to be appended.
pub(super) struct Entry {
    /// Where the journal is after it.
    pub(super) after: Position,
    grace: bool,
    /// What is held on the resources that it changed, for the fence of users' own transactions.
    held: String,
    body: String,
    /// Where in the body the lines of history are.
    lines: Vec<Range<usize>>,
}

/// What an entry changed.
#[derive(Default)]
pub(super) struct Change {
    /// Where the journal is after it.
    pub(super) after: Position,
    pub(super) grace: bool,
    pub(super) body: String,
    /// Lines of history, and where in the body they are.
    pub(super) lines: Vec<(ResourceKey, history::Entry, Range<usize>)>,
    pub(super) whole: Map<ResourceKey, Box<Record>>,
    pub(super) sessions: Vec<Session>,
    pub(super) gone: Vec<SessionId>,
    pub(super) over: Vec<Over>,
    pub(super) logs: Vec<LogChunk>,
}

/// What others know of when sessions expire and what they work.
pub(super) type Told = Map<SessionId, (Millis, Option<Box<Worker>>)>;

impl Entry {
    /// What a batch changed, as the entry that comes after `before`.
    pub(super) fn of(
        world: &World,
        batch: &Batch,
        before: Position,
        at: Millis,
        told: &mut Told,
    ) -> Self {
        let (mut body, lines) = told_lines(batch);
        let put = "a string takes everything";
        let mut whole: Vec<&ResourceKey> = batch.untold.iter().chain(&batch.moved).collect();
        whole.sort_unstable();
        whole.dedup();
        let records = whole.iter().filter_map(|key| Some((key, world.records.get(*key)?)));
        for (key, record) in records {
            writeln!(body, "R {key} {}", json(record)).expect(put);
        }
        let mut sessions: Vec<_> = batch.sessions.iter().map(|id| (*id, true)).collect();
        sessions.extend(batch.beats.iter().map(|id| (*id, false)));
        sessions.sort_unstable_by_key(|(id, changed)| (*id, !changed));
        sessions.dedup_by_key(|(id, _)| *id);
        for (id, changed) in sessions {
            match world.sessions.get(id) {
                Some(session) if changed || is_news(session, told) => {
                    note(session, told);
                    writeln!(body, "S {}", Kept::of(session)).expect(put);
                }
                Some(_) => {}
                None => {
                    told.remove(&id);
                    writeln!(body, "G {id}").expect(put);
                }
            }
        }
        // Whoever replays the lines of a resource knows which of its jobs are over by that.
        let untold = |key: &ResourceKey, job: &Job| {
            whole.binary_search(&key).is_ok() || job.state.is_resolved()
        };
        for (key, job) in batch.finished.iter().filter(|(key, job)| untold(key, job)) {
            writeln!(body, "J {key} {}", json(job)).expect(put);
        }
        for LogChunk { job, attempt, at, text } in &batch.logs {
            writeln!(body, "P {job} {attempt} {} {}", at.0, json(text)).expect(put);
        }
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let after = Position {
            id: before.id + 1,
            nonce: random::nonce(),
            at,
            lines: before.lines + count(batch.history.len()),
            logs: before.logs + count(batch.logs.len()),
        };
        Self { after, grace: batch.grace, held: held(world, batch), body, lines }
    }

    /// Whether it tells nothing but that somebody has looked.
    pub(super) fn is_empty(&self) -> bool {
        self.body.is_empty() && !self.grace
    }

    /// Appends it.
    pub(super) async fn append(
        &self,
        client: &Conn,
    ) -> std::result::Result<u64, tokio_postgres::Error> {
        let sql = "INSERT INTO tenure.journal \
                       (id, nonce, at, grace, lines, logs, held, body) \
                   VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
        let params = [
            (&self.after.id as _, Type::INT8),
            (&self.after.nonce as _, Type::INT8),
            (&bigint(self.after.at) as _, Type::INT8),
            (&self.grace as _, Type::BOOL),
            (&self.after.lines as _, Type::INT8),
            (&self.after.logs as _, Type::INT8),
            (&self.held as _, Type::TEXT),
            (&self.body as _, Type::TEXT),
        ];
        client.execute_typed(sql, &params).await
    }

    /// Its body and where the lines of history are in it, when it has been appended.
    pub(super) fn into_lines(self) -> (String, Vec<Range<usize>>) {
        (self.body, self.lines)
    }
}

/// The lines of history of a batch as the body of an entry begins with them, and where they are.
/// Their hashes follow from the lines before them.
fn told_lines(batch: &Batch) -> (String, Vec<Range<usize>>) {
    let room =
        |(key, sealed): &(ResourceKey, SealedEntry)| key.as_str().len() + sealed.line.len() + 4;
    let mut body = String::with_capacity(batch.history.iter().map(room).sum());
    let mut lines = Vec::with_capacity(batch.history.len());
    for (key, sealed) in &batch.history {
        for part in ["L ", key.as_str(), " "] {
            body.push_str(part);
        }
        let from = body.len();
        body.push_str(&sealed.line);
        lines.push(from..body.len());
        body.push('\n');
    }
    (body, lines)
}

/// What is held on the resources that a batch changed: a line for each, with a blank after each
/// word of it.
fn held(world: &World, batch: &Batch) -> String {
    let mut changed: Vec<&ResourceKey> = batch.records.iter().chain(&batch.moved).collect();
    changed.sort_unstable();
    changed.dedup();
    let mut held = String::from("\n");
    for (key, record) in changed.into_iter().filter_map(|key| Some((key, world.records.get(key)?)))
    {
        held.push_str(key.as_str());
        held.push(' ');
        for tenure in &record.tenures {
            write!(held, "{}={} ", tenure.lock, tenure.token).expect("a string takes everything");
        }
        held.push('\n');
    }
    held
}

impl Change {
    /// Reads the [`COLUMNS`] of an entry and its body, from a position on.
    pub(super) fn parse(row: &Row, at: usize) -> Result<Self> {
        let body: String = row.get(at + 6);
        let mut change = Self { grace: row.get(at + 3), ..Self::default() };
        let mut end = 0;
        for part in body.split_terminator('\n') {
            end += part.len();
            change.take(part, end)?;
            end += 1;
        }
        change.body = body;
        change.after = Position {
            id: row.get(at),
            nonce: row.get(at + 1),
            at: millis(row.get(at + 2)),
            lines: row.get(at + 4),
            logs: row.get(at + 5),
        };
        Ok(change)
    }

    /// Takes in a part of the body, which ends there.
    fn take(&mut self, part: &str, end: usize) -> Result<()> {
        let odd = || corrupt("the journal", &format!("cannot read {part:.80}"));
        let (what, rest) = part.split_once(' ').ok_or_else(odd)?;
        let pair = || rest.split_once(' ').ok_or_else(odd);
        match what {
            "L" => {
                let (key, rest) = pair()?;
                // An older version of this program wrote the hash before the line.
                let line = &rest[rest.find('{').ok_or_else(odd)?..];
                self.lines.push((parse_key(key)?, parse_line(line)?, end - line.len()..end));
            }
            "R" => {
                let (key, body) = pair()?;
                self.whole.insert(parse_key(key)?, parse_body("a record", body)?);
            }
            "S" => self.sessions.push(Kept::parse(rest)?),
            "G" => self.gone.push(rest.parse().map_err(|e| corrupt("a session", &e))?),
            "J" => {
                let (key, body) = pair()?;
                let (key, job) = (parse_key(key)?, parse_body("a job", body)?);
                self.over.push(Over { key, job });
            }
            "P" => {
                let mut words = rest.splitn(4, ' ');
                let mut word = || words.next().ok_or_else(odd);
                let job: JobId = word()?.parse().map_err(|e| corrupt("a job", &e))?;
                let attempt = word()?.parse().map_err(|e| corrupt("an attempt", &e))?;
                let at = Millis(word()?.parse().map_err(|e| corrupt("an instant", &e))?);
                let text: Text = parse_body("a piece of a log", word()?)?;
                self.logs.push(LogChunk { job, attempt, at, text });
            }
            _ => return Err(odd()),
        }
        Ok(())
    }

    /// The resources that it changed.
    pub(super) fn keys(&self) -> impl Iterator<Item = &ResourceKey> {
        self.lines.iter().map(|(key, _, _)| key).chain(self.whole.keys())
    }
}

/// A session as the journal has it, with what it says of itself when it claims jobs.
#[derive(Serialize, Deserialize)]
struct Kept {
    session: Session,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    worker: Option<(Vec<Text>, Millis, Vec<RequestId>)>,
}

impl Kept {
    fn of(session: &Session) -> String {
        let worker = session.worker.as_deref();
        let worker =
            worker.map(|w| (w.kinds.clone(), w.polled_at, w.claims.iter().copied().collect()));
        json(&Self { session: session.clone(), worker })
    }

    fn parse(body: &str) -> Result<Session> {
        let Self { mut session, worker } = parse_body("a session", body)?;
        session.worker = worker.map(|(kinds, asked_at, claims)| {
            Box::new(Worker { kinds, polled_at: asked_at, claims: claims.into() })
        });
        Ok(session)
    }
}

/// Whether more has changed than that it asked for jobs a moment later.
fn is_news(session: &Session, told: &Told) -> bool {
    let Some((expires_at, before)) = told.get(&session.id) else { return true };
    let soon = match (&session.worker, before) {
        (Some(now), Some(before)) => {
            now.polled_at.since(before.polled_at) < ASKED_MS
                && (&now.kinds, &now.claims) == (&before.kinds, &before.claims)
        }
        (now, before) => now == before,
    };
    *expires_at != session.expires_at || !soon
}

/// Notes what others know of a session.
pub(super) fn note(session: &Session, told: &mut Told) {
    told.insert(session.id, (session.expires_at, session.worker.clone()));
}

pub(super) fn json(value: &impl serde::Serialize) -> String {
    let mut room = Vec::with_capacity(JSON_ROOM);
    serde_json::to_writer(&mut room, value).expect("it is plain JSON");
    String::from_utf8(room).expect("JSON is text")
}

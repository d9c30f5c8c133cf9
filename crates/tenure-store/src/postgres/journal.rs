//! Encoding and decoding of journal entries.
//!
//! The journal is the source of truth. An entry contains everything that a batch changed: history
//! events, records whose changes are not in history, sessions, finished jobs and log pieces.
//! Applying an entry to the state before it gives the state after it.

use std::fmt::Write as _;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use tenure_core::history::{self, SealedEntry};
use tenure_core::map::Map;
use tenure_core::recent_claim::RecentClaim;
use tenure_core::session::Worker;
use tenure_core::world::LogChunk;
use tenure_core::{
    Job, JobId, Millis, Record, ResourceKey, Session, SessionId, Text, Token, World,
};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::client::PgClient;
use super::replica::FinishedJob;
use super::rows::{parse_body, parse_event, parse_key};
use super::{bigint, corrupt, millis};
use crate::ledger::Batch;
use crate::random;
use crate::store::Result;

/// The columns for [`DecodedEntry::parse`], except for the body.
pub(super) const ENTRY_COLUMNS: &str = "id, nonce, at, grace, lines, logs";

/// Initial capacity of JSON buffers. Fits most values without reallocation.
const JSON_CAPACITY: usize = 768;

/// Granularity at which a worker's `asked_at` is journaled if nothing else of its session changed.
const ASKED_AT_GRANULARITY_MS: u64 = 1_000;

/// A position in the journal, with the totals up to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) id: i64,
    /// Distinguishes the entry from one with the same id in another incarnation.
    pub(super) nonce: i64,
    pub(super) at: Millis,
    /// Total number of history events.
    pub(super) lines: i64,
    /// Total number of log pieces.
    pub(super) logs: i64,
}

/// An entry to append.
pub(super) struct Entry {
    pub(super) position: Position,
    grace: bool,
    /// The tenures of the changed resources, for `tenure.assert_held`.
    held: String,
    body: String,
    /// Byte ranges of the history events in the body.
    event_ranges: Vec<Range<usize>>,
}

/// An entry that was read from the journal.
#[derive(Default)]
pub(super) struct DecodedEntry {
    pub(super) position: Position,
    pub(super) grace: bool,
    pub(super) body: String,
    /// History events with their byte ranges in the body.
    pub(super) events: Vec<(ResourceKey, history::Entry, Range<usize>)>,
    /// Complete records, for changes that are not in history.
    pub(super) records: Map<ResourceKey, Box<Record>>,
    pub(super) sessions: Vec<Session>,
    pub(super) removed_sessions: Vec<SessionId>,
    pub(super) finished_jobs: Vec<FinishedJob>,
    pub(super) logs: Vec<LogChunk>,
    /// Forgotten resources with their last tokens. The events of the entry follow.
    pub(super) forgotten: Vec<(ResourceKey, Token)>,
}

/// The expiry and worker of each session as last written to the journal.
pub(super) type JournaledSessions = Map<SessionId, (Millis, Option<Box<Worker>>)>;

impl Entry {
    /// Encodes the changes of a batch as the entry after `before`.
    pub(super) fn new(
        world: &World,
        batch: &Batch,
        before: Position,
        at: Millis,
        journaled: &mut JournaledSessions,
    ) -> Self {
        let (mut body, event_ranges) = encode_events(batch);
        let infallible = "writing to a string never fails";
        for (key, token) in &batch.forgotten {
            writeln!(body, "F {key} {token}").expect(infallible);
        }
        let mut whole: Vec<&ResourceKey> =
            batch.unreplayable.iter().chain(&batch.progressed).collect();
        whole.sort_unstable();
        whole.dedup();
        let records = whole.iter().filter_map(|key| Some((key, world.records.get(*key)?)));
        for (key, record) in records {
            writeln!(body, "R {key} {}", json(record)).expect(infallible);
        }
        let mut sessions: Vec<_> = batch.sessions.iter().map(|id| (*id, true)).collect();
        sessions.extend(batch.heartbeats.iter().map(|id| (*id, false)));
        sessions.sort_unstable_by_key(|(id, changed)| (*id, !changed));
        sessions.dedup_by_key(|(id, _)| *id);
        for (id, changed) in sessions {
            match world.sessions.get(id) {
                Some(session) if changed || must_journal(session, journaled) => {
                    set_journaled(session, journaled);
                    writeln!(body, "S {}", SessionBody::encode(session)).expect(infallible);
                }
                Some(_) => {}
                None => {
                    journaled.remove(&id);
                    writeln!(body, "G {id}").expect(infallible);
                }
            }
        }
        // Other finished jobs follow from replaying the events of their resource.
        let is_not_replayed = |key: &ResourceKey, job: &Job| {
            whole.binary_search(&key).is_ok() || job.state.is_resolved()
        };
        for (key, job) in batch.finished.iter().filter(|(key, job)| is_not_replayed(key, job)) {
            writeln!(body, "J {key} {}", json(job)).expect(infallible);
        }
        for LogChunk { job, attempt, at, text } in &batch.logs {
            writeln!(body, "P {job} {attempt} {} {}", at.0, json(text)).expect(infallible);
        }
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let position = Position {
            id: before.id + 1,
            nonce: random::nonce(),
            at,
            lines: before.lines + count(batch.history.len()),
            logs: before.logs + count(batch.logs.len()),
        };
        Self { position, grace: batch.grace, held: encode_held(world, batch), body, event_ranges }
    }

    /// Whether the entry changes nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.body.is_empty() && !self.grace
    }

    /// Appends the entry to the journal.
    pub(super) async fn append(
        &self,
        client: &PgClient,
    ) -> std::result::Result<u64, tokio_postgres::Error> {
        let sql = "INSERT INTO tenure.journal \
                       (id, nonce, at, grace, lines, logs, held, body) \
                   VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
        let params = [
            (&self.position.id as _, Type::INT8),
            (&self.position.nonce as _, Type::INT8),
            (&bigint(self.position.at) as _, Type::INT8),
            (&self.grace as _, Type::BOOL),
            (&self.position.lines as _, Type::INT8),
            (&self.position.logs as _, Type::INT8),
            (&self.held as _, Type::TEXT),
            (&self.body as _, Type::TEXT),
        ];
        client.execute_typed(sql, &params).await
    }

    /// Returns the body and the byte ranges of the history events in it.
    pub(super) fn into_events(self) -> (String, Vec<Range<usize>>) {
        (self.body, self.event_ranges)
    }
}

/// Encodes the history events of a batch, which are the first lines of the body. Returns their byte
/// ranges, too. Hashes are left out: they follow from the events before.
fn encode_events(batch: &Batch) -> (String, Vec<Range<usize>>) {
    let length =
        |(key, sealed): &(ResourceKey, SealedEntry)| key.as_str().len() + sealed.line.len() + 4;
    let mut body = String::with_capacity(batch.history.iter().map(length).sum());
    let mut ranges = Vec::with_capacity(batch.history.len());
    for (key, sealed) in &batch.history {
        for part in ["L ", key.as_str(), " "] {
            body.push_str(part);
        }
        let start = body.len();
        body.push_str(&sealed.line);
        ranges.push(start..body.len());
        body.push('\n');
    }
    (body, ranges)
}

/// Encodes the tenures of the resources that a batch changed: one line per resource, a space after
/// each word.
fn encode_held(world: &World, batch: &Batch) -> String {
    let mut changed: Vec<&ResourceKey> = batch.records.iter().chain(&batch.progressed).collect();
    changed.sort_unstable();
    changed.dedup();
    let mut held = String::from("\n");
    for (key, record) in changed.into_iter().filter_map(|key| Some((key, world.records.get(key)?)))
    {
        held.push_str(key.as_str());
        held.push(' ');
        for tenure in &record.tenures {
            let infallible = "writing to a string never fails";
            write!(held, "{}={} ", tenure.lock, tenure.token).expect(infallible);
        }
        held.push('\n');
    }
    held
}

impl DecodedEntry {
    /// Parses the [`ENTRY_COLUMNS`] and the body, which start at column `at`.
    pub(super) fn parse(row: &Row, at: usize) -> Result<Self> {
        let body: String = row.get(at + 6);
        let mut entry = Self { grace: row.get(at + 3), ..Self::default() };
        let mut end = 0;
        for line in body.split_terminator('\n') {
            end += line.len();
            entry.parse_line(line, end)?;
            end += 1;
        }
        entry.body = body;
        entry.position = Position {
            id: row.get(at),
            nonce: row.get(at + 1),
            at: millis(row.get(at + 2)),
            lines: row.get(at + 4),
            logs: row.get(at + 5),
        };
        Ok(entry)
    }

    /// Parses one line of the body. `end` is the byte offset of its end.
    fn parse_line(&mut self, line: &str, end: usize) -> Result<()> {
        let malformed = || corrupt("the journal", &format!("cannot parse {line:.80}"));
        let (tag, rest) = line.split_once(' ').ok_or_else(malformed)?;
        let pair = || rest.split_once(' ').ok_or_else(malformed);
        match tag {
            "L" => {
                let (key, rest) = pair()?;
                // Earlier versions wrote the hash in front of the event.
                let event = &rest[rest.find('{').ok_or_else(malformed)?..];
                self.events.push((parse_key(key)?, parse_event(event)?, end - event.len()..end));
            }
            "R" => {
                let (key, body) = pair()?;
                self.records.insert(parse_key(key)?, parse_body("a record", body)?);
            }
            "S" => self.sessions.push(SessionBody::parse(rest)?),
            "G" => self.removed_sessions.push(rest.parse().map_err(|e| corrupt("a session", &e))?),
            "J" => {
                let (key, body) = pair()?;
                let (key, job) = (parse_key(key)?, parse_body("a job", body)?);
                self.finished_jobs.push(FinishedJob { key, job });
            }
            "P" => {
                let mut words = rest.splitn(4, ' ');
                let mut word = || words.next().ok_or_else(malformed);
                let job: JobId = word()?.parse().map_err(|e| corrupt("a job", &e))?;
                let attempt = word()?.parse().map_err(|e| corrupt("an attempt", &e))?;
                let at = Millis(word()?.parse().map_err(|e| corrupt("an instant", &e))?);
                let text: Text = parse_body("a piece of a log", word()?)?;
                self.logs.push(LogChunk { job, attempt, at, text });
            }
            "F" => {
                let (key, token) = pair()?;
                let token = token.parse().map_err(|e| corrupt("a token", &e))?;
                self.forgotten.push((parse_key(key)?, Token(token)));
            }
            _ => return Err(malformed()),
        }
        Ok(())
    }

    /// Returns the resources that the entry changed, except for those that it only forgot.
    pub(super) fn keys(&self) -> impl Iterator<Item = &ResourceKey> {
        self.events.iter().map(|(key, _, _)| key).chain(self.records.keys())
    }
}

/// A session in the journal, with its worker: kinds, last claim and recent claims.
#[derive(Serialize, Deserialize)]
struct SessionBody {
    session: Session,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    worker: Option<(Vec<Text>, Millis, Vec<RecentClaim>)>,
}

impl SessionBody {
    fn encode(session: &Session) -> String {
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

/// Whether more has changed since the session was last journaled than a recent `asked_at`.
fn must_journal(session: &Session, journaled: &JournaledSessions) -> bool {
    let Some((expires_at, before)) = journaled.get(&session.id) else { return true };
    let is_same_worker = match (&session.worker, before) {
        (Some(now), Some(before)) => {
            now.polled_at.since(before.polled_at) < ASKED_AT_GRANULARITY_MS
                && (&now.kinds, &now.claims) == (&before.kinds, &before.claims)
        }
        (now, before) => now == before,
    };
    *expires_at != session.expires_at || !is_same_worker
}

/// Records a session as journaled.
pub(super) fn set_journaled(session: &Session, journaled: &mut JournaledSessions) {
    journaled.insert(session.id, (session.expires_at, session.worker.clone()));
}

pub(super) fn json(value: &impl serde::Serialize) -> String {
    let mut buffer = Vec::with_capacity(JSON_CAPACITY);
    serde_json::to_writer(&mut buffer, value).expect("value serializes to JSON");
    String::from_utf8(buffer).expect("JSON is UTF-8")
}

//! History pages: the events of one resource that were flushed together, in one row.
//!
//! History is read by resource and in global order. One row per event, with its entries in two
//! indexes, made up a third of the cost of a flush; hence pages. The events of a flush are divided
//! into segments. The pages of a segment have the same `upto`, and all events of a segment precede
//! those of the next one.

use std::fmt::Write as _;
use std::ops::Range;

use tenure_core::ResourceKey;
use tenure_core::history::{self, Hash};
use tenure_core::map::Map;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::columns::{Columns, borrowed, owned};
use super::connection::Pool;
use super::rows::parse_key;
use super::{corrupt, counter};
use crate::store::{HistoryQuery, HistoryRow, Result, StoreError};

/// Maximum number of events of a segment. Reads in global order read whole segments.
const SEGMENT_EVENTS_MAX: usize = 8_192;
/// Initial capacity of a page, in events as long as its first one.
const PAGE_CAPACITY_EVENTS: usize = 4;
/// Number of pages that one query reads.
const READ_PAGES_MAX: i64 = 64;

pub(super) const INSERT: &str = "\
    INSERT INTO tenure.pages (key, lines, n, first, upto) \
    SELECT unnest($1::text[]), unnest($2::text[]), unnest($3::bigint[]), unnest($4::bigint[]), \
           unnest($5::bigint[])";

/// A page under construction.
pub(super) struct Page<'a> {
    key: &'a str,
    lines: String,
    n: u64,
    first: i64,
    /// The hash of the last event and the byte offset at which to insert it, unless the page has
    /// only one event.
    last_hash: Option<(usize, Hash)>,
}

impl<'a> Page<'a> {
    /// Creates an empty page.
    pub(super) fn new(key: &'a str) -> Self {
        Self { key, lines: String::new(), n: 0, first: i64::MAX, last_hash: None }
    }

    /// Appends an event.
    pub(super) fn push(&mut self, position: i64, hash: Hash, line: &str, n: u64) {
        let infallible = "writing to a string never fails";
        if self.lines.is_empty() {
            self.lines.reserve(PAGE_CAPACITY_EVENTS * line.len());
            write!(self.lines, "{position} {hash} ").expect(infallible);
        } else {
            write!(self.lines, "\n{position} ").expect(infallible);
            self.last_hash = Some((self.lines.len(), hash));
        }
        self.lines.push_str(line);
        (self.n, self.first) = (n, self.first.min(position));
    }

    /// Returns empty columns for [`INSERT`].
    pub(super) fn columns() -> Columns<'a> {
        Columns::new(2, 3)
    }

    /// Adds the page to the columns unless it is empty.
    pub(super) fn add_to(mut self, upto: i64, columns: &mut Columns<'a>) {
        if let Some((at, hash)) = self.last_hash {
            self.lines.insert_str(at, &format!("{hash} "));
        }
        if !self.lines.is_empty() {
            let numbers = [Some(counter(self.n)), Some(self.first), Some(upto)];
            columns.push([borrowed(self.key), owned(self.lines)], numbers);
        }
    }
}

/// History events of one journal entry that have not been flushed.
pub(super) struct UnflushedEvents {
    pub(super) entry: i64,
    /// The global position of the first event.
    pub(super) first: i64,
    /// The part of the entry's body with the events. One string is cheaper than one per event.
    pub(super) text: String,
    pub(super) spans: Vec<EventSpan>,
}

/// A history event as a byte range of a text.
pub(super) struct EventSpan {
    pub(super) key: ResourceKey,
    pub(super) n: u64,
    pub(super) hash: Hash,
    pub(super) range: Range<usize>,
}

impl UnflushedEvents {
    /// Returns the events with their global positions.
    pub(super) fn iter(&self) -> impl Iterator<Item = UnflushedEvent<'_>> {
        (self.first..).zip(&self.spans).map(|(position, EventSpan { key, n, hash, range })| {
            UnflushedEvent { position, key, n: *n, hash: *hash, line: &self.text[range.clone()] }
        })
    }
}

/// A history event that has not been flushed, with its global position.
pub(super) struct UnflushedEvent<'a> {
    pub(super) position: i64,
    pub(super) key: &'a ResourceKey,
    pub(super) n: u64,
    pub(super) hash: Hash,
    pub(super) line: &'a str,
}

/// Divides events in global order into segments and pages.
pub(super) fn build_pages<'a>(events: impl Iterator<Item = UnflushedEvent<'a>>) -> Columns<'a> {
    let mut columns = Page::columns();
    let mut events = events.peekable();
    while events.peek().is_some() {
        let (mut pages, mut page_of) = (Vec::new(), Map::default());
        let mut upto = 0;
        let segment = events.by_ref().take(SEGMENT_EVENTS_MAX);
        for UnflushedEvent { position, key, n, hash, line } in segment {
            let at = *page_of.entry(key).or_insert_with(|| {
                pages.push(Page::new(key.as_str()));
                pages.len() - 1
            });
            pages[at].push(position, hash, line, n);
            upto = position;
        }
        pages.into_iter().for_each(|page| page.add_to(upto, &mut columns));
    }
    columns
}

/// Parses the events of a page.
pub(super) fn parse_page<'a>(
    key: &'a ResourceKey,
    page: &'a str,
) -> impl Iterator<Item = Result<HistoryRow>> + 'a {
    parse_items(page).map(|item| {
        let (position, hash, line) = item?;
        Ok(HistoryRow { position, key: key.clone(), text: line.to_owned(), hash })
    })
}

/// Parses the items of a page: global position, hash and event. Only the first and the last hash
/// are stored. The others are derived, so a mismatch at the last one reveals an edit.
pub(super) fn parse_items(page: &str) -> impl Iterator<Item = Result<(u64, Hash, &str)>> {
    let mut before = None;
    page.lines().map(move |item| {
        let (position, rest) = item.split_once(' ').ok_or_else(|| malformed(item))?;
        let position = position.parse().map_err(|_| malformed(item))?;
        let (hash, line) = if rest.starts_with('{') {
            (history::chain_hash(before.ok_or_else(|| malformed(item))?, rest), rest)
        } else {
            let (hash, line) = rest.split_once(' ').ok_or_else(|| malformed(item))?;
            (Hash::try_from(hash.to_owned()).map_err(|error| corrupt("a hash", &error))?, line)
        };
        before = Some(hash);
        Ok((position, hash, line))
    })
}

fn malformed(item: &str) -> StoreError {
    corrupt("a page", &format!("cannot parse {item:.80}"))
}

/// Reads history from the projection.
pub(super) async fn read(reader: &Pool, query: &HistoryQuery) -> Result<Vec<HistoryRow>> {
    match query {
        HistoryQuery::Of { key, before, limit } => {
            read_resource(reader, key, upper_bound(*before), *limit).await
        }
        HistoryQuery::Newest { tenant, before, limit } => {
            let tenant = tenant.as_deref().unwrap_or("");
            read_newest(reader, tenant, upper_bound(*before), *limit).await
        }
        HistoryQuery::Scan { after, limit } => scan(reader, counter(*after), *limit).await,
    }
}

/// Reads the events of a resource, newest first.
async fn read_resource(
    reader: &Pool,
    key: &ResourceKey,
    before: i64,
    limit: usize,
) -> Result<Vec<HistoryRow>> {
    let sql = "SELECT n, lines FROM tenure.pages \
               WHERE key = $1 AND n < $2 AND first < $3 ORDER BY n DESC LIMIT $4";
    let (mut all, mut below_n) = (Vec::new(), i64::MAX);
    loop {
        let params = [
            (&key.as_str() as _, Type::TEXT),
            (&below_n as _, Type::INT8),
            (&before as _, Type::INT8),
            (&READ_PAGES_MAX as _, Type::INT8),
        ];
        let rows = reader.query(sql, &params).await?;
        let Some(last) = rows.last() else { return Ok(all) };
        below_n = last.get(0);
        for row in &rows {
            let page = parse_page(key, row.get(1)).collect::<Result<Vec<_>>>()?;
            for line in page.into_iter().rev() {
                if counter(line.position) < before {
                    all.push(line);
                }
                if all.len() == limit {
                    return Ok(all);
                }
            }
        }
    }
}

/// Reads the events of all resources, newest first.
async fn read_newest(
    reader: &Pool,
    tenant: &str,
    before: i64,
    limit: usize,
) -> Result<Vec<HistoryRow>> {
    let sql = "SELECT upto, key, lines FROM tenure.pages WHERE upto <= $1 \
               AND ($2 = '' OR split_part(key, '/', 1) = $2) \
               ORDER BY upto DESC FETCH FIRST $3 ROWS WITH TIES";
    // The segment of the last event before `before` may extend beyond it.
    let begin = "SELECT min(upto) FROM tenure.pages WHERE upto >= $1";
    let begin = reader.query_one(begin, &[(&before as _, Type::INT8)]).await?;
    let (mut all, mut upto) = (Vec::new(), begin.get::<_, Option<i64>>(0).unwrap_or(i64::MAX));
    loop {
        let params = [
            (&upto as _, Type::INT8),
            (&tenant as _, Type::TEXT),
            (&READ_PAGES_MAX as _, Type::INT8),
        ];
        let rows = reader.query(sql, &params).await?;
        let Some(last) = rows.last() else { return Ok(all) };
        upto = last.get::<_, i64>(0) - 1;
        let from = all.len();
        all.extend(parse_pages(&rows)?.into_iter().filter(|line| counter(line.position) < before));
        all[from..].sort_unstable_by_key(|line| std::cmp::Reverse(line.position));
        if all.len() >= limit {
            all.truncate(limit);
            return Ok(all);
        }
    }
}

/// Reads the events of all resources in global order.
async fn scan(reader: &Pool, after: i64, limit: usize) -> Result<Vec<HistoryRow>> {
    let (mut all, mut upto) = (Vec::new(), after);
    loop {
        let params = [(&upto as _, Type::INT8), (&READ_PAGES_MAX as _, Type::INT8)];
        let rows = reader.query(OLDEST, &params).await?;
        let Some(last) = rows.last() else { return Ok(all) };
        upto = last.get(0);
        let from = all.len();
        all.extend(parse_pages(&rows)?.into_iter().filter(|line| counter(line.position) > after));
        all[from..].sort_unstable_by_key(|line| line.position);
        if all.len() >= limit {
            all.truncate(limit);
            return Ok(all);
        }
    }
}

/// Selects the oldest pages after a segment, always whole segments.
pub(super) const OLDEST: &str = "\
    SELECT upto, key, lines, n FROM tenure.pages WHERE upto > $1 \
    ORDER BY upto FETCH FIRST $2 ROWS WITH TIES";

/// Parses all events of pages.
fn parse_pages(rows: &[Row]) -> Result<Vec<HistoryRow>> {
    let mut all = Vec::new();
    for row in rows {
        let key = parse_key(row.get(1))?;
        for line in parse_page(&key, row.get(2)) {
            all.push(line?);
        }
    }
    Ok(all)
}

fn upper_bound(before: Option<u64>) -> i64 {
    before.map_or(i64::MAX, counter)
}

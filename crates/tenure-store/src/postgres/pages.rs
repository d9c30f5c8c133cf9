//! Pages of history: the lines of one resource that were told to the tables together.
//!
//! What happened is asked for by resource, and in the order in which it happened to all. A page is
//! a row: a row for each line, with its places in two indexes, was a third of what the database
//! spent on the tables. Lines that are told together are divided into parts; those of one part are
//! in the pages that have the same `upto`, and what is in an earlier part happened before.

use std::fmt::Write as _;
use std::ops::Range;

use tenure_core::ResourceKey;
use tenure_core::history::{self, Hash};
use tenure_core::map::Map;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::columns::{Columns, own, there};
use super::link::Pool;
use super::rows::parse_key;
use super::{corrupt, counter};
use crate::store::{HistoryQuery, Line, Result, StoreError};

/// Most lines of a part: who reads what happened to all reads this much at least.
const PART_MAX: usize = 8_192;
/// Room in a new page, in lines as long as its first one.
const PAGE_ROOM: usize = 4;
/// Most pages that are read at once.
const READ_MAX: i64 = 64;

pub(super) const INSERT: &str = "\
    INSERT INTO tenure.pages (key, lines, n, first, upto) \
    SELECT unnest($1::text[]), unnest($2::text[]), unnest($3::bigint[]), unnest($4::bigint[]), \
           unnest($5::bigint[])";

/// A page in the making.
pub(super) struct Page<'a> {
    key: &'a str,
    lines: String,
    n: u64,
    first: i64,
    /// The hash of the last line, and where it belongs; the first line has its own.
    last: Option<(usize, Hash)>,
}

impl<'a> Page<'a> {
    /// A page without lines.
    pub(super) fn new(key: &'a str) -> Self {
        Self { key, lines: String::new(), n: 0, first: i64::MAX, last: None }
    }

    /// Puts a line at its end.
    pub(super) fn push(&mut self, position: i64, hash: Hash, line: &str, n: u64) {
        let put = "a string takes everything";
        if self.lines.is_empty() {
            self.lines.reserve(PAGE_ROOM * line.len());
            write!(self.lines, "{position} {hash} ").expect(put);
        } else {
            write!(self.lines, "\n{position} ").expect(put);
            self.last = Some((self.lines.len(), hash));
        }
        self.lines.push_str(line);
        (self.n, self.first) = (n, self.first.min(position));
    }

    /// The columns for [`INSERT`].
    pub(super) fn columns() -> Columns<'a> {
        Columns::new(2, 3)
    }

    /// Puts it among others; a page without lines is none.
    pub(super) fn put(mut self, upto: i64, columns: &mut Columns<'a>) {
        if let Some((at, hash)) = self.last {
            self.lines.insert_str(at, &format!("{hash} "));
        }
        if !self.lines.is_empty() {
            let numbers = [Some(counter(self.n)), Some(self.first), Some(upto)];
            columns.push([there(self.key), own(self.lines)], numbers);
        }
    }
}

/// Lines of history of one entry that the tables do not have yet.
pub(super) struct PendingLines {
    pub(super) entry: i64,
    /// The place of the first of them among all lines.
    pub(super) first: i64,
    /// The entry, as far as it tells history: one text takes less time and room than many.
    pub(super) text: String,
    pub(super) lines: Vec<PlacedLine>,
}

/// A line of history that is somewhere in a text.
pub(super) struct PlacedLine {
    pub(super) key: ResourceKey,
    pub(super) n: u64,
    pub(super) hash: Hash,
    pub(super) at: Range<usize>,
}

impl PendingLines {
    /// The lines, each with its place.
    pub(super) fn each(&self) -> impl Iterator<Item = PendingLine<'_>> {
        (self.first..).zip(&self.lines).map(|(position, PlacedLine { key, n, hash, at })| {
            PendingLine { position, key, n: *n, hash: *hash, line: &self.text[at.clone()] }
        })
    }
}

/// A line that the tables do not have yet, with its place among all lines.
pub(super) struct PendingLine<'a> {
    pub(super) position: i64,
    pub(super) key: &'a ResourceKey,
    pub(super) n: u64,
    pub(super) hash: Hash,
    pub(super) line: &'a str,
}

/// The pages of lines that are in order.
pub(super) fn of<'a>(lines: impl Iterator<Item = PendingLine<'a>>) -> Columns<'a> {
    let mut columns = Page::columns();
    let mut lines = lines.peekable();
    while lines.peek().is_some() {
        let (mut pages, mut place) = (Vec::new(), Map::default());
        let mut upto = 0;
        for PendingLine { position, key, n, hash, line } in lines.by_ref().take(PART_MAX) {
            let at = *place.entry(key).or_insert_with(|| {
                pages.push(Page::new(key.as_str()));
                pages.len() - 1
            });
            pages[at].push(position, hash, line, n);
            upto = position;
        }
        pages.into_iter().for_each(|page| page.put(upto, &mut columns));
    }
    columns
}

/// The lines of a page.
pub(super) fn lines<'a>(
    key: &'a ResourceKey,
    page: &'a str,
) -> impl Iterator<Item = Result<Line>> + 'a {
    parts(page).map(|part| {
        let (position, hash, line) = part?;
        Ok(Line { position, key: key.clone(), text: line.to_owned(), hash })
    })
}

/// What a page has: for each line its place among all lines, its hash, and the line. Only the first
/// and the last hash are written down; the others follow from them, and so the last one shows
/// whether anything was changed.
pub(super) fn parts(page: &str) -> impl Iterator<Item = Result<(u64, Hash, &str)>> {
    let mut before = None;
    page.lines().map(move |part| {
        let (position, rest) = part.split_once(' ').ok_or_else(|| odd(part))?;
        let position = position.parse().map_err(|_| odd(part))?;
        let (hash, line) = if rest.starts_with('{') {
            (history::chain_hash(before.ok_or_else(|| odd(part))?, rest), rest)
        } else {
            let (hash, line) = rest.split_once(' ').ok_or_else(|| odd(part))?;
            (Hash::try_from(hash.to_owned()).map_err(|error| corrupt("a hash", &error))?, line)
        };
        before = Some(hash);
        Ok((position, hash, line))
    })
}

fn odd(part: &str) -> StoreError {
    corrupt("a page", &format!("cannot read {part:.80}"))
}

/// Reads lines of history from the tables.
pub(super) async fn read(reader: &Pool, query: &HistoryQuery) -> Result<Vec<Line>> {
    match query {
        HistoryQuery::Of { key, before, limit } => {
            of_resource(reader, key, below(*before), *limit).await
        }
        HistoryQuery::Newest { tenant, before, limit } => {
            newest(reader, tenant.as_deref().unwrap_or(""), below(*before), *limit).await
        }
        HistoryQuery::Scan { after, limit } => scan(reader, counter(*after), *limit).await,
    }
}

/// Lines of a resource, the newest first.
async fn of_resource(
    reader: &Pool,
    key: &ResourceKey,
    before: i64,
    limit: usize,
) -> Result<Vec<Line>> {
    let sql = "SELECT n, lines FROM tenure.pages \
               WHERE key = $1 AND n < $2 AND first < $3 ORDER BY n DESC LIMIT $4";
    let (mut all, mut below) = (Vec::new(), i64::MAX);
    loop {
        let params = [
            (&key.as_str() as _, Type::TEXT),
            (&below as _, Type::INT8),
            (&before as _, Type::INT8),
            (&READ_MAX as _, Type::INT8),
        ];
        let rows = reader.rows(sql, &params).await?;
        let Some(last) = rows.last() else { return Ok(all) };
        below = last.get(0);
        for row in &rows {
            let page = lines(key, row.get(1)).collect::<Result<Vec<_>>>()?;
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

/// What happened to all, the newest first.
async fn newest(reader: &Pool, tenant: &str, before: i64, limit: usize) -> Result<Vec<Line>> {
    let sql = "SELECT upto, key, lines FROM tenure.pages WHERE upto <= $1 \
               AND ($2 = '' OR split_part(key, '/', 1) = $2) \
               ORDER BY upto DESC FETCH FIRST $3 ROWS WITH TIES";
    // The part that the last line before it is in may go on after it.
    let begin = "SELECT min(upto) FROM tenure.pages WHERE upto >= $1";
    let begin = reader.one(begin, &[(&before as _, Type::INT8)]).await?;
    let (mut all, mut upto) = (Vec::new(), begin.get::<_, Option<i64>>(0).unwrap_or(i64::MAX));
    loop {
        let params =
            [(&upto as _, Type::INT8), (&tenant as _, Type::TEXT), (&READ_MAX as _, Type::INT8)];
        let rows = reader.rows(sql, &params).await?;
        let Some(last) = rows.last() else { return Ok(all) };
        upto = last.get::<_, i64>(0) - 1;
        let from = all.len();
        all.extend(whole(&rows)?.into_iter().filter(|line| counter(line.position) < before));
        all[from..].sort_unstable_by_key(|line| std::cmp::Reverse(line.position));
        if all.len() >= limit {
            all.truncate(limit);
            return Ok(all);
        }
    }
}

/// What happened to all, in order.
async fn scan(reader: &Pool, after: i64, limit: usize) -> Result<Vec<Line>> {
    let (mut all, mut upto) = (Vec::new(), after);
    loop {
        let params = [(&upto as _, Type::INT8), (&READ_MAX as _, Type::INT8)];
        let rows = reader.rows(OLDEST, &params).await?;
        let Some(last) = rows.last() else { return Ok(all) };
        upto = last.get(0);
        let from = all.len();
        all.extend(whole(&rows)?.into_iter().filter(|line| counter(line.position) > after));
        all[from..].sort_unstable_by_key(|line| line.position);
        if all.len() >= limit {
            all.truncate(limit);
            return Ok(all);
        }
    }
}

/// The pages after a part, the parts that they are of as a whole.
pub(super) const OLDEST: &str = "\
    SELECT upto, key, lines, n FROM tenure.pages WHERE upto > $1 \
    ORDER BY upto FETCH FIRST $2 ROWS WITH TIES";

/// All lines of pages.
fn whole(rows: &[Row]) -> Result<Vec<Line>> {
    let mut all = Vec::new();
    for row in rows {
        let key = parse_key(row.get(1))?;
        for line in lines(&key, row.get(2)) {
            all.push(line?);
        }
    }
    Ok(all)
}

fn below(before: Option<u64>) -> i64 {
    before.map_or(i64::MAX, counter)
}

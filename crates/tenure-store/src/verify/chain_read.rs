//! Reads and verifies the history of one resource, from the checkpoint of its pruned part.
//!
//! A resource is read from its newest entry backwards, but verified from its oldest one. Memory is
//! bounded: of a long history the positions of the pages are kept, and its pages are read twice.

use tenure_core::ResourceKey;
use tenure_core::history::Entry;
use tenure_core::verify::{ChainCheckpoint, Problem};

use crate::clock::stopwatch;
use crate::store::{HistoryQuery, HistoryRow, PAGE_MAX, Result, Store};

/// The verified history of one resource.
pub(super) struct ChainRead {
    /// What the entries add up to.
    pub(super) chain: ChainCheckpoint,
    /// The checkpoint that they continue.
    pub(super) base: Option<ChainCheckpoint>,
    /// Contradictions.
    pub(super) problems: Vec<Problem>,
    /// Whether the entry at [`Span::find`] is one of the entries.
    pub(super) has_found: bool,
}

/// The entries to read.
#[derive(Clone, Copy, Default)]
pub(super) struct Span {
    /// Exclusive upper bound of the position.
    pub(super) before: Option<u64>,
    /// Number of the last entry.
    pub(super) last: Option<u64>,
    /// Position of an entry to look for.
    pub(super) find: Option<u64>,
}

/// Reads and verifies the history of a resource. If entries are pruned meanwhile, the problems may
/// be false: then the checkpoint in the store differs from [`ChainRead::base`].
pub(super) async fn read_chain(
    store: &dyn Store,
    key: &ResourceKey,
    span: Span,
) -> Result<ChainRead> {
    let newest = page(store, key, span.before).await?;
    // The positions before which the older pages end, newest first.
    let mut ends = Vec::new();
    let (mut oldest, mut next) = (Vec::new(), end_of_next(&newest));
    while let Some(end) = next {
        ends.push(end);
        oldest = page(store, key, Some(end)).await?;
        next = end_of_next(&oldest);
    }
    // Read after the entries: what was pruned before is in it, what is pruned later was read.
    let base = store.reads().checkpoint(key).await?;
    let mut read = Reading::new(key, base, span);
    if ends.pop().is_some() {
        read.check(&oldest);
    }
    for end in ends.into_iter().rev() {
        read.check(&page(store, key, Some(end)).await?);
    }
    read.check(&newest);
    Ok(read.result)
}

/// Reads up to [`PAGE_MAX`] entries, newest first. Pauses as long as the read takes, to leave half
/// of the time to other readers.
async fn page(
    store: &dyn Store,
    key: &ResourceKey,
    before: Option<u64>,
) -> Result<Vec<HistoryRow>> {
    let started = stopwatch();
    let query = HistoryQuery::Of { key: key.clone(), before, limit: PAGE_MAX };
    let rows = store.reads().history(query).await?;
    if rows.len() == PAGE_MAX {
        tokio::time::sleep(started.elapsed()).await;
    }
    Ok(rows)
}

/// Returns the position before which the next older page ends, if there may be one.
fn end_of_next(page: &[HistoryRow]) -> Option<u64> {
    page.last().filter(|_| page.len() == PAGE_MAX).map(|row| row.position)
}

/// Verifies the pages of one resource, oldest first.
struct Reading<'a> {
    key: &'a ResourceKey,
    span: Span,
    /// Whether the entries so far are included in the checkpoint.
    in_base: bool,
    result: ChainRead,
}

impl<'a> Reading<'a> {
    fn new(key: &'a ResourceKey, base: Option<ChainCheckpoint>, span: Span) -> Self {
        let in_base = base.is_some();
        let chain = base.clone().unwrap_or_else(|| ChainCheckpoint::new(key));
        let result = ChainRead { chain, base, problems: Vec::new(), has_found: false };
        Self { key, span, in_base, result }
    }

    /// Checks a page, whose rows are newest first.
    fn check(&mut self, page: &[HistoryRow]) {
        for row in page.iter().rev() {
            let chain = &mut self.result.chain;
            self.result.has_found |= self.span.find == Some(row.position);
            self.in_base = self.in_base
                && Entry::parse(&row.text).is_ok_and(|entry| entry.n <= chain.last_entry());
            let is_past_end = self.span.last.is_some_and(|last| chain.last_entry() >= last);
            if self.in_base || is_past_end {
                continue;
            }
            let checked = chain.check_line(&row.text, row.hash);
            let problem = |what| Problem { key: self.key.clone(), n: checked.n, what };
            self.result.problems.extend(checked.problems.into_iter().map(problem));
        }
    }
}

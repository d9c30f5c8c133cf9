//! Verifies the history of a store as it grows, without reading old entries again.
//!
//! It remembers the position of the last verified entry and, of each resource, what its entries add
//! up to ([`ChainCheckpoint`]). It has to cope with what the store does at the same time:
//!
//! - *Pruned* entries are replaced by a checkpoint, *forgotten* resources leave nothing. So a
//!   contradiction is only reported if the entry that it contradicts still exists, or if the whole
//!   chain is read again from its checkpoint and contradicts itself, too.
//! - A *restored* store starts a new incarnation, and its positions are used again. Verification
//!   then starts again from the beginning.
//!
//! Memory is bounded by [`CHAINS_MAX`]. A chain that is no longer remembered is read again from its
//! checkpoint when its resource changes.
//!
//! An entry that is changed after it was verified is not read again: the full verification of the
//! parent module finds it.

use std::collections::HashSet;

use tenure_core::history::Hash;
use tenure_core::verify::{ChainCheckpoint, CheckedLine, Problem};
use tenure_core::{Incarnation, Record, ResourceKey, Token};

use super::chain_cache::{CachedChain, ChainCache};
use super::chain_read::{ChainRead, Span, read_chain};
use crate::store::{HistoryQuery, HistoryRow, PAGE_MAX, Result, Store};

/// Maximum number of resources whose chains are remembered, a few hundred bytes each if they are
/// idle.
pub const CHAINS_MAX: usize = 100_000;
/// Maximum number of different problems that are reported.
pub const REPORTED_MAX: usize = 1_000;
/// Maximum number of reads of a chain that is pruned or changed meanwhile.
const TRIES_MAX: usize = 3;

/// Verifies the history of a store as it grows.
#[derive(Debug)]
pub struct IncrementalVerifier {
    incarnation: Option<Incarnation>,
    /// Position of the last verified entry.
    position: u64,
    chains: ChainCache,
    /// The last record that was compared; `None` before the first one.
    compared: Option<ResourceKey>,
    /// Problems that were reported.
    reported: HashSet<Problem>,
    /// Problems that the caller has not taken yet.
    new: Vec<Problem>,
}

/// Result of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Number of entries verified.
    pub entries: usize,
    /// Whether there may be more to do at once.
    pub has_more: bool,
}

/// What a second look at a contradiction shows.
enum Recheck {
    /// The entry was pruned or forgotten since it was read.
    Gone,
    /// The contradiction is real.
    Confirmed(Vec<Problem>),
    /// The history up to and including the entry adds up to this, with these problems.
    Read(ChainCheckpoint, Vec<Problem>),
    /// The history is being pruned: look again later.
    Unstable,
}

impl Default for IncrementalVerifier {
    fn default() -> Self {
        Self::with_chains_max(CHAINS_MAX)
    }
}

impl IncrementalVerifier {
    /// Creates a verifier that remembers at most `chains_max` chains.
    #[must_use]
    pub fn with_chains_max(chains_max: usize) -> Self {
        Self {
            incarnation: None,
            position: 0,
            chains: ChainCache::new(chains_max),
            compared: None,
            reported: HashSet::new(),
            new: Vec::new(),
        }
    }

    /// Starts again from the beginning if the store has started a new incarnation. Has to be called
    /// before the first step, and regularly.
    pub async fn check_incarnation(&mut self, store: &dyn Store) -> Result<()> {
        let incarnation = store.status().await?.incarnation;
        if self.incarnation != Some(incarnation) {
            self.incarnation = Some(incarnation);
            self.position = 0;
            self.chains.clear();
            self.compared = None;
        }
        Ok(())
    }

    /// Returns the problems found since the last call. Each problem is returned once, and at most
    /// [`REPORTED_MAX`] in total.
    pub fn take_problems(&mut self) -> Vec<Problem> {
        std::mem::take(&mut self.new)
    }

    /// Returns whether [`REPORTED_MAX`] problems were found: others are not reported.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.reported.len() >= REPORTED_MAX
    }

    /// Returns an upper bound of the number of entries that have not been verified.
    pub async fn unverified(&self, store: &dyn Store) -> Result<u64> {
        let query = HistoryQuery::Newest { tenant: None, before: None, limit: 1 };
        let newest = store.reads().history(query).await?;
        Ok(newest.first().map_or(0, |row| row.position.saturating_sub(self.position)))
    }

    /// Verifies the next entries, at most one page.
    pub async fn check_page(&mut self, store: &dyn Store) -> Result<Step> {
        let query = HistoryQuery::Scan { after: self.position, limit: PAGE_MAX };
        let rows = store.reads().history(query).await?;
        for (entries, row) in rows.iter().enumerate() {
            if !self.check_row(store, row).await? {
                return Ok(Step { entries, has_more: false });
            }
            self.position = row.position;
        }
        Ok(Step { entries: rows.len(), has_more: rows.len() == PAGE_MAX })
    }

    /// Compares the next records, at most `max`, with the entries. Call it when all entries have
    /// been verified. It starts again after the last record, so `has_more` is `false` then.
    pub async fn compare_records(&mut self, store: &dyn Store, max: usize) -> Result<Step> {
        let keys = store.reads().keys(self.compared.clone(), max).await?;
        let mut step = Step { entries: 0, has_more: keys.len() == max };
        for key in keys {
            step.entries += self.compare(store, &key).await?;
            self.compared = Some(key);
        }
        if !step.has_more {
            self.compared = None;
        }
        Ok(step)
    }

    /// Verifies one entry. Returns `false` if it has to be read again later. After an error the
    /// chain is not remembered, and the same entry is verified again.
    async fn check_row(&mut self, store: &dyn Store, row: &HistoryRow) -> Result<bool> {
        let cached = self.chains.take(&row.key);
        let last = cached.as_ref().map(Last::of);
        let mut chain = cached.map_or_else(|| ChainCheckpoint::new(&row.key), |it| it.chain);
        let found = problems(&row.key, chain.check_line(&row.text, row.hash));
        // Without a remembered chain this also finds each resource that is read in the middle.
        if !found.is_empty() && !self.is_full() {
            let problems = match self.recheck(store, row, last, found).await? {
                Recheck::Gone => return Ok(true),
                Recheck::Unstable => return Ok(false),
                Recheck::Confirmed(problems) => problems,
                Recheck::Read(read, problems) => {
                    chain = read;
                    problems
                }
            };
            if !self.report(store, problems).await? {
                return Ok(false);
            }
        }
        self.chains.insert(row.key.clone(), CachedChain { chain, position: row.position });
        Ok(true)
    }

    /// Looks again at an entry that contradicts what is remembered of its resource.
    async fn recheck(
        &self,
        store: &dyn Store,
        row: &HistoryRow,
        last: Option<Last>,
        found: Vec<Problem>,
    ) -> Result<Recheck> {
        let key = &row.key;
        if self.has_reported(key) && still_exists(store, key, last.as_ref()).await? {
            // Reading the chain again would cost as much for each further problem.
            return Ok(Recheck::Confirmed(found));
        }
        if last.is_none()
            && let Some(mut chain) = store.reads().checkpoint(key).await?
            && chain.check_line(&row.text, row.hash).problems.is_empty()
        {
            return Ok(Recheck::Read(chain, Vec::new()));
        }
        let find = last.as_ref().map(|last| last.position);
        for _ in 0..TRIES_MAX {
            let span = Span { before: Some(row.position), find, ..Span::default() };
            let ChainRead { mut chain, base, mut problems, has_found } =
                read_chain(store, key, span).await?;
            if let Some(last) = last.as_ref().filter(|_| chain.last_entry() == 0) {
                chain = ChainCheckpoint::after_forgotten(key, last.token);
            }
            problems.extend(self::problems(key, chain.check_line(&row.text, row.hash)));
            if !exists(store, key, row.position, row.hash).await? {
                return Ok(Recheck::Gone);
            }
            if !problems.is_empty() && store.reads().checkpoint(key).await? != base {
                continue;
            }
            // The entry follows from none, or from other entries than those that are remembered:
            // these are valid as long as the last of them exists.
            let is_contradiction = !problems.is_empty() || !has_found;
            if is_contradiction && still_exists(store, key, last.as_ref()).await? {
                return Ok(Recheck::Confirmed(found));
            }
            return Ok(Recheck::Read(chain, problems));
        }
        Ok(Recheck::Unstable)
    }

    /// Compares a record with the entries. Returns the number of entries that were verified first.
    async fn compare(&mut self, store: &dyn Store, key: &ResourceKey) -> Result<usize> {
        let Some(detail) = store.reads().show(key).await? else { return Ok(0) };
        let (record, mut step) = (detail.record, Step::default());
        let is_behind = |cached: &CachedChain| cached.chain.last_entry() < record.chain.n;
        if self.chains.get(key).is_some_and(is_behind) {
            // An entry is visible no later than the record that counts it.
            step = self.check_page(store).await?;
        }
        let chain = self.chains.get(key).map(|cached| &cached.chain);
        let is_newer = chain.is_some_and(|chain| chain.last_entry() > record.chain.n);
        let is_equal = chain.is_some_and(|chain| chain.differences(&record).is_empty());
        if !is_newer && !is_equal && !step.has_more && !self.is_full() {
            self.recheck_record(store, key).await?;
        }
        Ok(step.entries)
    }

    /// Compares a record with its whole history. One that keeps changing is left to the next round.
    async fn recheck_record(&mut self, store: &dyn Store, key: &ResourceKey) -> Result<()> {
        for _ in 0..TRIES_MAX {
            let Some(before) = store.reads().show(key).await? else { return Ok(()) };
            let record = before.record;
            let span = Span { last: Some(record.chain.n), ..Span::default() };
            let ChainRead { chain, base, mut problems, .. } = read_chain(store, key, span).await?;
            let n = chain.last_entry();
            let problem = |what| Problem { key: key.clone(), n, what };
            problems.extend(chain.differences(&record).into_iter().map(problem));
            if problems.is_empty() {
                return Ok(());
            }
            let Some(after) = store.reads().show(key).await? else { return Ok(()) };
            if after.record.chain == record.chain && store.reads().checkpoint(key).await? == base {
                let remembered = self.differences(store, key, &record, n).await?;
                self.report(store, remembered.unwrap_or(problems)).await?;
                return Ok(());
            }
        }
        Ok(())
    }

    /// Compares a record with what is remembered of it, if that is valid and more than the `read`
    /// entries that are left.
    async fn differences(
        &self,
        store: &dyn Store,
        key: &ResourceKey,
        record: &Record,
        read: u64,
    ) -> Result<Option<Vec<Problem>>> {
        let is_more = |cached: &&CachedChain| cached.chain.last_entry() > read;
        let Some(cached) = self.chains.get(key).filter(is_more) else { return Ok(None) };
        if !still_exists(store, key, Some(&Last::of(cached))).await? {
            return Ok(None);
        }
        let n = cached.chain.last_entry();
        let problem = |what| Problem { key: key.clone(), n, what };
        Ok(Some(cached.chain.differences(record).into_iter().map(problem).collect()))
    }

    /// Reports problems that have not been reported. Returns `false` if the store was restored
    /// meanwhile: then nothing is known.
    async fn report(&mut self, store: &dyn Store, problems: Vec<Problem>) -> Result<bool> {
        if problems.is_empty() {
            return Ok(true);
        }
        let before = self.incarnation;
        self.check_incarnation(store).await?;
        if self.incarnation != before {
            return Ok(false);
        }
        for problem in problems {
            if !self.is_full() && self.reported.insert(problem.clone()) {
                self.new.push(problem);
            }
        }
        Ok(true)
    }

    fn has_reported(&self, key: &ResourceKey) -> bool {
        self.reported.iter().any(|problem| problem.key == *key)
    }
}

/// The last entry that is remembered of a resource.
struct Last {
    position: u64,
    head: Hash,
    token: Token,
}

impl Last {
    fn of(cached: &CachedChain) -> Self {
        let CachedChain { chain, position } = cached;
        Self { position: *position, head: chain.head(), token: chain.last_token() }
    }
}

fn problems(key: &ResourceKey, checked: CheckedLine) -> Vec<Problem> {
    let problem = |what| Problem { key: key.clone(), n: checked.n, what };
    checked.problems.into_iter().map(problem).collect()
}

/// Returns whether the last entry that is remembered of a resource is still in the store. If so, no
/// entry after it was pruned, and the resource was not forgotten.
async fn still_exists(store: &dyn Store, key: &ResourceKey, last: Option<&Last>) -> Result<bool> {
    match last {
        Some(last) => exists(store, key, last.position, last.head).await,
        None => Ok(false),
    }
}

/// Returns whether an entry of a resource is still in the store.
async fn exists(store: &dyn Store, key: &ResourceKey, position: u64, hash: Hash) -> Result<bool> {
    let query = HistoryQuery::Scan { after: position.saturating_sub(1), limit: 1 };
    let rows = store.reads().history(query).await?;
    let is_same =
        |row: &HistoryRow| row.position == position && row.key == *key && row.hash == hash;
    Ok(rows.first().is_some_and(is_same))
}

//! History is complete: the verifier accepts it, and a replay of it gives the records.

use std::collections::HashMap;

use proptest::prelude::*;
use tenure_core::history::Entry;
use tenure_core::recent_answers::RecentAnswers;
use tenure_core::verify::Verifier;
use tenure_core::{Changes, Record, ResourceKey, World};

use crate::run::{Checked, Run};

impl Run {
    /// Changes that no event describes are reported as unlogged: a store that persists history
    /// relies on it.
    pub(crate) fn check_unlogged(&self, before: &World, changes: &Changes) -> Checked {
        for (key, record) in &self.world.records {
            let new = || before.floors.new_record(key);
            let mut replayed = before.records.get(key).cloned().unwrap_or_else(new);
            for (of, at, event) in &changes.events {
                if of == key {
                    prop_assert!(
                        changes.records.contains(key),
                        "{key} changed without being reported"
                    );
                    replayed.apply(event, *at);
                }
            }
            let same = without_progress(&replayed) == without_progress(record);
            prop_assert!(same || changes.unlogged.contains(key), "an unlogged change of {key}");
        }
        Ok(())
    }

    /// The verifier accepts the history, and replaying the history reproduces the records.
    pub(crate) fn check_history(&self) -> Checked {
        let mut verifier = Verifier::default();
        let mut replayed: HashMap<ResourceKey, Record> = HashMap::new();
        for (key, sealed) in &self.lines {
            verifier.check_line(key, &sealed.line, sealed.hash);
            let record = replayed.entry(key.clone()).or_insert_with(|| self.unused_record(key));
            let entry = Entry::parse(&sealed.line).expect("a sealed line reads back");
            record.replay(&entry, sealed.hash);
        }
        for (key, record) in &self.world.records {
            verifier.compare(key, record);
            let new = self.unused_record(key);
            let again = replayed.get(key).unwrap_or(&new);
            prop_assert_eq!(
                &durable_part(record, again),
                &durable_part(again, record),
                "of {}",
                key
            );
        }
        let report = verifier.finish();
        prop_assert!(report.problems.is_empty(), "{:?}", report.problems);
        Ok(())
    }

    /// Returns the record of a resource without history: its token is above the floor that its kind
    /// had when it was first used, which no event tells.
    fn unused_record(&self, key: &ResourceKey) -> Record {
        let granted = |line: &str| line.contains(r#""event":"granted""#);
        let mut record = Record::new(key);
        if !self.lines.iter().any(|(of, sealed)| of == key && granted(&sealed.line)) {
            record.token = self.world.records.get(key).map_or(record.token, |it| it.token);
        }
        record
    }
}

/// Returns the record without progress and log size, which are not durable.
fn without_progress(record: &Record) -> Record {
    let mut without_progress = record.clone();
    for job in without_progress.resource.iter_mut().flat_map(|resource| &mut resource.lane) {
        (job.progress, job.log_bytes) = (None, 0);
    }
    without_progress
}

/// Returns the record without what history does not contain: the queue, withdrawn requests,
/// progress of attempts, and backoffs that were cut short.
fn durable_part(record: &Record, other: &Record) -> Record {
    let mut durable = without_progress(record);
    durable.queue.clear();
    durable.recent.clear();
    durable.recent_answers = RecentAnswers::default();
    for job in durable.resource.iter_mut().flat_map(|resource| &mut resource.lane) {
        if let Some(other) = other.job(job.id) {
            job.due = job.due.min(other.due);
        }
    }
    durable
}

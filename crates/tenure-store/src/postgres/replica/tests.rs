//! Unit tests of the replica.

use tenure_core::history::{self, Chain};

use super::*;

#[test]
fn idle_records_are_evicted_on_request_and_only_if_flushed() {
    let mut replica = Replica::new(Incarnation::default(), Vec::new(), Position::default());
    let key = |n: usize| format!("t/k/r{n}").parse::<ResourceKey>().expect("valid key");
    for n in 0..=IDLE_RECORDS_MAX {
        replica.ledger.insert_record(&key(n), Box::new(Record::new(&key(n))), Millis(0));
    }
    replica.mark_dirty(&key(0), 2);
    replica.mark_dirty(&key(1), 1);
    replica.mark_flushed(1);
    assert_eq!(replica.ledger.world().records.len(), IDLE_RECORDS_MAX + 1, "nothing evicted");
    replica.evict_idle();
    let left: Vec<_> = replica.ledger.world().records.keys().collect();
    assert_eq!(left, [&key(0)], "its row has not been flushed");
}

/// Returns an entry with one history event.
fn entry_with(
    id: i64,
    key: &ResourceKey,
    SealedEntry { n, line, .. }: &SealedEntry,
) -> DecodedEntry {
    let event = history::Entry::parse(line).expect("sealed event parses");
    assert_eq!(event.n, *n);
    let position = Position { id, ..Position::default() };
    let events = vec![(key.clone(), event, 0..line.len())];
    DecodedEntry { position, body: line.clone(), events, ..DecodedEntry::default() }
}

#[test]
fn hashes_are_derived_from_earlier_events_and_gaps_are_detected() {
    let mut replica = Replica::new(Incarnation::default(), Vec::new(), Position::default());
    let key = "t/k/r".parse::<ResourceKey>().expect("valid key");
    let (mut chain, mut buffer) = (Chain::genesis(&key), Vec::new());
    let fenced = history::Event::Fenced { token: Token(1), verb: "renew".into() };
    let mut seal = || chain.seal(Millis(1), fenced.clone(), &mut buffer);
    let events: Vec<SealedEntry> = (0..4).map(|_| seal()).collect();
    for (id, event) in (1..).zip(&events[..2]) {
        replica.apply(entry_with(id, &key, event)).expect("next event");
    }
    let hashes: Vec<_> = replica.backlog.events.iter().map(|all| all.spans[0].hash).collect();
    assert_eq!(hashes, [events[0].hash, events[1].hash]);
    assert_eq!(replica.backlog.flushed_at_least, 0);
    // As if the record had been read from a row that already contains the event.
    replica.apply(entry_with(3, &key, &events[1])).expect("known event");
    assert_eq!(replica.backlog.flushed_at_least, 3);
    let gap = replica.apply(entry_with(4, &key, &events[3])).expect_err("missing event");
    assert!(gap.to_string().contains("event 4 follows event 2"), "{gap}");
}

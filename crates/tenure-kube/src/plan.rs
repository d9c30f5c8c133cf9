//! How a number of workers is spread over MachineSets. Pure.
//!
//! Zones get equal shares; where a share cannot be equal, the zones that have more keep more, so
//! that as few machines as possible are created and removed.

use std::collections::BTreeMap;

use crate::machine_set::MachineSet;

/// One change of the replicas of a MachineSet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Name of the set.
    pub name: String,
    /// Its zone.
    pub zone: String,
    /// Replicas so far.
    pub from: u32,
    /// Replicas to have.
    pub to: u32,
}

/// Returns what has to change for `total` workers, ordered by zone and name; nothing if they are
/// spread evenly already.
///
/// Two zones differ by at most one. Zones that already have more than an equal share come first for
/// the rest, then the first by name. Within a zone, machines are added to its smallest sets and
/// removed from its largest, so none moves between them.
#[must_use]
pub fn plan(total: u32, sets: &[MachineSet]) -> Vec<Change> {
    let mut zones: BTreeMap<&str, Vec<&MachineSet>> = BTreeMap::new();
    for set in sets {
        zones.entry(&set.zone).or_default().push(set);
    }
    let held: Vec<u64> = zones.values().map(|sets| replicas(sets)).collect();
    let shares = shares(u64::from(total), &held);
    let mut changes = Vec::new();
    for (mut sets, share) in zones.into_values().zip(shares) {
        sets.sort_by(|one, other| one.name.cmp(&other.name));
        let counts: Vec<u32> = sets.iter().map(|set| set.replicas).collect();
        let spread = spread(&counts, share);
        let changed = sets.into_iter().zip(spread).filter(|(set, to)| set.replicas != *to);
        changes.extend(changed.map(|(set, to)| Change {
            name: set.name.clone(),
            zone: set.zone.clone(),
            from: set.replicas,
            to,
        }));
    }
    changes
}

fn replicas(sets: &[&MachineSet]) -> u64 {
    sets.iter().map(|set| u64::from(set.replicas)).sum()
}

/// Returns the share of each zone, in their order, given what each has.
fn shares(total: u64, held: &[u64]) -> Vec<u64> {
    let Some(zones) = u64::try_from(held.len()).ok().filter(|&zones| zones > 0) else {
        return Vec::new();
    };
    let base = total / zones;
    let mut rest = total % zones;
    let mut shares = vec![base; held.len()];
    for wants_more in [true, false] {
        for (share, held) in shares.iter_mut().zip(held) {
            if rest > 0 && *share == base && (*held > base) == wants_more {
                *share += 1;
                rest -= 1;
            }
        }
    }
    shares
}

/// Adds to the smallest counts, or takes from the largest ones, until their sum is `share`. Among
/// equal counts, the first gets and the last gives.
fn spread(counts: &[u32], share: u64) -> Vec<u32> {
    let mut spread = counts.to_vec();
    let sum: u64 = counts.iter().copied().map(u64::from).sum();
    for _ in sum..share {
        // `min_by_key` returns the first of equal ones, and `max_by_key` the last.
        if let Some(smallest) = spread.iter_mut().min_by_key(|count| **count) {
            *smallest += 1;
        }
    }
    for _ in share..sum {
        if let Some(largest) = spread.iter_mut().max_by_key(|count| **count) {
            *largest -= 1;
        }
    }
    spread
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Makes sets of zones and replicas; their names have the order of the list.
    fn sets(of: &[(&str, u32)]) -> Vec<MachineSet> {
        let set = |(at, &(zone, replicas)): (usize, &(&str, u32))| MachineSet {
            name: format!("set-{at:02}"),
            zone: zone.to_owned(),
            replicas,
            ..MachineSet::default()
        };
        of.iter().enumerate().map(set).collect()
    }

    fn after(total: u32, sets: &[MachineSet]) -> Vec<MachineSet> {
        let mut after = sets.to_vec();
        for change in plan(total, sets) {
            let set = after.iter_mut().find(|set| set.name == change.name).unwrap();
            assert_eq!((set.replicas, &set.zone), (change.from, &change.zone));
            assert_ne!(change.from, change.to);
            set.replicas = change.to;
        }
        after
    }

    #[track_caller]
    fn becomes(total: u32, before: &[(&str, u32)], expected: &[u32]) {
        let after: Vec<u32> = after(total, &sets(before)).iter().map(|set| set.replicas).collect();
        assert_eq!(after, expected, "{total} over {before:?}");
    }

    #[test]
    fn zones_get_equal_shares() {
        becomes(6, &[("a", 1), ("b", 1), ("c", 1)], &[2, 2, 2]);
        becomes(0, &[("a", 2), ("b", 2), ("c", 2)], &[0, 0, 0]);
        becomes(6, &[("a", 6), ("b", 0), ("c", 0)], &[2, 2, 2]);
    }

    #[test]
    fn the_rest_goes_to_zones_that_have_more_then_by_name() {
        becomes(7, &[("a", 2), ("b", 2), ("c", 2)], &[3, 2, 2]);
        becomes(8, &[("a", 2), ("b", 2), ("c", 3)], &[3, 2, 3]);
        becomes(4, &[("a", 2), ("b", 2), ("c", 2)], &[2, 1, 1]);
        becomes(2, &[("c", 0), ("b", 0), ("a", 0)], &[0, 1, 1]);
    }

    #[test]
    fn an_even_spread_does_not_change() {
        for even in [[2, 1, 1], [1, 2, 1], [1, 1, 2]] {
            let sets = sets(&[("a", even[0]), ("b", even[1]), ("c", even[2])]);
            assert_eq!(plan(4, &sets), []);
        }
    }

    #[test]
    fn sets_of_one_zone_share_without_moving_machines() {
        becomes(6, &[("a", 1), ("a", 0), ("b", 3)], &[2, 1, 3]);
        becomes(6, &[("a", 5), ("a", 0), ("b", 1)], &[3, 0, 3]);
        becomes(4, &[("a", 2), ("a", 2), ("b", 2)], &[1, 1, 2]);
    }

    #[test]
    fn sets_without_a_zone_are_one_zone() {
        becomes(5, &[("", 0), ("", 0)], &[3, 2]);
    }

    #[test]
    fn nothing_is_planned_without_sets() {
        assert_eq!(plan(3, &[]), []);
    }

    fn sum(sets: &[MachineSet]) -> u32 {
        sets.iter().map(|set| set.replicas).sum()
    }

    fn zones(sets: &[MachineSet]) -> BTreeMap<&str, u32> {
        let mut zones = BTreeMap::new();
        for set in sets {
            *zones.entry(set.zone.as_str()).or_default() += set.replicas;
        }
        zones
    }

    /// Returns how many machines are created or removed.
    fn moved(before: &[u32], after: &[u32]) -> u32 {
        before.iter().zip(after).map(|(before, after)| before.abs_diff(*after)).sum()
    }

    /// Returns the fewest moves to an even spread over zones, by trying every one.
    fn fewest_moves(total: u32, held: &[u32]) -> u32 {
        let zones = u32::try_from(held.len()).unwrap();
        let (base, rest) = (total / zones, total % zones);
        let choices = (0..1_u32 << zones).filter(|choice| choice.count_ones() == rest);
        let share = |choice: u32, zone: usize| base + (choice >> zone & 1);
        let spread = |choice| (0..held.len()).map(|zone| share(choice, zone)).collect::<Vec<_>>();
        choices.map(|choice| moved(held, &spread(choice))).min().unwrap()
    }

    fn some_sets() -> impl Strategy<Value = Vec<MachineSet>> {
        let zone = prop::sample::select(vec!["a", "b", "c", "d"]);
        prop::collection::vec((zone, 0_u32..12), 1..9).prop_map(|of| sets(&of))
    }

    proptest! {
        #[test]
        fn plans_are_even_stable_and_move_as_little_as_possible(
            total in 0_u32..40,
            before in some_sets(),
        ) {
            let after = after(total, &before);
            prop_assert_eq!(sum(&after), total);
            let (had, has) = (zones(&before), zones(&after));
            let (least, most) = (has.values().min().unwrap(), has.values().max().unwrap());
            prop_assert!(most - least <= 1, "{:?}", has);
            prop_assert_eq!(plan(total, &after), []);

            let held: Vec<u32> = had.values().copied().collect();
            let counts = |sets: &[MachineSet]| -> Vec<u32> {
                sets.iter().map(|set| set.replicas).collect()
            };
            let moves = moved(&counts(&before), &counts(&after));
            prop_assert_eq!(moves, fewest_moves(total, &held));
        }

        #[test]
        fn the_order_of_the_sets_does_not_matter(total in 0_u32..40, mut sets in some_sets()) {
            let planned = plan(total, &sets);
            sets.reverse();
            prop_assert_eq!(plan(total, &sets), planned);
        }
    }
}

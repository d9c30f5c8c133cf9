//! Slots: the resources of a pipeline, one for each concurrent run.
//!
//! A resource has one run at a time, so a pipeline with `max_runs = 3` has three resources:
//! `billing`, `billing+2` and `billing+3`. The name of a pipeline cannot contain a plus.

use tenure_core::ResourceKey;

use super::KIND;
use super::declare::MAX_RUNS_MAX;

/// Separates the name of a pipeline from the number of its slot.
const SEPARATOR: char = '+';

/// Returns the resource of a slot, counted from 1.
#[must_use]
pub fn key(tenant: &str, pipeline: &str, slot: u32) -> Option<ResourceKey> {
    let name = if slot <= 1 { pipeline.to_owned() } else { format!("{pipeline}{SEPARATOR}{slot}") };
    ResourceKey::new(tenant, KIND, &name).ok()
}

/// Returns the pipeline that the resource `name` belongs to.
#[must_use]
pub fn pipeline(name: &str) -> &str {
    name.split_once(SEPARATOR).map_or(name, |(pipeline, _)| pipeline)
}

/// Returns whether `name` is the name of a valid slot.
#[must_use]
pub fn is_slot(name: &str) -> bool {
    let Some((_, slot)) = name.split_once(SEPARATOR) else { return true };
    let canonical = |slot: &u64| (2..=MAX_RUNS_MAX).contains(slot);
    slot.parse().ok().filter(canonical).is_some_and(|number: u64| number.to_string() == slot)
}

/// Returns whether `name` is a valid name of a pipeline.
#[must_use]
pub fn is_name(name: &str) -> bool {
    // Leaves space for the number of a slot.
    let fits = name.len() <= tenure_core::limits::NAME_BYTES_MAX - 8;
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    fits && name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_belongs_to_its_pipeline() {
        assert_eq!(key("acme", "billing", 1).unwrap().as_str(), "acme/pipeline/billing");
        let third = key("acme", "billing", 3).unwrap();
        assert_eq!(third.as_str(), "acme/pipeline/billing+3");
        assert_eq!(pipeline(third.name()), "billing");
        assert_eq!(pipeline("billing"), "billing");
        assert!(["billing", "billing+2", "billing+16"].into_iter().all(is_slot));
        assert!(!["b+1", "b+17", "b+02", "b+x", "b+", "b+2+2"].into_iter().any(is_slot));
    }

    #[test]
    fn name_has_no_plus_and_leaves_space_for_the_slot_number() {
        assert!(is_name("gcp_billing-export.v2"));
        for name in ["", "a+2", "_a", "a/b", "..", "ä", &"a".repeat(193)] {
            assert!(!is_name(name), "{name}");
        }
        assert!(is_name(&"a".repeat(192)));
    }
}

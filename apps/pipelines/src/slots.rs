//! The resources behind a pipeline: one for each run that may go on at the same time.
//!
//! A resource has one run at a time. A pipeline with `max_runs = 3` is three resources: `billing`,
//! `billing+2` and `billing+3`. No name of a pipeline has a plus.

use tenure_core::ResourceKey;

use super::KIND;
use super::declare::MAX_RUNS_MAX;

/// Separates the name of a pipeline from the number of its place.
const MARK: char = '+';

/// The resource for the run in a place; the first is 1.
#[must_use]
pub fn key(tenant: &str, pipeline: &str, place: u32) -> Option<ResourceKey> {
    let name = if place <= 1 { pipeline.to_owned() } else { format!("{pipeline}{MARK}{place}") };
    ResourceKey::new(tenant, KIND, &name).ok()
}

/// The pipeline that a resource belongs to.
#[must_use]
pub fn pipeline(name: &str) -> &str {
    name.split_once(MARK).map_or(name, |(pipeline, _)| pipeline)
}

/// Whether a name is that of a place that a pipeline may have.
#[must_use]
pub fn is_place(name: &str) -> bool {
    let Some((_, place)) = name.split_once(MARK) else { return true };
    let canonical = |place: &u64| (2..=MAX_RUNS_MAX).contains(place);
    place.parse().ok().filter(canonical).is_some_and(|number: u64| number.to_string() == place)
}

/// Whether a text can be the name of a pipeline.
#[must_use]
pub fn is_name(name: &str) -> bool {
    // With room for the number of a place.
    let fits = name.len() <= tenure_core::limits::NAME_BYTES_MAX - 8;
    let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    fits && name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_belongs_to_its_pipeline() {
        assert_eq!(key("acme", "billing", 1).unwrap().as_str(), "acme/pipeline/billing");
        let third = key("acme", "billing", 3).unwrap();
        assert_eq!(third.as_str(), "acme/pipeline/billing+3");
        assert_eq!(pipeline(third.name()), "billing");
        assert_eq!(pipeline("billing"), "billing");
        assert!(["billing", "billing+2", "billing+16"].into_iter().all(is_place));
        assert!(!["b+1", "b+17", "b+02", "b+x", "b+", "b+2+2"].into_iter().any(is_place));
    }

    #[test]
    fn a_name_has_no_plus_and_leaves_room_for_a_place() {
        assert!(is_name("gcp_billing-export.v2"));
        for name in ["", "a+2", "_a", "a/b", "..", "ä", &"a".repeat(193)] {
            assert!(!is_name(name), "{name}");
        }
        assert!(is_name(&"a".repeat(192)));
    }
}

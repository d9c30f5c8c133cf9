//! Rules of tags: those of AWS and of the installer, which are the strictest of all platforms.

use std::collections::BTreeMap;

use super::Profile;
use super::resolve::shown;
use crate::request::Violation;

/// Tag with the owner.
pub const TAG_OWNER: &str = "owner";
/// Tag with the id of the cluster.
pub const TAG_CLUSTER: &str = "tenure-cluster";
/// Maximum number of tags of a cluster, with those that are added. AWS allows 50; the installer and
/// the cluster itself need the rest.
pub const TAGS_MAX: usize = 40;
/// Maximum number of characters of the key of a tag.
pub(super) const KEY_CHARS_MAX: usize = 128;
/// Maximum number of characters of the value of a tag.
pub(super) const VALUE_CHARS_MAX: usize = 256;
/// Reserved tags of every profile: AWS or the installer refuses or sets them, and a destroy finds
/// by some of them what belongs to a cluster.
const ALWAYS_RESERVED: [&str; 6] =
    ["aws:*", "Name", "kubernetes.io/", "sigs.k8s.io/", "openshift.io/", "openshiftClusterID"];

/// A tag that no request may set.
///
/// `DOMAIN/` stands for all tags in the namespace of a domain or of one below it, `PREFIX*` for all
/// with that beginning, and anything else for itself. Case does not matter: to people, `Owner` and
/// `owner` are the same tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservedTag(String);

impl ReservedTag {
    /// Creates the entry of a list.
    #[must_use]
    pub fn new(entry: &str) -> Self {
        Self(entry.to_lowercase())
    }

    /// Returns whether the tag is reserved.
    #[must_use]
    pub fn matches(&self, key: &str) -> bool {
        let key = key.to_lowercase();
        if let Some(domain) = self.0.strip_suffix('/') {
            let Some((namespace, _)) = key.split_once('/') else { return false };
            let parent = namespace.strip_suffix(domain);
            return parent.is_some_and(|parent| parent.is_empty() || parent.ends_with('.'));
        }
        match self.0.strip_suffix('*') {
            Some(prefix) => key.starts_with(prefix),
            None => key == self.0,
        }
    }
}

/// Returns what is wrong with the key or the value of a tag.
pub(super) fn check_tag(key: &str, value: &str) -> Result<(), String> {
    check_text("the name", key, KEY_CHARS_MAX)?;
    check_text("the value", value, VALUE_CHARS_MAX)
}

/// Checks a text that becomes part of a tag.
pub(super) fn check_text(what: &str, text: &str, chars_max: usize) -> Result<(), String> {
    let chars = text.chars().count();
    if chars == 0 {
        return Err(format!("{what} is empty"));
    }
    if chars > chars_max {
        return Err(format!("{what} has {chars} characters; the maximum is {chars_max}"));
    }
    let is_allowed = |c: &char| c.is_ascii_alphanumeric() || " _.:/=+-@".contains(*c);
    if let Some(c) = text.chars().find(|c| !is_allowed(c)) {
        return Err(format!(
            "{what} has the character {c:?}; allowed are letters, digits, spaces and \
             _ . : / = + - @"
        ));
    }
    if text.trim() != text {
        return Err(format!("{what} begins or ends with a space"));
    }
    Ok(())
}

impl Profile {
    /// Returns the tags of a cluster: those of the profile and of the request. Adds violations.
    pub(super) fn resolve_tags(
        &self,
        requested: &BTreeMap<String, String>,
        violations: &mut Vec<Violation>,
    ) -> BTreeMap<String, String> {
        let mut tags = self.tags.clone();
        // A request with too many has one violation, not one for each.
        let checked = if requested.len() > TAGS_MAX { None } else { Some(requested) };
        for (key, value) in checked.into_iter().flatten() {
            match self.check_requested(key, value) {
                Ok(()) => drop(tags.insert(key.clone(), value.clone())),
                Err(why) => violations.push(Violation::new(&format!("tags.{}", shown(key)), why)),
            }
        }
        let is_set = |key: &str| key == TAG_OWNER || self.tags.contains_key(key);
        for key in &self.required_tags {
            if !is_set(key) && !requested.contains_key(key) {
                let why = format!("the profile {} requires this tag: set it", self.name);
                violations.push(Violation::new(&format!("tags.{key}"), why));
            }
        }
        let added = [TAG_OWNER, TAG_CLUSTER].iter().filter(|key| !tags.contains_key(**key)).count();
        let own: usize = requested.keys().filter(|key| !self.tags.contains_key(*key)).count();
        let count = self.tags.len() + own + added;
        if count > TAGS_MAX {
            let why = format!(
                "{count} tags with those that are added; the maximum is {TAGS_MAX}: remove {}",
                count - TAGS_MAX
            );
            violations.push(Violation::new("tags", why));
        }
        tags
    }

    fn check_requested(&self, key: &str, value: &str) -> Result<(), String> {
        check_tag(key, value)?;
        let same = |other: &str| other.eq_ignore_ascii_case(key);
        if same(TAG_OWNER) {
            return Err("it is set to the owner: use the field `owner`".to_owned());
        }
        if same(TAG_CLUSTER) {
            return Err("it is set to the id of the cluster: remove it".to_owned());
        }
        match self.tags.iter().find(|(other, _)| same(other)) {
            Some((other, fixed)) if other == key && fixed == value => return Ok(()),
            Some((other, fixed)) => {
                return Err(format!("the profile sets {other} to {fixed:?}: remove it"));
            }
            None => {}
        }
        if is_always_reserved(key) || self.reserved_tags.iter().any(|tag| tag.matches(key)) {
            return Err("the tag is reserved: choose another name".to_owned());
        }
        Ok(())
    }
}

/// Returns whether no one may set a tag, not even a profile.
pub(super) fn is_always_reserved(key: &str) -> bool {
    ALWAYS_RESERVED.iter().any(|entry| ReservedTag::new(entry).matches(key))
}

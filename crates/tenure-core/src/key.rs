//! Names: `tenant/kind/name` of a resource, and `#lock` for one of its locks.
//!
//! Names are validated when they are parsed and never again. See [`LockPath`] for the notation of
//! the command line and the API.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::limits;

/// A short shared string.
pub type Text = Arc<str>;

/// Name of the lock that every resource has.
pub const MAIN: &str = "main";

/// An invalid name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// Empty.
    #[error("the {0} is empty")]
    Empty(&'static str),
    /// Exceeds the length limit.
    #[error("the {0} has {1} bytes; at most {2} are allowed")]
    TooLong(&'static str, usize, usize),
    /// Contains a character that is not allowed.
    #[error("the {0} has the character {1:?}; allowed are letters, digits and . _ - : @ + =")]
    BadChar(&'static str, char),
    /// A path segment that URLs cannot name: clients and proxies remove it.
    #[error("the {0} is {1:?}, which cannot be part of a URL; choose another")]
    Dots(&'static str, String),
    /// Does not have the expected form.
    #[error("{0:?} is not of the form {1}")]
    Shape(String, &'static str),
    /// Empty or too large lock set.
    #[error("{0} locks requested; between 1 and {max} are allowed", max = limits::LOCK_SET_MAX)]
    SetSize(usize),
}

fn check(what: &'static str, text: &str, bytes_max: usize) -> Result<(), InvalidName> {
    if text.is_empty() {
        return Err(InvalidName::Empty(what));
    }
    if text.len() > bytes_max {
        return Err(InvalidName::TooLong(what, text.len(), bytes_max));
    }
    match text.chars().find(|c| !allowed(*c)) {
        Some(c) => Err(InvalidName::BadChar(what, c)),
        None => Ok(()),
    }
}

/// Checks a new name. Stored names may be dots, which were allowed once.
fn check_new(what: &'static str, text: &str, bytes_max: usize) -> Result<(), InvalidName> {
    match text {
        "." | ".." => Err(InvalidName::Dots(what, text.to_owned())),
        _ => check(what, text, bytes_max),
    }
}

/// Checks the name of something that a kind declares.
pub(crate) fn check_name(what: &str, text: &str, bytes_max: usize) -> Result<(), String> {
    check_new("name", text, bytes_max).map_err(|why| format!("{what} {text:?}: {why}"))
}

fn allowed(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | ':' | '@' | '+' | '=')
}

/// Key of a resource, `tenant/kind/name`, stored as one shared string.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ResourceKey(Arc<str>);

impl ResourceKey {
    /// Builds a key from its three parts. None of them may be `.` or `..`; a key that is parsed
    /// from a text, as those in stores are, may have such parts.
    pub fn new(tenant: &str, kind: &str, name: &str) -> Result<Self, InvalidName> {
        check_new("tenant", tenant, limits::TENANT_BYTES_MAX)?;
        check_new("kind", kind, limits::KIND_BYTES_MAX)?;
        check_new("name", name, limits::NAME_BYTES_MAX)?;
        Ok(Self(format!("{tenant}/{kind}/{name}").into()))
    }

    /// Returns the whole key.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the tenant.
    #[must_use]
    pub fn tenant(&self) -> &str {
        self.parts().0
    }

    /// Returns the kind.
    #[must_use]
    pub fn kind(&self) -> &str {
        self.parts().1
    }

    /// Returns the name within tenant and kind.
    #[must_use]
    pub fn name(&self) -> &str {
        self.parts().2
    }

    /// Returns the group of a name of the form `GROUP:REST`: what precedes the last colon.
    #[must_use]
    pub fn group(&self) -> Option<&str> {
        self.name().rsplit_once(':').map(|(group, _)| group).filter(|group| !group.is_empty())
    }

    fn parts(&self) -> (&str, &str, &str) {
        let (tenant, rest) = self.0.split_once('/').expect("a key is built from three parts");
        let (kind, name) = rest.split_once('/').expect("a key is built from three parts");
        (tenant, kind, name)
    }
}

impl Borrow<str> for ResourceKey {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl FromStr for ResourceKey {
    type Err = InvalidName;
    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let shape = || InvalidName::Shape(text.chars().take(80).collect(), "tenant/kind/name");
        let (tenant, rest) = text.split_once('/').ok_or_else(shape)?;
        let (kind, name) = rest.split_once('/').ok_or_else(shape)?;
        check("tenant", tenant, limits::TENANT_BYTES_MAX)?;
        check("kind", kind, limits::KIND_BYTES_MAX)?;
        check("name", name, limits::NAME_BYTES_MAX)?;
        Ok(Self(text.into()))
    }
}

impl TryFrom<String> for ResourceKey {
    type Error = InvalidName;
    fn try_from(text: String) -> Result<Self, InvalidName> {
        text.parse()
    }
}

impl From<ResourceKey> for String {
    fn from(key: ResourceKey) -> Self {
        key.0.to_string()
    }
}

impl fmt::Display for ResourceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ResourceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ResourceKey({self})")
    }
}

/// Name of one lock of a resource. `main`, by far the most common, takes no allocation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LockName(Option<Arc<str>>);

impl LockName {
    /// Returns the lock that every resource has.
    pub const fn main() -> Self {
        Self(None)
    }

    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or(MAIN)
    }

    /// Returns `true` for the lock that every resource has.
    #[must_use]
    pub fn is_main(&self) -> bool {
        self.0.is_none()
    }
}

impl FromStr for LockName {
    type Err = InvalidName;
    fn from_str(text: &str) -> Result<Self, InvalidName> {
        check_new("lock", text, limits::LOCK_BYTES_MAX)?;
        Self::try_from(text.to_owned())
    }
}

impl TryFrom<String> for LockName {
    type Error = InvalidName;
    /// Converts a stored name, which may be `.` or `..`.
    fn try_from(text: String) -> Result<Self, InvalidName> {
        check("lock", &text, limits::LOCK_BYTES_MAX)?;
        Ok(if text == MAIN { Self::main() } else { Self(Some(text.into())) })
    }
}

impl From<LockName> for String {
    fn from(name: LockName) -> Self {
        name.as_str().to_owned()
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A set of locks of one resource, sorted and without duplicates, acquired all or none.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<LockName>", into = "Vec<LockName>")]
pub struct LockSet(Box<[LockName]>);

impl LockSet {
    /// Builds a set from `names`, in any order and with duplicates.
    pub fn new(mut names: Vec<LockName>) -> Result<Self, InvalidName> {
        names.sort_unstable();
        names.dedup();
        if names.is_empty() || names.len() > limits::LOCK_SET_MAX {
            return Err(InvalidName::SetSize(names.len()));
        }
        Ok(Self(names.into()))
    }

    /// Iterates over the locks in order.
    pub fn iter(&self) -> std::slice::Iter<'_, LockName> {
        self.0.iter()
    }

    /// Returns `true` if `name` is in the set.
    #[must_use]
    pub fn contains(&self, name: &LockName) -> bool {
        self.0.contains(name)
    }

    /// Returns the first lock in order.
    #[must_use]
    pub fn first(&self) -> &LockName {
        &self.0[0]
    }

    /// Returns the number of locks, at least one.
    #[must_use]
    pub fn size(&self) -> usize {
        self.0.len()
    }
}

impl<'a> IntoIterator for &'a LockSet {
    type Item = &'a LockName;
    type IntoIter = std::slice::Iter<'a, LockName>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl From<LockName> for LockSet {
    fn from(name: LockName) -> Self {
        Self(Box::new([name]))
    }
}

impl TryFrom<Vec<LockName>> for LockSet {
    type Error = InvalidName;
    fn try_from(names: Vec<LockName>) -> Result<Self, InvalidName> {
        Self::new(names)
    }
}

impl From<LockSet> for Vec<LockName> {
    fn from(set: LockSet) -> Self {
        set.0.into_vec()
    }
}

/// A lock without its tenant: `kind/name` or `kind/name#lock`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockPath {
    /// Kind.
    pub kind: String,
    /// Name of the resource.
    pub name: String,
    /// Lock.
    pub lock: LockName,
}

impl LockPath {
    /// Returns the key of the resource for `tenant`.
    pub fn resource(&self, tenant: &str) -> Result<ResourceKey, InvalidName> {
        ResourceKey::new(tenant, &self.kind, &self.name)
    }
}

impl FromStr for LockPath {
    type Err = InvalidName;
    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let shape =
            || InvalidName::Shape(text.chars().take(80).collect(), "KIND/NAME or KIND/NAME#LOCK");
        let (resource, lock) = match text.split_once('#') {
            Some((resource, lock)) => (resource, lock.parse()?),
            None => (text, LockName::main()),
        };
        let (kind, name) = resource.split_once('/').ok_or_else(shape)?;
        check_new("kind", kind, limits::KIND_BYTES_MAX)?;
        check_new("name", name, limits::NAME_BYTES_MAX)?;
        Ok(Self { kind: kind.to_owned(), name: name.to_owned(), lock })
    }
}

impl fmt::Display for LockPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.name)?;
        if self.lock.is_main() { Ok(()) } else { write!(f, "#{}", self.lock) }
    }
}

/// Formats a lock as the API does: `kind/name` or `kind/name#lock`.
#[must_use]
pub fn lock_path(key: &ResourceKey, lock: &LockName) -> String {
    if lock.is_main() {
        format!("{}/{}", key.kind(), key.name())
    } else {
        format!("{}/{}#{lock}", key.kind(), key.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_returns_its_parts() {
        let key: ResourceKey = "acme/pipeline/gcp_billing_export".parse().unwrap();
        assert_eq!(
            (key.tenant(), key.kind(), key.name()),
            ("acme", "pipeline", "gcp_billing_export")
        );
    }

    #[test]
    fn name_length_is_limited() {
        let name = |n| "n".repeat(n);
        assert!(ResourceKey::new("t", "k", &name(limits::NAME_BYTES_MAX)).is_ok());
        let error = ResourceKey::new("t", "k", &name(limits::NAME_BYTES_MAX + 1)).unwrap_err();
        assert_eq!(error.to_string(), "the name has 201 bytes; at most 200 are allowed");
    }

    #[test]
    fn separators_spaces_and_control_characters_are_refused() {
        for bad in ["a b", "a/b", "a#b", "a\n", "a\0", "%2e", "a?b", ""] {
            assert!(ResourceKey::new("t", "k", bad).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn dots_are_refused_in_new_names_and_read_from_stores() {
        for dots in [".", ".."] {
            let error = ResourceKey::new("t", "k", dots).unwrap_err().to_string();
            assert!(error.contains("cannot be part of a URL"), "{error}");
            assert!(ResourceKey::new("t", dots, "n").is_err());
            assert!(dots.parse::<LockName>().is_err());
            assert!(format!("k/{dots}").parse::<LockPath>().is_err());
            let key: ResourceKey = serde_json::from_str(&format!("\"t/k/{dots}\"")).unwrap();
            assert_eq!(key.name(), dots);
            let lock: LockName = serde_json::from_str(&format!("\"{dots}\"")).unwrap();
            assert_eq!(lock.as_str(), dots);
        }
        assert!(ResourceKey::new("t", "k", "...").is_ok());
        assert!(ResourceKey::new("t", "k", ".a").is_ok());
    }

    #[test]
    fn lock_path_defaults_to_the_main_lock() {
        let path: LockPath = "cluster/c1".parse().unwrap();
        assert!(path.lock.is_main());
        assert_eq!(path.to_string(), "cluster/c1");
        let path: LockPath = "scheduler/s1#config".parse().unwrap();
        assert_eq!(path.lock.as_str(), "config");
        assert_eq!(path.to_string(), "scheduler/s1#config");
        assert!("cluster".parse::<LockPath>().is_err());
    }

    #[test]
    fn lock_set_is_sorted_unique_and_limited() {
        let lock = |n: &str| n.parse::<LockName>().unwrap();
        let set = LockSet::new(vec![lock("b"), lock("a"), lock("b")]).unwrap();
        assert_eq!(set.iter().map(LockName::as_str).collect::<Vec<_>>(), ["a", "b"]);
        let many = |n: usize| (0..n).map(|i| lock(&format!("l{i}"))).collect::<Vec<_>>();
        assert!(LockSet::new(many(limits::LOCK_SET_MAX)).is_ok());
        assert!(LockSet::new(many(limits::LOCK_SET_MAX + 1)).is_err());
        assert!(LockSet::new(vec![]).is_err());
    }
}

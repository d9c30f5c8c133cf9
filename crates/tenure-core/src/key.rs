//! Names: `tenant/kind/name` of a resource, and `#lock` for one of its locks.
//!
//! A name that was once parsed is valid for ever; nothing downstream checks again. Go to
//! [`LockPath`] for the way people write a lock on the command line and in the API.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::limits;

/// A short text that many rows share.
pub type Text = Arc<str>;

/// The lock that every resource has.
pub const MAIN: &str = "main";

/// Why a name was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    /// Nothing was given.
    #[error("the {0} is empty")]
    Empty(&'static str),
    /// More bytes than the limit.
    #[error("the {0} has {1} bytes; at most {2} are allowed")]
    TooLong(&'static str, usize, usize),
    /// A character that names may not have.
    #[error("the {0} has the character {1:?}; allowed are letters, digits and . _ - : @ + =")]
    BadChar(&'static str, char),
    /// Not the parts that were expected.
    #[error("{0:?} is not of the form {1}")]
    Shape(String, &'static str),
    /// Too many locks at once.
    #[error("{0} locks at once; between 1 and {max} can be asked for", max = limits::LOCK_SET_MAX)]
    SetSize(usize),
}

fn check(what: &'static str, text: &str, bytes_max: usize) -> Result<(), BadName> {
    if text.is_empty() {
        return Err(BadName::Empty(what));
    }
    if text.len() > bytes_max {
        return Err(BadName::TooLong(what, text.len(), bytes_max));
    }
    match text.chars().find(|c| !allowed(*c)) {
        Some(c) => Err(BadName::BadChar(what, c)),
        None => Ok(()),
    }
}

/// Whether a text is fit for a name of something that a kind declares.
pub(crate) fn check_name(what: &str, text: &str, bytes_max: usize) -> Result<(), String> {
    check("name", text, bytes_max).map_err(|why| format!("{what} {text:?}: {why}"))
}

fn allowed(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | ':' | '@' | '+' | '=')
}

/// The name of a resource: `tenant/kind/name`, kept as one shared text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ResourceKey(Arc<str>);

impl ResourceKey {
    /// Builds a key from its three parts.
    pub fn new(tenant: &str, kind: &str, name: &str) -> Result<Self, BadName> {
        check("tenant", tenant, limits::TENANT_BYTES_MAX)?;
        check("kind", kind, limits::KIND_BYTES_MAX)?;
        check("name", name, limits::NAME_BYTES_MAX)?;
        Ok(Self(format!("{tenant}/{kind}/{name}").into()))
    }

    /// The whole key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The tenant that owns the resource.
    #[must_use]
    pub fn tenant(&self) -> &str {
        self.parts().0
    }

    /// The class of the resource.
    #[must_use]
    pub fn kind(&self) -> &str {
        self.parts().1
    }

    /// The name within tenant and kind.
    #[must_use]
    pub fn name(&self) -> &str {
        self.parts().2
    }

    fn parts(&self) -> (&str, &str, &str) {
        let (tenant, rest) = self.0.split_once('/').expect("a key is built from three parts");
        let (kind, name) = rest.split_once('/').expect("a key is built from three parts");
        (tenant, kind, name)
    }
}

impl FromStr for ResourceKey {
    type Err = BadName;
    fn from_str(text: &str) -> Result<Self, BadName> {
        let shape = || BadName::Shape(text.chars().take(80).collect(), "tenant/kind/name");
        let (tenant, rest) = text.split_once('/').ok_or_else(shape)?;
        let (kind, name) = rest.split_once('/').ok_or_else(shape)?;
        Self::new(tenant, kind, name)
    }
}

impl TryFrom<String> for ResourceKey {
    type Error = BadName;
    fn try_from(text: String) -> Result<Self, BadName> {
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

/// The name of one lock of a resource. `main`, which nearly all are, costs no memory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LockName(Option<Arc<str>>);

impl LockName {
    /// The lock that every resource has.
    pub const fn main() -> Self {
        Self(None)
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or(MAIN)
    }

    /// Whether this is the lock that every resource has.
    #[must_use]
    pub fn is_main(&self) -> bool {
        self.0.is_none()
    }
}

impl FromStr for LockName {
    type Err = BadName;
    fn from_str(text: &str) -> Result<Self, BadName> {
        check("lock", text, limits::LOCK_BYTES_MAX)?;
        Ok(if text == MAIN { Self::main() } else { Self(Some(text.into())) })
    }
}

impl TryFrom<String> for LockName {
    type Error = BadName;
    fn try_from(text: String) -> Result<Self, BadName> {
        text.parse()
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

/// Several locks of one resource, in canonical order and without repetition, taken all or none.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<LockName>", into = "Vec<LockName>")]
pub struct LockSet(Box<[LockName]>);

impl LockSet {
    /// Builds a set; the order and repetitions of `names` do not matter.
    pub fn new(mut names: Vec<LockName>) -> Result<Self, BadName> {
        names.sort_unstable();
        names.dedup();
        if names.is_empty() || names.len() > limits::LOCK_SET_MAX {
            return Err(BadName::SetSize(names.len()));
        }
        Ok(Self(names.into()))
    }

    /// The locks, in canonical order.
    pub fn iter(&self) -> std::slice::Iter<'_, LockName> {
        self.0.iter()
    }

    /// Whether `name` is one of the locks.
    #[must_use]
    pub fn contains(&self, name: &LockName) -> bool {
        self.0.contains(name)
    }

    /// The first lock in canonical order.
    #[must_use]
    pub fn first(&self) -> &LockName {
        &self.0[0]
    }

    /// How many locks there are: at least one.
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
    type Error = BadName;
    fn try_from(names: Vec<LockName>) -> Result<Self, BadName> {
        Self::new(names)
    }
}

impl From<LockSet> for Vec<LockName> {
    fn from(set: LockSet) -> Self {
        set.0.into_vec()
    }
}

/// A lock as people write it, without the tenant: `kind/name` or `kind/name#lock`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockPath {
    /// The class of the resource.
    pub kind: String,
    /// The name of the resource.
    pub name: String,
    /// The lock of the resource.
    pub lock: LockName,
}

impl LockPath {
    /// The resource this lock belongs to, for a tenant.
    pub fn resource(&self, tenant: &str) -> Result<ResourceKey, BadName> {
        ResourceKey::new(tenant, &self.kind, &self.name)
    }
}

impl FromStr for LockPath {
    type Err = BadName;
    fn from_str(text: &str) -> Result<Self, BadName> {
        let shape =
            || BadName::Shape(text.chars().take(80).collect(), "KIND/NAME or KIND/NAME#LOCK");
        let (resource, lock) = match text.split_once('#') {
            Some((resource, lock)) => (resource, lock.parse()?),
            None => (text, LockName::main()),
        };
        let (kind, name) = resource.split_once('/').ok_or_else(shape)?;
        check("kind", kind, limits::KIND_BYTES_MAX)?;
        check("name", name, limits::NAME_BYTES_MAX)?;
        Ok(Self { kind: kind.to_owned(), name: name.to_owned(), lock })
    }
}

impl fmt::Display for LockPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.name)?;
        if self.lock.is_main() { Ok(()) } else { write!(f, "#{}", self.lock) }
    }
}

/// A lock of a resource as the API writes it: `kind/name` or `kind/name#lock`.
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
    fn a_key_keeps_its_parts() {
        let key: ResourceKey = "acme/pipeline/gcp_billing_export".parse().unwrap();
        assert_eq!(
            (key.tenant(), key.kind(), key.name()),
            ("acme", "pipeline", "gcp_billing_export")
        );
    }

    #[test]
    fn names_at_the_limit_pass_and_one_byte_more_is_refused() {
        let name = |n| "n".repeat(n);
        assert!(ResourceKey::new("t", "k", &name(limits::NAME_BYTES_MAX)).is_ok());
        let error = ResourceKey::new("t", "k", &name(limits::NAME_BYTES_MAX + 1)).unwrap_err();
        assert_eq!(error.to_string(), "the name has 201 bytes; at most 200 are allowed");
    }

    #[test]
    fn separators_blanks_and_control_characters_are_refused() {
        for bad in ["a b", "a/b", "a#b", "a\n", "a\0", "%2e", "a?b", ""] {
            assert!(ResourceKey::new("t", "k", bad).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn a_lock_path_names_main_when_it_names_no_lock() {
        let path: LockPath = "cluster/c1".parse().unwrap();
        assert!(path.lock.is_main());
        assert_eq!(path.to_string(), "cluster/c1");
        let path: LockPath = "scheduler/s1#config".parse().unwrap();
        assert_eq!(path.lock.as_str(), "config");
        assert_eq!(path.to_string(), "scheduler/s1#config");
        assert!("cluster".parse::<LockPath>().is_err());
    }

    #[test]
    fn a_set_is_ordered_unique_and_bounded() {
        let lock = |n: &str| n.parse::<LockName>().unwrap();
        let set = LockSet::new(vec![lock("b"), lock("a"), lock("b")]).unwrap();
        assert_eq!(set.iter().map(LockName::as_str).collect::<Vec<_>>(), ["a", "b"]);
        let many = |n: usize| (0..n).map(|i| lock(&format!("l{i}"))).collect::<Vec<_>>();
        assert!(LockSet::new(many(limits::LOCK_SET_MAX)).is_ok());
        assert!(LockSet::new(many(limits::LOCK_SET_MAX + 1)).is_err());
        assert!(LockSet::new(vec![]).is_err());
    }
}

//! Objects of any resource type, with versions and the events that watches replay.
//!
//! Knows the rules that all types share: uid, resourceVersion, generation, preconditions,
//! finalizers. Must never know what a type means; `machines.rs` does.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Map, Value, json};

use super::refusal::Refusal;

/// Events that are kept for watches; watching from before them is refused.
const EVENTS_MAX: usize = 10_000;
/// Every object is this old: a test that depends on ages needs a clock of its own.
const CREATED_AT: &str = "2026-01-01T00:00:00Z";

/// A kind of objects that the server knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ResourceType {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Version within the group.
    pub version: &'static str,
    /// Name in URLs.
    pub plural: &'static str,
    /// Name in objects.
    pub kind: &'static str,
    /// Whether objects live in a namespace.
    pub namespaced: bool,
    /// Whether `status` is written through its subresource only.
    pub has_status: bool,
}

impl ResourceType {
    /// Returns the `apiVersion` of its objects.
    #[must_use]
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }
}

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Added,
    Modified,
    Deleted,
}

/// One entry of the log that watches replay.
pub(super) struct Event {
    pub(super) version: u64,
    pub(super) resource: ResourceType,
    pub(super) change: Change,
    pub(super) object: Value,
    pub(super) previous: Option<Value>,
}

/// Which part of an object a write replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Everything but the status, if the type has a status subresource.
    Main,
    /// The status only.
    Status,
}

/// Type, namespace and name.
type Key = (ResourceType, String, String);

/// All objects of a server.
#[derive(Default)]
pub struct Objects {
    types: Vec<ResourceType>,
    rows: BTreeMap<Key, Value>,
    version: u64,
    uids: u64,
    events: VecDeque<Event>,
    /// Version up to which events are gone.
    compacted: u64,
}

impl Objects {
    /// Adds a type.
    pub fn register(&mut self, resource: ResourceType) {
        if !self.types.contains(&resource) {
            self.types.push(resource);
        }
    }

    /// Returns all types.
    #[must_use]
    pub fn types(&self) -> &[ResourceType] {
        &self.types
    }

    /// Returns the version of the last write.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn compacted(&self) -> u64 {
        self.compacted
    }

    /// Returns an object.
    #[must_use]
    pub fn get(&self, resource: ResourceType, namespace: &str, name: &str) -> Option<&Value> {
        self.rows.get(&(resource, namespace.to_owned(), name.to_owned()))
    }

    /// Returns the objects of a type, of one namespace or of all, ordered by namespace and name.
    pub fn list<'a>(
        &'a self,
        resource: ResourceType,
        namespace: Option<&'a str>,
    ) -> impl Iterator<Item = &'a Value> {
        let first = (resource, String::new(), String::new());
        let rows = self.rows.range(first..).take_while(move |((of, ..), _)| *of == resource);
        let inside = move |place: &str| namespace.is_none_or(|namespace| namespace == place);
        rows.filter(move |((_, place, _), _)| inside(place)).map(|(_, object)| object)
    }

    /// Creates an object and returns it as stored.
    ///
    /// # Errors
    /// If it has no name, or exists.
    pub fn create(
        &mut self,
        resource: ResourceType,
        namespace: &str,
        mut object: Value,
    ) -> Result<Value, Refusal> {
        let name = text(&object, "/metadata/name").to_owned();
        if name.is_empty() || !object.is_object() {
            return Err(Refusal::invalid("metadata.name: Required value"));
        }
        if self.get(resource, namespace, &name).is_some() {
            return Err(Refusal::exists(resource.plural, &name));
        }
        self.uids += 1;
        object["apiVersion"] = resource.api_version().into();
        object["kind"] = resource.kind.into();
        let metadata = &mut object["metadata"];
        if resource.namespaced {
            metadata["namespace"] = namespace.into();
        }
        metadata["uid"] = format!("00000000-0000-4000-8000-{:012x}", self.uids).into();
        metadata["creationTimestamp"] = CREATED_AT.into();
        metadata["generation"] = 1.into();
        let key = (resource, namespace.to_owned(), name);
        Ok(self.put(&key, object, Change::Added))
    }

    /// Replaces an object after checking the uid and the version that `new` names.
    pub(super) fn replace(
        &mut self,
        resource: ResourceType,
        namespace: &str,
        name: &str,
        new: Value,
        part: Part,
    ) -> Result<Value, Refusal> {
        let Some(current) = self.get(resource, namespace, name) else {
            return Err(Refusal::not_found(resource.plural, name));
        };
        check_preconditions(resource, name, current, &new["metadata"])?;
        let next = merge_parts(resource, current, new, part);
        if next == *current {
            return Ok(next);
        }
        let key = (resource, namespace.to_owned(), name.to_owned());
        Ok(self.put_or_remove(&key, next))
    }

    /// Changes an object as a controller with all rights would.
    ///
    /// # Panics
    /// If it does not exist.
    pub fn edit(
        &mut self,
        resource: ResourceType,
        namespace: &str,
        name: &str,
        change: impl FnOnce(&mut Value),
    ) -> Value {
        let current = self.get(resource, namespace, name);
        let mut next = current.unwrap_or_else(|| panic!("{} {name}", resource.kind)).clone();
        let before = next.clone();
        change(&mut next);
        if next == before {
            return next;
        }
        if next["spec"] != before["spec"] {
            next["metadata"]["generation"] = (generation(&before) + 1).into();
        }
        let key = (resource, namespace.to_owned(), name.to_owned());
        self.put_or_remove(&key, next)
    }

    /// Deletes an object, or marks it as deleted while it has finalizers.
    ///
    /// # Errors
    /// If it does not exist, or is not the one that the preconditions name.
    pub fn delete(
        &mut self,
        resource: ResourceType,
        namespace: &str,
        name: &str,
        preconditions: &Value,
    ) -> Result<Value, Refusal> {
        let Some(current) = self.get(resource, namespace, name) else {
            return Err(Refusal::not_found(resource.plural, name));
        };
        check_preconditions(resource, name, current, preconditions)?;
        let mut next = current.clone();
        let key = (resource, namespace.to_owned(), name.to_owned());
        if has_finalizers(&next) {
            if next["metadata"]["deletionTimestamp"].is_null() {
                next["metadata"]["deletionTimestamp"] = CREATED_AT.into();
                return Ok(self.put(&key, next, Change::Modified));
            }
            return Ok(next);
        }
        Ok(self.remove(&key, next))
    }

    /// Stores an object, unless it was deleted and nothing keeps it any longer.
    fn put_or_remove(&mut self, key: &Key, object: Value) -> Value {
        let finalized =
            !object["metadata"]["deletionTimestamp"].is_null() && !has_finalizers(&object);
        if finalized { self.remove(key, object) } else { self.put(key, object, Change::Modified) }
    }

    fn put(&mut self, key: &Key, mut object: Value, change: Change) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let previous = self.rows.insert(key.clone(), object.clone());
        self.record(key.0, change, object.clone(), previous);
        object
    }

    fn remove(&mut self, key: &Key, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let previous = self.rows.remove(key);
        self.record(key.0, Change::Deleted, object.clone(), previous);
        object
    }

    fn record(
        &mut self,
        resource: ResourceType,
        change: Change,
        object: Value,
        previous: Option<Value>,
    ) {
        self.events.push_back(Event { version: self.version, resource, change, object, previous });
        while self.events.len() > EVENTS_MAX {
            self.compacted = self.events.pop_front().map_or(self.compacted, |event| event.version);
        }
    }

    /// Returns the events after a version, oldest first.
    pub(super) fn events_after(&self, version: u64) -> impl Iterator<Item = &Event> {
        self.events.iter().filter(move |event| event.version > version)
    }

    /// Forgets all events, so that watching from an earlier version is refused.
    pub(super) fn compact(&mut self) {
        self.compacted = self.version;
        self.events.clear();
    }
}

/// Returns the text at a JSON pointer, or "".
pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn generation(object: &Value) -> u64 {
    object["metadata"]["generation"].as_u64().unwrap_or_default()
}

fn has_finalizers(object: &Value) -> bool {
    object["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty())
}

/// Refuses a write that names another uid or an earlier version than the current ones.
fn check_preconditions(
    resource: ResourceType,
    name: &str,
    current: &Value,
    wanted: &Value,
) -> Result<(), Refusal> {
    let differs = |field: &str| {
        let wanted = wanted[field].as_str().unwrap_or_default();
        !wanted.is_empty() && current["metadata"][field] != wanted
    };
    if differs("uid") || differs("resourceVersion") {
        return Err(Refusal::conflict(resource.plural, name));
    }
    Ok(())
}

/// Returns the object after a write of one part; clients cannot change what the server assigns.
fn merge_parts(resource: ResourceType, current: &Value, new: Value, part: Part) -> Value {
    let mut next = match part {
        Part::Main => new,
        Part::Status => {
            let mut next = current.clone();
            next["status"] = new["status"].clone();
            next
        }
    };
    if part == Part::Main && resource.has_status {
        match current.get("status") {
            Some(status) => next["status"] = status.clone(),
            None => {
                next.as_object_mut().map(|fields| fields.remove("status"));
            }
        }
    }
    if !next["metadata"].is_object() {
        next["metadata"] = json!({});
    }
    for field in ["apiVersion", "kind"] {
        next[field] = current[field].clone();
    }
    let assigned =
        ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "resourceVersion"];
    for field in assigned {
        set_or_remove(&mut next["metadata"], field, &current["metadata"][field]);
    }
    let changed = next["spec"] != current["spec"];
    next["metadata"]["generation"] = (generation(current) + u64::from(changed)).into();
    // Indexing adds a null where nothing was.
    if next["spec"].is_null() {
        next.as_object_mut().map(|fields| fields.remove("spec"));
    }
    next
}

fn set_or_remove(object: &mut Value, field: &str, value: &Value) {
    if value.is_null() {
        object.as_object_mut().map(|fields| fields.remove(field));
    } else {
        object[field] = value.clone();
    }
}

/// Applies a JSON merge patch (RFC 7396).
pub(super) fn merge_patch(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(fields) = target.as_object_mut() else { return };
    for (field, value) in patch {
        if value.is_null() {
            fields.remove(field);
        } else {
            merge_patch(fields.entry(field.clone()).or_insert(Value::Null), value);
        }
    }
}

//! What a path stands for, and what is answered on it; watches are in `watching.rs`.
//!
//! Must never do I/O: a request comes in as text, and an answer goes out as JSON.

use serde_json::{Value, json};

use super::objects::{Objects, Part, ResourceType, merge_patch};
use super::refusal::Refusal;
use super::selector::Selector;
use super::state::State;

/// A request after its body was read.
pub(super) struct Call {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) query: Query,
    /// The query as sent, with its question mark.
    pub(super) raw_query: String,
    pub(super) content_type: String,
    pub(super) body: Vec<u8>,
}

impl Call {
    pub(super) fn path_and_query(&self) -> String {
        format!("{}{}", self.path, self.raw_query)
    }
}

/// Parameters of a request.
#[derive(Clone, Default)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    pub(super) fn parse(query: &str) -> Self {
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let decode = |text: &str| decode_percent(&text.replace('+', " "));
        let pair = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name), decode(value))
        };
        Self(pairs.map(pair).collect())
    }

    pub(super) fn get(&self, name: &str) -> &str {
        let found = self.0.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str()).unwrap_or_default()
    }

    pub(super) fn is_true(&self, name: &str) -> bool {
        matches!(self.get(name), "true" | "1")
    }
}

/// Objects of one type that a list or a watch is about.
#[derive(Clone)]
pub(super) struct Selection {
    pub(super) resource: ResourceType,
    pub(super) namespace: Option<String>,
    pub(super) selector: Selector,
}

impl Selection {
    pub(super) fn selects(&self, object: &Value) -> bool {
        let namespace = self.namespace.as_deref();
        let inside = namespace.is_none_or(|one| object["metadata"]["namespace"] == *one);
        inside && self.selector.selects(object)
    }
}

/// What a path stands for.
struct Target {
    resource: ResourceType,
    namespace: Option<String>,
    name: Option<String>,
    part: Part,
}

/// The answer to a request.
pub(super) enum Answer {
    Json(u16, Value),
    Watch(Selection),
}

/// Answers a request.
pub(super) fn answer(state: &mut State, call: &Call) -> Result<Answer, Refusal> {
    let parts: Vec<&str> = call.path.split('/').filter(|part| !part.is_empty()).collect();
    if let Some(value) = discover(&state.objects, &parts) {
        return Ok(Answer::Json(200, value));
    }
    let target = target(&state.objects, &parts).ok_or_else(Refusal::no_such_path)?;
    let Some(name) = &target.name else { return answer_collection(state, call, target) };
    let namespace = target.namespace.clone().unwrap_or_default();
    let (resource, objects) = (target.resource, &mut state.objects);
    let found = objects.get(resource, &namespace, name).cloned();
    let found = found.ok_or_else(|| Refusal::not_found(resource.plural, name));
    let written = match call.method.as_str() {
        "GET" => found?,
        "PUT" => objects.replace(resource, &namespace, name, body(call)?, target.part)?,
        "PATCH" => {
            let mut next = found?;
            // Without preconditions of its own, a patch applies to what is there.
            strip_preconditions(&mut next);
            merge_patch(&mut next, &patch(call)?);
            objects.replace(resource, &namespace, name, next, target.part)?
        }
        "DELETE" => {
            let options = if call.body.is_empty() { Value::Null } else { body(call)? };
            objects.delete(resource, &namespace, name, &options["preconditions"])?
        }
        _ => return Err(Refusal::of_code(405)),
    };
    Ok(Answer::Json(200, written))
}

fn answer_collection(state: &mut State, call: &Call, target: Target) -> Result<Answer, Refusal> {
    let resource = target.resource;
    match call.method.as_str() {
        "POST" => {
            let namespace = target.namespace.unwrap_or_default();
            Ok(Answer::Json(201, state.objects.create(resource, &namespace, body(call)?)?))
        }
        "GET" => {
            let query = &call.query;
            let selector = Selector::parse(query.get("labelSelector"), query.get("fieldSelector"))?;
            let selection = Selection { resource, namespace: target.namespace, selector };
            if query.is_true("watch") {
                return Ok(Answer::Watch(selection));
            }
            list(state, query, &selection)
        }
        _ => Err(Refusal::of_code(405)),
    }
}

/// Answers one page of a list. All pages show the same instant.
fn list(state: &mut State, query: &Query, selection: &Selection) -> Result<Answer, Refusal> {
    let resource = selection.resource;
    let mut items: Vec<Value> = if query.get("continue").is_empty() {
        let all = state.objects.list(resource, selection.namespace.as_deref());
        all.filter(|object| selection.selects(object)).cloned().collect()
    } else {
        let token = query.get("continue").parse().ok();
        token.and_then(|token| state.pages.remove(&token)).ok_or_else(Refusal::expired)?
    };
    let mut metadata = json!({"resourceVersion": state.objects.version().to_string()});
    let limit = query.get("limit").parse().ok().filter(|&limit| limit > 0).unwrap_or(usize::MAX);
    if items.len() > limit {
        let rest = items.split_off(limit);
        state.next_page += 1;
        metadata["continue"] = state.next_page.to_string().into();
        metadata["remainingItemCount"] = rest.len().into();
        state.pages.insert(state.next_page, rest);
    }
    let kind = format!("{}List", resource.kind);
    let api_version = resource.api_version();
    let list =
        json!({"kind": kind, "apiVersion": api_version, "metadata": metadata, "items": items});
    Ok(Answer::Json(200, list))
}

fn body(call: &Call) -> Result<Value, Refusal> {
    let parsed = serde_json::from_slice(&call.body);
    parsed.map_err(|error| Refusal::bad_request(&format!("the body is not JSON: {error}")))
}

fn patch(call: &Call) -> Result<Value, Refusal> {
    if call.content_type != "application/merge-patch+json" {
        let message = format!("patches of type {:?} are not imitated", call.content_type);
        return Err(Refusal { message, ..Refusal::of_code(415) });
    }
    body(call)
}

fn strip_preconditions(object: &mut Value) {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("resourceVersion");
        metadata.remove("uid");
    }
}

/// Returns what a path stands for, if it is one of objects.
fn target(objects: &Objects, parts: &[&str]) -> Option<Target> {
    let (group, version, rest) = match parts {
        ["api", version, rest @ ..] => ("", *version, rest),
        ["apis", group, version, rest @ ..] => (*group, *version, rest),
        _ => return None,
    };
    let (namespace, rest) = match rest {
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => {
            (Some((*namespace).to_owned()), rest)
        }
        rest => (None, rest),
    };
    let (plural, name, part) = match rest {
        [plural] => (*plural, None, Part::Main),
        [plural, name] => (*plural, Some((*name).to_owned()), Part::Main),
        [plural, name, "status"] => (*plural, Some((*name).to_owned()), Part::Status),
        _ => return None,
    };
    let is_it =
        |one: &&ResourceType| one.group == group && one.version == version && one.plural == plural;
    let resource = *objects.types().iter().find(is_it)?;
    let in_namespace = resource.namespaced || namespace.is_none();
    let has_part = part == Part::Main || resource.has_status;
    let is_whole = namespace.is_some() || !resource.namespaced || name.is_none();
    (in_namespace && has_part && is_whole).then_some(Target { resource, namespace, name, part })
}

/// Returns the document of a path that describes the API.
fn discover(objects: &Objects, parts: &[&str]) -> Option<Value> {
    match parts {
        ["version"] => Some(json!({
            "major": "1", "minor": "33", "gitVersion": "v1.33.0", "platform": "linux/amd64",
        })),
        ["healthz" | "readyz" | "livez"] => Some("ok".into()),
        ["api"] => Some(json!({"kind": "APIVersions", "versions": ["v1"]})),
        ["apis"] => Some(json!({
            "kind": "APIGroupList", "apiVersion": "v1", "groups": groups(objects),
        })),
        ["apis", group] => {
            groups(objects).into_iter().find(|one| one["name"] == *group).map(|mut one| {
                one["kind"] = "APIGroup".into();
                one["apiVersion"] = "v1".into();
                one
            })
        }
        ["api", version] => resources(objects, "", version),
        ["apis", group, version] => resources(objects, group, version),
        _ => None,
    }
}

fn groups(objects: &Objects) -> Vec<Value> {
    let mut groups: Vec<Value> = Vec::new();
    for resource in objects.types().iter().filter(|one| !one.group.is_empty()) {
        let version = json!({"groupVersion": resource.api_version(), "version": resource.version});
        match groups.iter_mut().find(|one| one["name"] == resource.group) {
            Some(group) => {
                let versions = group["versions"].as_array_mut();
                if let Some(all) = versions.filter(|all| !all.contains(&version)) {
                    all.push(version);
                }
            }
            None => groups.push(json!({
                "name": resource.group, "preferredVersion": version, "versions": [version],
            })),
        }
    }
    groups
}

fn resources(objects: &Objects, group: &str, version: &str) -> Option<Value> {
    let is_in = |one: &&ResourceType| one.group == group && one.version == version;
    let all: Vec<&ResourceType> = objects.types().iter().filter(is_in).collect();
    let group_version = all.first()?.api_version();
    let describe = |one: &&ResourceType, suffix: &str, verbs: &[&str]| {
        json!({
            "name": format!("{}{suffix}", one.plural), "singularName": one.kind.to_lowercase(),
            "namespaced": one.namespaced, "kind": one.kind, "verbs": verbs,
        })
    };
    let verbs = ["create", "delete", "get", "list", "patch", "update", "watch"];
    let mut listed: Vec<Value> = all.iter().map(|one| describe(one, "", &verbs)).collect();
    let with_status = all.iter().filter(|one| one.has_status);
    listed.extend(with_status.map(|one| describe(one, "/status", &["get", "patch", "update"])));
    Some(json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version,
        "resources": listed,
    }))
}

fn decode_percent(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = text.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                decoded.push(byte);
                at += 3;
            }
            None => {
                decoded.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

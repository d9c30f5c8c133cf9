//! A MachineSet of workers, as far as scaling is concerned.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use tenure_core::Token;

use crate::error::Error;
use crate::pools::{JOB_ANNOTATION, TOKEN_ANNOTATION};

const ROLE_LABEL: &str = "machine.openshift.io/cluster-api-machine-role";
const TYPE_LABEL: &str = "machine.openshift.io/cluster-api-machine-type";
const WORKER: &str = "worker";
/// Where the providers have the zone, below `spec.template.spec.providerSpec.value`.
const ZONE_FIELDS: [&str; 4] =
    ["/placement/availabilityZone", "/zone", "/availabilityZone", "/failureDomain"];
const ZONE_LABELS: [&str; 2] = ["topology.kubernetes.io/zone", "machine.openshift.io/zone"];

/// A set of equal worker machines in one zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineSet {
    /// Its name.
    pub name: String,
    /// Its zone; empty if the provider has none.
    pub zone: String,
    /// Number of machines that it should have.
    pub replicas: u32,
    /// Number of machines that its controller sees, without those being deleted.
    pub current: u32,
    /// Number of machines whose node is ready.
    pub ready: u32,
    /// Whether its controller has seen the latest change of it.
    pub is_observed: bool,
    /// Version for conditional writes.
    pub resource_version: String,
    /// Identity; another set of the same name has another one.
    pub uid: String,
    /// Token under which it was written last.
    pub token: Option<Token>,
    /// Job that wrote it last.
    pub job: Option<String>,
}

impl MachineSet {
    /// Returns whether its controller has reached its replicas.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.is_observed && self.current == self.replicas && self.ready == self.replicas
    }

    /// Returns the set, or `None` if it is not one of workers or is being deleted.
    pub(crate) fn parse(raw: RawSet) -> Result<Option<Self>, Error> {
        let RawSet { metadata, spec, status } = raw;
        if metadata.deletion_timestamp.is_some() || !is_worker(&metadata, &spec.template.metadata) {
            return Ok(None);
        }
        let token = metadata.annotations.get(TOKEN_ANNOTATION);
        let parse = |text: &String| {
            let message = format!(
                "its annotation {TOKEN_ANNOTATION} is {text:?}, not a token; remove the annotation"
            );
            let tried = format!("scale MachineSet {}", metadata.name);
            text.parse().map(Token).map_err(|_| Error::invalid(tried, message))
        };
        Ok(Some(Self {
            zone: zone(&spec.template),
            // The default of the API.
            replicas: spec.replicas.unwrap_or(1),
            current: status.replicas,
            ready: status.ready_replicas,
            is_observed: status.observed_generation >= metadata.generation,
            resource_version: metadata.resource_version,
            uid: metadata.uid,
            token: token.map(parse).transpose()?,
            job: metadata.annotations.get(JOB_ANNOTATION).cloned(),
            name: metadata.name,
        }))
    }
}

/// The role decides, the type only where there is no role. The installer labels the template only.
fn is_worker(metadata: &RawMetadata, template: &RawMetadata) -> bool {
    let label = |name: &str| template.labels.get(name).or_else(|| metadata.labels.get(name));
    label(ROLE_LABEL).or_else(|| label(TYPE_LABEL)).is_some_and(|role| role == WORKER)
}

fn zone(template: &RawTemplate) -> String {
    let value = &template.spec["providerSpec"]["value"];
    let field = |pointer: &&str| value.pointer(pointer).and_then(Value::as_str);
    let label = |name: &&str| template.metadata.labels.get(*name).map(String::as_str);
    let fields = ZONE_FIELDS.iter().filter_map(field);
    let mut zones =
        fields.chain(ZONE_LABELS.iter().filter_map(label)).filter(|zone| !zone.is_empty());
    zones.next().unwrap_or_default().to_owned()
}

/// A MachineSet of the API.
#[derive(Clone, Deserialize)]
pub(crate) struct RawSet {
    metadata: RawMetadata,
    spec: RawSpec,
    #[serde(default)]
    status: RawStatus,
}

/// Metadata that the types of this crate share.
#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RawMetadata {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    generation: u64,
    resource_version: String,
    uid: String,
    pub(crate) deletion_timestamp: Option<String>,
}

#[derive(Clone, Deserialize)]
struct RawSpec {
    replicas: Option<u32>,
    #[serde(default)]
    template: RawTemplate,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct RawTemplate {
    metadata: RawMetadata,
    spec: Value,
}

#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawStatus {
    replicas: u32,
    ready_replicas: u32,
    observed_generation: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(raw: Value) -> Result<Option<MachineSet>, Error> {
        MachineSet::parse(serde_json::from_value(raw).unwrap())
    }

    fn with_labels(of_set: &Value, of_template: &Value) -> Option<MachineSet> {
        parse(json!({
            "metadata": {"name": "a", "labels": of_set},
            "spec": {"template": {"metadata": {"labels": of_template}}},
        }))
        .unwrap()
    }

    #[test]
    fn workers_are_recognised_by_role_then_by_type() {
        let (worker, infra) = (json!({ROLE_LABEL: "worker"}), json!({ROLE_LABEL: "infra"}));
        let typed = json!({TYPE_LABEL: "worker"});
        let both = json!({ROLE_LABEL: "infra", TYPE_LABEL: "worker"});
        assert!(with_labels(&json!({}), &worker).is_some());
        assert!(with_labels(&worker, &json!({})).is_some());
        assert!(with_labels(&json!({}), &typed).is_some());
        assert!(with_labels(&json!({}), &both).is_none());
        assert!(with_labels(&worker, &infra).is_none());
        assert!(with_labels(&json!({}), &json!({})).is_none());
    }

    #[test]
    fn the_zone_is_found_for_each_provider() {
        let zone = |value: Value| {
            let raw = json!({
                "metadata": {"name": "a", "labels": {ROLE_LABEL: "worker"}},
                "spec": {"template": {"spec": {"providerSpec": {"value": value}}}},
            });
            parse(raw).unwrap().unwrap().zone
        };
        assert_eq!(zone(json!({"placement": {"availabilityZone": "eu-west-1a"}})), "eu-west-1a");
        assert_eq!(zone(json!({"zone": "europe-west1-b"})), "europe-west1-b");
        assert_eq!(zone(json!({"zone": "", "availabilityZone": "nova"})), "nova");
        assert_eq!(zone(json!({})), "");
    }

    #[test]
    fn absent_fields_have_the_defaults_of_the_api() {
        let set = with_labels(&json!({}), &json!({ROLE_LABEL: "worker"})).unwrap();
        assert_eq!((set.replicas, set.current, set.ready, set.token), (1, 0, 0, None));
        assert!(!set.is_settled());
    }

    #[test]
    fn sets_that_are_being_deleted_are_left_out() {
        let raw = json!({
            "metadata": {
                "name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z",
                "labels": {ROLE_LABEL: "worker"},
            },
            "spec": {},
        });
        assert_eq!(parse(raw).unwrap(), None);
    }

    #[test]
    fn an_annotation_that_is_no_token_is_refused() {
        let raw = json!({
            "metadata": {
                "name": "a", "labels": {ROLE_LABEL: "worker"},
                "annotations": {TOKEN_ANNOTATION: "7x"},
            },
            "spec": {},
        });
        let error = parse(raw).unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
        assert!(error.to_string().contains("remove the annotation"), "{error}");
    }
}

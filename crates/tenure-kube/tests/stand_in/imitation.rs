//! The imitated API itself, as a Kubernetes client sees it.

use futures_util::TryStreamExt as _;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::params::{Preconditions, WatchParams};
use kube::core::{ApiResource, GroupVersionKind, WatchEvent};
use kube::{Client, Config, ResourceExt as _};
use serde_json::json;
use tenure_testbed::{KubeApi, MACHINE_NAMESPACE, ResourceType};

use super::SET;

/// A type that nobody controls.
const LEASES: ResourceType = ResourceType {
    group: "coordination.k8s.io",
    version: "v1",
    plural: "leases",
    kind: "Lease",
    namespaced: true,
    has_status: false,
};

async fn client(api: &KubeApi) -> Client {
    let kubeconfig = kube::config::Kubeconfig::from_yaml(&api.kubeconfig()).expect("it is valid");
    rustls::crypto::ring::default_provider().install_default().ok();
    let mut config =
        Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.expect("it is valid");
    config.default_retry = false;
    Client::try_from(config).expect("it is valid")
}

async fn objects(api: &KubeApi, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    let client = client(api).await;
    match kind {
        "Node" => Api::all_with(client, &resource),
        _ => Api::namespaced_with(client, MACHINE_NAMESPACE, &resource),
    }
}

async fn machine_sets(api: &KubeApi) -> Api<DynamicObject> {
    objects(api, "machine.openshift.io", "v1beta1", "MachineSet").await
}

fn code(error: kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        error => panic!("{error}"),
    }
}

#[tokio::test]
async fn the_api_describes_itself() {
    let api = KubeApi::start(3).unwrap();
    let client = client(&api).await;
    assert_eq!(client.apiserver_version().await.unwrap().minor, "33");
    let groups = client.list_api_groups().await.unwrap();
    assert_eq!(groups.groups[0].name, "machine.openshift.io");
    let group = kube::discovery::group(&client, "machine.openshift.io").await.unwrap();
    let kinds: Vec<_> =
        group.recommended_resources().iter().map(|(one, _)| one.kind.clone()).collect();
    assert_eq!(kinds, ["MachineSet", "Machine"]);
    let core = client.list_core_api_resources("v1").await.unwrap();
    assert_eq!(core.resources[0].name, "nodes");
}

#[tokio::test]
async fn any_type_can_be_added() {
    let api = KubeApi::start(0).unwrap();
    api.edit(|objects| objects.register(LEASES));
    let leases = objects(&api, "coordination.k8s.io", "v1", "Lease").await;
    let lease = |spec| {
        let metadata = json!({"name": "a", "labels": {"tier": "one"}});
        serde_json::from_value::<DynamicObject>(json!({"metadata": metadata, "spec": spec}))
            .unwrap()
    };
    let created = leases.create(&PostParams::default(), &lease(json!({"n": 1}))).await.unwrap();
    assert_eq!(created.metadata.generation, Some(1));
    let again = leases.create(&PostParams::default(), &lease(json!({}))).await.unwrap_err();
    assert_eq!(code(again), 409);

    let mut next = created.clone();
    next.data["spec"]["n"] = 2.into();
    let replaced = leases.replace("a", &PostParams::default(), &next).await.unwrap();
    assert_eq!(replaced.metadata.generation, Some(2));
    assert_eq!(replaced.uid(), created.uid());
    let stale = leases.replace("a", &PostParams::default(), &next).await.unwrap_err();
    assert_eq!(code(stale), 409);
    let same = leases.replace("a", &PostParams::default(), &replaced).await.unwrap();
    assert_eq!(same.resource_version(), replaced.resource_version());

    let other = Preconditions { uid: Some("other".to_owned()), resource_version: None };
    let delete = DeleteParams { preconditions: Some(other), ..DeleteParams::default() };
    assert_eq!(code(leases.delete("a", &delete).await.unwrap_err()), 409);
    leases.delete("a", &DeleteParams::default()).await.unwrap();
    assert_eq!(code(leases.get("a").await.unwrap_err()), 404);
}

#[tokio::test]
async fn selectors_select() {
    let api = KubeApi::start(3).unwrap();
    let nodes = objects(&api, "", "v1", "Node").await;
    let names = async |labels: &str| nodes.list(&ListParams::default().labels(labels)).await;
    let count = async |labels: &str| names(labels).await.unwrap().items.len();
    let (worker, master) = ("node-role.kubernetes.io/worker", "node-role.kubernetes.io/master");
    assert_eq!(count(worker).await, 6);
    assert_eq!(count(&format!("{worker},!{master}")).await, 3);
    assert_eq!(count("kubernetes.io/hostname=demo-x7k2p-master-1").await, 1);
    assert_eq!(count("kubernetes.io/hostname!=demo-x7k2p-master-1").await, 5);
    assert_eq!(code(names("a in (b, c)").await.unwrap_err()), 400);
    let one = ListParams::default().fields("metadata.name=demo-x7k2p-master-2");
    assert_eq!(nodes.list(&one).await.unwrap().items.len(), 1);
}

#[tokio::test]
async fn pages_show_one_instant() {
    let api = KubeApi::start(3).unwrap();
    let sets = machine_sets(&api).await;
    let page = ListParams::default().limit(2);
    let first = sets.list(&page).await.unwrap();
    assert_eq!((first.items.len(), first.metadata.remaining_item_count), (2, Some(1)));
    sets.delete(&format!("{SET}c"), &DeleteParams::default()).await.unwrap();
    let token = first.metadata.continue_.unwrap();
    let second = sets.list(&page.clone().continue_token(&token)).await.unwrap();
    assert_eq!(second.items[0].name_any(), format!("{SET}c"));

    let first = sets.list(&ListParams::default().limit(1)).await.unwrap();
    api.compact();
    let token = first.metadata.continue_.unwrap();
    assert_eq!(code(sets.list(&page.continue_token(&token)).await.unwrap_err()), 410);
}

#[tokio::test]
async fn a_status_is_written_through_its_subresource_only() {
    let api = KubeApi::start(3).unwrap();
    let sets = machine_sets(&api).await;
    let name = format!("{SET}a");
    let patch = Patch::Merge(json!({"spec": {"replicas": 2}, "status": {"replicas": 9}}));
    let main = sets.patch(&name, &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(
        (&main.data["spec"]["replicas"], &main.data["status"]["replicas"]),
        (&2.into(), &1.into())
    );
    let patch = Patch::Merge(json!({"spec": {"replicas": 5}, "status": {"replicas": 9}}));
    let status = sets.patch_status(&name, &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(
        (&status.data["spec"]["replicas"], &status.data["status"]["replicas"]),
        (&2.into(), &9.into())
    );
    assert_eq!(status.metadata.generation, main.metadata.generation);
    let apply = Patch::Apply(json!({"metadata": {"name": name}}));
    let applied = sets.patch(&name, &PatchParams::apply("a"), &apply).await;
    assert_eq!(code(applied.unwrap_err()), 415);
}

#[tokio::test]
async fn finalizers_keep_an_object_until_they_are_removed() {
    let api = KubeApi::start(3).unwrap();
    let machines = objects(&api, "machine.openshift.io", "v1beta1", "Machine").await;
    let name = format!("{SET}a-00001");
    machines.delete(&name, &DeleteParams::default()).await.unwrap();
    assert!(machines.get(&name).await.unwrap().metadata.deletion_timestamp.is_some());
    let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    machines.patch(&name, &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(code(machines.get(&name).await.unwrap_err()), 404);
}

/// Returns the kind of the next event, and the name of its object.
macro_rules! next {
    ($events:expr) => {
        match $events.try_next().await.unwrap() {
            Some(WatchEvent::Added(object)) => ("added", object.name_any()),
            Some(WatchEvent::Modified(object)) => ("modified", object.name_any()),
            Some(WatchEvent::Deleted(object)) => ("deleted", object.name_any()),
            Some(WatchEvent::Bookmark(_)) => ("bookmark", String::new()),
            Some(WatchEvent::Error(status)) => ("error", status.code.to_string()),
            None => ("end", String::new()),
        }
    };
}

#[tokio::test]
async fn a_watch_replays_then_follows() {
    let api = KubeApi::start(3).unwrap();
    let sets = machine_sets(&api).await;
    let version = sets.list(&ListParams::default()).await.unwrap().metadata.resource_version;
    let label = |value: &str| Patch::Merge(json!({"metadata": {"labels": {"tier": value}}}));
    let set = |zone: char| format!("{SET}{zone}");
    sets.patch(&set('a'), &PatchParams::default(), &label("one")).await.unwrap();

    let params = WatchParams::default().labels("tier=one");
    let events = sets.watch(&params, &version.unwrap()).await.unwrap();
    let mut events = std::pin::pin!(events);
    assert_eq!(next!(events), ("added", set('a')));
    sets.patch(&set('b'), &PatchParams::default(), &label("one")).await.unwrap();
    assert_eq!(next!(events), ("added", set('b')));
    sets.patch(&set('c'), &PatchParams::default(), &label("two")).await.unwrap();
    let scale = Patch::Merge(json!({"spec": {"replicas": 2}}));
    sets.patch(&set('b'), &PatchParams::default(), &scale).await.unwrap();
    assert_eq!(next!(events), ("modified", set('b')));
    sets.patch(&set('b'), &PatchParams::default(), &label("two")).await.unwrap();
    assert_eq!(next!(events), ("deleted", set('b')));
    api.send_bookmarks();
    assert_eq!(next!(events).0, "bookmark");
    sets.delete(&set('a'), &DeleteParams::default()).await.unwrap();
    assert_eq!(next!(events), ("deleted", set('a')));
    api.end_watches();
    assert_eq!(next!(events).0, "end");
}

#[tokio::test]
async fn a_watch_from_the_start_begins_with_what_exists() {
    let api = KubeApi::start(2).unwrap();
    let sets = machine_sets(&api).await;
    let events = sets.watch(&WatchParams::default(), "0").await.unwrap();
    let mut events = std::pin::pin!(events);
    for zone in ['a', 'b', 'c'] {
        assert_eq!(next!(events), ("added", format!("{SET}{zone}")));
    }
    api.expire_watches();
    assert_eq!(next!(events), ("error", "410".to_owned()));
    assert_eq!(next!(events).0, "end");
}

#[tokio::test]
async fn a_watch_from_a_compacted_version_expires() {
    let api = KubeApi::start(2).unwrap();
    let sets = machine_sets(&api).await;
    api.compact();
    let events = sets.watch(&WatchParams::default(), "1").await.unwrap();
    let mut events = std::pin::pin!(events);
    assert_eq!(next!(events), ("error", "410".to_owned()));
}

//! Tests of the install-config.

use std::path::Path;

use super::*;
use crate::profile::Secret;

fn profile(text: &str) -> Profile {
    let text = format!(
        "platform = \"aws\"\nversions = [\"4.19.1\"]\nregions = [\"us-east-1\"]\n\
         base_domains = [\"a.example\"]\n{text}"
    );
    Profile::parse(&text, "p", Path::new("/")).unwrap()
}

fn config() -> ClusterConfig {
    ClusterConfig {
        name: "demo".to_owned(),
        platform: "aws".to_owned(),
        base_domain: "a.example".to_owned(),
        profile: "p".to_owned(),
        version: "4.19.1".to_owned(),
        region: "us-east-1".to_owned(),
        workers: 2,
        ttl_ms: None,
        owner: "ann".to_owned(),
        tags: [("team".to_owned(), "x".to_owned())].into(),
        preserve_on_failure: false,
    }
}

fn secrets() -> Secrets {
    Secrets {
        pull_secret: Some(Secret::new("{\"auths\":{\"r\":\"hunter2\"}}")),
        ssh_key: Some(Secret::new("ssh-ed25519 AAAA ann")),
    }
}

fn document(patch: &str) -> Value {
    InstallConfig::new(&config(), &profile(patch), &Secrets::default()).unwrap().expose().clone()
}

#[test]
fn the_document_has_what_identifies_the_cluster() {
    let document = InstallConfig::new(&config(), &profile(""), &secrets()).unwrap();
    let expected = json!({
        "apiVersion": "v1",
        "baseDomain": "a.example",
        "metadata": { "name": "demo" },
        "controlPlane": { "name": "master", "replicas": 3 },
        "compute": [{ "name": "worker", "replicas": 2 }],
        "platform": { "aws": {
            "region": "us-east-1",
            "userTags": { "team": "x", "owner": "ann", "tenure-cluster": "aws:demo.a.example" },
        } },
        "pullSecret": "{\"auths\":{\"r\":\"hunter2\"}}",
        "sshKey": "ssh-ed25519 AAAA ann",
    });
    assert_eq!(*document.expose(), expected);
}

#[test]
fn a_redacted_copy_has_no_secrets() {
    let patch = "install_config.platform.aws.vcenters = [{ user = \"u\", Password = \"pass1\" }]";
    let document = InstallConfig::new(&config(), &profile(patch), &secrets()).unwrap();
    let redacted = document.redacted();
    assert_eq!(redacted["pullSecret"], "(removed)");
    assert_eq!(redacted["platform"]["aws"]["vcenters"][0]["Password"], "(removed)");
    assert_eq!(redacted["platform"]["aws"]["vcenters"][0]["user"], "u");
    assert_eq!(redacted["sshKey"], "ssh-ed25519 AAAA ann");
    let text = redacted.to_string();
    assert!(!text.contains("hunter2") && !text.contains("pass1"), "{text}");
    // Without a pull secret there is nothing to remove.
    assert!(document_without_secret().get("pullSecret").is_none());
}

fn document_without_secret() -> Value {
    InstallConfig::new(&config(), &profile(""), &Secrets::default()).unwrap().redacted()
}

#[test]
fn the_table_of_the_profile_is_merged() {
    let document = document(
        "[install_config]\nfips = true\n[install_config.controlPlane]\nreplicas = 1\n\
         [install_config.networking]\nnetworkType = \"OVNKubernetes\"\n\
         [install_config.platform.aws]\npropagateUserTags = true\n",
    );
    assert_eq!(document["fips"], true);
    assert_eq!(document["controlPlane"], json!({ "name": "master", "replicas": 1 }));
    assert_eq!(document["networking"]["networkType"], "OVNKubernetes");
    assert_eq!(document["platform"]["aws"]["propagateUserTags"], true);
    assert_eq!(document["platform"]["aws"]["region"], "us-east-1");
}

#[test]
fn a_profile_that_sets_the_type_of_workers_does_not_change_their_number() {
    let document = document(
        "[[install_config.compute]]\nname = \"infra\"\nreplicas = 5\n\
         [[install_config.compute]]\nname = \"worker\"\nplatform.aws.type = \"m6i.xlarge\"\n",
    );
    assert_eq!(document["compute"][0], json!({ "name": "infra", "replicas": 5 }));
    let worker = &document["compute"][1];
    assert_eq!(worker["platform"]["aws"]["type"], "m6i.xlarge");
    assert_eq!(worker["replicas"], 2);
}

#[test]
fn other_platforms_have_their_own_table() {
    for (platform, table) in [
        ("azure", json!({ "region": "us-east-1" })),
        ("gcp", json!({ "region": "us-east-1" })),
        ("vsphere", json!({})),
        ("none", json!({})),
    ] {
        let config = ClusterConfig { platform: platform.to_owned(), ..config() };
        let document = InstallConfig::new(&config, &profile(""), &Secrets::default()).unwrap();
        assert_eq!(document.expose()["platform"], json!({ platform: table }), "{platform}");
    }
}

#[test]
fn the_owner_and_the_id_replace_tags_of_the_same_name() {
    let mut config = config();
    config.tags.insert(TAG_OWNER.to_owned(), "other".to_owned());
    assert_eq!(resource_tags(&config)[TAG_OWNER], "ann");
}

//! Lists of clusters: filters and pages.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::bed::{Bed, request};
use crate::common::key;

async fn names(bed: &Bed, query: &str) -> Vec<String> {
    let (status, page) = bed.server.get(&format!("/v1/clusters?{query}")).await;
    assert_eq!(status, 200, "{query}: {page}");
    items(&page)
}

fn items(page: &Value) -> Vec<String> {
    let items = page["items"].as_array().expect("a list").iter();
    items.map(|item| item["name"].as_str().expect("a name").to_owned()).collect()
}

#[tokio::test]
async fn clusters_are_found_by_state_profile_owner_region_and_tag() {
    let bed = Bed::start().await;
    let worker = bed.worker("a").await;
    bed.ready(&worker, "a", json!({ "tags": { "team": "x" } })).await;
    bed.ready(&worker, "b", json!({ "owner": "bob", "tags": { "team": "y" } })).await;
    bed.create_with("c", json!({ "profile": "other", "tags": { "team": "x" } })).await;
    bed.create_with("d", json!({ "region": "eu-west-1" })).await;
    for (query, expected) in [
        ("", &["a", "b", "c", "d"][..]),
        ("state=READY", &["a", "b"]),
        ("state=PENDING", &["c", "d"]),
        ("state=DESTROYED", &[]),
        ("profile=other", &["c"]),
        ("owner=bob", &["b"]),
        ("region=eu-west-1", &["d"]),
        ("tag=team%3Dx", &["a", "c"]),
        ("tag=team%3D", &[]),
        ("tag=team", &[]),
        ("tag=none%3Dx", &[]),
        ("state=READY&owner=ann&tag=team%3Dx", &["a"]),
        ("owner=", &[]),
    ] {
        assert_eq!(names(&bed, query).await, expected, "{query}");
    }
}

#[tokio::test]
async fn pages_have_each_cluster_once_however_few_match() {
    let bed = Bed::start().await;
    for n in 0..25 {
        let owner = if n % 5 == 0 { "bob" } else { "ann" };
        assert_eq!(bed.create_with(&format!("c{n:02}"), json!({ "owner": owner })).await.0, 202);
    }
    for (filter, limit, expected) in [("", 7, 25), ("owner=bob", 2, 5), ("owner=ann", 20, 20)] {
        let (mut found, mut cursor, mut pages) = (Vec::new(), String::new(), 0);
        loop {
            let (status, page) =
                bed.server.get(&format!("/v1/clusters?{filter}&limit={limit}{cursor}")).await;
            assert_eq!(status, 200, "{page}");
            let names = items(&page);
            assert!(names.len() <= limit, "{page}");
            found.extend(names);
            pages += 1;
            assert!(pages <= 30, "the pages do not end");
            let Some(next) = page["next"].as_str() else { break };
            cursor = format!("&cursor={next}");
        }
        let unique: BTreeSet<&String> = found.iter().collect();
        assert_eq!((found.len(), unique.len()), (expected, expected), "{filter}: {found:?}");
        assert!(found.is_sorted(), "{found:?}");
    }
    for bad in ["limit=0", "limit=x", "cursor=nonsense"] {
        let (status, problem) = bed.server.get(&format!("/v1/clusters?{bad}")).await;
        assert_eq!(status, 422, "{bad}: {problem}");
    }
}

#[tokio::test]
async fn a_tenant_sees_its_own_clusters_and_all_tenants_sees_all() {
    let bed = Bed::start().await;
    bed.create("a").await;
    let acme = key(&bed.server, "acme", "operator").await;
    let body = request("a", &json!({ "base_domain": "acme.example.com" }));
    let (status, answer) = bed.server.request(&acme, "POST", "/v1/clusters", Some(&body)).await;
    assert_eq!(status, 202, "{answer}");
    let (_, page) = bed.server.request(&acme, "GET", "/v1/clusters", None).await;
    assert_eq!(page["items"].as_array().map(Vec::len), Some(1), "{page}");
    assert_eq!(page["items"][0]["id"], "aws:a.acme.example.com");
    let (_, page) = bed.server.get("/v1/clusters?tenant=*").await;
    assert_eq!(page["items"].as_array().map(Vec::len), Some(2), "{page}");
}

//! Scaling: how workers are spread, and that no write happens twice or under a lost tenure.

use std::sync::Arc;

use serde_json::json;
use tenure_core::Token;
use tenure_kube::{Error, JOB_ANNOTATION, TOKEN_ANNOTATION};
use tenure_testbed::{
    KubeApi, KubeFault, MACHINE_NAMESPACE, MACHINE_SETS, Objects, new_machine_set,
};

use super::{SET, fence, pools, replicas};

/// Returns the tokens of the MachineSets, by name.
fn tokens(api: &KubeApi) -> Vec<String> {
    let token = |set: &serde_json::Value| {
        let token = &set["metadata"]["annotations"][TOKEN_ANNOTATION];
        token.as_str().unwrap_or_default().to_owned()
    };
    api.edit(|objects| objects.list(MACHINE_SETS, None).map(token).collect())
}

/// Returns how often the MachineSets were changed, by name.
fn generations(api: &KubeApi) -> Vec<u64> {
    let generation = |set: &serde_json::Value| set["metadata"]["generation"].as_u64();
    api.edit(|objects| objects.list(MACHINE_SETS, None).filter_map(generation).collect())
}

/// Changes a set as an operator would.
fn set_replicas(objects: &mut Objects, zone: char, replicas: u32) {
    let name = format!("{SET}{zone}");
    objects.edit(MACHINE_SETS, MACHINE_NAMESPACE, &name, |set| {
        set["spec"]["replicas"] = replicas.into();
    });
}

/// Marks a set as a later tenure would.
fn set_token(objects: &mut Objects, zone: char, token: &str) {
    let name = format!("{SET}{zone}");
    objects.edit(MACHINE_SETS, MACHINE_NAMESPACE, &name, |set| {
        set["metadata"]["annotations"] = json!({TOKEN_ANNOTATION: token});
    });
}

#[tokio::test]
async fn workers_are_added_evenly_over_the_zones() {
    let api = KubeApi::start(3).unwrap();
    let scaled = pools(&api).await.scale(8, &fence(5)).await.unwrap();
    assert_eq!(replicas(&api), [3, 3, 2]);
    assert_eq!(scaled.before, 3);
    let changes = scaled.changes.iter().map(|one| (one.zone.as_str(), one.from, one.to));
    let expected = [("eu-west-1a", 1, 3), ("eu-west-1b", 1, 3), ("eu-west-1c", 1, 2)];
    assert_eq!(changes.collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn workers_are_removed_evenly_over_the_zones() {
    let api = KubeApi::start(9).unwrap();
    let pools = pools(&api).await;
    pools.scale(4, &fence(5)).await.unwrap();
    assert_eq!(replicas(&api), [2, 1, 1]);
    pools.scale(0, &fence(6)).await.unwrap();
    assert_eq!(replicas(&api), [0, 0, 0]);
}

#[tokio::test]
async fn every_set_names_token_and_job_of_the_last_scaling() {
    let api = KubeApi::start(3).unwrap();
    let pools = pools(&api).await;
    pools.scale(4, &fence(5)).await.unwrap();
    assert_eq!(generations(&api), [2, 1, 1]);
    assert_eq!(tokens(&api), ["5", "5", "5"]);
    for set in pools.list().await.unwrap() {
        assert_eq!(set.token, Some(Token(5)));
        assert_eq!(set.job.as_deref(), Some("00000000000000000000000000000007"));
    }
    let annotated = |objects: &mut Objects| {
        let set = objects.get(MACHINE_SETS, MACHINE_NAMESPACE, &format!("{SET}a")).unwrap();
        set["metadata"]["annotations"][JOB_ANNOTATION].is_string()
    };
    assert!(api.edit(annotated));
}

#[tokio::test]
async fn at_the_target_nothing_is_written() {
    let api = KubeApi::start(4).unwrap();
    let scaled = pools(&api).await.scale(4, &fence(5)).await.unwrap();
    assert_eq!((scaled.before, scaled.changes), (4, vec![]));
    assert_eq!(api.writes(), []);
}

#[tokio::test]
async fn sets_of_other_machines_are_not_touched() {
    let api = KubeApi::start(3).unwrap();
    let infra = new_machine_set("demo-infra", "infra", "eu-west-1a", 2);
    api.edit(|objects| objects.create(MACHINE_SETS, MACHINE_NAMESPACE, infra)).unwrap();
    pools(&api).await.scale(6, &fence(5)).await.unwrap();
    assert_eq!(replicas(&api), [2, 2, 2, 2]);
    assert_eq!(tokens(&api), ["", "5", "5", "5"]);
}

#[tokio::test]
async fn several_sets_of_a_zone_share_its_workers() {
    let api = KubeApi::start_in_zones(2, &["a", "b"]).unwrap();
    let gpu = new_machine_set("demo-gpu-a", "worker", "a", 0);
    api.edit(|objects| objects.create(MACHINE_SETS, MACHINE_NAMESPACE, gpu)).unwrap();
    pools(&api).await.scale(6, &fence(5)).await.unwrap();
    assert_eq!(replicas(&api), [2, 1, 3]);
}

#[tokio::test]
async fn a_cluster_without_worker_sets_is_not_found() {
    let api = KubeApi::start_in_zones(0, &[]).unwrap();
    let error = pools(&api).await.scale(3, &fence(5)).await.unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
}

#[tokio::test]
async fn the_number_of_workers_is_bounded() {
    let api = KubeApi::start(0).unwrap();
    let pools = pools(&api).await;
    let error = pools.scale(tenure_kube::WORKERS_MAX + 1, &fence(5)).await.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    assert_eq!(api.requests(), []);
    pools.scale(tenure_kube::WORKERS_MAX, &fence(5)).await.unwrap();
    assert_eq!(replicas(&api), [1_667, 1_667, 1_666]);
}

#[tokio::test]
async fn after_a_change_by_somebody_else_the_plan_is_made_anew() {
    let api = KubeApi::start(3).unwrap();
    api.edit_before("PATCH", &format!("{SET}c"), |objects| set_replicas(objects, 'c', 5));
    let scaled = pools(&api).await.scale(6, &fence(5)).await.unwrap();
    assert_eq!(replicas(&api), [2, 2, 2]);
    assert_eq!(scaled.changes.len(), 3);
    // The first two are right already and named the token; the third was refused once.
    assert_eq!(generations(&api), [2, 2, 3]);
}

#[tokio::test]
async fn endless_changes_by_others_end_in_a_conflict() {
    let api = KubeApi::start(3).unwrap();
    for round in 0..6 {
        api.edit_before("PATCH", &format!("{SET}a"), move |objects| {
            set_replicas(objects, 'a', 10 + round);
        });
    }
    let error = pools(&api).await.scale(6, &fence(5)).await.unwrap_err();
    assert!(matches!(error, Error::Conflict { .. }), "{error}");
    assert_eq!(api.planted(), 0);
}

#[tokio::test]
async fn five_changes_by_others_are_survived() {
    let api = KubeApi::start(3).unwrap();
    for round in 0..5 {
        api.edit_before("PATCH", &format!("{SET}a"), move |objects| {
            set_replicas(objects, 'a', 10 + round);
        });
    }
    pools(&api).await.scale(6, &fence(5)).await.unwrap();
    assert_eq!(replicas(&api), [2, 2, 2]);
}

#[tokio::test]
async fn a_later_token_fences() {
    let api = KubeApi::start(3).unwrap();
    api.edit(|objects| set_token(objects, 'b', "6"));
    let pools = pools(&api).await;
    for total in [3, 9] {
        let error = pools.scale(total, &fence(5)).await.unwrap_err();
        let Error::Fenced { token: Token(5), live: Token(6), .. } = error else {
            panic!("{error}")
        };
    }
    assert_eq!(api.writes(), []);
    pools.scale(9, &fence(6)).await.unwrap();
    pools.scale(6, &fence(7)).await.unwrap();
}

#[tokio::test]
async fn a_token_that_arrives_between_read_and_write_fences() {
    let api = KubeApi::start(3).unwrap();
    api.edit_before("PATCH", &format!("{SET}a"), |objects| set_token(objects, 'a', "6"));
    let error = pools(&api).await.scale(9, &fence(5)).await.unwrap_err();
    assert!(matches!(error, Error::Fenced { .. }), "{error}");
    assert_eq!(replicas(&api), [1, 1, 1]);
    assert_eq!(api.writes().len(), 1);
}

#[tokio::test]
async fn a_frozen_worker_changes_nothing_when_it_wakes() {
    let api = Arc::new(KubeApi::start(3).unwrap());
    let (frozen, later) = (pools(&api).await, pools(&api).await);
    let mut held = api.hold("PATCH", &format!("{SET}c"));
    let scaling = tokio::spawn(async move { frozen.scale(9, &fence(5)).await });
    held.arrived().await;
    // The first two sets have three workers by now, so that the third is not changed by the later.
    later.scale(7, &fence(6)).await.unwrap();
    let after = replicas(&api);
    held.release();
    let error = scaling.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Fenced { .. }), "{error}");
    assert_eq!(replicas(&api), after);
    assert_eq!(tokens(&api), ["6", "6", "6"]);
}

#[tokio::test]
async fn a_mark_refuses_the_late_request_of_a_tenure_that_wrote_nothing() {
    let api = Arc::new(KubeApi::start(3).unwrap());
    let (frozen, later) = (pools(&api).await, pools(&api).await);
    let mut held = api.hold("PATCH", &format!("{SET}a"));
    let scaling = tokio::spawn(async move { frozen.scale(9, &fence(5)).await });
    held.arrived().await;
    let before = generations(&api);
    later.mark(&fence(6)).await.unwrap();
    assert_eq!((tokens(&api), generations(&api)), (vec!["6".to_owned(); 3], before));
    held.release();
    let error = scaling.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Fenced { .. }), "{error}");
    assert_eq!(replicas(&api), [1, 1, 1]);
    // It is not written twice, and not under an earlier token.
    let writes = api.writes().len();
    later.mark(&fence(6)).await.unwrap();
    let error = later.mark(&fence(5)).await.unwrap_err();
    assert!(matches!(error, Error::Fenced { .. }), "{error}");
    assert_eq!(api.writes().len(), writes);
}

#[tokio::test]
async fn a_mark_outlives_the_changes_of_others_up_to_a_bound() {
    let api = KubeApi::start(3).unwrap();
    let pools = pools(&api).await;
    api.edit_before("PATCH", SET, |objects| set_replicas(objects, 'a', 4));
    pools.mark(&fence(5)).await.unwrap();
    assert_eq!((replicas(&api), tokens(&api)), (vec![4, 1, 1], vec!["5".to_owned(); 3]));
    for n in 0..6 {
        api.edit_before("PATCH", SET, move |objects| set_replicas(objects, 'a', 5 + n));
    }
    let error = pools.mark(&fence(6)).await.unwrap_err();
    assert!(matches!(error, Error::Conflict { .. }), "{error}");
    assert_eq!(api.planted(), 0);
}

#[tokio::test]
async fn writes_with_an_unknown_outcome_take_effect_once() {
    for fault in [
        KubeFault::AppliedThenStatus(504),
        KubeFault::AppliedThenDisconnect,
        KubeFault::Status(504),
        KubeFault::RetryAfter(429, 0),
        KubeFault::Disconnect,
    ] {
        let api = KubeApi::start(3).unwrap();
        for zone in ['a', 'b', 'c'] {
            api.inject("PATCH", &format!("{SET}{zone}"), fault.clone());
        }
        let scaled = pools(&api).await.scale(6, &fence(5)).await.unwrap();
        assert_eq!(api.planted(), 0, "{fault:?}");
        assert_eq!(replicas(&api), [2, 2, 2], "{fault:?}");
        assert_eq!(generations(&api), [2, 2, 2], "{fault:?}");
        assert_eq!(tokens(&api), ["5", "5", "5"], "{fault:?}");
        assert_eq!(scaled.changes.len(), 3, "{fault:?}");
    }
}

#[tokio::test]
async fn a_server_that_stays_overloaded_is_unreachable() {
    let api = KubeApi::start(3).unwrap();
    for _ in 0..4 {
        api.inject("PATCH", "", KubeFault::RetryAfter(429, 0));
    }
    let error = pools(&api).await.scale(6, &fence(5)).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { attempts: 4, .. }), "{error}");
    assert_eq!(replicas(&api), [1, 1, 1]);
}

#[tokio::test]
async fn a_missing_permission_stops_the_scaling() {
    let api = KubeApi::start(3).unwrap();
    api.inject("PATCH", "", KubeFault::Status(403));
    let error = pools(&api).await.scale(6, &fence(5)).await.unwrap_err();
    assert!(matches!(error, Error::Forbidden { .. }), "{error}");
    assert_eq!(api.writes().len(), 1);
}

#[tokio::test]
async fn a_scaling_that_was_dropped_is_continued() {
    let api = Arc::new(KubeApi::start(3).unwrap());
    let first = pools(&api).await;
    let mut held = api.hold("PATCH", &format!("{SET}b"));
    let scaling = tokio::spawn(async move { first.scale(6, &fence(5)).await });
    held.arrived().await;
    scaling.abort();
    assert!(scaling.await.unwrap_err().is_cancelled());
    assert_eq!(replicas(&api), [2, 1, 1]);
    pools(&api).await.scale(6, &fence(6)).await.unwrap();
    held.release();
    assert_eq!(replicas(&api), [2, 2, 2]);
}

//! Waiting: until nodes are ready and machines are gone, through outages, and not beyond a drop.

use std::sync::Arc;
use std::time::Duration;

use tenure_kube::{Error, Kube, KubeOptions, Progress, WorkerPools};
use tenure_testbed::{
    KubeApi, KubeFault, MACHINE_NAMESPACE, MACHINE_SETS, MACHINES, NODES, new_machine_set,
};

use super::{SET, fence, options, pools};

/// Scales, waits while the machines advance with each poll, and returns every progress.
async fn scale_and_wait(api: &KubeApi, total: u32) -> Vec<Progress> {
    let pools = pools(api).await;
    pools.scale(total, &fence(5)).await.expect("the server answers");
    let mut seen = Vec::new();
    let waited = pools.wait_ready(total, |progress| {
        seen.push(progress.clone());
        api.advance();
    });
    let last = waited.await.expect("the server answers");
    assert_eq!(seen.last(), Some(&last));
    assert!(seen.iter().rev().skip(1).all(|progress| !progress.is_done()));
    seen
}

#[tokio::test]
async fn new_workers_are_awaited_until_their_nodes_are_ready() {
    let api = KubeApi::start(3).unwrap();
    let seen = scale_and_wait(&api, 6).await;
    assert_eq!(seen[0].ready, 3);
    assert!(seen[0].waiting_for.is_empty() && !seen[0].is_done());
    assert!(seen.windows(2).all(|two| two[0].ready <= two[1].ready));
    let provisioning = seen.iter().find(|one| one.waiting_for.len() == 3).unwrap();
    assert!(provisioning.waiting_for[0].starts_with(SET), "{provisioning}");
    let last = seen.last().unwrap();
    assert_eq!((last.ready, last.machines, last.wanted), (6, 6, 6));
    assert_eq!(last.to_string(), "6 of 6 workers are ready");
}

#[tokio::test]
async fn removed_machines_are_awaited_until_they_are_gone() {
    let api = KubeApi::start(6).unwrap();
    let seen = scale_and_wait(&api, 3).await;
    // The controllers are done long before.
    let leaving = seen.iter().find(|one| one.is_settled && one.ready == 3).unwrap();
    assert_eq!(leaving.deleting, 3);
    assert_eq!(leaving.to_string(), "3 of 3 workers are ready, 3 are being deleted");
    assert_eq!(api.edit(|objects| objects.list(MACHINES, None).count()), 3);
    assert_eq!(api.edit(|objects| objects.list(NODES, None).count()), 6);
}

#[tokio::test]
async fn a_status_from_before_the_change_is_not_believed() {
    let api = KubeApi::start(3).unwrap();
    // Complete in every count, but the controller has not seen the set of this generation.
    api.edit(|objects| {
        objects.edit(MACHINE_SETS, MACHINE_NAMESPACE, &format!("{SET}a"), |set| {
            set["spec"]["paused"] = true.into();
        })
    });
    let mut seen = Vec::new();
    let pools = pools(&api).await;
    let waited = pools.wait_ready(3, |progress| {
        seen.push(progress.is_settled);
        api.advance();
    });
    assert!(waited.await.unwrap().is_done());
    assert_eq!(seen, [false, true]);
}

#[tokio::test]
async fn no_workers_are_ready_when_all_are_gone() {
    let api = KubeApi::start(3).unwrap();
    let seen = scale_and_wait(&api, 0).await;
    assert_eq!(seen.last().unwrap().machines, 0);
}

#[tokio::test]
async fn nodes_of_other_machines_do_not_count() {
    let api = KubeApi::start(3).unwrap();
    let infra = new_machine_set("demo-infra", "infra", "eu-west-1a", 2);
    api.edit(|objects| objects.create(MACHINE_SETS, MACHINE_NAMESPACE, infra)).unwrap();
    api.settle();
    let done = pools(&api).await.wait_ready(3, |_| {}).await.unwrap();
    assert_eq!((done.ready, done.machines), (3, 3));
}

#[tokio::test]
async fn a_node_that_stays_unready_is_reported_until_it_recovers() {
    let api = KubeApi::start(3).unwrap();
    api.stick_nodes(1);
    let pools = pools(&api).await;
    pools.scale(5, &fence(5)).await.unwrap();
    let (mut polls, mut stuck) = (0, Vec::new());
    let waited = pools.wait_ready(5, |progress| {
        polls += 1;
        api.settle();
        if (20..30).contains(&polls) {
            stuck.push(progress.clone());
        }
        if polls == 30 {
            api.unstick_nodes();
        }
    });
    assert!(waited.await.unwrap().is_done());
    for progress in stuck {
        assert_eq!((progress.ready, progress.machines, progress.is_settled), (4, 5, false));
        assert_eq!(progress.waiting_for.len(), 1);
        let text = progress.to_string();
        assert!(text.starts_with("4 of 5 workers are ready, waiting for "), "{text}");
        assert!(text.ends_with(" (Running)"), "{text}");
    }
}

#[tokio::test]
async fn a_node_that_is_lost_again_is_noticed() {
    let api = KubeApi::start(3).unwrap();
    let node = api.edit(|objects| {
        let nodes = objects.list(NODES, None).map(|node| node["metadata"]["name"].as_str());
        nodes.flatten().find(|name| name.starts_with("node-")).unwrap().to_owned()
    });
    // Ready in the status of its set, which lags.
    api.set_node_ready(&node, false);
    let mut seen = Vec::new();
    let pools = pools(&api).await;
    let waited = pools.wait_ready(3, |progress| {
        seen.push(progress.ready);
        api.set_node_ready(&node, true);
    });
    waited.await.unwrap();
    assert_eq!(seen, [2, 3]);
}

#[tokio::test]
async fn names_of_machines_are_bounded() {
    let api = KubeApi::start(0).unwrap();
    let seen = scale_and_wait(&api, 30).await;
    assert_eq!(seen.iter().map(|one| one.waiting_for.len()).max(), Some(10));
}

#[tokio::test]
async fn long_lists_are_read_in_pages_and_again_if_they_expire() {
    let api = KubeApi::start(450).unwrap();
    api.inject("GET", "continue=", KubeFault::Status(410));
    let done = pools(&api).await.wait_ready(450, |_| {}).await.unwrap();
    assert_eq!(done.ready, 450);
    let pages = api.requests().iter().filter(|one| one.path.contains("continue=")).count();
    assert_eq!(pages, 5);
}

#[tokio::test]
async fn an_outage_is_reported_and_survived() {
    let api = KubeApi::start(3).unwrap();
    let once = KubeOptions { attempts_max: 1, ..options() };
    let kube = Kube::from_kubeconfig(&api.kubeconfig(), once).await.unwrap();
    for fault in [KubeFault::Status(503), KubeFault::Disconnect, KubeFault::Status(500)] {
        api.inject("GET", "nodes", fault);
    }
    let mut outages = Vec::new();
    let pools = WorkerPools::new(kube);
    let waited = pools.wait_ready(3, |progress| {
        outages.push(progress.outage.is_some());
        assert_eq!(progress.is_done(), progress.outage.is_none());
    });
    waited.await.unwrap();
    assert_eq!(outages, [true, true, true, false]);
}

#[tokio::test]
async fn an_outage_without_end_is_an_error() {
    let api = KubeApi::start(3).unwrap();
    let once = KubeOptions { attempts_max: 1, ..options() };
    let kube = Kube::from_kubeconfig(&api.kubeconfig(), once).await.unwrap();
    drop(api);
    let mut polls = 0;
    let error = WorkerPools::new(kube).wait_ready(3, |_| polls += 1).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert_eq!(polls, 29);
}

#[tokio::test]
async fn replicas_that_somebody_else_changes_end_the_wait() {
    let api = KubeApi::start(3).unwrap();
    let pools = pools(&api).await;
    pools.scale(6, &fence(5)).await.unwrap();
    let waited = pools.wait_ready(6, |_| {
        api.edit(|objects| {
            objects.edit(MACHINE_SETS, MACHINE_NAMESPACE, &format!("{SET}a"), |set| {
                set["spec"]["replicas"] = 9.into();
            })
        });
    });
    let error = waited.await.unwrap_err();
    assert!(matches!(error, Error::Conflict { .. }), "{error}");
    assert!(error.to_string().contains("now want 13"), "{error}");
}

/// Polls so rarely that only watches can lead to an end.
async fn watching(api: &KubeApi) -> WorkerPools {
    let rarely = KubeOptions {
        poll_interval: Duration::from_secs(3_600),
        poll_gap: Duration::ZERO,
        ..options()
    };
    let kube = Kube::from_kubeconfig(&api.kubeconfig(), rarely).await;
    WorkerPools::new(kube.expect("it is valid"))
}

#[tokio::test]
async fn a_change_of_a_set_leads_to_a_poll() {
    let api = Arc::new(KubeApi::start(3).unwrap());
    let pools = watching(&api).await;
    pools.scale(6, &fence(5)).await.unwrap();
    let waiting = tokio::spawn(async move { pools.wait_ready(6, |_| {}).await });
    api.until_watches(1).await;
    api.send_bookmarks();
    api.settle();
    assert_eq!(waiting.await.unwrap().unwrap().ready, 6);
}

#[tokio::test]
async fn without_watches_the_polls_go_on() {
    let api = KubeApi::start(3).unwrap();
    let often = KubeOptions { poll_gap: Duration::ZERO, ..options() };
    let kube = Kube::from_kubeconfig(&api.kubeconfig(), often).await.unwrap();
    let pools = WorkerPools::new(kube);
    pools.scale(6, &fence(5)).await.unwrap();
    let waited = pools.wait_ready(6, |_| {
        for code in [403, 410, 500] {
            api.inject("GET", "watch=true", KubeFault::Status(code));
        }
        api.advance();
        api.compact();
        api.expire_watches();
        api.end_watches();
    });
    assert_eq!(waited.await.unwrap().ready, 6);
}

#[tokio::test]
async fn a_dropped_wait_stops_at_once() {
    let api = Arc::new(KubeApi::start(3).unwrap());
    let pools = watching(&api).await;
    pools.scale(6, &fence(5)).await.unwrap();
    let again = pools.clone();
    let waiting = tokio::spawn(async move { pools.wait_ready(6, |_| {}).await });
    api.until_watches(1).await;
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    // Its connection is closed, and so is the watch.
    api.until_watches(0).await;

    let mut held = api.hold("GET", "nodes");
    let waiting = tokio::spawn(async move { again.wait_ready(6, |_| {}).await });
    held.arrived().await;
    let before = api.requests().len();
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    held.release();
    assert_eq!(api.requests().len(), before);
}

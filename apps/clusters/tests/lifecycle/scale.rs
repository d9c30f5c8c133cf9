//! SCALE_WORKERS: through the API of the cluster, by workers that die or freeze, and nodes that are
//! not ready.

use serde_json::{Value, json};
use tenure_testbed::{KubeApi, KubeFault, MACHINE_SETS};

use crate::bed::{Bed, StoreKind, Worker, path};
use crate::common::until;

/// Number of workers of a new cluster, as the profile has it.
const INITIAL: u32 = 3;
/// Part of the path of a MachineSet.
const SETS: &str = "/machinesets";
const TOKEN: &str = "tenure.dev/token";

/// Creates clusters with an API each, whose machines follow at once.
fn ready<const N: usize>(bed: &Bed, names: [&str; N]) -> [KubeApi; N] {
    let apis = names.map(|name| bed.kube(name, INITIAL));
    for name in names {
        assert_eq!(bed.create(name).0, 202);
    }
    for name in names {
        bed.settled(name, "READY");
    }
    apis
}

/// Requests a number of workers. Returns the job.
fn scale(bed: &Bed, name: &str, workers: u32, verdict: &str) -> Value {
    let (status, answer) = try_scale(bed, name, workers);
    assert_eq!((status, &answer["verdict"]), (202, &json!(verdict)), "{answer}");
    answer["job"]["id"].clone()
}

fn try_scale(bed: &Bed, name: &str, workers: u32) -> (u16, Value) {
    bed.api("POST", &format!("{}/scale", path(name)), &json!({ "workers": workers }))
}

/// Returns the replicas of the MachineSets.
pub(crate) fn replicas(api: &KubeApi) -> Vec<u64> {
    let count = |set: &Value| set["spec"]["replicas"].as_u64();
    api.edit(|objects| objects.list(MACHINE_SETS, None).filter_map(count).collect())
}

/// Returns the tokens of the MachineSets that have one.
pub(crate) fn tokens(api: &KubeApi) -> Vec<u64> {
    let token =
        |set: &Value| set["metadata"]["annotations"][TOKEN].as_str().and_then(|t| t.parse().ok());
    api.edit(|objects| objects.list(MACHINE_SETS, None).filter_map(token).collect())
}

/// Returns the token of the last attempt of a job.
fn token(bed: &Bed, job: &Value) -> u64 {
    let job = bed.job(job);
    let last = job["attempts"].as_array().and_then(|attempts| attempts.last()).cloned();
    last.and_then(|last| last["token"].as_u64()).unwrap_or_else(|| panic!("{job:#}"))
}

/// Returns the number of requests of one method for MachineSets.
fn requests(api: &KubeApi, method: &str) -> usize {
    let requests = api.requests();
    requests.iter().filter(|one| one.method == method && one.path.contains(SETS)).count()
}

/// Starts a worker after the one before it has lost its jobs.
fn replace(bed: &Bed, worker: &mut Worker, name: &str) {
    worker.kill();
    *worker = bed.worker(name);
}

#[test]
fn workers_are_scaled_up_and_down_evenly_over_three_zones() {
    let bed = Bed::start(StoreKind::Embedded);
    let _worker = bed.worker("a");
    let [api] = ready(&bed, ["demo"]);
    let up = scale(&bed, "demo", 7, "started");
    bed.settled("demo", "READY");
    assert_eq!(replicas(&api), [3, 2, 2]);
    assert_eq!(tokens(&api), [token(&bed, &up); 3]);
    let job = bed.job(&up);
    assert_eq!((&job["state"], &job["attempt"]), (&json!("succeeded"), &json!(1)));
    assert_eq!(job["result"], json!({"workers": 7, "before": 3}));
    assert_eq!(bed.show("demo")["workers"], 7);
    let log = bed.job_log(&up);
    assert!(log.contains("eu-west-1a in eu-west-1a: from 1 to 3 replicas"), "{log}");
    assert!(!log.contains("Change {") && log.contains("7 of 7 workers are ready"), "{log}");
    let down = scale(&bed, "demo", 2, "started");
    bed.settled("demo", "READY");
    assert_eq!(replicas(&api), [1, 1, 0]);
    assert_eq!(tokens(&api), [token(&bed, &down); 3]);
    assert!(token(&bed, &down) > token(&bed, &up));
    assert_eq!(bed.show("demo")["workers"], 2);
    // A cluster that is as wanted is not written.
    let writes = api.writes().len();
    let same = scale(&bed, "demo", 2, "started");
    bed.settled("demo", "READY");
    assert_eq!(bed.job(&same)["result"], json!({"workers": 2, "before": 2}));
    assert_eq!(api.writes().len(), writes, "{:?}", api.writes());
}

#[test]
fn only_running_clusters_are_scaled_and_within_the_bounds_of_their_profile() {
    let bed = Bed::start(StoreKind::Embedded);
    let _worker = bed.worker("a");
    let refused = |what: &str, expected: &str| {
        let (status, problem) = try_scale(&bed, "demo", 5);
        assert_eq!((status, &problem["code"]), (409, &json!(expected)), "{what}: {problem}");
    };
    assert_eq!(try_scale(&bed, "demo", 5).0, 404);
    bed.plan(
        "demo",
        &json!({
            "create cluster": [{"hold": "bootstrap"}], "destroy cluster": [{"hold": "begin"}],
        }),
    );
    let api = bed.kube("demo", INITIAL);
    bed.create("demo");
    bed.reached("demo", "bootstrap");
    refused("during a create", "rejected");
    bed.go("demo", "bootstrap");
    bed.settled("demo", "READY");
    let (status, problem) = try_scale(&bed, "demo", 31);
    assert_eq!(status, 422, "{problem}");
    let detail = problem["detail"].as_str().unwrap_or_default();
    assert!(detail.contains("between 0 and 30"), "{detail}");
    bed.destroy("demo");
    bed.reached("demo", "begin");
    refused("during a destroy", "rejected");
    bed.go("demo", "begin");
    bed.settled("demo", "DESTROYED");
    refused("after a destroy", "bad_transition");
    assert_eq!(api.requests().len(), 0);
}

#[test]
fn the_last_of_several_requests_counts() {
    let bed = Bed::start(StoreKind::Embedded);
    let mut worker = bed.worker("a");
    let [api] = ready(&bed, ["demo"]);
    worker.kill();
    let jobs = [
        scale(&bed, "demo", 5, "started"),
        scale(&bed, "demo", 6, "replaced"),
        scale(&bed, "demo", 7, "replaced"),
    ];
    let held = api.hold("PATCH", SETS);
    let _other = bed.worker("b");
    until(|| requests(&api, "PATCH") == 1);
    // One that runs ends before the next one begins.
    let next = [scale(&bed, "demo", 8, "queued"), scale(&bed, "demo", 9, "replaced")];
    held.release();
    bed.settled("demo", "READY");
    assert_eq!(replicas(&api), [3, 3, 3]);
    let states = [&jobs[..], &next[..]].concat();
    let states: Vec<Value> = states.iter().map(|job| bed.job(job)["state"].clone()).collect();
    assert_eq!(states, ["superseded", "superseded", "succeeded", "superseded", "succeeded"]);
    assert_eq!(bed.job(&next[1])["result"], json!({"workers": 9, "before": 7}));
}

#[test]
fn a_worker_killed_at_any_step_of_a_scale_is_replaced() {
    let bed = Bed::start(StoreKind::Embedded);
    let mut worker = bed.worker("a");
    let names = ["before", "between", "waiting"];
    let apis = ready(&bed, names);
    let [before, between, waiting] = &apis;
    let _held = [before.hold("GET", SETS), between.hold("PATCH", "-eu-west-1b")];
    waiting.stick_nodes(1);
    let jobs = names.map(|name| scale(&bed, name, 9, "started"));
    until(|| requests(before, "GET") == 1 && requests(between, "PATCH") == 2);
    until(|| requests(waiting, "PATCH") == 3 && bed.state("waiting") == "SCALING");
    let first = jobs.each_ref().map(|job| token(&bed, job));
    assert_eq!([replicas(before), replicas(between)], [[1, 1, 1], [3, 1, 1]]);
    replace(&bed, &mut worker, "b");
    until(|| requests(waiting, "PATCH") == 6);
    waiting.unstick_nodes();
    waiting.settle();
    for (name, (api, first)) in names.iter().zip(apis.iter().zip(first)) {
        bed.settled(name, "READY");
        assert_eq!(replicas(api), [3, 3, 3], "{name}");
        assert!(tokens(api).iter().all(|token| *token > first), "{name}: {:?}", tokens(api));
        assert_eq!(bed.show(name)["workers"], 9);
    }
    for job in &jobs {
        let job = bed.job(job);
        assert_eq!((&job["state"], &job["attempt"]), (&json!("succeeded"), &json!(2)), "{job}");
    }
    let (code, text) = bed.run(&["verify"]);
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn a_frozen_worker_that_wakes_up_late_cannot_write() {
    let bed = Bed::start(StoreKind::Embedded);
    let frozen = bed.worker("a");
    let [api] = ready(&bed, ["demo"]);
    // Its request is on the way when another worker continues.
    let held = api.hold("PATCH", SETS);
    let job = scale(&bed, "demo", 9, "started");
    until(|| requests(&api, "PATCH") == 1);
    frozen.signal("STOP");
    let _other = bed.worker("b");
    bed.settled("demo", "READY");
    scale(&bed, "demo", 2, "started");
    bed.settled("demo", "READY");
    let (writes, marks) = (requests(&api, "PATCH"), tokens(&api));
    held.release();
    frozen.signal("CONT");
    until(|| bed.read("a.log").contains("session lost"));
    assert_eq!((replicas(&api), tokens(&api)), (vec![1, 1, 0], marks));
    assert_eq!(requests(&api, "PATCH"), writes, "it sends no further request");
    assert_eq!(bed.job(&job)["attempt"], 2);
}

#[test]
fn a_late_request_is_refused_although_the_next_scale_had_nothing_to_change() {
    let bed = Bed::with(StoreKind::Embedded, "attempts = 1");
    let frozen = bed.worker("a");
    let [api] = ready(&bed, ["demo"]);
    let held = api.hold("PATCH", SETS);
    let job = scale(&bed, "demo", 9, "started");
    until(|| requests(&api, "PATCH") == 1);
    frozen.signal("STOP");
    let _other = bed.worker("b");
    bed.settled("demo", "READY");
    assert_eq!(bed.job(&job)["error"]["code"], "WORKER_TIMEOUT", "a dead worker leaves it READY");
    let same = scale(&bed, "demo", 3, "started");
    bed.settled("demo", "READY");
    assert_eq!(tokens(&api), [token(&bed, &same); 3]);
    held.release();
    frozen.signal("CONT");
    until(|| bed.read("a.log").contains("session lost"));
    assert_eq!(replicas(&api), [1, 1, 1]);
}

#[test]
fn nodes_that_are_not_ready_in_time_cost_an_attempt_and_the_cluster_stays_ready() {
    let bed = Bed::with(StoreKind::Embedded, "scale_limit = \"1s\"");
    let _worker = bed.worker("a");
    let apis = ready(&bed, ["late", "never"]);
    let jobs = ["late", "never"].map(|name| {
        let n = usize::from(name == "never");
        apis[n].stick_nodes(1);
        scale(&bed, name, 6, "started")
    });
    until(|| bed.show("late")["last_error"]["code"] == "NODES_NOT_READY");
    apis[0].unstick_nodes();
    apis[0].settle();
    bed.settled("late", "READY");
    let shown = bed.show("late");
    assert!(shown["last_error"].is_null() && shown["workers"] == 6, "{shown}");
    assert!(bed.job(&jobs[0])["attempt"].as_u64() >= Some(2));
    bed.settled("never", "READY");
    let (shown, job) = (bed.show("never"), bed.job(&jobs[1]));
    assert_eq!((&job["state"], &job["attempt"]), (&json!("dead"), &json!(3)), "{job}");
    let error = &shown["last_error"];
    assert_eq!((&error["code"], &error["attempt"]), (&json!("NODES_NOT_READY"), &json!(3)));
    let message = error["message"].as_str().unwrap_or_default();
    assert!(message.contains("within 1s: 5 of 6 workers are ready"), "{message}");
    // It can be repeated.
    apis[1].unstick_nodes();
    apis[1].settle();
    scale(&bed, "never", 6, "started");
    bed.settled("never", "READY");
    assert!(bed.show("never")["last_error"].is_null());
}

#[test]
fn an_api_that_cannot_be_used_leaves_the_cluster_ready_with_the_error() {
    let bed = Bed::with(StoreKind::Embedded, "attempts = 2");
    let _worker = bed.worker("a");
    let [gone, forbidden] = ready(&bed, ["gone", "forbidden"]);
    drop(gone);
    forbidden.inject("GET", SETS, KubeFault::Status(403));
    let jobs = ["gone", "forbidden"].map(|name| scale(&bed, name, 5, "started"));
    for (name, (job, attempts)) in ["gone", "forbidden"].iter().zip(jobs.iter().zip([2, 1])) {
        bed.settled(name, "READY");
        let (shown, job) = (bed.show(name), bed.job(job));
        assert_eq!(shown["last_error"]["code"], "CLUSTER_API", "{shown}");
        assert_eq!((&job["attempt"], &shown["workers"]), (&json!(attempts), &json!(3)), "{job}");
        let secret = forbidden.token();
        assert!(!shown.to_string().contains(secret) && !job.to_string().contains(secret));
    }
}

#[test]
fn a_destroy_cancels_a_scale() {
    let bed = Bed::start(StoreKind::Embedded);
    let _worker = bed.worker("a");
    let [api] = ready(&bed, ["demo"]);
    api.stick_nodes(1);
    let job = scale(&bed, "demo", 6, "started");
    until(|| requests(&api, "PATCH") == 3);
    let (status, answer) = bed.destroy("demo");
    assert_eq!((status, &answer["verdict"]), (202, &json!("queued")), "{answer}");
    assert_eq!(try_scale(&bed, "demo", 7).0, 409);
    bed.settled("demo", "DESTROYED");
    assert_eq!(bed.job(&job)["state"], "cancelled");
    assert!(bed.show("demo")["last_error"].is_null());
    bed.check(&[]);
}

#[test]
fn a_cancelled_scale_is_no_failure_of_the_cluster() {
    let bed = Bed::start(StoreKind::Embedded);
    let _worker = bed.worker("a");
    let [api] = ready(&bed, ["demo"]);
    api.stick_nodes(1);
    let job = scale(&bed, "demo", 6, "started");
    until(|| requests(&api, "PATCH") == 3);
    let path = format!("/v1/jobs/{}/cancel", job.as_str().expect("an id"));
    assert_eq!(bed.api("POST", &path, &json!({"reason": "not needed"})).0, 202);
    bed.settled("demo", "READY");
    assert_eq!(bed.job(&job)["state"], "cancelled");
    assert!(bed.show("demo")["last_error"].is_null(), "{}", bed.show("demo"));
}

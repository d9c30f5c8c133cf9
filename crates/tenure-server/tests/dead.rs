//! Dead letters over HTTP: groups, dry runs, redrive and discard.

mod common;

use std::sync::Arc;

use common::{Server, Worker};
use serde_json::{Value, json};
use tenure_core::retry::Class;
use tenure_core::{
    Claim, Command, Finish, JobAction, Outcome, ResourceAction, ResourceKey, SessionId, Submit,
};
use tenure_store::{Memory, Store, random, scenario};

async fn server() -> (Arc<Memory>, Server) {
    let store = Arc::new(Memory::new());
    store.declare(scenario::kinds()).await.expect("in memory");
    let server = Server::start_with(Arc::clone(&store) as _, scenario::kinds()).await;
    (store, server)
}

/// Makes a pipeline run fail permanently with a code.
async fn bury(store: &Memory, name: &str, code: &str) -> String {
    let session = SessionId(7);
    let key = ResourceKey::new("default", "pipeline", name).expect("a valid name");
    let submit = Submit {
        request: random::request_id(),
        operation: "run".into(),
        args: None,
        priority: 0,
        run_at: None,
        by: "ann".into(),
        precondition: None,
    };
    let claim = Claim {
        session,
        request: random::request_id(),
        kinds: vec!["pipeline".into()],
        max: 1,
        tenant: None,
        only: None,
    };
    let commands = vec![
        Command::Open { session, tenant: "*".into(), name: "w".into(), ttl_ms: 60_000 },
        Command::Resource { key, action: ResourceAction::Submit(submit) },
        Command::Claim(claim),
    ];
    let mut outcomes = store.apply(commands).await.expect("in memory");
    let Some(Outcome::Claimed(jobs)) = outcomes.pop() else { panic!("{outcomes:?}") };
    let (id, token) = (jobs[0].job.id, jobs[0].tenure.token);
    let (class, message) = (Some(Class::Transient), format!("{name} broke").into());
    let finish = Finish::Failed { code: code.into(), message, class, state: None, delay_ms: None };
    let action = JobAction::Finish { token, finish, update: None };
    store.apply(vec![Command::Job { id, action }]).await.expect("in memory");
    id.to_string()
}

async fn count(server: &Server, query: &str) -> usize {
    let (status, page) = server.get(&format!("/v1/jobs?limit=1000&{query}")).await;
    assert_eq!(status, 200, "{page}");
    page["items"].as_array().expect("items").len()
}

#[tokio::test]
async fn dead_letters_are_grouped_by_error_code() {
    let (store, server) = server().await;
    for (name, code) in [("p1", "DISK"), ("p2", "DISK"), ("p3", "NET")] {
        bury(&store, name, code).await;
    }
    let (status, dead) = server.get("/v1/dead").await;
    assert_eq!((status, &dead["complete"]), (200, &json!(true)), "{dead}");
    let group = |at: usize| {
        let group = &dead["groups"][at];
        (group["kind"].as_str(), group["code"].as_str(), group["count"].as_u64())
    };
    assert_eq!(group(0), (Some("pipeline"), Some("DISK"), Some(2)));
    assert_eq!(group(1), (Some("pipeline"), Some("NET"), Some(1)));
    assert_eq!(dead["groups"][1]["message"], "p3 broke");
    assert_eq!(dead["items"].as_array().unwrap().len(), 3);
    let (_, first) = server.get("/v1/dead?limit=2").await;
    let next = first["next"].as_str().expect("there is more");
    let (_, rest) = server.get(&format!("/v1/dead?limit=2&cursor={next}")).await;
    assert_eq!((rest["items"].as_array().unwrap().len(), &rest["next"]), (1, &Value::Null));
    assert_eq!(server.get("/v1/dead?kind=task").await.1["items"], json!([]));
}

#[tokio::test]
async fn a_dry_run_changes_nothing_and_a_repeated_redrive_has_no_effect() {
    let (store, server) = server().await;
    let mut disks = vec![bury(&store, "p1", "DISK").await, bury(&store, "p2", "DISK").await];
    bury(&store, "p3", "NET").await;
    let filter = json!({ "kind": "pipeline", "code": "DISK" });
    let (_, before) = server.get("/v1/jobs").await;

    let body = json!({ "filter": filter, "dry_run": true });
    let (status, dry) = server.post("/v1/dead/redrive", body).await;
    assert_eq!((status, &dry["matched"]), (200, &json!(2)), "{dry}");
    assert_eq!((&dry["redriven"], &dry["refused"]), (&json!([]), &json!([])));
    let body = json!({ "filter": {}, "dry_run": true });
    assert_eq!(server.post("/v1/dead/discard", body).await.1["matched"], 3);
    assert_eq!(server.get("/v1/jobs").await.1, before);

    let no_reason = json!({ "filter": filter });
    assert_eq!(server.post("/v1/dead/redrive", no_reason.clone()).await.0, 422);
    assert_eq!(server.post("/v1/dead/discard", no_reason).await.0, 422);
    assert_eq!(server.get("/v1/jobs").await.1, before);

    let body = json!({ "filter": filter, "reason": "the disk is larger now" });
    let (_, done) = server.post_as("/v1/dead/redrive", "r-1", body.clone()).await;
    assert_eq!(done["matched"], 2, "{done}");
    let pairs = done["redriven"].as_array().unwrap();
    let mut from: Vec<_> = pairs.iter().map(|pair| pair["from"].as_str().unwrap()).collect();
    from.sort_unstable();
    disks.sort_unstable();
    assert_eq!(from, disks);
    let (_, new) = server.get(&format!("/v1/jobs/{}", pairs[0]["job"].as_str().unwrap())).await;
    assert_eq!((&new["state"], &new["retry_of"]), (&json!("queued"), &pairs[0]["from"]));

    assert_eq!(server.post_as("/v1/dead/redrive", "r-1", body).await.1["matched"], 0);
    let named = json!({ "filter": { "ids": disks }, "reason": "the disk is larger now" });
    let (_, again) = server.post_as("/v1/dead/redrive", "r-1", named.clone()).await;
    assert_eq!(again["redriven"].as_array().unwrap().len(), 2, "{again}");
    for pair in again["redriven"].as_array().unwrap() {
        assert!(pairs.contains(pair), "{pair} is not among {pairs:?}");
    }
    let (_, late) = server.post_as("/v1/dead/redrive", "r-2", named).await;
    assert_eq!(late["refused"][0]["code"], "conflict", "{late}");
    assert_eq!(count(&server, "state=queued").await, 2);
}

#[tokio::test]
async fn a_redrive_covers_more_dead_letters_than_one_batch() {
    let (store, server) = server().await;
    for n in 0..601 {
        bury(&store, &format!("p{n}"), if n == 0 { "NET" } else { "DISK" }).await;
    }
    let body = json!({ "filter": { "code": "DISK" }, "reason": "fixed" });
    let (_, done) = server.post("/v1/dead/redrive", body).await;
    assert_eq!((&done["matched"], &done["more"]), (&json!(600), &json!(false)));
    assert_eq!(done["redriven"].as_array().unwrap().len(), 600);
    assert_eq!(
        (count(&server, "state=dead").await, count(&server, "state=queued").await),
        (1, 600)
    );
}

#[tokio::test]
async fn a_discard_lists_refused_jobs_with_their_codes() {
    let (store, server) = server().await;
    let dead = bury(&store, "p1", "DISK").await;
    let (_, answer) =
        server.post("/v1/resources/pipeline/p2/jobs", json!({ "operation": "run" })).await;
    let alive = answer["job"]["id"].clone();
    let missing = "0".repeat(32);
    let ids = json!([dead, alive, missing, dead]);
    let body = json!({ "filter": { "ids": ids }, "reason": "fixed" });
    let (_, done) = server.post("/v1/dead/discard", body).await;
    assert_eq!(done["discarded"], json!([dead]), "{done}");
    let refused: Vec<_> = done["refused"].as_array().unwrap().iter().collect();
    assert_eq!((&refused[0]["job"], &refused[0]["code"]), (&alive, &json!("conflict")));
    assert_eq!((&refused[1]["job"], &refused[1]["code"]), (&json!(missing), &json!("not_found")));
    assert_eq!(server.get(&format!("/v1/jobs/{dead}")).await.1["state"], "discarded");
    let body = json!({ "reason": "again" });
    let (status, _) = server.post(&format!("/v1/jobs/{dead}/discard"), body.clone()).await;
    assert_eq!(status, 200, "already discarded");
    let (status, problem) = server.post(&format!("/v1/jobs/{dead}/retry"), body).await;
    assert_eq!((status, &problem["state"]), (409, &json!("discarded")));
}

#[tokio::test]
async fn a_redriven_job_runs() {
    let (store, server) = server().await;
    bury(&store, "p1", "DISK").await;
    let body = json!({ "filter": {}, "reason": "fixed" });
    let (_, done) = server.post("/v1/dead/redrive", body).await;
    let worker = Worker::open(&server, "w1").await;
    let claimed = worker.claim(&server, &["pipeline"], 0).await;
    assert_eq!(claimed[0]["job"]["id"], done["redriven"][0]["job"]);
}

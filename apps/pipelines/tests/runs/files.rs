//! The files that declare pipelines: followed while a server runs, refused as a whole.

use std::path::Path;

use reqwest::Method;
use serde_json::{Value, json};
use tenure_testbed::shared;

use crate::bed::{HOLD, KEY, On, Site, until};

const WORKS: &str = "[[steps]]\nname = \"a\"\ncommand = [\"true\"]\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_file_is_taken_up_and_a_broken_one_changes_nothing() {
    let site = Site::start(On::Embedded, &[("default/billing", WORKS)]).await;
    let (status, answer) = site.try_trigger(0, "costs", &json!({})).await;
    assert_eq!((status, &answer["code"]), (404, &json!("not_found")), "{answer}");
    site.pipeline("default/costs", WORKS);
    until(async || site.said().contains("1 operation, 2 pipelines")).await;
    let run = site.begin("costs").await;
    site.over(&run, "COMPLETE").await;

    site.pipeline("default/costs", "limit = \"1s\"\n[[steps]]\nname = \"a\"\n");
    site.pipeline("default/third", WORKS);
    until(async || site.said().contains("the live configuration is unchanged")).await;
    let said = site.said();
    for problem in ["costs.toml:1: limit: a run may take", "costs.toml:2: steps[0]: a step has"] {
        assert!(said.contains(problem), "{said}");
    }
    // What was in force stays, the old text of the broken file, too.
    let run = site.begin("costs").await;
    site.over(&run, "COMPLETE").await;
    assert_eq!(site.try_trigger(0, "third", &json!({})).await.0, 404);

    site.pipeline("default/costs", WORKS);
    until(async || site.said().contains("1 operation, 3 pipelines")).await;
    let run = site.begin("third").await;
    site.over(&run, "COMPLETE").await;
    std::fs::remove_file(site.file("pipelines/default/third.toml")).expect("it is there");
    until(async || site.try_trigger(0, "third", &json!({})).await.0 == 404).await;
}

/// What the guide tells people to try.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_examples_work() {
    let mut site = Site::new(On::Embedded, shared(), 1);
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/pipelines");
    let text = std::fs::read_to_string(examples.join("tenure.toml")).expect("it is there");
    let dir = format!("dir = {:?}", examples.join("pipelines"));
    site.write("tenure.toml", &text.replace("dir = \"pipelines\"", &dir));
    site.launch(0).await;
    let answer = site.trigger("gcp_billing_export", json!({ "rows": 2 })).await;
    let run = site.over(&crate::bed::id(&answer), "COMPLETE").await;
    assert_eq!(run["result"], json!({ "publish": { "ok": true } }), "{run:#}");
    let nightly = site.get("/pipelines?tenant=acme").await;
    assert!(nightly["items"][0]["next_at"].is_string(), "{nightly}");
}

/// What lasts for ever to read keeps nobody waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_file_is_refused() {
    let site = Site::start(On::Embedded, &[("default/billing", WORKS)]).await;
    let pipe = site.file("pipelines/default/pipe.toml");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("it runs");
    assert!(made.success());
    until(async || {
        site.said().contains("pipe.toml:1:") && site.said().contains("not a regular file")
    })
    .await;
    let run = site.begin("billing").await;
    site.over(&run, "COMPLETE").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_keeps_the_steps_that_it_began_with() {
    let site = Site::start(On::Embedded, &[("default/billing", HOLD)]).await;
    let run = site.begin("billing").await;
    site.until_begun("default", "billing", 1).await;
    site.pipeline("default/billing", WORKS);
    until(async || site.said().contains("reloaded")).await;
    site.go("billing");
    let done = site.over(&run, "COMPLETE").await;
    assert_eq!(done["steps"][0]["name"], "work", "{done:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_that_is_wrong_with_a_trigger_is_said_at_once() {
    let text = "[parameters]\ndate = { type = \"date\" }\n\
                rows = { type = \"integer\", default = 1 }\n[[steps]]\nname = \"a\"\n\
                command = [\"echo\", \"rows of {{ parameters.date }}\"]\n";
    let site = Site::start(On::Embedded, &[("default/billing", text)]).await;
    let bad = json!({ "rows": "many", "dat": 1 });
    let (status, answer) = site.try_trigger(0, "billing", &bad).await;
    assert_eq!((status, &answer["code"]), (422, &json!("invalid")), "{answer}");
    let why = answer["detail"].as_str().expect("a sentence");
    for part in ["did you mean `date`?", "date: it is missing", "rows: it must be of type integer"]
    {
        assert!(why.contains(part), "{why}");
    }
    let answer =
        site.trigger("billing", json!({ "date": "2026-01-31", "trigger_by": "ann" })).await;
    let run = site.over(&crate::bed::id(&answer), "COMPLETE").await;
    assert_eq!(run["parameters"], json!({ "date": "2026-01-31", "rows": 1 }));
    assert_eq!(run["trigger_by"], "ann");
    let log = site.log(&crate::bed::id(&answer)).await;
    assert!(log.contains("a | rows of 2026-01-31"), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_duplicate_with_other_parameters_is_told_so() {
    let text =
        format!("[parameters]\nday = {{ type = \"date\", default = \"2026-01-31\" }}\n{HOLD}");
    let site = Site::start(On::Embedded, &[("default/billing", &text)]).await;
    let run = site.begin("billing").await;
    let same = site.trigger("billing", json!({ "day": "2026-01-31" })).await;
    assert!(!same["message"].as_str().expect("a text").contains("other parameters"), "{same}");
    let other = site.trigger("billing", json!({ "day": "2026-02-01" })).await;
    assert!(other["message"].as_str().expect("a text").contains("other parameters"), "{other}");
    site.go("billing");
    site.over(&run, "COMPLETE").await;
}

/// A run is a job: the general API can ask for one, and its parameters are checked all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_general_api_knows_runs_as_jobs() {
    let text =
        "[parameters]\nday = { type = \"date\" }\n[[steps]]\nname = \"a\"\ncommand = [\"true\"]\n";
    let site = Site::start(On::Embedded, &[("default/billing", text)]).await;
    let submit = async |name: &str, args: Value| {
        let body = json!({ "operation": "run", "args": args });
        let path = format!("/v1/resources/pipeline/{name}/jobs");
        site.ask(0, KEY, Method::POST, &path, Some(&body)).await
    };
    let (status, answer) = submit("billing", json!({ "day": "2026-01-31" })).await;
    assert_eq!(status, 202, "{answer}");
    site.over(answer["job"]["id"].as_str().expect("an id"), "COMPLETE").await;
    // Nobody gets past what a trigger has to say, or gets more runs at once.
    for (name, args, expected) in [
        ("billing", json!({ "day": 1 }), 422),
        ("billing", json!([]), 422),
        ("billing", Value::Null, 422),
        ("billing+2", json!({ "day": "2026-01-31" }), 404),
        ("nothing", json!({}), 404),
    ] {
        let (status, answer) = submit(name, args).await;
        assert_eq!(status, expected, "{name}: {answer}");
    }
    // What is no run is none here.
    let (status, _) = site.ask(0, KEY, Method::GET, "/pipelines/runs/nonsense", None).await;
    assert_eq!(status, 422);
}

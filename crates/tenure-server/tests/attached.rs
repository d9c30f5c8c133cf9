//! Triggers of a pipeline while its run goes on are told whether it has other parameters than
//! theirs, by a server that made the run and by one that finds it there.

mod common;

use std::sync::Arc;

use common::{KEY, Server};
use serde_json::{Value, json};
use tempfile::TempDir;
use tenure::config::PipelineSettings;
use tenure_apps::pipelines::Catalog;
use tenure_core::Kinds;
use tenure_server::Config;
use tenure_server::auth::Keys;
use tenure_store::{Memory, Store};

const DECLARED: &str = r#"
[parameters.full]
type = "boolean"
default = false

[[steps]]
name = "work"
command = ["true"]
"#;

fn catalog(dir: &TempDir) -> Arc<Catalog> {
    std::fs::create_dir_all(dir.path().join("default")).expect("it is writable");
    std::fs::write(dir.path().join("default/export.toml"), DECLARED).expect("it is writable");
    let settings = PipelineSettings {
        dir: dir.path().to_owned(),
        secrets: None,
        limit_ms: 60_000,
        retries: 0,
        delay_ms: 0,
        max_runs: None,
        tenant_max_runs: None,
        slots: 1,
        metrics: true,
        alert_threshold: 0.8,
    };
    Arc::new(Catalog::load(&settings).expect("it is declared well"))
}

async fn start(store: &Arc<Memory>, catalog: &Arc<Catalog>) -> Server {
    let kinds = Arc::new(catalog.declare(&Kinds::default()).expect("it is declared well"));
    let pipelines = Some(Arc::clone(catalog));
    let config = Config { pipelines, ..Config::new(Keys::admin(KEY), kinds) };
    Server::run(Arc::clone(store) as Arc<dyn Store>, config).await
}

async fn trigger(server: &Server, body: Value) -> (String, bool) {
    let (status, answer) = server.post("/pipelines/run/export", body).await;
    assert_eq!((status, &answer["status"]), (200, &json!("RUNNING")), "{answer}");
    let message = answer["message"].as_str().expect("a text");
    (answer["pipeline_logging_id"].to_string(), message.ends_with("other parameters than yours"))
}

#[tokio::test]
async fn whoever_attaches_is_told_of_other_parameters_each_time() {
    let (store, dir) = (Arc::new(Memory::new()), TempDir::new().unwrap());
    let catalog = catalog(&dir);
    let (made, found) = (start(&store, &catalog).await, start(&store, &catalog).await);
    let first = json!({ "full": true });
    let (status, run) = made.post_as("/pipelines/run/export", "k", first.clone()).await;
    assert_eq!((status, &run["status"]), (200, &json!("PENDING")), "{run}");
    // The same sending with other parameters is no news of what the run was given.
    made.post_as("/pipelines/run/export", "k", json!({})).await;
    let id = run["pipeline_logging_id"].to_string();
    for server in [&made, &found] {
        for (body, other) in [(first.clone(), false), (json!({}), true), (first.clone(), false)] {
            assert_eq!(trigger(server, body.clone()).await, (id.clone(), other), "{body}");
        }
    }
}

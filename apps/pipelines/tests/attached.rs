//! Triggers during a run report whether it has other parameters, both on the server that created
//! the run and on another one.

#[path = "../../../crates/tenure-server/tests/common/mod.rs"]
mod common;

use std::sync::Arc;

use common::Server;
use serde_json::{Value, json};
use tempfile::TempDir;
use tenure_app::LiveConfig;
use tenure_server::Config;
use tenure_store::{Memory, Store};

const DECLARED: &str = r#"
[parameters.full]
type = "boolean"
default = false

[[steps]]
name = "work"
command = ["true"]
"#;

fn declare(dir: &TempDir) -> LiveConfig {
    std::fs::create_dir_all(dir.path().join("default")).expect("writable");
    std::fs::write(dir.path().join("default/export.toml"), DECLARED).expect("writable");
    let loaded = common::apps().parse("[pipelines]\ndir = \".\"", dir.path());
    loaded.expect("valid").live()
}

async fn start(store: &Arc<Memory>, live: &LiveConfig) -> Server {
    let config = Config { live: live.clone(), ..common::config(Arc::default()) };
    Server::run(Arc::clone(store) as Arc<dyn Store>, config).await
}

async fn trigger(server: &Server, body: Value) -> (String, bool) {
    let (status, response) = server.post("/pipelines/run/export", body).await;
    assert_eq!((status, &response["status"]), (200, &json!("RUNNING")), "{response}");
    let message = response["message"].as_str().expect("text");
    (response["pipeline_logging_id"].to_string(), message.ends_with("other parameters"))
}

#[tokio::test]
async fn each_attached_trigger_reports_other_parameters() {
    let (store, dir) = (Arc::new(Memory::new()), TempDir::new().unwrap());
    let live = declare(&dir);
    let (creator, other) = (start(&store, &live).await, start(&store, &live).await);
    let first = json!({ "full": true });
    let (status, run) = creator.post_as("/pipelines/run/export", "k", first.clone()).await;
    assert_eq!((status, &run["status"]), (200, &json!("PENDING")), "{run}");
    // A repeated request with other parameters does not change those of the run.
    creator.post_as("/pipelines/run/export", "k", json!({})).await;
    let id = run["pipeline_logging_id"].to_string();
    for server in [&creator, &other] {
        for (body, differs) in [(first.clone(), false), (json!({}), true), (first.clone(), false)] {
            assert_eq!(trigger(server, body.clone()).await, (id.clone(), differs), "{body}");
        }
    }
}

//! Triggers of a pipeline while its run goes on are told whether it has other parameters than
//! theirs, by a server that made the run and by one that finds it there.

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
    std::fs::create_dir_all(dir.path().join("default")).expect("it is writable");
    std::fs::write(dir.path().join("default/export.toml"), DECLARED).expect("it is writable");
    let loaded = common::apps().parse("[pipelines]\ndir = \".\"", dir.path());
    loaded.expect("it is declared well").live()
}

async fn start(store: &Arc<Memory>, live: &LiveConfig) -> Server {
    let config = Config { live: live.clone(), ..common::config(Arc::default()) };
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
    let live = declare(&dir);
    let (made, found) = (start(&store, &live).await, start(&store, &live).await);
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

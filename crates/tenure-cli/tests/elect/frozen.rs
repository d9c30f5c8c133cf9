//! A master that is a process of its own, frozen in front of its publish.

use std::process::{Child, Command, Stdio};

use serde_json::json;

use crate::common::{signal, until};
use crate::races::Site;

/// A master: it claims the setup of the build, sends heartbeats until the file `go` exists, and
/// then publishes. It writes the answer to its publish.
const MASTER: &str = r#"
call() { curl -s -H "x-api-key: $KEY" -H "Idempotency-Key: $RANDOM$RANDOM$RANDOM" "$@"; }
session=$(call "$URL/v1/sessions" -d '{"name":"frozen","ttl_ms":1500}' | jq -r .session)
claim="{\"session\":\"$session\",\"kinds\":[\"build\"],\"max\":1,\"wait_ms\":10000}"
call "$URL/v1/jobs/claim" -d "$claim" > "$D/claimed.new"
mv "$D/claimed.new" "$D/claimed"
job=$(jq -r '.jobs[0].job.id' "$D/claimed")
term=$(jq -r '.jobs[0].tenure.token' "$D/claimed")
while ! [ -e "$D/go" ]; do
  call -X POST "$URL/v1/sessions/$session/beat" > /dev/null
  sleep 0.1
done
merge="{\"token\":$term,\"outcome\":\"ok\",\"merge\":{\"term\":$term}}"
call "$URL/v1/jobs/$job/finish" -d "$merge" > "$D/published.new"
mv "$D/published.new" "$D/published"
"#;

/// The process of a master; killed on drop, also while it is stopped.
struct MasterProcess(Child);

impl MasterProcess {
    fn start(site: &Site) -> Self {
        let child = Command::new("bash")
            .args(["-c", MASTER])
            .env("URL", site.server.url())
            .env("KEY", site.server.key())
            .env("D", site.server.data())
            .stdin(Stdio::null())
            .spawn()
            .expect("bash is there");
        Self(child)
    }
}

impl Drop for MasterProcess {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_was_frozen_before_its_publish_publishes_nothing() {
    let site = Site::start().await;
    site.submit(json!({ "seed": 42 })).await.expect("it is allowed");
    let frozen = MasterProcess::start(&site);
    until(|| site.server.file("claimed").exists());
    // Its lease passes while it is stopped; a heartbeat that it has sent may arrive.
    signal(frozen.0.id(), "STOP");
    let new = site.next().await;
    std::fs::write(site.server.file("go"), "").expect("it is writable");
    signal(frozen.0.id(), "CONT");
    until(|| site.server.file("published").exists());
    let answer = std::fs::read_to_string(site.server.file("published")).expect("it was written");
    let answer: serde_json::Value = serde_json::from_str(&answer).expect("JSON");
    assert_eq!((&answer["code"], &answer["status"]), (&json!("lost"), &json!(409)), "{answer}");
    assert_eq!(site.build_state().await, "SETUP", "nothing is published");
    assert_eq!(site.get("/v1/resources/build/b1").await["status"], serde_json::Value::Null);
    site.publish(&new).await.expect("it is the master");
    assert_eq!(site.expect_published(&new).await, 2);
}

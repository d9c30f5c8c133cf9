//! Programs that answer, and those that do not.

use std::path::Path;

use serde_json::Value;
use tenure_core::Token;

use super::*;

fn infra() -> Infra {
    Infra {
        infra_id: "demo-x7k2p".to_owned(),
        cluster_id: "6f2c".to_owned(),
        region: "eu-central-1".to_owned(),
        token: Token(1),
        metadata: Value::Null,
    }
}

fn shell(script: &str) -> CommandInventory {
    let argv = ["sh", "-c", script].map(str::to_owned);
    CommandInventory::new(&argv, &Settings::new(Path::new("/nonexistent")))
}

async fn list(inventory: &CommandInventory) -> Result<Vec<String>, String> {
    inventory.list(&infra()).await.map_err(|error| error.to_string())
}

#[track_caller]
fn assert_fails(result: Result<Vec<String>, String>, part: &str) {
    let error = result.expect_err("a failure");
    assert!(error.contains(part), "{error}");
}

#[tokio::test]
async fn every_line_is_a_resource() {
    let script = r#"echo "$INFRA_ID"; echo; echo "  $CLUSTER_ID $REGION "; echo noise >&2"#;
    assert_eq!(list(&shell(script)).await.unwrap(), ["demo-x7k2p", "6f2c eu-central-1"]);
    assert_eq!(list(&shell("true")).await.unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn a_failure_is_not_an_empty_answer() {
    assert_fails(list(&shell("echo a; echo 'no access' >&2; exit 3")).await, "no access");
    assert_fails(list(&shell("exit 3")).await, "it printed no message");
    assert_fails(list(&shell("kill -9 $$")).await, "signal: 9");
    assert_fails(list(&shell("echo password=hunter2 >&2; exit 1")).await, "no message");
    assert_fails(list(&shell(r"printf '\377'")).await, "not UTF-8");
    let settings = Settings::new(Path::new("/nonexistent"));
    let missing = CommandInventory::new(&["/nonexistent/program".to_owned()], &settings);
    assert_fails(list(&missing).await, "cannot start");
    assert_fails(list(&CommandInventory::new(&[], &settings)).await, "no program");
}

#[tokio::test]
async fn a_program_that_does_not_end_is_killed_with_its_group() {
    let dir = tempfile::tempdir().unwrap();
    let pids = dir.path().join("pids");
    let script = format!("sleep 1000 & echo $! $$ > {}; wait", pids.display());
    let limit = Duration::from_millis(300);
    assert_fails(list(&shell(&script).limit(limit)).await, "has not ended within 300ms");
    let pids = std::fs::read_to_string(pids).unwrap();
    let runs = |pid: &str| {
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        !state.is_empty() && !state.contains(") Z ")
    };
    let all_dead = async {
        while pids.split_whitespace().any(runs) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), all_dead).await.expect("they are killed");
}

#[tokio::test]
async fn a_program_whose_child_keeps_its_output_open_has_not_ended() {
    let script = "setsid sleep 5 & echo a";
    let limit = Duration::from_millis(300);
    assert_fails(list(&shell(script).limit(limit)).await, "has not ended");
}

#[tokio::test]
async fn output_is_bounded() {
    let print = |bytes: usize| format!("head -c {bytes} /dev/zero | tr '\\0' a");
    let longest = list(&shell(&print(OUTPUT_BYTES_MAX))).await.unwrap();
    assert_eq!(longest[0].len(), OUTPUT_BYTES_MAX);
    assert_fails(list(&shell(&print(OUTPUT_BYTES_MAX + 1))).await, "printed more than");
    // The pipe is closed, which ends the program.
    list(&shell("yes")).await.unwrap_err();
}

#[test]
fn only_named_variables_are_passed() {
    let mut settings = Settings::new(Path::new("/nonexistent"));
    settings.pass_env = vec!["AWS_*".to_owned(), "PROXY".to_owned()];
    let inventory = CommandInventory::new(&["true".to_owned()], &settings);
    let all = ["AWS_REGION", "PATH", "PROXY", "PROXY_2", "TENURE_KEY"];
    let passed = inventory.passed(all.iter().map(|name| (OsString::from(name), OsString::new())));
    let names: Vec<_> = passed.iter().map(|(name, _)| name.to_str().unwrap()).collect();
    assert_eq!(names, ["AWS_REGION", "PATH", "PROXY"]);
}

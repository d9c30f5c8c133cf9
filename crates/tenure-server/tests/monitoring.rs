//! The guide, the alerts and the dashboards use metrics that exist, and Prometheus accepts them.

mod common;
#[path = "common/series.rs"]
mod series;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use common::{Server, Worker, until};
use serde_json::{Value, json};
use tempfile::TempDir;
use tenure_app::LiveConfig;
use tenure_app::metrics::{Definition, Type};
use tenure_core::{Kind, Kinds, Operation};
use tenure_store::{Memory, scenario};

use series::{name, parse, types};

/// How the names of metrics begin.
const PREFIXES: [&str; 4] = ["tenure_", "build_", "ocpctl_", "pipeline_"];

fn read(path: &str) -> String {
    std::fs::read_to_string(file(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn file(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Returns the alert files of the server and of each app.
fn rule_files() -> Vec<String> {
    let apps = common::apps();
    let of_apps = apps.iter().map(|app| format!("apps/{}/alerts.yml", app.name()));
    std::iter::once("deploy/prometheus/rules.yml".to_owned()).chain(of_apps).collect()
}

/// Returns the file with the test cases of an alert file.
fn cases_of(rules: &str) -> String {
    rules.replace(".yml", "_test.yml")
}

/// Returns the dashboards of the server and of each app.
fn dashboards() -> Vec<String> {
    let apps = common::apps();
    let of_apps = apps.iter().map(|app| format!("apps/{}/panels.json", app.name()));
    std::iter::once("deploy/grafana/tenure.json".to_owned()).chain(of_apps).collect()
}

fn promtool(args: &[&str], path: &std::path::Path) {
    let run = Command::new("promtool").args(args).arg(path).output();
    let run = run.expect("promtool is installed; on Debian it is in the package prometheus");
    let (out, err) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "promtool {args:?}: {out}{err}");
}

// ----- the guide -----

/// Returns the metrics of the server and of all apps.
fn all_metrics() -> Vec<Definition> {
    let apps = common::apps();
    let of_apps = apps.iter().flat_map(|app| app.metric_definitions().iter());
    tenure_server::metrics::ALL.iter().chain(of_apps).copied().collect()
}

fn row(definition: &Definition) -> String {
    let Definition { name, kind, labels, help } = definition;
    let labels: Vec<_> = labels.split(',').filter(|label| !label.is_empty()).collect();
    let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
    format!("| `{name}` | {} | {} | {help} |", kind.as_str(), labels.join(" "))
}

#[test]
fn the_table_in_the_guide_equals_the_definitions() {
    let page = read("docs/guide/metrics.md");
    let is_row =
        |line: &&str| PREFIXES.iter().any(|prefix| line.starts_with(&format!("| `{prefix}")));
    let rows: Vec<&str> = page.lines().filter(is_row).collect();
    let defined: Vec<String> = all_metrics().iter().map(row).collect();
    assert_eq!(rows, defined, "the table should be:\n{}\n", defined.join("\n"));
}

// ----- the server -----

/// Starts a server with one pipeline and the kinds of the scenarios.
async fn server_with_a_pipeline() -> Server {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let pipelines = dir.path().join("pipelines/default");
    std::fs::create_dir_all(&pipelines).expect("writable");
    let pipeline = "[[steps]]\nname = \"extract\"\ncommand = [\"true\"]\n";
    std::fs::write(pipelines.join("billing.toml"), pipeline).expect("writable");
    let loaded = common::apps().parse("[pipelines]\ndir = \"pipelines\"", dir.path());
    let live = loaded.expect("valid").live();
    // The scenarios also have a kind of that name.
    let kinds = scenario::kinds();
    let all =
        kinds.iter().filter(|kind| live.kinds.get(&kind.name).is_none()).chain(live.kinds.iter());
    let urgent = Kind::new("urgent").operation(Operation::new("run").start_deadline_ms(1));
    let kinds = Kinds::new(all.map(|kind| (**kind).clone()).chain([urgent])).expect("valid kinds");
    let live = LiveConfig { kinds: Arc::new(kinds), ..live };
    let config = tenure_server::Config { live, ..common::config(Arc::default()) };
    Server::run(Arc::new(Memory::new()), config).await
}

/// Triggers a pipeline twice, which gives one run, and finishes it.
async fn run_a_pipeline(server: &Server, worker: &Worker) {
    let mut runs = BTreeSet::new();
    for status in ["PENDING", "RUNNING"] {
        let (code, answer) = server.post("/pipelines/run/billing", json!({})).await;
        assert_eq!((code, answer["status"].as_str()), (200, Some(status)), "{answer}");
        runs.insert(answer["pipeline_logging_id"].as_str().expect("a run").to_owned());
    }
    assert_eq!(runs.len(), 1, "both attach to the same run");
    finish(server, &worker.claim(server, &["pipeline"], 0).await[0]).await;
}

/// Finishes a claimed job.
async fn finish(server: &Server, claimed: &Value) {
    let id = claimed["job"]["id"].as_str().expect("a job");
    let body = json!({ "token": claimed["tenure"]["token"], "outcome": "ok" });
    let (status, answer) = server.post(&format!("/v1/jobs/{id}/finish"), body).await;
    assert_eq!(status, 200, "{answer}");
}

/// Starts a server and causes every kind of event at least once. Returns a scrape.
async fn busy_server() -> (Server, String) {
    let server = server_with_a_pipeline().await;
    let lock = "/v1/locks/cluster/c1";
    let body = json!({ "holder": "ann", "ttl_ms": 60_000 });
    let (_, tenure) = server.post(&format!("{lock}/acquire"), body.clone()).await;
    server.post_as(&format!("{lock}/acquire"), "another", body).await;
    server.post(&format!("{lock}/release"), json!({ "token": tenure["token"] })).await;
    let worker = Worker::open(&server, "w").await;
    for name in ["t1", "t2"] {
        let path = format!("/v1/resources/task/{name}/jobs");
        server.post(&path, json!({ "operation": "work" })).await;
    }
    // Fails because it does not start in time.
    server.post("/v1/resources/urgent/u1/jobs", json!({ "operation": "run" })).await;
    finish(&server, &worker.claim(&server, &["task"], 0).await[0]).await;
    worker.claim(&server, &["task"], 0).await;
    run_a_pipeline(&server, &worker).await;
    let scrape = async || match server.get("/metrics").await.1 {
        Value::String(text) => text,
        other => panic!("{other} is not text"),
    };
    let all = async || {
        let names = names(&parse(&scrape().await));
        all_metrics().iter().all(|definition| series_of(definition).is_subset(&names))
    };
    until(all).await;
    let text = scrape().await;
    (server, text)
}

/// Returns the names of the series of a metric.
fn series_of(definition: &Definition) -> BTreeSet<String> {
    let ends: &[&str] = match definition.kind {
        Type::Counter | Type::Gauge => &[""],
        Type::Histogram => &["_bucket", "_sum", "_count"],
    };
    ends.iter().map(|end| format!("{}{end}", definition.name)).collect()
}

fn names(series: &series::Series) -> BTreeSet<String> {
    series.keys().map(|series| name(series).to_owned()).collect()
}

#[tokio::test]
async fn a_server_exports_all_metrics_that_are_defined_or_used() {
    let (_server, text) = busy_server().await;
    let all = all_metrics();
    let defined = all.iter().map(|definition| {
        let name = definition.name.strip_suffix("_total").unwrap_or(definition.name);
        (name.to_owned(), definition.kind.as_str().to_owned())
    });
    assert_eq!(types(&text), defined.collect::<BTreeSet<_>>());
    let series = parse(&text);
    let exported = names(&series);
    for path in rule_files().iter().chain(&dashboards()) {
        let used = used(&read(path));
        assert!(used.len() >= 5, "{path} uses only {used:?}");
        let unknown: Vec<_> = used.difference(&exported).collect();
        assert!(unknown.is_empty(), "{path} uses unknown {unknown:?}");
    }
    // Each metric has a panel.
    let shown: BTreeSet<String> = dashboards().iter().flat_map(|path| used(&read(path))).collect();
    for definition in &all_metrics() {
        let seen = series_of(definition).iter().any(|series| shown.contains(series));
        assert!(seen, "no panel shows {}", definition.name);
    }
    for definition in &all_metrics() {
        let labels = definition.labels.split(',').filter(|label| !label.is_empty());
        let of = |series: &&String| series_of(definition).contains(name(series));
        let one = series.keys().find(of).expect("found above");
        for label in labels {
            assert!(one.contains(&format!("{label}=\"")), "{one} has no {label}");
        }
    }
}

/// Returns the names of metrics in a text, without labels that have the same prefix.
fn used(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_label =
        |word: &str| all_metrics().iter().any(|one| one.labels.split(',').any(|l| l == word));
    let named = |word: &&str| PREFIXES.iter().any(|prefix| word.starts_with(prefix));
    words.filter(named).filter(|word| !is_label(word)).map(str::to_owned).collect()
}

/// Maximum time for the start of Prometheus on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A Prometheus process.
struct Prometheus {
    process: Child,
    url: String,
    _dir: TempDir,
}

impl Prometheus {
    fn start(target: &str) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let rules: Vec<PathBuf> =
            rule_files().iter().map(|path| file(path).canonicalize().expect("it exists")).collect();
        let config = json!({
            "global": { "scrape_interval": "500ms", "scrape_timeout": "500ms" },
            "rule_files": rules,
            "scrape_configs": [
                {
                    "job_name": "tenure",
                    "authorization": { "credentials": common::KEY },
                    "static_configs": [{ "targets": [target] }],
                },
            ],
        });
        let path = dir.path().join("prometheus.yml");
        std::fs::write(&path, config.to_string()).expect("writable");
        let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = port.local_addr().expect("it is bound").to_string();
        drop(port);
        let process = Command::new("prometheus")
            .arg(format!("--config.file={}", path.display()))
            .arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stderr(Stdio::null())
            .spawn()
            .expect("prometheus is installed, from the package of that name");
        Self { process, url: format!("http://{address}/api/v1/"), _dir: dir }
    }

    /// Queries the API; null if it does not respond yet.
    async fn query(&self, path: &str) -> Value {
        let answer = reqwest::get(format!("{}{path}", self.url)).await;
        let Ok(answer) = answer else { return Value::Null };
        answer.json::<Value>().await.map_or(Value::Null, |answer| answer["data"].clone())
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

#[tokio::test]
async fn prometheus_scrapes_a_server_and_evaluates_the_alerts() {
    let (server, _) = busy_server().await;
    let prometheus = Prometheus::start(&server.url["http://".len()..]);
    let mut target = Value::Null;
    let scraped = async {
        while target["health"] != "up" {
            tokio::time::sleep(Duration::from_millis(50)).await;
            target = prometheus.query("targets").await["activeTargets"][0].clone();
        }
    };
    let scraped = tokio::time::timeout(START_TIMEOUT, scraped).await;
    assert!(scraped.is_ok(), "{target}");
    let query = "query?query=tenure_lock_acquisitions_total{kind=%22cluster%22}";
    let found = async || prometheus.query(query).await["result"].clone();
    until(async || found().await.as_array().is_some_and(|found| found.len() == 2)).await;
    let groups = prometheus.query("rules").await["groups"].clone();
    let count: usize = rule_files().iter().map(|path| after(&read(path), "- alert:").len()).sum();
    let rules = |group: &Value| group["rules"].as_array().map_or(0, Vec::len);
    let evaluated: usize = groups.as_array().expect("it has groups").iter().map(rules).sum();
    assert_eq!(evaluated, count, "{groups}");
}

// ----- the alerts -----

#[test]
fn prometheus_accepts_the_alerts_and_their_test_cases_pass() {
    for path in rule_files() {
        promtool(&["check", "rules"], &file(&path));
        promtool(&["test", "rules"], &file(&cases_of(&path)));
    }
    promtool(&["check", "config", "--syntax-only"], &file("deploy/prometheus/prometheus.yml"));
}

/// Returns the texts after `word` at the start of lines.
fn after<'a>(text: &'a str, word: &str) -> Vec<&'a str> {
    text.lines().filter_map(|line| line.trim().strip_prefix(word)).map(str::trim).collect()
}

#[test]
fn every_alert_has_a_remedy_a_firing_case_and_a_silent_case() {
    for path in rule_files() {
        check_alerts(&path);
    }
}

fn check_alerts(path: &str) {
    let (rules, cases) = (read(path), read(&cases_of(path)));
    let alerts = after(&rules, "- alert:");
    assert!(alerts.len() >= 3, "{alerts:?}");
    for (alert, rule) in alerts.iter().zip(rules.split("- alert:").skip(1)) {
        for part in ["severity:", "summary:", "description:", "`tenure "] {
            assert!(rule.contains(part), "{alert} has no {part}");
        }
        let case = |expected: &str| {
            let named = format!("alertname: {alert}\n        exp_alerts:{expected}\n");
            cases.contains(&named)
        };
        assert!(case("") && case(" []"), "{alert} needs a case that fires and a silent one");
    }
    let page = read("docs/guide/operating.md");
    for alert in alerts {
        assert!(page.contains(&format!("`{alert}`")), "docs/guide/operating.md has no {alert}");
    }
}

// ----- the dashboard -----

#[test]
fn every_dashboard_panel_has_an_expression_that_prometheus_accepts() {
    let count: usize = dashboards().iter().map(|path| check_dashboard(path)).sum();
    assert!(count > 30, "only {count} expressions");
}

/// Checks one dashboard and returns its number of expressions.
fn check_dashboard(path: &str) -> usize {
    let dashboard: Value = serde_json::from_str(&read(path)).expect("it is JSON");
    let variables = dashboard["templating"]["list"].as_array().expect("it has variables");
    assert!(variables.iter().any(|variable| variable["type"] == "datasource"));
    let panels = dashboard["panels"].as_array().expect("it has panels");
    let ids: BTreeSet<_> = panels.iter().filter_map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len(), "ids are unique");
    let mut rules = "groups:\n  - name: panels\n    rules:\n".to_owned();
    let mut count = 0;
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let targets = panel["targets"].as_array().expect("a panel has targets");
        assert!(!targets.is_empty(), "{} shows nothing", panel["title"]);
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{}", panel["title"]);
        for target in targets {
            let expr = target["expr"].as_str().expect("it is text");
            let variables = ["$kind", "$tenant", "$pipeline"];
            let expr = expr.replace("$__rate_interval", "5m");
            let expr = variables.iter().fold(expr, |expr, name| expr.replace(name, ".*"));
            assert!(!expr.contains('$'), "{expr} has an unknown variable");
            count += 1;
            let expr = serde_json::to_string(&expr).expect("it is text");
            rules += &format!("      - record: panel:{count}\n        expr: {expr}\n");
        }
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("panels.yml");
    std::fs::write(&path, rules).expect("writable");
    promtool(&["check", "rules"], &path);
    count
}

//! The real server with kinds: it runs their commands as jobs, reloads its file, and leaves no
//! process behind when it is killed.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use common::{signal, tenure, until};
use serde_json::{Value, json};
use tempfile::TempDir;
use tenure::http::HttpTransport;

/// A kind whose one operation is a script.
const CONFIG: &str = "\
[kinds.db]
states = [\"NEW\", \"MAKING\", \"READY\", \"BROKEN\"]
[kinds.db.operations.make]
from = \"NEW\"
during = \"MAKING\"
ok = \"READY\"
failed = \"BROKEN\"
run = [\"./make.sh\", \"first\"]
retry = { attempts = 3, initial = \"100ms\" }
[worker]
slots = 2
ttl = \"3s\"
drain = \"20s\"
name = \"builder\"
";

/// The same without commands, for a server with a separate worker.
fn without_run() -> String {
    let lines = CONFIG.lines().filter(|line| !line.starts_with("run"));
    lines.map(|line| format!("{line}\n")).collect()
}

/// A server process with its data directory, configuration and log.
struct Site {
    child: Option<Child>,
    listen: String,
    dir: TempDir,
}

impl Site {
    fn new(config: &str, script: &str) -> Self {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let listen = free.local_addr().expect("it is bound").to_string();
        drop(free);
        let site = Self { child: None, listen, dir: TempDir::new().expect("a directory") };
        fs::create_dir(site.file("etc")).expect("it is writable");
        site.write("etc/tenure.toml", config);
        site.write("etc/make.sh", script);
        let executable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(site.file("etc/make.sh"), executable).expect("it is ours");
        site
    }

    fn start(config: &str, script: &str) -> Self {
        let mut site = Self::new(config, script);
        site.launch();
        site
    }

    fn launch(&mut self) {
        self.launch_with(&[]);
    }

    /// Starts the server with additional environment variables.
    fn launch_with(&mut self, variables: &[(&str, &str)]) {
        let config = self.file("etc/tenure.toml");
        let args = ["serve", "--listen", &self.listen, "--config"];
        self.child = Some(self.spawn(&args, &config, "server.log", variables));
        let listen = &self.listen;
        until(|| std::net::TcpStream::connect(listen).is_ok());
    }

    /// Starts the binary in the data directory, with its stderr in a file.
    fn spawn(
        &self,
        args: &[&str],
        config: &Path,
        log_name: &str,
        variables: &[(&str, &str)],
    ) -> Child {
        let log = fs::OpenOptions::new().append(true).create(true).open(self.file(log_name));
        let mut command = tenure(self.dir.path());
        command.current_dir(self.dir.path()).args(args).arg(config);
        command.envs(variables.iter().copied());
        command.stdout(Stdio::null()).stderr(log.expect("it is writable"));
        command.spawn().expect("the binary starts")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        // Atomically, as editors do.
        let new = self.file(&format!("{name}.new"));
        fs::write(&new, text).expect("it is writable");
        fs::rename(new, self.file(name)).expect("it is writable");
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.file(name)).unwrap_or_default()
    }

    fn log(&self) -> String {
        self.read("server.log")
    }

    fn transport(&self) -> HttpTransport {
        let key = self.read("admin.key");
        HttpTransport::new(&format!("http://{}", self.listen), key.trim(), "default")
            .expect("an address")
    }

    async fn submit(&self, name: &str, args: Value) -> String {
        let path = format!("/v1/resources/db/{name}/jobs");
        let body = json!({ "operation": "make", "args": args });
        let answer: Value = self
            .transport()
            .post(&path, None, &body, Duration::ZERO)
            .await
            .expect("it is accepted");
        answer["job"]["id"].as_str().expect("it has an id").to_owned()
    }

    async fn job(&self, id: &str) -> Value {
        self.transport().get(&format!("/v1/jobs/{id}")).await.expect("it answers")
    }

    /// Waits until a job has finished.
    async fn wait_until_finished(&self, id: &str) -> Value {
        let path = format!("/v1/jobs/{id}?wait_ms=30000");
        let job: Value = self
            .transport()
            .get_with_wait(&path, Duration::from_secs(30))
            .await
            .expect("it answers");
        assert!(job["ended_at"].is_string(), "it has not finished: {job:#}\n{}", self.log());
        job
    }

    fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().expect("it is ours");
        child.wait().expect("it is ours");
    }

    fn wait_for_log(&self, words: &str) {
        until(|| self.log().contains(words));
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if self.child.is_some() {
            self.kill();
        }
    }
}

#[tokio::test]
async fn a_command_runs_as_a_job() {
    let script = "#!/bin/sh\n\
                  read args\n\
                  echo \"::progress 40 copying rows\"\n\
                  [ \"$args\" = '{\"size\":7}' ] && [ \"$args\" = \"$TENURE_ARGS\" ] || exit 1\n\
                  echo \"made $1 of $TENURE_RESOURCE at attempt $TENURE_ATTEMPT\"\n";
    let site = Site::start(CONFIG, script);
    site.wait_for_log("etc/tenure.toml: 1 kind, 1 operation");
    let id = site.submit("orders", json!({ "size": 7 })).await;
    let job = site.wait_until_finished(&id).await;
    assert_eq!(job["state"], "succeeded", "{job:#}");
    assert_eq!(job["attempts"][0]["worker"], "builder");
    let resource: Value =
        site.transport().get("/v1/resources/db/orders").await.expect("it answers");
    assert_eq!(resource["state"], "READY");
    let logs: Value =
        site.transport().get(&format!("/v1/jobs/{id}/logs")).await.expect("it answers");
    let items = logs["items"].as_array().expect("a list").iter();
    let log: String = items.filter_map(|item| item["text"].as_str()).collect();
    assert!(log.contains("made first of db/orders at attempt 1"), "{log}");
}

#[tokio::test]
async fn a_killed_server_leaves_no_command_behind_and_its_job_is_retried() {
    let script = "#!/bin/sh\n\
                  cd \"$TENURE_TEST_DIR\"\n\
                  if [ \"$TENURE_ATTEMPT\" = 1 ]; then\n\
                    echo $$ > first.pid\n\
                    mv first.pid first\n\
                    while :; do sleep 1; done\n\
                  fi\n\
                  kill -0 $(cat first) 2> /dev/null && touch overlap\n\
                  exit 0\n";
    let mut site = Site::new(CONFIG, "");
    let script = script.replace("$TENURE_TEST_DIR", &site.dir.path().display().to_string());
    fs::write(site.file("etc/make.sh"), script).expect("it is writable");
    site.launch();
    let id = site.submit("orders", Value::Null).await;
    until(|| site.file("first").exists());
    site.kill();
    site.launch();
    let running = site.job(&id).await;
    assert_eq!((&running["state"], &running["attempt"]), (&json!("running"), &json!(1)));
    let job = site.wait_until_finished(&id).await;
    assert_eq!(job["state"], "succeeded", "{job:#}");
    assert_eq!(job["attempt"], 2, "counted once for each start: {job:#}");
    let lost = &job["attempts"][0];
    assert_eq!((&lost["outcome"], &lost["code"]), (&json!("lost"), &json!("WORKER_TIMEOUT")));
    assert!(!site.file("overlap").exists(), "two attempts at once");
    let pid = site.read("first");
    assert!(!Path::new(&format!("/proc/{}", pid.trim())).exists(), "the first attempt is alive");
}

#[tokio::test]
async fn a_stop_drains_running_jobs_and_a_second_one_hands_them_back() {
    let script = "#!/bin/sh\n\
                  cd \"$(dirname \"$0\")\"\n\
                  touch started.$TENURE_ATTEMPT\n\
                  while [ ! -e go ]; do sleep 0.05; done\n";
    let mut site = Site::start(CONFIG, script);
    let id = site.submit("orders", Value::Null).await;
    until(|| site.file("etc/started.1").exists());
    signal(site.pid(), "TERM");
    site.wait_for_log("stopping");
    // It still answers requests.
    assert_eq!(site.job(&id).await["state"], "running");
    site.write("etc/go", "");
    let ended = site.child.take().expect("it runs").wait().expect("it is ours");
    assert!(ended.success(), "{}", site.log());
    fs::remove_file(site.file("etc/go")).expect("it is there");
    site.launch();
    assert_eq!(site.wait_until_finished(&id).await["state"], "succeeded");
    let id = site.submit("invoices", Value::Null).await;
    fs::remove_file(site.file("etc/started.1")).expect("it is there");
    until(|| site.file("etc/started.1").exists());
    signal(site.pid(), "TERM");
    until(|| site.log().matches("stopping: no more jobs").count() == 2);
    signal(site.pid(), "TERM");
    let ended = site.child.take().expect("it runs").wait().expect("it is ours");
    assert!(ended.success(), "{}", site.log());
    site.write("etc/go", "");
    site.launch();
    let job = site.wait_until_finished(&id).await;
    assert_eq!((&job["state"], &job["attempt"]), (&json!("succeeded"), &json!(1)), "{job:#}");
    assert_eq!(job["attempts"][0]["outcome"], "handed_back");
}

async fn kinds(site: &Site) -> Vec<String> {
    let answer: Value = site.transport().get("/v1/kinds").await.expect("it answers");
    let items = answer["items"].as_array().expect("a list").iter();
    items.map(|kind| kind["name"].as_str().expect("a name").to_owned()).collect()
}

#[tokio::test]
async fn a_changed_file_is_applied_and_an_invalid_one_is_rejected() {
    let site = Site::start(CONFIG, "#!/bin/sh\n");
    assert_eq!(kinds(&site).await, ["db"]);
    let more = format!("{CONFIG}[kinds.report.operations.run]\nrun = [\"true\"]\n");
    site.write("etc/tenure.toml", &more);
    site.wait_for_log("reloaded: 2 kinds, 2 operations");
    assert_eq!(kinds(&site).await, ["db", "report"]);
    let body = json!({ "operation": "run" });
    let path = "/v1/resources/report/daily/jobs";
    let answer: Value =
        site.transport().post(path, None, &body, Duration::ZERO).await.expect("it is accepted");
    let id = answer["job"]["id"].as_str().expect("it has an id").to_owned();
    assert_eq!(site.wait_until_finished(&id).await["state"], "succeeded");
    site.write("etc/tenure.toml", &format!("{more}form = 1\nlimit = 2\n"));
    site.wait_for_log("the live configuration is unchanged");
    let log = site.log();
    for problem in ["unknown key `form`; did you mean `from`?", "limit: it must be a duration"] {
        assert!(log.contains(problem), "{log}");
    }
    assert_eq!(kinds(&site).await, ["db", "report"]);
    // On SIGHUP immediately, too.
    signal(site.pid(), "HUP");
    until(|| site.log().matches("the live configuration is unchanged").count() == 2);
    // The worker would still claim these jobs, and fail them.
    site.write("etc/tenure.toml", &without_run());
    signal(site.pid(), "HUP");
    site.wait_for_log("make of db has no `run`: this requires a restart");
    assert_eq!(kinds(&site).await, ["db", "report"]);
    site.write("etc/tenure.toml", CONFIG);
    signal(site.pid(), "HUP");
    site.wait_for_log("reloaded: 1 kind, 1 operation");
    assert_eq!(kinds(&site).await, ["db"]);
}

#[tokio::test]
async fn a_changed_command_applies_to_the_next_job() {
    let site = Site::start(CONFIG, "#!/bin/sh\necho \"::state $1\"\n");
    // The script sets a state that the operation does not declare, so this fails.
    let id = site.submit("a", Value::Null).await;
    assert_eq!(site.wait_until_finished(&id).await["state"], "failed");
    site.write("etc/tenure.toml", &CONFIG.replace("first", "READY"));
    site.wait_for_log("reloaded");
    let id = site.submit("b", Value::Null).await;
    assert_eq!(site.wait_until_finished(&id).await["state"], "succeeded");
}

/// Returns the variables in a file that a script has written with `env`.
fn variables(text: &str) -> BTreeMap<&str, &str> {
    text.lines().filter_map(|line| line.split_once('=')).collect()
}

/// Writes its environment to a file beside it, completely or not at all.
const PRINT_ENVIRONMENT: &str = "#!/bin/sh\nenv > \"$0.new\"\nmv \"$0.new\" \"$0.env\"\n";

#[tokio::test]
async fn commands_do_not_see_the_environment_of_the_server() {
    let config = CONFIG.replace("retry =", "env = { REGION = \"eu\" }\nretry =")
        + "[pipelines]\ndir = \"pipelines\"\n";
    let mut site = Site::new(&config, PRINT_ENVIRONMENT);
    fs::create_dir_all(site.file("etc/pipelines/default")).expect("it is writable");
    fs::copy(site.file("etc/make.sh"), site.file("etc/step.sh")).expect("it is writable");
    let pipeline = "[[steps]]\nname = \"a\"\ncommand = [\"../../step.sh\"]\n\
                    env = { REGION = \"eu\" }\n";
    site.write("etc/pipelines/default/p.toml", pipeline);
    let secrets = [("PGPASSWORD", "pw"), ("SECRET_X", "x"), ("SECRET_Y", "y")];
    site.launch_with(&[&secrets[..], &[("LC_TIME", "C"), ("TRACESTATE", "a=b")]].concat());
    let run_both = async |name: &str| {
        let job = site.submit(name, Value::Null).await;
        let run: Value = site
            .transport()
            .post("/pipelines/run/p", None, &json!({}), Duration::ZERO)
            .await
            .expect("it is accepted");
        let run = run["pipeline_logging_id"].as_str().expect("it has an id").to_owned();
        for id in [job, run] {
            let job = site.wait_until_finished(&id).await;
            assert_eq!(job["state"], "succeeded", "{job:#}");
        }
        [site.read("etc/make.sh.env"), site.read("etc/step.sh.env")]
    };
    // What a shell and its `env` add.
    let of_shell = ["PWD", "OLDPWD", "SHLVL", "_"];
    let minimum = ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "REGION"];
    for text in run_both("a").await {
        let seen = variables(&text);
        let is_expected = |name: &str| {
            let prefixes = ["LC_", "TENURE_", "PIPELINE_"];
            of_shell.contains(&name)
                || minimum.contains(&name)
                || ["TRACEPARENT", "TENANT_ID"].contains(&name)
                || prefixes.iter().any(|prefix| name.starts_with(prefix))
        };
        let unexpected: Vec<_> = seen.keys().filter(|name| !is_expected(name)).collect();
        assert!(unexpected.is_empty(), "{unexpected:?}");
        assert!(!seen.contains_key("TENURE_DATA"), "{text}");
        assert_eq!((seen["LC_TIME"], seen["REGION"]), ("C", "eu"));
        assert!(seen.contains_key("PATH") && seen.contains_key("TENURE_TOKEN"), "{text}");
    }
    site.write("etc/tenure.toml", &format!("{config}[runner]\npass_env = [\"SECRET_*\"]\n"));
    site.wait_for_log("reloaded");
    for text in run_both("b").await {
        let seen = variables(&text);
        assert_eq!((seen["SECRET_X"], seen["SECRET_Y"]), ("x", "y"));
        assert!(!seen.contains_key("PGPASSWORD"), "{text}");
    }
}

#[tokio::test]
async fn a_worker_process_runs_jobs_that_the_server_has_no_command_for() {
    let site = Site::start(&without_run(), "#!/bin/sh\necho made by a worker\n");
    let id = site.submit("orders", Value::Null).await;
    site.write("etc/worker.toml", &CONFIG.replace("builder", "remote"));
    let config = site.file("etc/worker.toml");
    let args = ["worker", "--tenant", "*", "--slots", "1", "--config"];
    let mut worker = site.spawn(&args, &config, "worker.log", &[]);
    let job = site.wait_until_finished(&id).await;
    assert_eq!(job["state"], "succeeded", "{job:#}");
    assert_eq!(job["attempts"][0]["worker"], "remote");
    signal(worker.id(), "TERM");
    let ended = worker.wait().expect("it is ours");
    assert!(ended.success(), "{}", site.read("worker.log"));
    assert!(site.read("worker.log").contains("stopped"), "{}", site.read("worker.log"));
}

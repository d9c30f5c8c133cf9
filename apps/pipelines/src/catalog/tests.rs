//! Files of pipelines, and directories of them.

use tempfile::TempDir;
use tenure_core::ResourceKey;
use tenure_core::retry::{Class, TIME_LIMIT};

use tenure_app::Apps;
use tenure_config::{Report, Section};

use super::*;
use crate::settings;
use crate::steps::Action;

const GOOD: &str = r#"
description = "Exports costs"
limit = "2h"
retry = { attempts = 3, initial = "1m" }
max_runs = 2
schedule = { cron = "30 2 * * *", zone = "Europe/Berlin" }

[parameters]
date = { type = "date", default = "2026-01-31" }

[[steps]]
name = "extract"
command = ["./extract.sh", "{{ parameters.date }}"]
limit = "10m"
retry = { attempts = 2, transient = ["QUOTA"] }
env = { REGION = "eu" }
dir = "work"
secrets = { API_KEY = "billing_key" }

[[steps]]
name = "load"
sql = { url = "{{ secrets.warehouse }}", run = "DELETE FROM costs WHERE day = :date" }

[[steps]]
name = "notify"

[steps.http]
url = "https://example.test/{{ parameters.date }}"
headers = { authorization = "Bearer {{ secrets.hook }}" }
body = { day = "{{ parameters.date }}" }
"#;

struct Fixture(TempDir);

impl Fixture {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn write(&self, path: &str, text: &str) -> &Self {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    fn settings(&self) -> PipelineSettings {
        let text = format!("[pipelines]\ndir = {:?}\nsecrets = \"s\"", self.0.path());
        let mut report = Report::new(&text);
        let table = report.table().unwrap();
        let root = Section::root(table.get_ref());
        let section = root.section("pipelines", &mut report).unwrap();
        settings::read(&section, Path::new("/"), &mut report).unwrap()
    }

    fn load(&self) -> Result<Catalog, BadConfig> {
        Catalog::load(&self.settings())
    }

    /// Returns the problems of one file, without its path.
    fn problems(&self, text: &str) -> Vec<String> {
        let catalog = self.write("acme/p.toml", text).load().expect("the others are valid");
        assert!(catalog.get("acme", "p").is_none(), "it is disabled");
        let without_file =
            |problem: &Problem| format!("{}: {}", problem.line, problem.description());
        catalog.problems().map(without_file).collect()
    }
}

fn key(text: &str) -> ResourceKey {
    text.parse().unwrap()
}

#[test]
fn valid_file_is_loaded_in_full() {
    let fixture = Fixture::new();
    fixture.write("acme/billing.toml", GOOD).write("README.md", "not a pipeline");
    fixture
        .write("acme/.billing.toml.swp", "neither is this")
        .write("acme/notes.txt", "neither is this");
    let catalog = fixture.load().unwrap();
    assert_eq!(catalog.len(), 1);
    let pipeline = catalog.get("acme", "billing").unwrap();
    assert_eq!((pipeline.limit_ms, pipeline.max_runs), (2 * 3_600_000, 2));
    assert_eq!(pipeline.secrets(), ["billing_key", "hook", "warehouse"]);
    let steps: Vec<&str> = pipeline.steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(steps, ["extract", "load", "notify"]);
    let Action::Command(extract) = &pipeline.steps[0].action else { panic!("it is a command") };
    let dir = fixture.0.path().join("acme/work");
    assert_eq!(extract.dir.as_deref().map(Path::new), Some(&*dir));
    assert!(catalog.get("other", "billing").is_none());
}

#[test]
fn each_slot_has_the_limit_and_the_retry_rule_of_its_pipeline() {
    let fixture = Fixture::new();
    fixture.write("acme/billing.toml", GOOD);
    fixture.write("acme/plain.toml", "[[steps]]\nname = \"a\"\ncommand = [\"true\"]");
    let kind = fixture.load().unwrap().kind();
    let run = &kind.operations[RUN];
    assert_eq!(run.policy(RUN), Policy::Attach);
    for slot in ["acme/pipeline/billing", "acme/pipeline/billing+2"] {
        assert_eq!(kind.limit_ms(&key(slot), run), Some(2 * 3_600_000));
        assert_eq!(kind.retry(&key(slot), run).attempts, 3);
    }
    assert_eq!(kind.limit_ms(&key("acme/pipeline/plain"), run), Some(3_600_000), "the default");
    assert_eq!(kind.retry(&key("acme/pipeline/plain"), run).attempts, 1);
}

#[test]
fn timeout_is_permanent_unless_declared_transient() {
    let fixture = Fixture::new();
    let class = |retry: &str| {
        let text = format!("retry = {retry}\n[[steps]]\nname = \"a\"\ncommand = [\"true\"]");
        let catalog = fixture.write("acme/p.toml", &text).load().unwrap();
        catalog.get("acme", "p").unwrap().retry.class(TIME_LIMIT, None)
    };
    assert_eq!(class("{ attempts = 3 }"), Class::Permanent);
    assert_eq!(class("{ attempts = 3, transient = \"TIME_LIMIT\" }"), Class::Transient);
}

#[test]
fn kind_pipeline_cannot_be_declared_twice() {
    let fixture = Fixture::new();
    fixture.write("acme/billing.toml", GOOD);
    let text = format!(
        "[pipelines]\ndir = {:?}\nsecrets = \"s\"\n[kinds.pipeline.operations.x]\n",
        fixture.0.path()
    );
    let why = Apps::new(vec![Arc::new(crate::Pipelines)]).parse(&text, Path::new("/"));
    let why = why.err().unwrap().to_string();
    assert!(why.contains("choose another name"), "{why}");
}

#[test]
fn limit_is_between_a_minute_and_a_day() {
    let fixture = Fixture::new();
    let with =
        |limit: &str| format!("limit = \"{limit}\"\n[[steps]]\nname = \"a\"\ncommand = [\"true\"]");
    for limit in ["60s", "1m", "24h"] {
        let catalog = fixture.write("acme/p.toml", &with(limit)).load().unwrap();
        assert_eq!(catalog.problems().count(), 0, "{limit}");
    }
    for limit in ["59s", "24h1s", "0s"] {
        assert_eq!(
            fixture.problems(&with(limit)),
            ["1: limit: the time limit must be between 1m and 24h"]
        );
    }
}

#[test]
fn invalid_files_are_left_out_and_all_their_problems_reported() {
    let fixture = Fixture::new();
    fixture.write("acme/good.toml", GOOD);
    fixture.write("acme/empty.toml", "").write("acme/broken.toml", "limit = ");
    fixture.write("ac me/p.toml", GOOD).write("acme/a+2.toml", GOOD);
    let catalog = fixture.load().unwrap();
    let names: Vec<&str> = catalog.iter(None).map(|pipeline| pipeline.name.as_str()).collect();
    assert_eq!(names, ["good"]);
    let why = catalog.broken("acme", "empty").unwrap();
    assert_eq!(why, "acme/empty.toml:1: a pipeline needs at least one of [[steps]]");
    assert_eq!(catalog.broken("acme", "good"), None);
    assert_eq!(catalog.broken("other", "empty"), None);
    let problems: Vec<Problem> = catalog.problems().cloned().collect();
    let text = BadConfig(problems.clone()).to_string();
    assert_eq!(problems.len(), 4, "{text}");
    assert!(text.contains("empty.toml:1: a pipeline needs at least one of [[steps]]"), "{text}");
    assert!(text.contains("broken.toml:1: invalid TOML"), "{text}");
    assert!(text.contains("a+2.toml:1: the directory and the file must be named"), "{text}");
}

#[test]
fn problems_are_reported_with_their_lines() {
    let problems = Fixture::new().problems(
        r#"limt = "1h"
schedule = { cron = "61 * * * *", zone = "Mars" }
[parameters]
trigger_by = { type = "string" }
n = { type = "int", default = 1 }
m = { type = "integer", default = "one" }
[[steps]]
name = "a b"
command = ["echo", "{{ secrets.key }}"]
[[steps]]
name = "two"
command = ["true"]
http = { url = "https://x" }
[[steps]]
name = "three"
command = ["{{ parameters.x }}"]
retry = { attempts = 0 }
[[steps]]
name = "three"
sql = { url = "mysql://x", run = "SELECT :nothing" }
env = { A = "b" }
dir = "work"
[[steps]]
name = "four"
command = ["true"]
dir = ""
"#,
    );
    for expected in [
        "1: limt: unknown key `limt`; did you mean `limit`?",
        "2: schedule.cron: \"61 * * * *\" is not a cron expression",
        "4: parameters.trigger_by: the name is reserved",
        "5: parameters.n.type: unknown type `int`",
        "6: parameters.m.default: it must be of type integer",
        "8: steps[0].name: a name consists of letters",
        "9: steps[0].command: a secret is not allowed here",
        "10: steps[1]: a step needs exactly one of `command`, `http` and `sql`",
        "16: steps[2].command: unknown parameter `x`",
        "17: steps[2].retry.attempts: it must be between 1 and 1000",
        "19: steps[3].name: there is already a step three",
        "20: steps[3].sql.url: a URL must start with postgres://",
        "20: steps[3].sql.run: `:nothing` is not a declared parameter",
        "21: steps[3].env: only a `command` has an environment",
        "22: steps[3].dir: only a `command` has a directory",
        "26: steps[4].dir: it is empty",
    ] {
        assert!(
            problems.iter().any(|problem| problem.starts_with(expected)),
            "{expected} is not among\n{}",
            problems.join("\n")
        );
    }
}

#[test]
fn scheduled_pipeline_needs_defaults_for_all_parameters() {
    let problems = Fixture::new().problems(
        "schedule = { cron = \"0 1 * * *\" }\n[parameters]\nday = { type = \"date\" }\n\
         [[steps]]\nname = \"a\"\ncommand = [\"true\"]",
    );
    assert_eq!(
        problems,
        ["1: schedule: a scheduled run has no value for the parameter day: give it a default"]
    );
}

/// Every app gets this from the contract, so that a problem of one file cannot refuse the rest.
#[test]
fn broken_files_are_apart_from_problems_of_the_main_file() {
    let fixture = Fixture::new();
    fixture.write("p/acme/good.toml", GOOD).write("p/acme/bad.toml", "limt = 1\n");
    let apps = Apps::new(vec![Arc::new(crate::Pipelines)]);
    let settings = "[pipelines]\ndir = \"p\"\nsecrets = \"s\"\n";
    let loaded = apps.parse(settings, fixture.0.path()).unwrap();
    assert_eq!(loaded.summary(), "1 kind, 1 operation, 1 pipeline, 1 broken file");
    let broken = &loaded.live().broken;
    assert_eq!((broken.len(), broken[0].app, broken[0].problems.len()), (1, "pipelines", 2));
    assert_eq!(broken[0].file, fixture.0.path().join("p/acme/bad.toml"));
    let strict = loaded.require_valid().err().unwrap();
    assert_eq!(strict.0.len(), 2, "{strict}");
    // A problem of the main file rejects everything, and all problems are listed.
    let bad = apps.parse(&format!("{settings}slots = true\n"), fixture.0.path()).err().unwrap();
    assert_eq!(bad.0.len(), 3, "{bad}");
}

#[test]
fn missing_directory_is_reported() {
    let mut settings = Fixture::new().settings();
    settings.dir = "/nowhere/at/all".into();
    let why = Catalog::load(&settings).unwrap_err().to_string();
    assert!(why.contains("/nowhere/at/all:1: cannot be read"), "{why}");
    assert!(why.contains("`dir` in [pipelines]"), "{why}");
}

#[test]
fn problems_of_a_precheck_are_reported() {
    let step = "[[steps]]\nname = \"a\"\ncommand = [\"true\"]\n";
    let http = "[precheck.http]\nurl = \"https://example.test\"\n";
    for (precheck, expected) in [
        ("[precheck]\n", "a precheck needs exactly one of `command`, `http` and `sql`"),
        ("[precheck]\ncommand = [\"x\"]\nlimit = \"1m\"\n", "at most 30s"),
        ("[precheck]\ncommand = [\"x\"]\non_error = \"go\"\n", "\"refuse\" or \"start\""),
        ("[precheck]\ncommand = [\"x\"]\nretry = {}\n", "retry"),
        (
            "[precheck]\ncommand = [\"x\", \"{{ run.id }}\"]\n",
            "`run.id` does not exist before the run; available are tenant, pipeline, scheduled_at",
        ),
        (http, "`id` is missing: a JSON pointer"),
        (&format!("{http}id = \"runs\"\n"), "starts with a slash"),
        (&format!("{http}id = \"/a\"\nnone = \"x\"\n"), "list of statuses"),
        ("[precheck.sql]\nurl = \"postgres://h/d\"\n", "`run` is missing"),
        (
            "[precheck.sql]\nurl = \"postgres://h/d\"\nrun = \"SELECT :run_token\"\n",
            "`run.token` does not exist before the run",
        ),
    ] {
        let problems = Fixture::new().problems(&format!("{precheck}{step}"));
        assert!(problems.len() == 1 && problems[0].contains(expected), "{precheck}: {problems:?}");
    }
    let good = "[precheck]\nlimit = \"30s\"\non_error = \"start\"\ncommand = [\"x\"]\n";
    let fixture = Fixture::new();
    let catalog = fixture.write("acme/p.toml", &format!("{good}{step}")).load().unwrap();
    assert!(catalog.get("acme", "p").unwrap().precheck.is_some());
}

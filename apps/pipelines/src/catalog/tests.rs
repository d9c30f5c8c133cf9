//! What may stand in the file of a pipeline, and how a directory of them is read.

use tempfile::TempDir;
use tenure_core::ResourceKey;
use tenure_core::retry::{Class, TIME_LIMIT};

use tenure_app::Apps;
use tenure_config::{Report, Section};

use super::*;
use crate::settings;

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
secrets = { API_KEY = "billing_key" }

[[steps]]
name = "load"
sql = { url = "{{ secrets.warehouse }}", run = "DELETE FROM costs WHERE day = :date" }

[[steps]]
name = "tell"

[steps.http]
url = "https://example.test/{{ parameters.date }}"
headers = { authorization = "Bearer {{ secrets.hook }}" }
body = { day = "{{ parameters.date }}" }
"#;

struct Bed(TempDir);

impl Bed {
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

    /// The problems of one file, without where it is.
    fn problems(&self, text: &str) -> Vec<String> {
        let bad = self.write("acme/p.toml", text).load().expect_err("it is bad");
        let without_file =
            |problem: Problem| format!("{}: {}", problem.line, problem.description());
        bad.0.into_iter().map(without_file).collect()
    }
}

fn key(text: &str) -> ResourceKey {
    text.parse().unwrap()
}

#[test]
fn a_good_file_says_all_that_it_may() {
    let bed = Bed::new();
    bed.write("acme/billing.toml", GOOD).write("README.md", "no pipeline");
    bed.write("acme/.billing.toml.swp", "nor is this").write("acme/notes.txt", "nor this");
    let catalog = bed.load().unwrap();
    assert_eq!(catalog.len(), 1);
    let pipeline = catalog.get("acme", "billing").unwrap();
    assert_eq!((pipeline.limit_ms, pipeline.max_runs), (2 * 3_600_000, 2));
    assert_eq!(pipeline.secrets(), ["billing_key", "hook", "warehouse"]);
    let steps: Vec<&str> = pipeline.steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(steps, ["extract", "load", "tell"]);
    assert!(catalog.get("other", "billing").is_none());
}

#[test]
fn each_place_of_a_pipeline_has_its_limit_and_its_retry_rule() {
    let bed = Bed::new();
    bed.write("acme/billing.toml", GOOD);
    bed.write("acme/plain.toml", "[[steps]]\nname = \"a\"\ncommand = [\"true\"]");
    let kind = bed.load().unwrap().kind();
    let run = &kind.operations[RUN];
    assert_eq!(run.policy(RUN), Policy::Attach);
    for place in ["acme/pipeline/billing", "acme/pipeline/billing+2"] {
        assert_eq!(kind.limit_ms(&key(place), run), Some(2 * 3_600_000));
        assert_eq!(kind.retry(&key(place), run).attempts, 3);
    }
    assert_eq!(kind.limit_ms(&key("acme/pipeline/plain"), run), Some(3_600_000), "the default");
    assert_eq!(kind.retry(&key("acme/pipeline/plain"), run).attempts, 1);
}

#[test]
fn a_run_that_took_as_long_as_it_may_is_over_unless_the_file_says_otherwise() {
    let bed = Bed::new();
    let class = |retry: &str| {
        let text = format!("retry = {retry}\n[[steps]]\nname = \"a\"\ncommand = [\"true\"]");
        let catalog = bed.write("acme/p.toml", &text).load().unwrap();
        catalog.get("acme", "p").unwrap().retry.class(TIME_LIMIT, None)
    };
    assert_eq!(class("{ attempts = 3 }"), Class::Permanent);
    assert_eq!(class("{ attempts = 3, transient = \"TIME_LIMIT\" }"), Class::Transient);
}

#[test]
fn the_kind_of_pipelines_is_declared_once() {
    let bed = Bed::new();
    bed.write("acme/billing.toml", GOOD);
    let text = format!(
        "[pipelines]\ndir = {:?}\nsecrets = \"s\"\n[kinds.pipeline.operations.x]\n",
        bed.0.path()
    );
    let why = Apps::new(vec![Arc::new(crate::Pipelines)]).parse(&text, Path::new("/"));
    let why = why.err().unwrap().to_string();
    assert!(why.contains("choose another name"), "{why}");
}

#[test]
fn a_run_takes_between_a_minute_and_a_day() {
    let bed = Bed::new();
    let with =
        |limit: &str| format!("limit = \"{limit}\"\n[[steps]]\nname = \"a\"\ncommand = [\"true\"]");
    for limit in ["60s", "1m", "24h"] {
        bed.write("acme/p.toml", &with(limit)).load().unwrap();
    }
    for limit in ["59s", "24h1s", "0s"] {
        assert_eq!(bed.problems(&with(limit)), ["1: limit: a run may take between 1m and 24h"]);
    }
}

#[test]
fn all_problems_of_all_files_are_named_at_once() {
    let bed = Bed::new();
    bed.write("acme/good.toml", GOOD);
    bed.write("acme/empty.toml", "").write("acme/broken.toml", "limit = ");
    bed.write("ac me/p.toml", GOOD).write("acme/a+2.toml", GOOD);
    let bad = bed.load().unwrap_err();
    let text = bad.to_string();
    assert_eq!(bad.0.len(), 4, "{text}");
    assert!(text.contains("empty.toml:1: a pipeline has at least one of [[steps]]"), "{text}");
    assert!(text.contains("broken.toml:1: invalid TOML"), "{text}");
    assert!(text.contains("a+2.toml:1: the names of the directory and of the file"), "{text}");
}

#[test]
fn what_makes_no_sense_is_said_with_its_line() {
    let problems = Bed::new().problems(
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
"#,
    );
    for expected in [
        "1: limt: unknown key `limt`; did you mean `limit`?",
        "2: schedule.cron: \"61 * * * *\" is no cron expression",
        "4: parameters.trigger_by: it is who triggers a run",
        "5: parameters.n.type: unknown type `int`",
        "6: parameters.m.default: it must be of type integer",
        "8: steps[0].name: a name has letters",
        "9: steps[0].command: a secret must not stand here",
        "10: steps[1]: a step has exactly one of `command`, `http` and `sql`",
        "16: steps[2].command: unknown parameter `x`",
        "17: steps[2].retry.attempts: it must be between 1 and 1000",
        "19: steps[3].name: there is another step three",
        "20: steps[3].sql.url: an address begins with postgres://",
        "20: steps[3].sql.run: `:nothing` is no declared parameter",
        "21: steps[3].env: only a `command` has an environment",
    ] {
        assert!(
            problems.iter().any(|problem| problem.starts_with(expected)),
            "{expected} is not among\n{}",
            problems.join("\n")
        );
    }
}

#[test]
fn a_scheduled_pipeline_needs_nobody_to_say_a_parameter() {
    let problems = Bed::new().problems(
        "schedule = { cron = \"0 1 * * *\" }\n[parameters]\nday = { type = \"date\" }\n\
         [[steps]]\nname = \"a\"\ncommand = [\"true\"]",
    );
    assert_eq!(
        problems,
        ["1: schedule: nobody says day when it runs by itself: give it a default"]
    );
}

#[test]
fn a_directory_that_is_not_there_is_said() {
    let mut settings = Bed::new().settings();
    settings.dir = "/nowhere/at/all".into();
    let why = Catalog::load(&settings).unwrap_err().to_string();
    assert!(why.contains("/nowhere/at/all:1: cannot be read"), "{why}");
    assert!(why.contains("`dir` in [pipelines]"), "{why}");
}

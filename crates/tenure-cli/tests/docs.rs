//! Every shell command in the documents is run, or marked as illustrative.
//!
//! CONTRIBUTING.md, "Commands in documents", has the conventions. `docs/blocks.rs` reads them,
//! `docs/shell.rs` runs commands, `docs/matching.rs` compares their output, `docs/synopsis.rs`
//! checks verbs and options of commands that are not run.

#[path = "docs/blocks.rs"]
mod blocks;
mod common;
#[path = "docs/matching.rs"]
mod matching;
#[path = "docs/shell.rs"]
mod shell;
#[path = "docs/synopsis.rs"]
mod synopsis;

use std::sync::OnceLock;

use blocks::{Action, Expected};
use tenure_testbed::{Durability, Postgres};

/// Declares the documents that are run, each with what it assumes.
macro_rules! documents {
    ($($name:ident: $path:literal, $prepare:expr;)+) => {
        const RUN: &[&str] = &[$($path),+];
        $(
            #[test]
            fn $name() {
                shell::run($path, $prepare);
            }
        )+
    };
}

const WITH_JOBS: &str = "tenure serve --config examples/jobs/tenure.toml";

/// Variables that the guide to the HTTP API defines.
const ADDRESS_AND_KEY: &str = r#"
URL=http://127.0.0.1:7117
AUTH="Authorization: Bearer $(cat ~/.local/share/tenure/admin.key)"
"#;

/// A resource, a failed job, three dead letters, and a job in backoff.
const JOBS: &str = r#"
tenure job submit database/orders create --arg size:=0 --follow
FAILED=$(tenure job submit database/large create --arg size:=101 -o json | jq -r .job.id)
for name in one two three; do
  tenure job submit database/$name create --args '{"size":0,"fail":true}' --follow &
done
wait
tenure job submit database/bad create --args '{"size":0,"fail":true}'
until tenure resource why database/bad | grep -q 'in backoff'; do :; done
"#;

/// Returns a database server that is durable, as `tenure doctor` requires.
fn postgres() -> &'static Postgres {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    SERVER.get_or_init(|| Postgres::start(Durability::Disk).expect("PostgreSQL is installed"))
}

documents! {
    readme: "README.md", |shell| shell.serve("tenure serve");
    tour: "docs/guide/tour.md", |shell| {
        // `pgrep` sees the whole machine.
        shell.place("sleep 600", &format!("sleep 6{}", std::process::id()));
    };
    jobs: "docs/guide/jobs.md", |_| ();
    kinds: "docs/guide/kinds.md", |_| ();
    workers: "docs/guide/workers.md", |shell| {
        shell.serve(WITH_JOBS);
        shell.place("https://10.0.0.5:7117", "http://127.0.0.1:7117");
    };
    locks: "docs/guide/locks-from-the-shell.md", |shell| {
        shell.serve("tenure serve");
        shell.assume("export TENURE_TOKEN=1; echo '{}' > state.json.new");
    };
    elections: "docs/guide/elections.md", |shell| shell.serve("tenure serve");
    access: "docs/guide/access.md", |shell| shell.serve("tenure serve");
    metrics: "docs/guide/metrics.md", |shell| {
        shell.serve("tenure serve");
        shell.assume(ADDRESS_AND_KEY);
    };
    http_api: "docs/guide/http-api.md", |shell| {
        shell.serve(WITH_JOBS);
        // Waits that nothing ends.
        shell.place("\"poll_ms\":20000", "\"poll_ms\":200");
        shell.place("?wait_ms=20000", "?wait_ms=200");
        shell.place("&wait_ms=20000", "&wait_ms=200");
    };
    operating: "docs/guide/operating.md", |shell| {
        shell.assume("mkdir -p /etc/tenure; cp examples/jobs/* /etc/tenure");
        let database = postgres().new_database().expect("the server is there");
        shell.place("postgres://tenure@db/ops", &postgres().url(&database));
    };
    operating_jobs: "docs/guide/operating-jobs.md", |shell| {
        shell.serve(WITH_JOBS);
        shell.assume(ADDRESS_AND_KEY);
        shell.assume(JOBS);
        shell.place("job retry ID", "job retry $FAILED");
    };
    postgresql: "docs/postgresql.md", |shell| {
        let server = postgres();
        for user in ["tenure", "owner"] {
            shell.place(&format!("postgres://{user}@db/ops"), &server.url("ops"));
        }
        shell.place("-h db -U owner", "-h 127.0.0.1");
        shell.place("10.0.0.5:7117", &common::free_address());
        let other = format!("--data other --listen {}", common::free_address());
        shell.place("--data /var/lib/tenure --listen 10.0.0.6:7117", &other);
        let port = server.port();
        shell.assume(&format!("export PGHOST=127.0.0.1 PGPORT={port} PGUSER=postgres"));
    };
    history: "docs/internals/history-and-verify.md", |shell| {
        shell.serve("tenure serve");
        shell.assume(ADDRESS_AND_KEY);
        shell.assume("tenure exec cluster/c1 -- true; tenure exec cluster/c1 -- true");
        shell.assume("sqlite3 /var/lib/tenure/tenure.db \".backup copy.db\"");
    };
    examples: "examples/README.md", |_| ();
    builds: "apps/builds/README.md", |_| ();
    clusters: "apps/clusters/README.md", |_| ();
    pipelines: "apps/pipelines/README.md", |_| ();
}

#[test]
fn every_block_of_commands_is_run_or_illustrative() {
    let mut problems = Vec::new();
    let mut with_commands = Vec::new();
    for document in blocks::documents() {
        match blocks::actions(&blocks::read(&document)) {
            Ok(actions) => {
                let runs = |action: &Action| !matches!(action, Action::Write { .. });
                if actions.iter().any(runs) {
                    with_commands.push(document);
                }
            }
            Err(found) => {
                problems.extend(found.iter().map(|problem| format!("{document}:{problem}")));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    let mut run = RUN.to_vec();
    run.sort_unstable();
    assert_eq!(with_commands, run, "add the document to `documents!` in this file");
}

#[test]
fn commands_that_are_not_run_have_verbs_and_options_that_exist() {
    let mut help = synopsis::Help::default();
    let mut problems = Vec::new();
    for document in blocks::documents() {
        let found = help.problems(&blocks::read(&document));
        problems.extend(found.iter().map(|problem| format!("{document}:{problem}")));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn a_block_that_nobody_runs_is_refused_with_its_line_and_the_remedy() {
    let refused = [
        ("```bash\ntenure verify\n```", "3: no test runs a block of `bash`: write `sh`"),
        ("```console\n$ tenure verify\n```", "3: no test runs a block of `console`"),
        ("```text\n$ tenure verify\n```", "3: no test runs these commands: write `text transcr"),
        ("```\n$ tenure verify\n```", "3: no test runs these commands"),
        ("```sh ignored\ntenure verify\n```", "3: `sh ignored` is unknown"),
        ("```text output\nok\n```", "3: `output` has to follow a block of commands"),
    ];
    for (block, problem) in refused {
        let page = format!("# Title\n\n{block}\n");
        let problems = blocks::actions(&page).err().unwrap_or_default();
        assert!(problems.iter().any(|found| found.starts_with(problem)), "{problems:?}");
    }
    let accepted = "```sh\ntrue\n```\n```sh illustrative\nreboot\n```\n```text\nno commands\n```\n";
    assert_eq!(blocks::actions(accepted).map_or(0, |actions| actions.len()), 1);
}

#[test]
fn ids_and_times_of_a_shown_output_may_differ_and_words_may_not() {
    let text = |text: &str| Expected::Text(text.into());
    let mut ids = matching::Ids::default();
    let shown = text("started 0123456789abcdef\nvm/1 for 3s at 2026-01-01T00:00:00Z …");
    let real = "started fedcba9876543210\nhost-1/77 for 12ms at 2027-02-03T04:05:06.7Z and more";
    assert!(ids.matches(&shown, real, true));
    assert_eq!(ids.substitute("show 0123456789abcdef"), "show fedcba9876543210");
    assert!(ids.matches(&text("attached 0123456789abcdef"), "attached fedcba9876543210", true));
    assert!(!ids.matches(&text("attached 0123456789abcdef"), "attached 00000000000000ff", true));
    assert!(!ids.matches(&text("released"), "lost", true));
    assert!(!ids.matches(&text("released"), "released, but more", true));
    let json = Expected::Json(r#"{"state": "READY", "age_ms": 7}"#.into());
    assert!(ids.matches(&json, r#"{"items":[{"state":"READY","age_ms":9,"x":1}]}"#, true));
    assert!(!ids.matches(&json, r#"{"items":[{"state":"FAILED","age_ms":7}]}"#, true));
}

//! Examples of `tenure.toml` in the guide are accepted; each error code has a page, which the
//! server serves.

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::Server;
use tenure_app::Loaded;
use tenure_server::docs::errors::PAGES;
use tenure_store::Memory;
use tenure_wire::CODES;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the code blocks of a page in one language, each with its first line number.
fn blocks(page: &str, language: &str) -> Vec<(usize, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (line, text) in (1..).zip(page.lines()) {
        match &mut open {
            None if text == format!("```{language}") => open = Some((line, String::new())),
            Some(_) if text == "```" => blocks.extend(open.take()),
            Some((_, block)) => *block += &format!("{text}\n"),
            None => {}
        }
    }
    blocks
}

/// Creates the directories that a `tenure.toml` names by `dir` in a temporary directory.
fn dir_for_config(text: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let named =
        text.lines().filter_map(|line| line.trim().strip_prefix("dir = \"")?.split('"').next());
    for name in named {
        std::fs::create_dir_all(dir.path().join(name)).expect("writable");
    }
    dir
}

#[test]
fn every_tenure_toml_of_the_guide_is_accepted() {
    let mut seen = 0;
    for entry in std::fs::read_dir(root().join("docs/guide")).expect("the guide") {
        let path = entry.expect("a page").path();
        let page = std::fs::read_to_string(&path).expect("a text");
        for (line, text) in blocks(&page, "toml") {
            let dir = dir_for_config(&text);
            let parsed = common::apps().parse(&text, dir.path());
            let problems = parsed.and_then(Loaded::require_valid).err();
            assert!(problems.is_none(), "{}:{line}: {problems:?}", path.display());
            seen += 1;
        }
    }
    assert!(seen >= 5, "only {seen} blocks were found: is the guide still there?");
}

#[test]
fn every_pipeline_of_the_guide_is_accepted() {
    let page = std::fs::read_to_string(root().join("apps/pipelines/README.md")).expect("a text");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let tenant = dir.path().join("acme");
    std::fs::create_dir(&tenant).expect("writable");
    let blocks = blocks(&page, "toml pipeline");
    assert!(!blocks.is_empty(), "is the guide still there?");
    for (line, text) in blocks {
        std::fs::write(tenant.join("billing.toml"), text).expect("writable");
        let settings = "[pipelines]\ndir = \".\"\nsecrets = \"s\"";
        let parsed = common::apps().parse(settings, dir.path());
        let problems = parsed.and_then(Loaded::require_valid).err();
        assert!(problems.is_none(), "{line}: {problems:?}");
    }
}

#[test]
fn the_example_is_accepted_and_its_commands_exist() {
    let config =
        common::apps().load(&root().join("examples/jobs/tenure.toml")).expect("a good file").config;
    let operations: Vec<_> =
        config.kinds.iter().flat_map(|kind| kind.operations.values()).collect();
    assert!(operations.len() >= 3, "{operations:?}");
    for program in operations.iter().filter_map(|operation| operation.run.first()) {
        assert!(Path::new(program).is_file(), "{program} is missing");
    }
    // The worker in Python handles this one.
    assert!(config.kinds.get("report").is_some_and(|kind| kind.operations.contains_key("build")));
}

#[test]
fn every_stable_code_has_a_page_and_every_page_a_code() {
    let pages = std::fs::read_dir(root().join("docs/errors")).expect("the pages");
    let names = pages.map(|page| page.expect("a page").file_name().into_string().expect("a name"));
    let mut files: Vec<String> = names.collect();
    files.sort();
    let mut codes = CODES.map(|code| format!("{code}.md"));
    codes.sort();
    assert_eq!(files, codes);
    let mut embedded: Vec<_> = PAGES.iter().map(|(code, _)| format!("{code}.md")).collect();
    embedded.sort();
    assert_eq!(embedded, codes);
}

#[test]
fn an_error_page_has_all_sections_and_a_valid_example() {
    for (code, page) in PAGES {
        assert!(page.starts_with(&format!("# {code}\n\nHTTP ")), "{code}: title and status");
        for part in ["\n## When\n", "\n## What to do\n", "\n## Example\n"] {
            assert!(page.contains(part), "{code}: {part:?} is missing");
        }
        for (line, example) in blocks(page, "json") {
            let example: tenure::wire::Problem =
                serde_json::from_str(&example).unwrap_or_else(|why| panic!("{code}:{line}: {why}"));
            assert_eq!((&*example.code, example.kind), (*code, format!("/docs/errors/{code}")));
        }
    }
}

/// Collects the codes that appear in source files as `new(STATUS, "CODE"`.
fn collect_codes(folder: &Path, codes: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).expect("the source") {
        let path = entry.expect("a file").path();
        if path.is_dir() {
            collect_codes(&path, codes);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let text = std::fs::read_to_string(&path).expect("a text");
            let calls = text.split("::new(").skip(1).map(|call| call.trim_start());
            codes.extend(calls.filter_map(|call| {
                let (status, rest) = call.split_once(',')?;
                let code = rest.trim_start().strip_prefix('"')?.split('"').next()?;
                status.parse::<u16>().is_ok().then(|| code.to_owned())
            }));
        }
    }
}

#[test]
fn every_code_in_the_source_is_stable() {
    let mut codes = Vec::new();
    for folder in ["crates/tenure-server/src", "crates/tenure-app/src", "apps"] {
        collect_codes(&root().join(folder), &mut codes);
    }
    assert!(codes.len() >= 8, "only {codes:?} were found: are problems still created this way?");
    for code in codes {
        assert!(CODES.contains(&&*code), "{code} has no page: add docs/errors/{code}.md");
    }
}

#[tokio::test]
async fn the_type_of_a_problem_links_to_the_page_of_its_code() {
    let server = Server::start(Arc::new(Memory::new())).await;
    for code in CODES {
        let answer = common::http().get(format!("{}/docs/errors/{code}", server.url)).send().await;
        let answer = answer.expect("the server answers without a key");
        assert_eq!(answer.status(), 200, "{code}");
        assert_eq!(answer.headers()["content-type"], "text/html; charset=utf-8");
        let page = answer.text().await.expect("a complete page");
        assert!(page.contains(&format!("<h1>{code}</h1>")), "{page}");
        assert!(page.contains("<h2>What to do</h2>"), "{page}");
    }
    let (status, problem) = server.get("/docs/errors/no_such_code").await;
    assert_eq!((status, &problem["code"]), (404, &"not_found".into()));
}

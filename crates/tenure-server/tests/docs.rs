//! What the guide and the examples show as `tenure.toml` is what the program reads.

use std::path::{Path, PathBuf};

use tenure::config::Config;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The blocks of a page that are in this language, each with the line it begins on.
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

#[test]
fn every_tenure_toml_of_the_guide_is_accepted() {
    let mut seen = 0;
    for entry in std::fs::read_dir(root().join("docs/guide")).expect("the guide") {
        let path = entry.expect("a page").path();
        let page = std::fs::read_to_string(&path).expect("a text");
        for (line, text) in blocks(&page, "toml") {
            let problems = Config::parse(&text, &root()).err();
            assert!(problems.is_none(), "{}:{line}: {problems:?}", path.display());
            seen += 1;
        }
    }
    assert!(seen >= 5, "only {seen} blocks were found: is the guide still there?");
}

#[test]
fn the_example_is_accepted_and_its_commands_are_there() {
    let config = Config::load(&root().join("examples/jobs/tenure.toml")).expect("a good file");
    let operations: Vec<_> =
        config.kinds.iter().flat_map(|kind| kind.operations.values()).collect();
    assert!(operations.len() >= 3, "{operations:?}");
    for program in operations.iter().filter_map(|operation| operation.run.first()) {
        assert!(Path::new(program).is_file(), "{program} is missing");
    }
    // The worker in Python handles this one.
    assert!(config.kinds.get("report").is_some_and(|kind| kind.operations.contains_key("build")));
}

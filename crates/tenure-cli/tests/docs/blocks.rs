//! Fenced blocks of a document, and what is done with each.
//!
//! CONTRIBUTING.md, "Commands in documents", has the conventions.

use std::path::{Path, PathBuf};

/// Languages that GitHub highlights as a shell, and that would not be collected.
const OTHER_SHELLS: [&str; 6] = ["bash", "shell", "console", "zsh", "shell-session", "terminal"];

/// A fenced block.
pub(crate) struct Block {
    /// Line of its first fence, counted from 1.
    pub(crate) line: usize,
    /// The words after the fence.
    pub(crate) info: Vec<String>,
    pub(crate) text: String,
}

/// What a command has to print.
#[derive(Clone)]
pub(crate) enum Expected {
    Text(String),
    /// A JSON value that has to be contained in the output.
    Json(String),
}

/// Commands that are executed together.
#[derive(Clone)]
pub(crate) struct Step {
    /// Line of the first command.
    pub(crate) line: usize,
    pub(crate) text: String,
    pub(crate) expected: Option<Expected>,
}

pub(crate) enum Action {
    /// Writes a file that the document shows.
    Write { name: String, text: String },
    /// Executes commands and waits for their end.
    Run(Step),
    /// Starts a process that runs until the document ends.
    Start(Step),
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns all Markdown documents of the repository, relative to its root.
pub(crate) fn documents() -> Vec<String> {
    let mut found: Vec<String> =
        ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"].map(Into::into).into();
    for folder in ["apps", "bench", "crates", "deploy", "docs", "examples"] {
        collect(folder, &mut found);
    }
    found.sort();
    found
}

fn collect(folder: &str, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(root().join(folder)).expect("the folder exists") {
        let entry = entry.expect("a readable folder");
        let name = entry.file_name().into_string().expect("a name in UTF-8");
        let path = format!("{folder}/{name}");
        let is_ours = !name.starts_with('.') && name != "node_modules" && name != "target";
        if entry.file_type().expect("a type").is_dir() && is_ours {
            collect(&path, found);
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
}

pub(crate) fn read(document: &str) -> String {
    let text = std::fs::read_to_string(root().join(document));
    text.unwrap_or_else(|error| panic!("cannot read {document}: {error}"))
}

/// Returns the fenced blocks of a page.
pub(crate) fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, Block)> = None;
    for (line, text) in (1..).zip(page.lines()) {
        let content = text.trim_start();
        let indent = text.len() - content.len();
        match &mut open {
            None => {
                if let Some(info) = content.strip_prefix("```") {
                    let info = info.split_whitespace().map(Into::into).collect();
                    open = Some((indent, Block { line, info, text: String::new() }));
                }
            }
            Some(_) if content == "```" => blocks.extend(open.take().map(|(_, block)| block)),
            Some((outer, block)) => {
                block.text += text.get(*outer..).unwrap_or_default();
                block.text.push('\n');
            }
        }
    }
    assert!(open.is_none(), "the last block has no end");
    blocks
}

/// Returns what to do for a page, in order, or its problems as `line: message`.
pub(crate) fn actions(page: &str) -> Result<Vec<Action>, Vec<String>> {
    let (mut actions, mut problems) = (Vec::new(), Vec::new());
    for block in blocks(page) {
        if let Err(problem) = add(&mut actions, &block) {
            problems.push(format!("{}: {problem}", block.line));
        }
    }
    if problems.is_empty() { Ok(actions) } else { Err(problems) }
}

fn add(actions: &mut Vec<Action>, block: &Block) -> Result<(), String> {
    let words: Vec<&str> = block.info.iter().map(String::as_str).collect();
    match words[..] {
        ["sh"] => actions.extend(split_at_jobs(block).into_iter().map(Action::Run)),
        ["sh", "background"] => {
            let lines = (block.line + 1..).zip(block.text.lines());
            actions.extend(lines.map(|(line, text)| {
                Action::Start(Step { line, text: format!("{text}\n"), expected: None })
            }));
        }
        [_, file] if file.starts_with("file=") => {
            let name = file.trim_start_matches("file=").into();
            actions.push(Action::Write { name, text: block.text.clone() });
        }
        ["text", "transcript"] => actions.extend(transcript(block)?.into_iter().map(Action::Run)),
        ["sh" | "text", "illustrative"] => {}
        ["text" | "json", "output"] => {
            let expected = if words[0] == "json" { Expected::Json } else { Expected::Text };
            let (Some(Action::Run(step)) | Some(Action::Start(step))) = actions.last_mut() else {
                return Err("`output` has to follow a block of commands that is run".into());
            };
            if step.expected.is_some() {
                return Err("the output of the commands above is shown already".into());
            }
            step.expected = Some(expected(block.text.clone()));
        }
        ["sh", ..] => {
            return Err(format!(
                "`{}` is unknown: a block of commands is run (`sh`), started (`sh background`) \
                 or not run (`sh illustrative`)",
                words.join(" ")
            ));
        }
        [language, ..] if OTHER_SHELLS.contains(&language) => {
            return Err(format!(
                "no test runs a block of `{language}`: write `sh`, or `text transcript` for \
                 commands with their output"
            ));
        }
        [] | ["text", ..] if block.text.lines().any(|line| line.starts_with("$ ")) => {
            return Err("no test runs these commands: write `text transcript`, or `text \
                        illustrative` if they cannot run"
                .into());
        }
        _ => {}
    }
    Ok(())
}

/// Returns whether a line starts a job of the shell.
pub(crate) fn starts_job(line: &str) -> bool {
    let code = line.split(" #").next().unwrap_or(line).trim_end();
    code.ends_with(" &")
}

/// Splits commands after each line that starts a job, so that the next one finds it running.
fn split_at_jobs(block: &Block) -> Vec<Step> {
    let mut steps = vec![Step { line: block.line + 1, text: String::new(), expected: None }];
    for (line, text) in (block.line + 1..).zip(block.text.lines()) {
        if steps.last().is_some_and(|step| step.text.lines().next_back().is_some_and(starts_job)) {
            steps.push(Step { line, text: String::new(), expected: None });
        }
        let step = steps.last_mut().expect("it starts with one");
        step.text += text;
        step.text.push('\n');
    }
    steps
}

/// Reads commands after `$ `, each followed by what it prints. Output that is not shown is not
/// compared.
fn transcript(block: &Block) -> Result<Vec<Step>, String> {
    let mut steps: Vec<Step> = Vec::new();
    let mut continues = false;
    for (line, text) in (block.line + 1..).zip(block.text.lines()) {
        if let Some(command) = text.strip_prefix("$ ") {
            steps.push(Step { line, text: format!("{command}\n"), expected: None });
            continues = command.ends_with('\\');
            continue;
        }
        let Some(step) = steps.last_mut() else {
            return Err("a transcript starts with a command after `$ `".into());
        };
        if continues {
            step.text += &format!("{text}\n");
            continues = text.ends_with('\\');
        } else if !text.trim().is_empty() || step.expected.is_some() {
            let shown = step.expected.get_or_insert(Expected::Text(String::new()));
            let (Expected::Text(shown) | Expected::Json(shown)) = shown;
            *shown += &format!("{text}\n");
        }
    }
    for step in &mut steps {
        if let Some(Expected::Text(text)) = &step.expected
            && serde_json::from_str::<serde_json::Value>(text).is_ok_and(|json| json.is_object())
        {
            step.expected = Some(Expected::Json(text.clone()));
        }
    }
    Ok(steps)
}

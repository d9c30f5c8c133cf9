//! Checks that commands which are not run, in illustrative blocks and in prose, name verbs and
//! options that exist.

use std::collections::HashMap;
use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;

use crate::blocks;
use crate::common::{stdout, tenure};

static INLINE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"`(tenure\s[^`]+)`").expect("a valid expression"));

/// Texts of `--help` by verb.
#[derive(Default)]
pub(crate) struct Help(HashMap<String, Option<String>>);

impl Help {
    /// Returns the problems of a page as `line: message`.
    pub(crate) fn problems(&mut self, page: &str) -> Vec<String> {
        let commands = commands(page).into_iter();
        commands
            .filter_map(|(line, command)| Some(format!("{line}: {}", self.problem(&command)?)))
            .collect()
    }

    fn problem(&mut self, command: &str) -> Option<String> {
        let words = words(command);
        let mut rest = &words[..];
        // Options of all verbs may come first, each with a value.
        while let [option, _, after @ ..] = rest
            && option.starts_with("--")
        {
            rest = after;
        }
        let is_verb = |word: &&&str| word.chars().all(|c| c.is_ascii_lowercase());
        let verbs: Vec<&str> = rest.iter().take(2).take_while(is_verb).copied().collect();
        let Some(help) = self.text(&verbs) else {
            return Some(format!("`{command}`: there is no `tenure {}`", verbs.join(" ")));
        };
        let options = words.iter().filter(|word| word.len() > 1 && word.starts_with('-'));
        let missing = |option: &&&str| {
            let pattern = format!(r"(?m)(^|[\s,\[]){}($|[\s,=\]])", regex::escape(option));
            !Regex::new(&pattern).expect("an escaped text").is_match(help)
        };
        let option = options.copied().find(|option| missing(&option))?;
        Some(format!("`{command}`: `tenure {}` has no option {option}", verbs.join(" ")))
    }

    /// Returns the help of a verb. A second word may be an argument.
    fn text(&mut self, verbs: &[&str]) -> Option<&str> {
        let text = self.0.entry(verbs.join(" ")).or_insert_with(|| {
            let help = tenure(Path::new(".")).args(verbs).arg("--help").output();
            let help = help.expect("the binary runs");
            help.status.success().then(|| stdout(&help))
        });
        text.as_deref()
    }
}

/// Splits a command into words, without comments, other commands and the brackets of a synopsis.
fn words(command: &str) -> Vec<&str> {
    let ends = ["#", "--", "|", "||", "&&", "&", ">", "…"];
    let words = command.split_whitespace().skip(1);
    let words = words.take_while(|word| !ends.contains(word));
    words
        .map(|word| word.trim_matches(|c| "[](),;.…".contains(c)))
        .map(|word| word.split('=').next().unwrap_or(word))
        .filter(|word| !word.is_empty())
        .collect()
}

/// Returns all commands of `tenure` that are not run, with their lines.
fn commands(page: &str) -> Vec<(usize, String)> {
    let mut commands = Vec::new();
    let mut prose: Vec<&str> = page.lines().collect();
    for block in blocks::blocks(page) {
        let lines = block.text.lines().count();
        prose[block.line - 1..=block.line + lines].fill("");
        if block.info.iter().any(|word| word == "illustrative") {
            let found = (block.line + 1..).zip(block.text.lines());
            let found = found.map(|(line, text)| (line, text.trim_start_matches("$ ")));
            let found = found.filter(|(_, text)| text.starts_with("tenure "));
            commands.extend(found.map(|(line, text)| (line, text.to_owned())));
        }
    }
    let prose = prose.join("\n");
    for found in INLINE.captures_iter(&prose) {
        let command = found.get(1).expect("part of it");
        let line = prose[..command.start()].matches('\n').count() + 1;
        let command = command.as_str().split_whitespace().collect::<Vec<_>>().join(" ");
        commands.push((line, command));
    }
    commands
}

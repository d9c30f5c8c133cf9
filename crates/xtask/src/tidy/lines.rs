//! Rules about single lines.
//!
//! They check the raw text, including comments and strings, so that the cause of a finding is
//! obvious.

use super::{Finding, is_rust};

const WIDTH_MAX: usize = 100;

/// Split with `concat!`, or the rule would find this file.
const BANNED_RUST: [&str; 4] = [
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("dbg", "!("),
    concat!("#[", "ignore"),
];

const BANNED_WORDS: [&str; 2] = [concat!("FIX", "ME"), concat!("XX", "X")];

/// Top-level folders of paths that are specific to one machine.
const PRIVATE_FOLDERS: [&str; 3] = ["home", "root", "work"];

pub(super) fn width(path: &str, text: &str) -> Vec<Finding> {
    each_line(path, text, |line| {
        let columns = line.chars().count();
        (is_rust(path) && columns > WIDTH_MAX)
            .then(|| format!("{columns} columns, the limit is {WIDTH_MAX}"))
    })
}

pub(super) fn trailing_space(path: &str, text: &str) -> Vec<Finding> {
    each_line(path, text, |line| (line.trim_end() != line).then(|| "trailing whitespace".into()))
}

pub(super) fn tabs(path: &str, text: &str) -> Vec<Finding> {
    let found = |line: &str| is_rust(path) && line.contains('\t');
    each_line(path, text, |line| found(line).then(|| "a tab, use spaces".into()))
}

pub(super) fn banned_words(path: &str, text: &str) -> Vec<Finding> {
    each_line(path, text, |line| banned_in(path, line).map(|word| format!("`{word}` is banned")))
}

fn banned_in(path: &str, line: &str) -> Option<&'static str> {
    let code = BANNED_RUST.into_iter().filter(|text| is_rust(path) && line.contains(text));
    code.chain(BANNED_WORDS.into_iter().filter(|word| has_word(line, word))).next()
}

/// Matches whole words only: templates of temporary names repeat the same letter.
fn has_word(line: &str, word: &str) -> bool {
    line.split(|c: char| !c.is_alphanumeric()).any(|part| part == word)
}

pub(super) fn private_paths(path: &str, text: &str) -> Vec<Finding> {
    each_line(path, text, |line| {
        let folder = PRIVATE_FOLDERS.into_iter().find(|folder| starts_path(line, folder))?;
        Some(format!("an absolute path below /{folder}, specific to one machine"))
    })
}

/// Returns whether `/folder/` occurs at the start of a path, rather than inside a longer one.
fn starts_path(line: &str, folder: &str) -> bool {
    let absolute = format!("/{folder}/");
    line.match_indices(&absolute).any(|(at, _)| !line[..at].ends_with(continues_path))
}

fn continues_path(c: char) -> bool {
    c.is_alphanumeric() || "_-./}>*~".contains(c)
}

/// Applies `check` to each line, including carriage returns.
fn each_line(path: &str, text: &str, check: impl Fn(&str) -> Option<String>) -> Vec<Finding> {
    let lines = text.split_terminator('\n').zip(1..);
    lines.filter_map(|(line, at)| Some(Finding::new(path, at, check(line)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::Rule;

    #[track_caller]
    fn fails(rule: Rule, path: &str, text: &str) {
        let lines: Vec<_> = rule(path, text).iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [2], "{path}: {text:?}");
    }

    #[track_caller]
    fn passes(rule: Rule, path: &str, text: &str) {
        assert_eq!(rule(path, text), [], "{path}: {text:?}");
    }

    #[test]
    fn width_is_counted_in_characters_and_for_rust_only() {
        fails(width, "a.rs", &format!("\n{}\n", "ä".repeat(101)));
        passes(width, "a.rs", &format!("\n{}\n", "ä".repeat(100)));
        passes(width, "a.md", &format!("\n{}\n", "a".repeat(101)));
    }

    #[test]
    fn trailing_whitespace_is_found_in_every_file() {
        fails(trailing_space, "a.md", "one\ntwo \n");
        fails(trailing_space, "a.sql", "one\ntwo\r\n");
        passes(trailing_space, "a.md", "one\n\n  two\n");
    }

    #[test]
    fn tabs_are_found_in_rust_only() {
        fails(tabs, "a.rs", "\n\tlet a = 1;\n");
        passes(tabs, "a.rs", "\n    let a = '\\t';\n");
        passes(tabs, "Makefile", "all:\n\ttrue\n");
    }

    #[test]
    fn banned_code_is_found_in_rust_only() {
        for text in BANNED_RUST {
            fails(banned_words, "a.rs", &format!("\n    {text}\n"));
            passes(banned_words, "a.md", &format!("\nnever write {text}\n"));
        }
        passes(banned_words, "a.rs", "// a todo list\nlet ignored = unimplemented;\n");
    }

    #[test]
    fn banned_words_are_found_as_whole_words_in_every_file() {
        for word in BANNED_WORDS {
            fails(banned_words, "a.sql", &format!("\n-- {word}: later\n"));
            passes(banned_words, "a.sql", &format!("\n-- tmp.{word}{word}\n"));
        }
    }

    #[test]
    fn private_paths_are_found_where_a_path_starts() {
        for folder in PRIVATE_FOLDERS {
            fails(private_paths, "a.md", &format!("\nsee `/{folder}/me/x`\n"));
            passes(private_paths, "a.md", &format!("\nGET /v1/{folder}/c1\n"));
            passes(private_paths, "a.md", &format!("\nthe {folder} folder, ./{folder}/c1\n"));
        }
    }
}

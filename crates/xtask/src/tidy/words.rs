//! The rule against words that are not part of the project's vocabulary.
//!
//! Each of them once stood for a concept that has a technical term (`told` for recorded or
//! projected, `wish` for a desired state). The rule applies to prose and to identifiers:
//! `snake_case` and `CamelCase` names are split into their words.
//!
//! A phrase that wraps onto the next line is not found.

use super::{Finding, file_name, is_rust};

/// Words and phrases, in lower case.
const WORDS: [&str; 15] = [
    "told",
    "untold",
    "whereabouts",
    "hasten",
    "mend",
    "mends",
    "crew",
    "bonds",
    "veil",
    "shelf",
    "wish",
    "whoever",
    "is content with",
    "came to",
    "goes on",
];

/// Paths, or beginnings of paths, with the words that they must keep.
const ALLOWED: [(&str, &[&str]); 8] = [
    // Released notes are not rewritten.
    ("CHANGELOG.md", &WORDS),
    // This list.
    ("crates/xtask/src/tidy/words.rs", &WORDS),
    // `told` is a column of the table tenure.resources.
    ("crates/tenure-store/src/postgres/0003_records.sql", &["told"]),
    ("crates/tenure-store/src/postgres/projection.rs", &["told"]),
    ("crates/tenure-store/src/postgres/prune.rs", &["told"]),
    ("crates/tenure-store/src/postgres/rows.rs", &["told"]),
    ("crates/tenure-store/tests/postgres_shared/records.rs", &["told"]),
    ("docs/adr/0021-", &["told"]),
];

pub(super) fn vocabulary(path: &str, text: &str) -> Vec<Finding> {
    if !is_checked(path, text) {
        return Vec::new();
    }
    let lines = text.lines().map(split_identifiers).zip(1..);
    lines
        .flat_map(|(line, at)| {
            let found = WORDS.into_iter().filter(move |word| contains_words(&line, word));
            found.filter(|word| !is_allowed(path, word)).map(move |word| (at, word))
        })
        .map(|(at, word)| Finding::new(path, at, format!("`{word}`: use the technical term")))
        .collect()
}

/// Rust, Markdown, TOML, SQL and shell files.
fn is_checked(path: &str, text: &str) -> bool {
    let is_script = || !file_name(path).contains('.') && is_shell_script(text);
    let endings = [".md", ".toml", ".sql", ".sh"];
    is_rust(path) || endings.iter().any(|ending| path.ends_with(ending)) || is_script()
}

fn is_shell_script(text: &str) -> bool {
    text.lines().next().is_some_and(|line| line.starts_with("#!") && line.ends_with("sh"))
}

fn is_allowed(path: &str, word: &str) -> bool {
    ALLOWED.iter().any(|(start, words)| path.starts_with(start) && words.contains(&word))
}

/// The line in lower case, with `snake_case` and `CamelCase` names split at spaces.
fn split_identifiers(line: &str) -> String {
    let mut words = String::with_capacity(line.len());
    let mut after_lowercase = false;
    for c in line.chars() {
        if after_lowercase && c.is_uppercase() {
            words.push(' ');
        }
        after_lowercase = c.is_lowercase() || c.is_numeric();
        match c {
            '_' => words.push(' '),
            c => words.extend(c.to_lowercase()),
        }
    }
    words
}

fn contains_words(line: &str, words: &str) -> bool {
    line.match_indices(words).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + words.len()..]);
        !before.ends_with(char::is_alphanumeric) && !after.starts_with(char::is_alphanumeric)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn finds(path: &str, text: &str, words: &[&str]) {
        let expected: Vec<_> = words
            .iter()
            .map(|word| Finding::new(path, 2, format!("`{word}`: use the technical term")))
            .collect();
        assert_eq!(vocabulary(path, text), expected, "{path}: {text:?}");
    }

    #[test]
    fn every_word_is_found_in_every_kind_of_file() {
        for word in WORDS {
            for path in ["src/a.rs", "docs/a.md", "Cargo.toml", "a.sql", "a.sh"] {
                finds(path, &format!("\nbefore {word}, after\n"), &[word]);
            }
            finds("bench/run", &format!("#!/usr/bin/env bash\n# {word}\n"), &[word]);
        }
    }

    #[test]
    fn words_are_found_in_identifiers_and_in_any_case() {
        finds("a.rs", "\nfn lines_and_told() {}\n", &["told"]);
        finds("a.rs", "\nstruct ToldJob;\n", &["told"]);
        finds("a.rs", "\nconst WISH_MAX: u8 = 1;\n", &["wish"]);
        finds("a.rs", "\nlet x = self.came_to(y);\n", &["came to"]);
        finds("a.md", "\nWhoever goes on\n", &["whoever", "goes on"]);
    }

    #[test]
    fn parts_of_words_are_not_found() {
        for text in ["tolder", "amends", "Wishbone", "recommend", "became to", "goes only", "veils"]
        {
            finds("a.md", &format!("\n{text}\n"), &[]);
        }
        finds("a.md", "\nit goes, on the whole\n", &[]);
    }

    #[test]
    fn other_files_are_not_checked() {
        for path in ["openapi.json", "a.py", "a.html", "LICENSE"] {
            finds(path, "\ntold\n", &[]);
        }
        finds("bench/run", "#!/usr/bin/env python3\n# told\n", &[]);
    }

    #[test]
    fn allowed_words_pass_in_their_files_only() {
        finds("CHANGELOG.md", "\ntold, and goes on\n", &[]);
        let migration = "crates/tenure-store/src/postgres/0003_records.sql";
        finds(migration, "\nADD COLUMN told bigint -- whoever\n", &["whoever"]);
        finds("crates/tenure-store/src/postgres/0001_tables.sql", "\ntold\n", &["told"]);
    }
}

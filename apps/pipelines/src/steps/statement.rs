//! SQL statements with named parameters. `:name` becomes `$1`, and values are sent as bind
//! parameters.

use crate::template::{Placeholder, RUN_FIELDS};

/// A parsed statement.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Statement {
    sql: String,
    placeholders: Vec<Placeholder>,
}

impl Statement {
    /// Parses a statement; `declared` returns whether a parameter exists.
    pub(super) fn parse(text: &str, declared: impl Fn(&str) -> bool) -> Result<Self, String> {
        check_transaction_control(text)?;
        let mut statement = Self { sql: String::new(), placeholders: Vec::new() };
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let length = match quoted_length(rest) {
                0 => first.len_utf8(),
                length => length,
            };
            // `::` is a cast.
            if let Some(after) = rest.strip_prefix("::") {
                statement.sql.push_str("::");
                rest = after;
                continue;
            }
            if first == ':' && is_name_start(rest[1..].chars().next()) {
                let name = &rest[1..];
                let end = name.find(|c: char| !is_name_char(c)).unwrap_or(name.len());
                statement.push_parameter(&name[..end], &declared)?;
                rest = &name[end..];
                continue;
            }
            statement.sql.push_str(&rest[..length]);
            rest = &rest[length..];
        }
        Ok(statement)
    }

    fn push_parameter(
        &mut self,
        name: &str,
        declared: &impl Fn(&str) -> bool,
    ) -> Result<(), String> {
        let run_field = name.strip_prefix("run_").filter(|name| RUN_FIELDS.contains(name));
        let placeholder = if declared(name) {
            Placeholder::Parameter(name.to_owned())
        } else if let Some(name) = run_field {
            Placeholder::Run(name.to_owned())
        } else {
            let run_names = RUN_FIELDS.map(|name| format!(":run_{name}")).join(", ");
            return Err(format!("`:{name}` is not a declared parameter or one of {run_names}"));
        };
        let existing = self.placeholders.iter().position(|other| *other == placeholder);
        let index = existing.unwrap_or_else(|| {
            self.placeholders.push(placeholder);
            self.placeholders.len() - 1
        });
        self.sql.push_str(&format!("${}", index + 1));
        Ok(())
    }

    /// Returns the SQL with numbered parameters.
    pub(super) fn sql(&self) -> &str {
        &self.sql
    }

    /// Returns the placeholders of `$1`, `$2`, ….
    pub(super) fn placeholders(&self) -> impl Iterator<Item = &Placeholder> {
        self.placeholders.iter()
    }
}

/// Rejects transaction control: a step is one transaction.
fn check_transaction_control(text: &str) -> Result<(), String> {
    let mut rest = text.trim_start();
    while rest.starts_with("--") || rest.starts_with("/*") {
        rest = rest[quoted_length(rest)..].trim_start();
    }
    let mut words = rest.split(|c: char| !is_name_char(c)).filter(|word| !word.is_empty());
    let (first, second) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let is = |word: &str, other: &str| word.eq_ignore_ascii_case(other);
    let controls_transaction =
        ["BEGIN", "START", "COMMIT", "END", "ABORT"].iter().any(|word| is(first, word))
            || is(first, "ROLLBACK") && !is(second, "TO")
            || is(first, "PREPARE") && is(second, "TRANSACTION");
    if controls_transaction {
        return Err(format!("{first}: a step is already one transaction; remove the statement"));
    }
    Ok(())
}

fn is_name_start(c: Option<char>) -> bool {
    c.is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
}

fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Returns the length of the quoted text or comment at the start of `text`; zero if there is none.
fn quoted_length(text: &str) -> usize {
    let until = |end: &str, from: usize| {
        text[from..].find(end).map_or(text.len(), |at| from + at + end.len())
    };
    if text.starts_with('\'') {
        return until("'", 1);
    }
    // In escape strings, a backslash escapes the next character.
    if text.starts_with("E'") || text.starts_with("e'") {
        let mut escaped = false;
        let end = text.char_indices().skip(2).find(|(_, c)| {
            let ends = *c == '\'' && !escaped;
            escaped = *c == '\\' && !escaped;
            ends
        });
        return end.map_or(text.len(), |(at, _)| at + 1);
    }
    if text.starts_with('"') {
        return until("\"", 1);
    }
    if text.starts_with("--") {
        return until("\n", 2);
    }
    if text.starts_with("/*") {
        return comment_length(text);
    }
    // $$ … $$ and $body$ … $body$
    if let Some(after) = text.strip_prefix('$')
        && let Some(end) = after.find('$')
        && after[..end].chars().all(is_name_char)
        && !after.starts_with(|c: char| c.is_ascii_digit())
    {
        let tag = &text[..end + 2];
        return until(tag, tag.len());
    }
    0
}

/// Returns the length of a block comment, which may be nested.
fn comment_length(text: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest.starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Statement, String> {
        Statement::parse(text, |name| ["date", "rows"].contains(&name))
    }

    #[test]
    fn names_become_numbered_parameters() {
        let statement =
            parse("DELETE FROM t WHERE day = :date AND n < :rows::int OR day = :date").unwrap();
        assert_eq!(statement.sql(), "DELETE FROM t WHERE day = $1 AND n < $2::int OR day = $1");
        assert_eq!(statement.placeholders().count(), 2);
    }

    #[test]
    fn quoted_text_and_comments_are_unchanged() {
        for text in [
            "SELECT ':date', \":date\", x::date, 'it''s :date'",
            "SELECT 1 -- :nothing\n, 2 /* :nothing */",
            "SELECT /* one /* two */ :nothing ä */ 1",
            r"SELECT E'it\'s :nothing', e'\\'",
            "DO $$ BEGIN PERFORM :x; END $$",
            "DO $f$ :x $f$",
            "SELECT a[1:2], '2026-01-01 10:30'::timestamp",
        ] {
            let statement = parse(text).unwrap();
            assert_eq!((statement.sql(), statement.placeholders().count()), (text, 0));
        }
    }

    #[test]
    fn transaction_control_is_rejected() {
        for text in ["COMMIT", " /* x */ -- y\n end;", "rollback", "START TRANSACTION", "abort"] {
            let why = parse(text).unwrap_err();
            assert!(why.contains("a step is already one transaction"), "{text}: {why}");
        }
        for text in ["ROLLBACK TO SAVEPOINT a", "SAVEPOINT a", "PREPARE x AS SELECT 1", "", "--"] {
            parse(text).unwrap();
        }
    }

    #[test]
    fn run_fields_are_parameters() {
        let statement = parse("UPDATE t SET token = :run_token WHERE token <= :run_token").unwrap();
        assert_eq!(statement.sql(), "UPDATE t SET token = $1 WHERE token <= $1");
        assert_eq!(statement.placeholders().next(), Some(&Placeholder::Run("token".to_owned())));
    }

    #[test]
    fn undeclared_name_is_rejected() {
        let why = parse("SELECT :dat").unwrap_err();
        assert!(why.contains("`:dat` is not a declared parameter"), "{why}");
    }
}

//! A statement with `:name` where values belong. The names become numbers, and the values are sent
//! apart from the statement.

use crate::template::{OF_RUN, Place};

/// A statement.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Statement {
    sql: String,
    places: Vec<Place>,
}

impl Statement {
    /// Reads a statement; `declared` says which parameters there are.
    pub(super) fn parse(text: &str, declared: impl Fn(&str) -> bool) -> Result<Self, String> {
        check_first_word(text)?;
        let mut statement = Self { sql: String::new(), places: Vec::new() };
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let length = match quoted(rest) {
                0 => first.len_utf8(),
                length => length,
            };
            // A cast is no name, nor is the rest of one.
            if let Some(after) = rest.strip_prefix("::") {
                statement.sql.push_str("::");
                rest = after;
                continue;
            }
            if first == ':' && is_first(rest[1..].chars().next()) {
                let name = &rest[1..];
                let end = name.find(|c: char| !is_letter(c)).unwrap_or(name.len());
                statement.add(&name[..end], &declared)?;
                rest = &name[end..];
                continue;
            }
            statement.sql.push_str(&rest[..length]);
            rest = &rest[length..];
        }
        Ok(statement)
    }

    fn add(&mut self, name: &str, declared: &impl Fn(&str) -> bool) -> Result<(), String> {
        let of_run = name.strip_prefix("run_").filter(|name| OF_RUN.contains(name));
        let place = if declared(name) {
            Place::Parameter(name.to_owned())
        } else if let Some(name) = of_run {
            Place::Run(name.to_owned())
        } else {
            let of_run = OF_RUN.map(|name| format!(":run_{name}")).join(", ");
            return Err(format!("`:{name}` is no declared parameter and none of {of_run}"));
        };
        let known = self.places.iter().position(|known| *known == place);
        let number = known.unwrap_or_else(|| {
            self.places.push(place);
            self.places.len() - 1
        });
        self.sql.push_str(&format!("${}", number + 1));
        Ok(())
    }

    /// What the database is sent.
    pub(super) fn sql(&self) -> &str {
        &self.sql
    }

    /// What `$1`, `$2`, … stand for.
    pub(super) fn places(&self) -> impl Iterator<Item = &Place> {
        self.places.iter()
    }
}

/// A step is one transaction, which begins and ends around its statements.
fn check_first_word(text: &str) -> Result<(), String> {
    let mut rest = text.trim_start();
    while rest.starts_with("--") || rest.starts_with("/*") {
        rest = rest[quoted(rest)..].trim_start();
    }
    let mut words = rest.split(|c: char| !is_letter(c)).filter(|word| !word.is_empty());
    let (first, second) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let is = |word: &str, other: &str| word.eq_ignore_ascii_case(other);
    let ends = ["BEGIN", "START", "COMMIT", "END", "ABORT"].iter().any(|word| is(first, word))
        || is(first, "ROLLBACK") && !is(second, "TO")
        || is(first, "PREPARE") && is(second, "TRANSACTION");
    if ends {
        return Err(format!("{first}: a step is one transaction already; leave it out"));
    }
    Ok(())
}

fn is_first(c: Option<char>) -> bool {
    c.is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
}

fn is_letter(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// How long a quoted text or a comment is that begins here; zero when none does.
fn quoted(text: &str) -> usize {
    let until = |end: &str, from: usize| {
        text[from..].find(end).map_or(text.len(), |at| from + at + end.len())
    };
    if text.starts_with('\'') {
        return until("'", 1);
    }
    // In these a backslash takes the next character along.
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
        return comment(text);
    }
    // $$ … $$ and $body$ … $body$
    if let Some(after) = text.strip_prefix('$')
        && let Some(end) = after.find('$')
        && after[..end].chars().all(is_letter)
        && !after.starts_with(|c: char| c.is_ascii_digit())
    {
        let mark = &text[..end + 2];
        return until(mark, mark.len());
    }
    0
}

/// How long a comment is; there may be others in it.
fn comment(text: &str) -> usize {
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
    fn names_become_numbers() {
        let statement =
            parse("DELETE FROM t WHERE day = :date AND n < :rows::int OR day = :date").unwrap();
        assert_eq!(statement.sql(), "DELETE FROM t WHERE day = $1 AND n < $2::int OR day = $1");
        assert_eq!(statement.places().count(), 2);
    }

    #[test]
    fn what_is_quoted_or_a_comment_is_left_alone() {
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
            assert_eq!((statement.sql(), statement.places().count()), (text, 0));
        }
    }

    #[test]
    fn a_step_is_one_transaction() {
        for text in ["COMMIT", " /* x */ -- y\n end;", "rollback", "START TRANSACTION", "abort"] {
            let why = parse(text).unwrap_err();
            assert!(why.contains("a step is one transaction already"), "{text}: {why}");
        }
        for text in ["ROLLBACK TO SAVEPOINT a", "SAVEPOINT a", "PREPARE x AS SELECT 1", "", "--"] {
            parse(text).unwrap();
        }
    }

    #[test]
    fn the_run_itself_can_be_named() {
        let statement = parse("UPDATE t SET token = :run_token WHERE token <= :run_token").unwrap();
        assert_eq!(statement.sql(), "UPDATE t SET token = $1 WHERE token <= $1");
        assert_eq!(statement.places().next(), Some(&Place::Run("token".to_owned())));
    }

    #[test]
    fn a_name_that_is_not_declared_is_refused() {
        let why = parse("SELECT :dat").unwrap_err();
        assert!(why.contains("`:dat` is no declared parameter"), "{why}");
    }
}

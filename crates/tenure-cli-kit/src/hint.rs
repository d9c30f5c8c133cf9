//! Commands in messages, with the options that make them act on the same server and tenant.
//!
//! A user who chose a server, a data directory or a tenant by an option can copy a command from a
//! message and run it. What the environment says need not be repeated, and a key is never printed.

use std::ffi::OsStr;
use std::sync::OnceLock;

use crate::ServerArgs;

static TARGET: OnceLock<Target> = OnceLock::new();

/// What a command of Tenure acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// A server.
    Server,
    /// A data directory on this machine.
    Data,
    /// Neither.
    Nothing,
}

/// The options of this process that its hints repeat.
struct Target {
    server: String,
    data: String,
    tenant: String,
    /// Returns what a command acts on, given its words after `tenure`.
    scope: fn(&str) -> Scope,
}

/// Remembers the options of this process. Only the first call has an effect.
pub fn remember(args: &ServerArgs, scope: fn(&str) -> Scope) {
    let option = |name: &str, value: Option<&OsStr>, variable: &str| match value {
        Some(value) if std::env::var_os(variable).as_deref() != Some(value) => {
            format!(" {name} {}", quote(&value.to_string_lossy()))
        }
        _ => String::new(),
    };
    TARGET.get_or_init(|| Target {
        server: option("--server", args.server_option().map(OsStr::new), "TENURE_SERVER"),
        data: option("--data", args.data().option().map(|dir| dir.as_os_str()), "TENURE_DATA"),
        tenant: option("--tenant", args.tenant_option().map(OsStr::new), "TENURE_TENANT"),
        scope,
    });
}

/// Returns a message with the missing options added to its commands: those in backquotes, and those
/// after a colon or a comma.
#[must_use]
pub fn complete(message: &str) -> String {
    TARGET.get().map_or_else(|| message.to_owned(), |target| target.complete(message))
}

/// Prints a message with commands on stderr.
pub fn print(message: &str) {
    anstream::eprintln!("{}", complete(message));
}

impl Target {
    fn complete(&self, message: &str) -> String {
        let (mut done, mut rest) = (String::new(), message);
        while let Some((start, length)) = find_command(rest) {
            let (before, after) = rest.split_at(start);
            let (command, after) = after.split_at(length);
            done += before;
            done += &add_options(command, &self.options_for(command));
            rest = after;
        }
        done + rest
    }

    fn options_for(&self, command: &str) -> String {
        let words = command.trim_start_matches("tenure ");
        let unless = |option: &str, text: &str| match command.contains(option) {
            true => String::new(),
            false => text.to_owned(),
        };
        let data = unless("--data", &self.data);
        match (self.scope)(words) {
            Scope::Server if !command.contains("--store") => {
                let tenant = unless("--tenant", &self.tenant);
                tenant + &unless("--server", &self.server) + &data
            }
            Scope::Data => data,
            Scope::Server | Scope::Nothing => String::new(),
        }
    }
}

/// Returns a command with further options. What follows ` -- ` is another program's.
pub(crate) fn add_options(command: &str, options: &str) -> String {
    let end = command.find(" -- ").unwrap_or(command.len());
    let (own, other) = command.split_at(end);
    format!("{own}{options}{other}")
}

/// Returns the start and the length of the first command of Tenure in a message.
fn find_command(message: &str) -> Option<(usize, usize)> {
    message.match_indices("tenure ").find_map(|(start, _)| {
        let (before, rest) = message.split_at(start);
        if before.ends_with('`') {
            return rest.find('`').map(|length| (start, length));
        }
        let is_command = before.ends_with(": ") || before.ends_with(", ");
        is_command.then(|| (start, rest.find([';', ',', '\n']).unwrap_or(rest.len())))
    })
}

/// Returns a word for a shell, in quotes if it needs them.
pub(crate) fn quote(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:@%+=".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_in_messages_get_the_options_of_this_process() {
        let scope = |words: &str| match words.split(' ').next() {
            Some("lock" | "exec" | "job" | "doctor") => Scope::Server,
            Some("serve") => Scope::Data,
            _ => Scope::Nothing,
        };
        let target = Target {
            server: " --server http://b:1".to_owned(),
            data: " --data '/my data'".to_owned(),
            tenant: " --tenant acme".to_owned(),
            scope,
        };
        let all = "--tenant acme --server http://b:1 --data '/my data'";
        for (message, expected) in [
            ("the lock is free".to_owned(), "the lock is free".to_owned()),
            ("see `tenure lock ls`".to_owned(), format!("see `tenure lock ls {all}`")),
            (
                "try: tenure exec demo/a -- sleep 60; or not".to_owned(),
                format!("try: tenure exec demo/a {all} -- sleep 60; or not"),
            ),
            (
                "see: tenure job ls, tenure lock ls".to_owned(),
                format!("see: tenure job ls {all}, tenure lock ls {all}"),
            ),
            (
                "`tenure lock ls --tenant x` and `tenure serve`".to_owned(),
                "`tenure lock ls --tenant x --server http://b:1 --data '/my data'` and `tenure \
                 serve --data '/my data'`"
                    .to_owned(),
            ),
            (
                "`tenure doctor --store URL`: tenure of job 1".to_owned(),
                "`tenure doctor --store URL`: tenure of job 1".to_owned(),
            ),
        ] {
            assert_eq!(target.complete(&message), expected);
        }
    }

    #[test]
    fn words_are_quoted_for_a_shell_if_they_need_it() {
        for (word, quoted) in [
            ("http://[::1]:7117", "'http://[::1]:7117'"),
            ("/var/lib/tenure", "/var/lib/tenure"),
            ("*", "'*'"),
            ("it's", r"'it'\''s'"),
            ("", "''"),
        ] {
            assert_eq!(quote(word), quoted);
        }
    }
}

//! Keeps secrets out of logs.
//!
//! Two nets, since each has holes: what is known to be secret is removed wherever it stands (the
//! values of arguments and environment variables with telling names, and the arguments as a whole),
//! and what looks like a secret is removed by its look. When in doubt it removes too much. It must
//! never be the only thing between a secret and the world: whoever can avoid it, should not print
//! secrets at all.
//!
//! Next: `lines.rs`, which cuts output into the lines that are cleaned here.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::{Captures, Regex};
use serde_json::Value;

/// What stands in place of a secret.
pub const REDACTED: &str = "[redacted]";
/// A secret that is shorter could be part of anything; it is only found by its look.
const SECRET_BYTES_MIN: usize = 4;
/// Values that are no secrets, whatever they are called.
const NO_SECRETS: [&str; 6] = ["true", "false", "null", "none", "default", "disabled"];
/// Arguments that are shorter say nothing as a whole.
const ARGS_BYTES_MIN: usize = 8;
/// The longest private key has fewer lines; whatever comes later is no key.
const KEY_LINES_MAX: usize = 1_000;

/// Words in the name of something whose value is secret.
const WORDS: &str = "password|passwd|passphrase|passcode|secret|token|credential|bearer|jwt|cookie|\
     api[_-]?key|access[_-]?key|account[_-]?key|private[_-]?key|signing[_-]?key|encryption[_-]?key|\
     master[_-]?key|shared[_-]?key|auth[_-]?key|license[_-]?key|webhook[_-]?url";

static NAME: LazyLock<Regex> =
    LazyLock::new(|| regex(&format!(r"(?i){WORDS}|(?:^|[_.-])(?:pass|pwd|pw|auth)$")));

/// `password=…`, `"token": "…"`, `apiKey => …`; the value is the third group.
static ASSIGNED: LazyLock<Regex> = LazyLock::new(|| {
    let name = format!(r"[\w.-]*(?:{WORDS})[\w.-]*|\w+[_.-](?:pass|pwd|pw)\b");
    let value = r#"\\+"[^"\\]*\\+"|"(?:[^"\\]|\\.)*"?|'[^']*'?|[^\s"'&]+"#;
    regex(&format!(r#"(?i)({name})([\\"'\]]*\s*(?:=>|:=|[:=])\s*)({value})"#))
});

/// `--password …`
static FLAG: LazyLock<Regex> = LazyLock::new(|| {
    regex(&format!(r#"(?i)(--[\w-]*(?:{WORDS})[\w-]*\s+)("[^"]*"?|'[^']*'?|[^\s"'-][^\s"']*)"#))
});

/// Headers whose whole value is a credential.
static HEADER: LazyLock<Regex> = LazyLock::new(|| {
    let names = "(?:proxy-)?authorization|x-api-key|x-auth-token|(?:set-)?cookie";
    regex(&format!(r#"(?i)\b({names})(["'\\]*\s*[:=]\s*["'\\]*)[^"'\r\n]+"#))
});

/// User and password in an address.
static ADDRESS: LazyLock<Regex> =
    LazyLock::new(|| regex(r#"(?i)\b([a-z][a-z0-9+.-]*://)[^\s/?\x23"']+@"#));

static BEARER: LazyLock<Regex> = LazyLock::new(|| regex(r"(?i)\b(bearer\s+)[a-z0-9._~+/=-]{16,}"));

/// Credentials that carry a mark of who gave them out.
static MARKED: LazyLock<Regex> = LazyLock::new(|| {
    let kinds = [
        "(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}",
        r"eyJ[\w-]{6,}\.[\w-]{6,}(?:\.[\w-]*)?",
        r"gh[pousr]_\w{16,}",
        r"github_pat_\w{16,}",
        r"glpat-[\w-]{16,}",
        r"xox[abeoprs]-[\w-]{8,}",
        r"AIza[\w-]{30,}",
        r"ya29\.[\w-]{16,}",
        r"[sr]k[-_](?:live_|test_|proj-|ant-)?[\w-]{16,}",
        r"npm_\w{30,}",
        r"hv[sb]\.[\w-]{16,}",
        r"tenure_\w{32,}",
    ];
    regex(&format!(r"\b(?:{})", kinds.join("|")))
});

static KEY_BEGINS: LazyLock<Regex> =
    LazyLock::new(|| regex(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"));
static KEY_ENDS: LazyLock<Regex> =
    LazyLock::new(|| regex(r"-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"));

/// The command's arguments in its environment, as `env` or `set -x` print them.
static ARGS: LazyLock<Regex> = LazyLock::new(|| regex(r"(TENURE_ARGS=).*"));

/// The secrets in the environment of this process, which does not change.
static ENVIRONMENT: LazyLock<Vec<String>> = LazyLock::new(|| {
    // The fencing token is no secret, and the other two are folders.
    let plain = ["TENURE_TOKEN", "PWD", "OLDPWD"];
    let mut secrets = Vec::new();
    for (name, value) in std::env::vars_os() {
        let (name, value) = (name.to_string_lossy(), value.to_string_lossy());
        if looks_secret(&name) && !plain.contains(&&*name) {
            keep(&value, &mut secrets);
        }
    }
    secrets
});

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the patterns of this file compile, a test uses each")
}

fn looks_secret(name: &str) -> bool {
    NAME.is_match(name) && !is_innocent(name)
}

/// Language models count `tokens`, which nobody has to hide.
fn is_innocent(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.ends_with("tokens") || name.contains("tokeniz")
}

/// Remembers a secret, line by line, as output comes in lines, and as JSON writes it.
fn keep(secret: &str, secrets: &mut Vec<String>) {
    for line in secret.lines().map(str::trim) {
        if line.len() >= SECRET_BYTES_MIN && !NO_SECRETS.contains(&&*line.to_ascii_lowercase()) {
            let quoted = Value::from(line).to_string();
            let escaped = quoted.trim_matches('"');
            if escaped != line {
                secrets.push(escaped.to_owned());
            }
            secrets.push(line.to_owned());
        }
    }
}

/// Finds the values with telling names; everything below such a name is one.
fn collect(value: &Value, secret: bool, secrets: &mut Vec<String>) {
    match value {
        Value::String(text) if secret => keep(text, secrets),
        Value::Number(number) if secret => keep(&number.to_string(), secrets),
        Value::Array(items) => items.iter().for_each(|item| collect(item, secret, secrets)),
        Value::Object(fields) => {
            for (name, value) in fields {
                collect(value, secret || looks_secret(name), secrets);
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) | Value::Number(_) => {}
    }
}

fn longest_first(secrets: &mut Vec<String>) {
    secrets.sort_unstable_by(|one, other| other.len().cmp(&one.len()).then_with(|| one.cmp(other)));
    secrets.dedup();
}

/// Removes the secrets of one job.
#[derive(Debug)]
pub(crate) struct Redactor {
    args: Option<String>,
    /// The longest first, so that none is left half.
    secrets: Vec<String>,
}

impl Redactor {
    /// For a job with these arguments, as JSON.
    pub(crate) fn new(args: Option<&str>) -> Self {
        let mut secrets = ENVIRONMENT.clone();
        if let Some(value) = args.and_then(|args| serde_json::from_str(args).ok()) {
            collect(&value, false, &mut secrets);
        }
        longest_first(&mut secrets);
        let args = args.filter(|args| args.len() >= ARGS_BYTES_MIN).map(str::to_owned);
        Self { args, secrets }
    }

    /// One more secret.
    pub(crate) fn keep_secret(&mut self, secret: &str) {
        keep(secret, &mut self.secrets);
        longest_first(&mut self.secrets);
    }

    /// Cleans a text that stands for itself, of one line or several.
    pub(crate) fn text(&self, text: &str) -> String {
        let mut stream = Stream::default();
        let lines = text.lines().filter_map(|line| stream.clean(self, line));
        lines.collect::<Vec<_>>().join("\n")
    }

    fn line(&self, line: &str) -> String {
        let mut line = Cow::Borrowed(line);
        for secret in self.args.iter().chain(&self.secrets) {
            if line.contains(secret.as_str()) {
                line = line.replace(secret.as_str(), REDACTED).into();
            }
        }
        for (pattern, to) in [
            (&ARGS, "${1}[redacted]"),
            (&HEADER, "${1}${2}[redacted]"),
            (&ADDRESS, "${1}[redacted]@"),
            (&MARKED, REDACTED),
            (&BEARER, "${1}[redacted]"),
            (&FLAG, "${1}[redacted]"),
        ] {
            if let Cow::Owned(clean) = pattern.replace_all(&line, to) {
                line = clean.into();
            }
        }
        ASSIGNED.replace_all(&line, hide_value).into_owned()
    }
}

fn hide_value(found: &Captures<'_>) -> String {
    let (name, sign, value) = (&found[1], &found[2], &found[3]);
    if is_innocent(name) {
        return found[0].to_owned();
    }
    // What closes the surroundings of a bare value is not part of it.
    let quoted = value.starts_with(['"', '\'', '\\']);
    let end = if quoted { value.len() } else { value.trim_end_matches([',', ';', ')', '}']).len() };
    let (quote, rest) = match value.chars().next().filter(|_| quoted) {
        Some('\\') => ("\\\"", "\\\""),
        Some('"') => ("\"", "\""),
        Some(_) => ("'", "'"),
        None => ("", &value[end..]),
    };
    format!("{name}{sign}{quote}{REDACTED}{rest}")
}

/// The lines of one source in their order: a private key has several.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// How many lines of a private key have passed.
    key_lines: Option<usize>,
}

impl Stream {
    /// Cleans the next line; nothing is left of a line inside a private key.
    pub(crate) fn clean(&mut self, redactor: &Redactor, line: &str) -> Option<String> {
        let mut clean = String::new();
        let mut rest = line;
        if let Some(passed) = self.key_lines {
            let Some(end) = KEY_ENDS.find(rest) else {
                self.key_lines = Some(passed + 1).filter(|passed| *passed < KEY_LINES_MAX);
                return None;
            };
            self.key_lines = None;
            rest = &rest[end.end()..];
            if rest.is_empty() {
                return None;
            }
        }
        while let Some(begin) = KEY_BEGINS.find(rest) {
            clean.push_str(&redactor.line(&rest[..begin.start()]));
            clean.push_str("[redacted private key]");
            let Some(end) = KEY_ENDS.find(&rest[begin.end()..]) else {
                self.key_lines = Some(0);
                return Some(clean);
            };
            rest = &rest[begin.end() + end.end()..];
        }
        clean.push_str(&redactor.line(rest));
        Some(clean)
    }
}

#[cfg(test)]
mod tests;

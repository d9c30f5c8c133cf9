//! Redacts secrets in logs.
//!
//! Two complementary methods: known secrets are removed wherever they occur (values of arguments
//! and environment variables with telling names, and the arguments as a whole), and text that looks
//! like a secret is removed by pattern. When in doubt it removes too much. It is a last resort:
//! programs should not print secrets at all.
//!
//! See `output.rs`, which splits output into the lines that are redacted here.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::{Captures, Regex};
use serde_json::Value;

/// Replacement for a secret.
pub const REDACTED: &str = "[redacted]";
/// Minimum length of a known secret: a shorter one could be part of anything and is only found by
/// pattern.
const SECRET_BYTES_MIN: usize = 4;
/// Values that are never secret, whatever their name.
const NEVER_SECRET: [&str; 6] = ["true", "false", "null", "none", "default", "disabled"];
/// Minimum length of arguments that are redacted as a whole.
const ARGS_BYTES_MIN: usize = 8;
/// Maximum number of lines of a private key; lines beyond it are not treated as part of the key.
const KEY_LINES_MAX: usize = 1_000;

/// Words that mark a name as that of a secret.
const SECRET_WORDS: &str = "password|passwd|passphrase|passcode|secret|token|credential|bearer|\
     jwt|cookie|\
     api[_-]?key|access[_-]?key|account[_-]?key|private[_-]?key|signing[_-]?key|encryption[_-]?key|\
     master[_-]?key|shared[_-]?key|auth[_-]?key|license[_-]?key|webhook[_-]?url";

static SECRET_NAME: LazyLock<Regex> =
    LazyLock::new(|| regex(&format!(r"(?i){SECRET_WORDS}|(?:^|[_.-])(?:pass|pwd|pw|auth)$")));

/// `password=…`, `"token": "…"`, `apiKey => …`; the value is the third group.
static ASSIGNMENT: LazyLock<Regex> = LazyLock::new(|| {
    let name = format!(r"[\w.-]*(?:{SECRET_WORDS})[\w.-]*|\w+[_.-](?:pass|pwd|pw)\b");
    let value = r#"\\+"[^"\\]*\\+"|"(?:[^"\\]|\\.)*"?|'[^']*'?|[^\s"'&]+"#;
    regex(&format!(r#"(?i)({name})([\\"'\]]*\s*(?:=>|:=|[:=])\s*)({value})"#))
});

/// `--password …`
static FLAG: LazyLock<Regex> = LazyLock::new(|| {
    regex(&format!(
        r#"(?i)(--[\w-]*(?:{SECRET_WORDS})[\w-]*\s+)("[^"]*"?|'[^']*'?|[^\s"'-][^\s"']*)"#
    ))
});

/// Headers whose whole value is a credential.
static HEADER: LazyLock<Regex> = LazyLock::new(|| {
    let names = "(?:proxy-)?authorization|x-api-key|x-auth-token|(?:set-)?cookie";
    regex(&format!(r#"(?i)\b({names})(["'\\]*\s*[:=]\s*["'\\]*)[^"'\r\n]+"#))
});

/// Credentials in a URL.
static URL_CREDENTIALS: LazyLock<Regex> =
    LazyLock::new(|| regex(r#"(?i)\b([a-z][a-z0-9+.-]*://)[^\s/?\x23"']+@"#));

static BEARER: LazyLock<Regex> = LazyLock::new(|| regex(r"(?i)\b(bearer\s+)[a-z0-9._~+/=-]{16,}"));

/// Credentials with a recognizable format.
static KNOWN_FORMAT: LazyLock<Regex> = LazyLock::new(|| {
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

static KEY_BEGIN: LazyLock<Regex> =
    LazyLock::new(|| regex(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"));
static KEY_END: LazyLock<Regex> =
    LazyLock::new(|| regex(r"-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"));

/// The command's arguments as `env` or `set -x` print them.
static ARGS_VARIABLE: LazyLock<Regex> = LazyLock::new(|| regex(r"(TENURE_ARGS=).*"));

/// Secrets in the environment of this process, which does not change.
static ENVIRONMENT_SECRETS: LazyLock<Vec<String>> = LazyLock::new(|| {
    // The fencing token is not secret, and the other two are directories.
    let not_secret = ["TENURE_TOKEN", "PWD", "OLDPWD"];
    let mut secrets = Vec::new();
    for (name, value) in std::env::vars_os() {
        let (name, value) = (name.to_string_lossy(), value.to_string_lossy());
        if is_secret_name(&name) && !not_secret.contains(&&*name) {
            push_secret(&value, &mut secrets);
        }
    }
    secrets
});

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the patterns of this file compile, a test uses each")
}

fn is_secret_name(name: &str) -> bool {
    SECRET_NAME.is_match(name) && !counts_tokens(name)
}

/// Names such as `max_tokens` count tokens of language models.
fn counts_tokens(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.ends_with("tokens") || name.contains("tokeniz")
}

/// Adds a secret, line by line because output is redacted by line, and also in its JSON escaping.
fn push_secret(secret: &str, secrets: &mut Vec<String>) {
    for line in secret.lines().map(str::trim) {
        if line.len() >= SECRET_BYTES_MIN && !NEVER_SECRET.contains(&&*line.to_ascii_lowercase()) {
            let quoted = Value::from(line).to_string();
            let escaped = quoted.trim_matches('"');
            if escaped != line {
                secrets.push(escaped.to_owned());
            }
            secrets.push(line.to_owned());
        }
    }
}

/// Collects the values with telling names; every value below such a name is secret.
fn collect_secrets(value: &Value, secret: bool, secrets: &mut Vec<String>) {
    match value {
        Value::String(text) if secret => push_secret(text, secrets),
        Value::Number(number) if secret => push_secret(&number.to_string(), secrets),
        Value::Array(items) => items.iter().for_each(|item| collect_secrets(item, secret, secrets)),
        Value::Object(fields) => {
            for (name, value) in fields {
                collect_secrets(value, secret || is_secret_name(name), secrets);
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) | Value::Number(_) => {}
    }
}

fn longest_first(secrets: &mut Vec<String>) {
    secrets.sort_unstable_by(|one, other| other.len().cmp(&one.len()).then_with(|| one.cmp(other)));
    secrets.dedup();
}

/// Redacts the secrets of one job.
#[derive(Debug)]
pub(crate) struct Redactor {
    args: Option<String>,
    /// Longest first, so that none is replaced only in part.
    secrets: Vec<String>,
}

impl Redactor {
    /// Creates a redactor for a job with these arguments, as JSON.
    pub(crate) fn new(args: Option<&str>) -> Self {
        let mut secrets = ENVIRONMENT_SECRETS.clone();
        if let Some(value) = args.and_then(|args| serde_json::from_str(args).ok()) {
            collect_secrets(&value, false, &mut secrets);
        }
        longest_first(&mut secrets);
        let args = args.filter(|args| args.len() >= ARGS_BYTES_MIN).map(str::to_owned);
        Self { args, secrets }
    }

    /// Adds a secret.
    pub(crate) fn add_secret(&mut self, secret: &str) {
        push_secret(secret, &mut self.secrets);
        longest_first(&mut self.secrets);
    }

    /// Redacts a complete text of one or several lines.
    pub(crate) fn redact(&self, text: &str) -> String {
        let mut stream = StreamState::default();
        let lines = text.lines().filter_map(|line| stream.redact_line(self, line));
        lines.collect::<Vec<_>>().join("\n")
    }

    fn redact_line(&self, line: &str) -> String {
        let mut line = Cow::Borrowed(line);
        for secret in self.args.iter().chain(&self.secrets) {
            if line.contains(secret.as_str()) {
                line = line.replace(secret.as_str(), REDACTED).into();
            }
        }
        for (pattern, replacement) in [
            (&ARGS_VARIABLE, "${1}[redacted]"),
            (&HEADER, "${1}${2}[redacted]"),
            (&URL_CREDENTIALS, "${1}[redacted]@"),
            (&KNOWN_FORMAT, REDACTED),
            (&BEARER, "${1}[redacted]"),
            (&FLAG, "${1}[redacted]"),
        ] {
            if let Cow::Owned(redacted) = pattern.replace_all(&line, replacement) {
                line = redacted.into();
            }
        }
        ASSIGNMENT.replace_all(&line, redact_value).into_owned()
    }
}

fn redact_value(found: &Captures<'_>) -> String {
    let (name, sign, value) = (&found[1], &found[2], &found[3]);
    if counts_tokens(name) {
        return found[0].to_owned();
    }
    // Punctuation that closes the surrounding expression is not part of a bare value.
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

/// State of redacting the lines of one source in order: a private key spans several lines.
#[derive(Debug, Default)]
pub(crate) struct StreamState {
    /// Number of lines of the current private key so far.
    key_lines: Option<usize>,
}

impl StreamState {
    /// Redacts the next line; `None` for a line inside a private key.
    pub(crate) fn redact_line(&mut self, redactor: &Redactor, line: &str) -> Option<String> {
        let mut redacted = String::new();
        let mut rest = line;
        if let Some(passed) = self.key_lines {
            let Some(end) = KEY_END.find(rest) else {
                self.key_lines = Some(passed + 1).filter(|passed| *passed < KEY_LINES_MAX);
                return None;
            };
            self.key_lines = None;
            rest = &rest[end.end()..];
            if rest.is_empty() {
                return None;
            }
        }
        while let Some(begin) = KEY_BEGIN.find(rest) {
            redacted.push_str(&redactor.redact_line(&rest[..begin.start()]));
            redacted.push_str("[redacted private key]");
            let Some(end) = KEY_END.find(&rest[begin.end()..]) else {
                self.key_lines = Some(0);
                return Some(redacted);
            };
            rest = &rest[begin.end() + end.end()..];
        }
        redacted.push_str(&redactor.redact_line(rest));
        Some(redacted)
    }
}

#[cfg(test)]
mod tests;

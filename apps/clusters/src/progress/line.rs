//! Lines of the log of the installer.
//!
//! | written to | form |
//! |---|---|
//! | `.openshift_install.log` | `time="2026-11-16T03:00:14Z" level=info msg="API v1.32.5 up"` |
//! | a pipe | `level=info msg="API v1.32.5 up"`, or without quotes |
//! | a terminal | `INFO API v1.32.5 up`, possibly in color |

/// Maximum length of a line that is parsed, in bytes; the rest is cut off.
const LINE_BYTES_MAX: usize = 64 * 1024;
/// Texts, in lower case, of which each makes a line secret.
const SECRET_TEXTS: [&str; 6] =
    ["password", "pullsecret", "pull secret:", "secret_access_key", "private key", "bearer "];
/// Beginnings of the ids of access keys on AWS, and the number of characters that follow.
const ACCESS_KEYS: ([&str; 2], usize) = (["AKIA", "ASIA"], 16);

/// Level of a line, from the least to the most severe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Only in the log file.
    Debug,
    /// Progress.
    Info,
    /// Something unexpected that does not prevent success.
    Warning,
    /// A failure, possibly followed by others.
    Error,
    /// The failure that ended the installer.
    Fatal,
}

/// A line with a level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// Level.
    pub level: Level,
    /// Message, without quotes and escapes.
    pub message: String,
}

impl LogLine {
    /// Parses a line; `None` if it has no level, like the second line of a message.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        let line = without_colors(truncate(line, LINE_BYTES_MAX));
        let line = line.trim();
        let (level, message) = parse_fields(line).or_else(|| parse_console(line))?;
        Some(Self { level, message })
    }
}

/// Returns whether a line may contain a credential: it must be neither kept nor shown.
#[must_use]
pub fn is_secret(line: &str) -> bool {
    let lower = line.to_lowercase();
    SECRET_TEXTS.iter().any(|text| lower.contains(text)) || has_access_key(line)
}

fn has_access_key(line: &str) -> bool {
    let (begins, length) = ACCESS_KEYS;
    let is_key = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit();
    begins.into_iter().any(|begin| {
        line.match_indices(begin).any(|(at, _)| {
            line[at + begin.len()..].chars().take_while(|c| is_key(*c)).count() >= length
        })
    })
}

/// Parses `time="…" level=info msg="…"`.
fn parse_fields(line: &str) -> Option<(Level, String)> {
    let rest = match line.strip_prefix("time=") {
        Some(rest) => skip_value(rest).trim_start(),
        None => line,
    };
    let (level, rest) = rest.strip_prefix("level=")?.split_once(' ')?;
    let message = rest.trim_start().strip_prefix("msg=")?;
    let message = match message.strip_prefix('"') {
        Some(quoted) => unescape(quoted),
        None => message.to_owned(),
    };
    Some((parse_level(level)?, message.trim_end().to_owned()))
}

/// Parses `INFO …` and `INFO[0012] …`.
fn parse_console(line: &str) -> Option<(Level, String)> {
    let end = line.find(|c: char| !c.is_ascii_uppercase()).unwrap_or(line.len());
    let (word, rest) = line.split_at(end);
    let level = parse_level(&word.to_lowercase())?;
    let rest = match rest.strip_prefix('[') {
        Some(rest) => {
            let (seconds, rest) = rest.split_once(']')?;
            seconds.bytes().all(|byte| byte.is_ascii_digit()).then_some(rest)?
        }
        None => rest,
    };
    let is_separate = rest.is_empty() || rest.starts_with(' ');
    is_separate.then(|| (level, rest.trim().to_owned()))
}

fn parse_level(level: &str) -> Option<Level> {
    Some(match level {
        "trace" | "debug" => Level::Debug,
        "info" => Level::Info,
        "warning" | "warn" => Level::Warning,
        "error" | "erro" => Level::Error,
        "fatal" | "fata" | "panic" => Level::Fatal,
        _ => return None,
    })
}

/// Returns what follows a value, which may be quoted.
fn skip_value(text: &str) -> &str {
    match text.strip_prefix('"') {
        Some(quoted) => quoted.split_once('"').map_or("", |(_, rest)| rest),
        None => text.split_once(' ').map_or("", |(_, rest)| rest),
    }
}

/// Returns a text up to its closing quote, with the escapes of Go's `strconv.Quote` resolved.
fn unescape(text: &str) -> String {
    let mut message = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => break,
            '\\' => message.extend(escaped(&mut chars)),
            c => message.push(c),
        }
    }
    message
}

fn escaped(chars: &mut std::str::Chars<'_>) -> Option<char> {
    let digits = match chars.next()? {
        'n' => return Some('\n'),
        't' => return Some('\t'),
        'r' => return Some('\r'),
        'a' | 'b' | 'f' | 'v' => return Some(' '),
        'x' => 2,
        'u' => 4,
        'U' => 8,
        c => return Some(c),
    };
    let mut code = 0;
    for _ in 0..digits {
        code = code * 16 + chars.next()?.to_digit(16)?;
    }
    char::from_u32(code)
}

/// Returns the line without the escape sequences of terminals.
fn without_colors(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' && chars.next_if_eq(&'[').is_some() {
            // A sequence ends with a letter.
            chars.by_ref().find(char::is_ascii_alphabetic);
        } else if !c.is_control() || c == '\t' {
            plain.push(c);
        }
    }
    plain
}

/// Returns the beginning of a text, at most so many bytes.
pub(crate) fn truncate(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

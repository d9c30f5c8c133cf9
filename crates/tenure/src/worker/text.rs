//! Text of logs and messages: bounded and without control characters.

use std::borrow::Cow;

/// Maximum number of bytes of a line in the log.
pub(crate) const LOGGED_BYTES_MAX: usize = 8 * 1024;

/// Removes control characters and terminal escape sequences.
pub(crate) fn strip_control(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|c| c.is_control() && c != '\t') {
        return text.into();
    }
    let mut clean = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\x1b' => skip_escape_sequence(&mut chars),
            '\t' => clean.push(c),
            c if c.is_control() => {}
            c => clean.push(c),
        }
    }
    clean.into()
}

fn skip_escape_sequence(chars: &mut std::str::Chars<'_>) {
    match chars.next() {
        Some('[') => drop(chars.find(|c| ('@'..='~').contains(c))),
        Some(']') => drop(chars.find(|c| matches!(c, '\x07' | '\x1b'))),
        _ => {}
    }
}

/// Truncates a text to at most `bytes_max` bytes at a character boundary.
pub(crate) fn truncate(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_truncated_at_character_boundaries() {
        assert_eq!(truncate("aä", 2), "a");
        assert_eq!(truncate("aä", 3), "aä");
    }
}

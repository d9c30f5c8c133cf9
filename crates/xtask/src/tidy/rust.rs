//! A minimal scanner for Rust: finds comments, strings, test code and functions.
//!
//! It is not a parser: it assumes text that compiles and matches brackets. Masked text keeps all
//! byte offsets, so that line numbers stay correct.

use std::ops::Range;

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Function {
    pub(super) name: String,
    pub(super) line: usize,
    /// Number of lines from `fn` to the closing brace.
    pub(super) lines: usize,
}

/// Returns the text with comments, strings and characters replaced by spaces.
pub(super) fn mask(text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    let mut at = 0;
    while at < bytes.len() {
        match literal_end(text.as_bytes(), at) {
            Some(end) => {
                blank(&mut bytes, at..end);
                at = end;
            }
            None => at += 1,
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns masked code with `#[cfg(test)]` items replaced by spaces.
pub(super) fn without_tests(code: &str) -> String {
    let mut bytes = code.as_bytes().to_vec();
    for (at, _) in code.match_indices("#[cfg(test)]") {
        if let Some(body) = body(code.as_bytes(), at + "#[cfg(test)]".len()) {
            blank(&mut bytes, at..body.end);
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns all functions with a body in masked code, including nested ones.
pub(super) fn functions(code: &str) -> Vec<Function> {
    code.match_indices("fn").filter_map(|(at, _)| function_at(code, at)).collect()
}

fn function_at(code: &str, at: usize) -> Option<Function> {
    let bytes = code.as_bytes();
    let after = &code[at + 2..];
    // `fn(u8) -> u8` is a type and `often` is a word.
    if !after.starts_with(char::is_whitespace) || inside_word(bytes, at) {
        return None;
    }
    let body = body(bytes, at)?;
    let name = after.trim_start().chars().take_while(|&c| is_word(c)).collect();
    Some(Function { name, line: line_of(code, at), lines: newlines(&bytes[at..body.end]) + 1 })
}

/// Returns the one-based line of the byte offset `at`.
pub(super) fn line_of(text: &str, at: usize) -> usize {
    newlines(&text.as_bytes()[..at]) + 1
}

/// Returns the braces of the item that starts at `from`, or `None` if it ends with a semicolon.
fn body(code: &[u8], from: usize) -> Option<Range<usize>> {
    let mut depth = 0_usize;
    for (at, byte) in code.iter().enumerate().skip(from) {
        match byte {
            b'(' | b'[' => depth += 1,
            // The end of the enclosing item, as in macro patterns.
            b')' | b']' | b'}' | b';' if depth == 0 => return None,
            b')' | b']' => depth -= 1,
            b'{' if depth == 0 => return Some(at..closing_brace(code, at)?),
            _ => {}
        }
    }
    None
}

/// Returns the offset after the brace that closes the one at `open`.
fn closing_brace(code: &[u8], open: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, byte) in code.iter().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 1 => return Some(at + 1),
            b'}' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Returns the end of the comment or literal that starts at `at`, if one does.
fn literal_end(text: &[u8], at: usize) -> Option<usize> {
    let rest = &text[at..];
    let length = match rest {
        [b'/', b'/', ..] => find(rest, b"\n").unwrap_or(rest.len()),
        [b'/', b'*', ..] => block_comment(rest),
        [b'"', ..] => quoted(rest, b'"'),
        [b'\'', ..] => character(rest)?,
        [b'r' | b'b' | b'c', ..] if !inside_word(text, at) => raw_string(rest)?,
        _ => return None,
    };
    Some(at + length)
}

/// Returns the length of a block comment; they nest in Rust.
fn block_comment(rest: &[u8]) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < rest.len() {
        let step = match &rest[at..] {
            [b'/', b'*', ..] => (1, depth + 1),
            [b'*', b'/', ..] => (1, depth - 1),
            _ => (0, depth),
        };
        at += step.0 + 1;
        depth = step.1;
        if depth == 0 {
            break;
        }
    }
    at
}

/// Returns the length of a quoted literal with backslash escapes; the rest if it is not closed.
fn quoted(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// Returns the length of a character literal such as 'a' or '\n', but not of a lifetime such as 'a.
fn character(rest: &[u8]) -> Option<usize> {
    if rest.get(1) == Some(&b'\\') {
        return Some(quoted(rest, b'\''));
    }
    let length = std::str::from_utf8(&rest[1..rest.len().min(5)])
        .map_or_else(|partial| partial.valid_up_to(), str::len);
    let first = std::str::from_utf8(&rest[1..=length]).ok()?.chars().next()?.len_utf8();
    (rest.get(1 + first) == Some(&b'\'')).then_some(first + 2)
}

/// Returns the length of a raw string: no escapes, closed by as many hashes as opened it.
fn raw_string(rest: &[u8]) -> Option<usize> {
    let prefix = rest.iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
    if !matches!(&rest[..prefix], b"r" | b"br" | b"cr") {
        return None;
    }
    let hashes = rest[prefix..].iter().take_while(|&&byte| byte == b'#').count();
    let start = prefix + hashes + 1;
    if rest.get(start - 1) != Some(&b'"') {
        return None;
    }
    let close = [b"\"".as_slice(), &b"#".repeat(hashes)].concat();
    Some(find(&rest[start..], &close).map_or(rest.len(), |at| start + at + close.len()))
}

fn blank(bytes: &mut [u8], range: Range<usize>) {
    let end = range.end.min(bytes.len());
    for byte in bytes[range.start..end].iter_mut().filter(|byte| **byte != b'\n') {
        *byte = b' ';
    }
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

fn newlines(bytes: &[u8]) -> usize {
    bytes.iter().filter(|&&byte| byte == b'\n').count()
}

fn inside_word(text: &[u8], at: usize) -> bool {
    at > 0 && is_word(char::from(text[at - 1]))
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn masks(text: &str, expected: &str) {
        assert_eq!(mask(text), expected, "{text}");
    }

    #[test]
    fn comments_are_blanked_and_lines_kept() {
        masks("a // {\nb", "a     \nb");
        masks("a /* { /* } */ \n */ b", "a              \n    b");
    }

    #[test]
    fn strings_are_blanked() {
        masks(r#"a "\"{" b"#, "a       b");
        masks(r##"a r#"{""# b"##, "a         b");
        masks(r#"a br"\" b"#, "a       b");
        masks("a \"ä\" b", "a      b");
    }

    #[test]
    fn characters_are_blanked_and_lifetimes_kept() {
        masks("'{' '\\'' 'ä' b'\"'", "              b   ");
        masks("fn f<'a>(x: &'a str)", "fn f<'a>(x: &'a str)");
        masks("&'ä str", "&'ä str");
    }

    #[test]
    fn raw_identifiers_and_words_are_kept() {
        masks("r#type + bar\"{\" + cr", "r#type + bar    + cr");
    }

    #[test]
    fn unclosed_literals_reach_to_the_end() {
        masks("a \"{\\", "a    ");
        masks("a /* {", "a     ");
        masks("a r#\"{\"", "a      ");
        masks("a '", "a '");
    }

    #[test]
    fn functions_are_found_with_their_length() {
        let code = "fn a() {}\nimpl X {\n    fn b(x: [u8; 2]) {\n        c\n    }\n}\n";
        let found: Vec<_> =
            functions(code).into_iter().map(|one| (one.name, one.line, one.lines)).collect();
        assert_eq!(found, [("a".to_owned(), 1, 1), ("b".to_owned(), 3, 3)]);
    }

    #[test]
    fn declarations_types_and_words_are_not_functions() {
        assert_eq!(functions("trait T { fn a(&self); }\ntype F = fn(u8);\nlet often = 1;"), []);
        assert_eq!(functions("macro_rules! m { (fn $name:ident) => { $name }; }"), []);
    }

    #[test]
    fn test_modules_are_left_out() {
        let code = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n";
        let names: Vec<_> =
            functions(&without_tests(code)).into_iter().map(|one| one.name).collect();
        assert_eq!(names, ["a", "c"]);
    }

    #[test]
    fn test_module_declarations_hide_nothing() {
        let code = "#[cfg(test)]\nmod tests;\nfn c() {}\n";
        assert_eq!(without_tests(code), code);
    }
}

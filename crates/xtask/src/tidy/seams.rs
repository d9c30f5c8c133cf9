//! The rules that only files named `clock.rs` read the clock, and that users of the library need no
//! other crate.
//!
//! Clippy forbids the same calls by their resolved paths (`clippy.toml`), but an attribute can
//! disable it anywhere; this rule restricts where that is possible and cannot be disabled.

use super::{Finding, file_name, is_rust, is_under, rust};

const CLOCK_CALLS: [&str; 4] =
    ["SystemTime::now", "Instant::now", "Timestamp::now", "thread::sleep"];

pub(super) fn clock(path: &str, text: &str) -> Vec<Finding> {
    if !is_rust(path) || may_read_time(path) {
        return Vec::new();
    }
    let code = rust::mask(text);
    CLOCK_CALLS.iter().flat_map(|call| calls(path, &code, call)).collect()
}

fn calls(path: &str, code: &str, call: &str) -> Vec<Finding> {
    // `BootInstant::now` is the project's own clock.
    let whole = |at: &usize| !code[..*at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
    let found = code.match_indices(call).map(|(at, _)| at).filter(whole);
    let found = found.map(|at| rust::line_of(code, at));
    found.map(|line| Finding::new(path, line, format!("`{call}` outside of clock.rs"))).collect()
}

fn may_read_time(path: &str) -> bool {
    let measures = ["bench", "tests"].iter().any(|folder| is_under(path, folder));
    measures || file_name(path) == "clock.rs" || path.starts_with("crates/xtask/")
}

/// Crates that the library re-exports: its examples must not need them.
const INNER_CRATES: [&str; 3] = ["tenure_core::", "tenure_store::", "tenure_wire::"];

pub(super) fn library_examples(path: &str, text: &str) -> Vec<Finding> {
    let Some(file) = path.strip_prefix("crates/tenure/") else { return Vec::new() };
    let is_example = file == "README.md" || file.starts_with("examples/");
    let is_shown = |line: &str| {
        let line = line.trim_start();
        is_example
            || (file.starts_with("src/") && (line.starts_with("///") || line.starts_with("//!")))
    };
    let shown = text.lines().zip(1..).filter(|(line, _)| is_shown(line));
    let inner = |line: &str| INNER_CRATES.into_iter().find(|name| line.contains(name));
    let message = |name| format!("`{name}` in an example of the library: use the re-export");
    shown.filter_map(|(line, at)| Some(Finding::new(path, at, message(inner(line)?)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_of_the_library_use_its_re_exports() {
        let path = "crates/tenure/src/client.rs";
        let found =
            library_examples(path, "use tenure_core::Token;\n/// # use tenure_core::Token;\n");
        assert_eq!(found.iter().map(|finding| finding.line).collect::<Vec<_>>(), [2]);
        let example = "use tenure_store::Memory;\n";
        assert_eq!(library_examples("crates/tenure/examples/a.rs", example).len(), 1);
        assert_eq!(library_examples("crates/tenure/tests/a.rs", example), []);
        assert_eq!(library_examples("crates/tenure-server/src/a.rs", example), []);
    }

    #[test]
    fn every_clock_call_is_found_outside_its_seam() {
        for call in CLOCK_CALLS {
            let text = format!("//! Doc.\nlet x = {call}();\n");
            let expected = Finding::new("src/a.rs", 2, format!("`{call}` outside of clock.rs"));
            assert_eq!(clock("src/a.rs", &text), [expected]);
        }
    }

    #[test]
    fn clock_calls_are_allowed_in_their_seams() {
        for path in ["src/clock.rs", "src/bench/run.rs", "tests/a.rs", "crates/xtask/src/a.rs"] {
            assert_eq!(clock(path, "let x = Instant::now();\n"), [], "{path}");
        }
    }

    #[test]
    fn comments_and_strings_may_name_the_clock() {
        assert_eq!(clock("src/a.rs", "let x = BootInstant::now();\n"), []);
        assert_eq!(clock("src/a.rs", "// never Instant::now\nlet x = \"Instant::now\";\n"), []);
    }
}

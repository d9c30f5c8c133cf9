//! Rules about the length of files and functions, and about module docs.
//!
//! There are deliberately no exceptions: files and functions that are too long are split.

use super::{Finding, file_name, is_rust, is_under, rust};

const FILE_LINES_MAX: usize = 500;
const FUNCTION_LINES_MAX: usize = 70;
/// Length up to which a test file, such as one that only declares modules, needs no module doc.
const TINY_LINES_MAX: usize = 20;

/// Extensions of hand-written files; lock files and committed contracts are generated.
const HAND_WRITTEN: [&str; 8] = [".rs", ".sql", ".lua", ".py", ".sh", ".js", ".css", ".html"];

pub(super) fn file_length(path: &str, text: &str) -> Vec<Finding> {
    let lines = text.lines().count();
    if lines <= FILE_LINES_MAX || !HAND_WRITTEN.iter().any(|ending| path.ends_with(ending)) {
        return Vec::new();
    }
    vec![Finding::new(path, lines, format!("{lines} lines, the limit is {FILE_LINES_MAX}"))]
}

pub(super) fn function_length(path: &str, text: &str) -> Vec<Finding> {
    if !is_rust(path) || is_test(path) {
        return Vec::new();
    }
    let functions = rust::functions(&rust::without_tests(&rust::mask(text)));
    let long = functions.iter().filter(|function| function.lines > FUNCTION_LINES_MAX);
    long.map(|function| too_long(path, function)).collect()
}

fn too_long(path: &str, function: &rust::Function) -> Finding {
    let rust::Function { name, line, lines } = function;
    Finding::new(
        path,
        *line,
        format!("fn {name}: {lines} lines, the limit is {FUNCTION_LINES_MAX}"),
    )
}

pub(super) fn module_doc(path: &str, text: &str) -> Vec<Finding> {
    let exempt = !is_rust(path) || file_name(path) == "build.rs" || is_tiny_test(path, text);
    if exempt || text.trim_start().starts_with("//!") {
        return Vec::new();
    }
    vec![Finding::new(path, 1, "no module doc: start with `//!` and describe the file")]
}

fn is_tiny_test(path: &str, text: &str) -> bool {
    is_under(path, "tests") && text.lines().count() <= TINY_LINES_MAX
}

fn is_test(path: &str) -> bool {
    is_under(path, "tests") || file_name(path) == "tests.rs"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function_of(lines: usize) -> String {
        format!("//! Doc.\nfn long() {{\n{}}}\n", "    a();\n".repeat(lines - 2))
    }

    #[test]
    fn file_length_stops_at_the_limit() {
        assert_eq!(file_length("a.rs", &"\n".repeat(500)), []);
        assert_eq!(file_length("a.rs", &"\n".repeat(501)).len(), 1);
        assert_eq!(file_length("a.sql", &"\n".repeat(501)).len(), 1);
        assert_eq!(file_length("Cargo.lock", &"\n".repeat(501)), []);
    }

    #[test]
    fn function_length_stops_at_the_limit() {
        assert_eq!(function_length("src/a.rs", &function_of(70)), []);
        let found = function_length("src/a.rs", &function_of(71));
        assert_eq!(found, [Finding::new("src/a.rs", 2, "fn long: 71 lines, the limit is 70")]);
    }

    #[test]
    fn function_length_ignores_tests() {
        assert_eq!(function_length("tests/a.rs", &function_of(71)), []);
        assert_eq!(function_length("src/a/tests.rs", &function_of(71)), []);
        let inside = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", function_of(71));
        assert_eq!(function_length("src/a.rs", &inside), []);
    }

    #[test]
    fn module_doc_must_come_first() {
        assert_eq!(module_doc("src/a.rs", "//! Says why.\nuse a;\n"), []);
        assert_eq!(module_doc("src/a.rs", "use a;\n//! Says why.\n").len(), 1);
        assert_eq!(module_doc("src/a.rs", "").len(), 1);
    }

    #[test]
    fn module_doc_is_not_required_in_build_scripts_and_tiny_tests() {
        assert_eq!(module_doc("build.rs", "fn main() {}\n"), []);
        assert_eq!(module_doc("a.md", "text\n"), []);
        assert_eq!(module_doc("tests/a.rs", &"mod a;\n".repeat(20)), []);
        assert_eq!(module_doc("tests/a.rs", &"mod a;\n".repeat(21)).len(), 1);
    }
}

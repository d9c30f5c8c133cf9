//! JUnit XML of a report, as CI systems read it.

use std::fmt::Write as _;

use crate::state::TestState;
use crate::wire::{BuildReportResponse, TestReport};

/// Returns the report of a build with all its tests as JUnit XML.
#[must_use]
pub(crate) fn render(report: &BuildReportResponse) -> String {
    let tests = report.tests.as_deref().unwrap_or_default();
    let (name, total, failed) = (escape(&report.build), tests.len(), report.failed);
    let (skipped, time) = (report.unfinished + report.flaky, seconds(report.duration_ms));
    let counts = format!(
        "name=\"{name}\" tests=\"{total}\" failures=\"{failed}\" errors=\"0\" \
         skipped=\"{skipped}\" time=\"{time}\""
    );
    let mut xml = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n".to_owned();
    write(&mut xml, &format!("<testsuites {counts}>\n  <testsuite {counts}>\n"));
    for test in tests {
        case(&mut xml, test);
    }
    xml + "  </testsuite>\n</testsuites>\n"
}

fn write(xml: &mut String, text: &str) {
    write!(xml, "{text}").expect("writing to a string does not fail");
}

fn case(xml: &mut String, test: &TestReport) {
    // The form of pytest, RSpec and others: what precedes the last separator is the class.
    let (class, name) = test.test.rsplit_once("::").unwrap_or(("", &test.test));
    let time = seconds(test.duration_ms.unwrap_or(0));
    let (class, name) = (escape(class), escape(name));
    write(xml, &format!("    <testcase classname=\"{class}\" name=\"{name}\" time=\"{time}\""));
    let state = TestState::parse(&test.state);
    let (code, text) = (test.code.as_deref().unwrap_or(""), test.message.as_deref().unwrap_or(""));
    let (code, text) = (escape(code), escape(text));
    match state {
        Some(TestState::Passed) => write(xml, "/>\n"),
        Some(TestState::Failed) => {
            write(xml, &format!(">\n      <failure message=\"{code}\">{text}</failure>\n"));
            write(xml, "    </testcase>\n");
        }
        Some(TestState::Flaky) => {
            write(xml, &format!(">\n      <skipped message=\"known to be flaky: {code}\"/>\n"));
            write(xml, "    </testcase>\n");
        }
        _ => write(xml, ">\n      <skipped message=\"not run\"/>\n    </testcase>\n"),
    }
}

fn seconds(ms: u64) -> String {
    format!("{}.{:03}", ms / 1_000, ms % 1_000)
}

/// Escapes text for XML, without the characters that XML does not allow.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' => escaped.push_str("&#10;"),
            '\t' => escaped.push_str("&#9;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => {}
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::MasterStatus;

    fn test(name: &str, state: TestState, message: Option<&str>) -> TestReport {
        TestReport {
            index: 0,
            test: name.to_owned(),
            state: state.as_str().to_owned(),
            worker: Some("n1".to_owned()),
            duration_ms: Some(1_250),
            ended_at: None,
            failures: 0,
            losses: 0,
            code: message.map(|_| "EXIT_1".to_owned()),
            message: message.map(str::to_owned),
        }
    }

    #[test]
    fn each_test_is_a_case_and_texts_are_escaped() {
        let tests = vec![
            test("tests/a.py::test_<b>", TestState::Passed, None),
            test("plain", TestState::Failed, Some("x < \"y\" & \u{1b}z\n")),
            test("later", TestState::Pending, None),
        ];
        let report = BuildReportResponse {
            build: "a&b".to_owned(),
            master_status: MasterStatus::Finished,
            term: None,
            total: 3,
            passed: 1,
            failed: 1,
            flaky: 0,
            unfinished: 1,
            requeues: 0,
            losses: 0,
            duration_ms: 5_001,
            failures: Vec::new(),
            flaky_tests: Vec::new(),
            lost_tests: Vec::new(),
            workers: Vec::new(),
            tests: Some(tests),
        };
        let xml = render(&report);
        assert!(xml.contains("name=\"a&amp;b\" tests=\"3\" failures=\"1\""), "{xml}");
        assert!(xml.contains("classname=\"tests/a.py\" name=\"test_&lt;b&gt;\" time=\"1.250\"/>"));
        assert!(xml.contains("<failure message=\"EXIT_1\">x &lt; &quot;y&quot; &amp; z&#10;<"));
        assert!(xml.contains("<skipped message=\"not run\"/>"));
    }
}

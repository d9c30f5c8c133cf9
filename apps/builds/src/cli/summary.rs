//! The summary of a build, which is the same on every node, and the files with its results.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use tenure_cli_kit::text::{format_duration, print_line, sanitize};
use tenure_cli_kit::{Done, Output, color, print_json};

use crate::junit;
use crate::node::api::BuildApi;
use crate::node::end::{FAILED, PASSED, Stopped};
use crate::wire::{BuildReportResponse, MasterStatus, TestReport};

/// Maximum number of tests that are listed for each result; `-o json` has all.
const LISTED_MAX: usize = 100;

/// Files with the results.
pub(super) struct Files<'a> {
    pub(super) junit: Option<&'a Path>,
    pub(super) failures: Option<&'a Path>,
}

/// Prints the results of a build, and returns its exit code. A build that is not finished has not
/// passed.
pub(super) async fn print(api: &BuildApi, output: Output, files: &Files<'_>) -> Done {
    let report = print_so_far(api, output, files).await?;
    Ok(match report.master_status {
        MasterStatus::Finished if report.failed == 0 => ExitCode::from(PASSED),
        MasterStatus::Finished => ExitCode::from(FAILED),
        _ => super::stopped(&Stopped::TimedOut(unfinished(&report))),
    })
}

/// Prints the results that a build has so far.
pub(super) async fn print_so_far(
    api: &BuildApi,
    output: Output,
    files: &Files<'_>,
) -> anyhow::Result<BuildReportResponse> {
    let report = api.report(files.junit.is_some() || output == Output::Json).await?;
    write(&report, files)?;
    match output {
        Output::Json => print_json(&report)?,
        Output::Table => print_line(&text(&report))?,
    }
    Ok(report)
}

/// Describes a build that is not finished.
fn unfinished(report: &BuildReportResponse) -> String {
    let build = sanitize(&report.build);
    match report.term {
        Some(_) => {
            let left = report.unfinished;
            format!("build {build} is not finished: {left} tests have no result yet")
        }
        None => format!("build {build} is not finished: its tests are not published yet"),
    }
}

fn write(report: &BuildReportResponse, files: &Files<'_>) -> anyhow::Result<()> {
    let write = |file: &Path, text: String| {
        std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
    };
    if let Some(file) = files.junit {
        write(file, junit::render(report))?;
    }
    if let Some(file) = files.failures {
        let tests: Vec<String> =
            report.failures.iter().map(|test| format!("{}\n", test.test)).collect();
        write(file, tests.concat())?;
    }
    Ok(())
}

/// Returns the summary.
pub(super) fn text(report: &BuildReportResponse) -> String {
    let build = sanitize(&report.build);
    if report.total == 0 && report.term.is_some() {
        return format!("build {build}: no tests");
    }
    let counts = [
        (report.passed, "passed"),
        (report.failed, "failed"),
        (report.flaky, "known to be flaky"),
        (report.unfinished, "not run"),
    ];
    let counts: Vec<String> = counts
        .into_iter()
        .filter(|(count, what)| *count > 0 || *what == "passed")
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    let mut lines = vec![format!(
        "build {build}: {} tests, {} in {}",
        report.total,
        counts.join(", "),
        format_duration(report.duration_ms)
    )];
    let again = [
        (report.requeues, "failed", "repeated"),
        (report.losses, "lost", "repeated on another node"),
    ];
    for (count, how, what) in again.into_iter().filter(|(count, ..)| *count > 0) {
        let (runs, were) = if count == 1 { ("run", "was") } else { ("runs", "were") };
        lines.push(format!("{count} {how} {runs} {were} {what}"));
    }
    list(&mut lines, "FAILED", &report.failures);
    list(&mut lines, "FLAKY", &report.flaky_tests);
    list(&mut lines, "LOST", &report.lost_tests);
    let workers = report.workers.iter().map(|worker| {
        let (name, time) = (sanitize(&worker.worker), format_duration(worker.duration_ms));
        format!("{name} {} tests in {time}", worker.tests)
    });
    lines.push(format!("nodes: {}", workers.collect::<Vec<_>>().join(", ")));
    lines.join("\n")
}

fn list(lines: &mut Vec<String>, state: &str, tests: &[TestReport]) {
    for test in tests.iter().take(LISTED_MAX) {
        let mut line = format!("{} {}", color::state(state), sanitize(&test.test));
        if let Some(worker) = &test.worker {
            line += &format!(" on {}", sanitize(worker));
        }
        if test.failures > 0 {
            let times =
                if test.failures == 1 { "once" } else { &format!("{} times", test.failures) };
            line += &format!(", failed {times}");
        }
        if test.losses > 0 {
            let nodes = if test.losses == 1 { "node" } else { "nodes" };
            line += &format!(", lost {} {nodes}", test.losses);
        }
        if let Some(code) = &test.code {
            line += &format!(" ({})", sanitize(code));
        }
        lines.push(line);
        if state == "FAILED" {
            let message = test.message.as_deref().unwrap_or_default();
            lines.extend(message.lines().map(|line| format!("    {}", sanitize(line))));
        }
    }
    if tests.len() > LISTED_MAX {
        lines.push(format!("{state}: and {} more; -o json lists all", tests.len() - LISTED_MAX));
    }
}

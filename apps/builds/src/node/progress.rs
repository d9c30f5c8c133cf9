//! What a node shows while it works: one line that is redrawn, and the output of failed tests.

use std::time::Duration;

use tenure::clock::BootInstant;
use tenure_cli_kit::status_line::StatusLine;
use tenure_cli_kit::text::{format_duration, sanitize};
use tenure_cli_kit::{color, message};

use crate::wire::{AckVerdict, BuildInfo, MasterStatus, ReservedTest, TestResult};

/// Where no terminal is redrawn, a line is printed for each tenth of the tests.
const STEPS: usize = 10;

/// Interval at which the tests without a final result are counted.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);

/// The display of a node.
pub(crate) struct Progress {
    build: String,
    line: StatusLine,
    leader: String,
    total: usize,
    remaining: usize,
    /// Number of tests without a result at the start, and the time of the start.
    started: (usize, BootInstant),
    /// Time of the last count of those.
    counted: BootInstant,
    run: usize,
    failed: usize,
    requeued: usize,
    current: String,
}

impl Progress {
    pub(super) fn new(build: &str) -> Self {
        Self {
            build: sanitize(build),
            line: StatusLine::new(),
            leader: String::new(),
            total: 0,
            remaining: 0,
            started: (0, BootInstant::now()),
            counted: BootInstant::now(),
            run: 0,
            failed: 0,
            requeued: 0,
            current: String::new(),
        }
    }

    pub(super) fn clear(&mut self) {
        self.line.clear();
    }

    /// Shows what the node waits for.
    pub(super) fn waiting(&mut self, build: &BuildInfo) {
        let leader = build.master_worker_id.as_deref().map(sanitize);
        let what = match (build.master_status, leader) {
            (MasterStatus::Setup, Some(leader)) => {
                let age = format_duration(build.master_setup_heartbeat_age_ms.unwrap_or(0));
                let change = format!("{leader} leads");
                let line = format!("{leader} prepares the tests, heartbeat {age} ago");
                self.line.show(&format!("build {}: {line}", self.build), &change);
                return;
            }
            _ => "waiting for a leader",
        };
        self.line.show(&format!("build {}: {what}", self.build), what);
    }

    /// Starts to show the tests of a build.
    pub(super) fn start(&mut self, build: &BuildInfo) {
        self.total = build.total.unwrap_or(0);
        self.leader = build.master_worker_id.as_deref().map(sanitize).unwrap_or_default();
        self.started = (build.remaining, BootInstant::now());
        self.update(build.remaining);
    }

    /// Shows the number of tests without a final result.
    pub(super) fn update(&mut self, remaining: usize) {
        (self.remaining, self.counted) = (remaining, BootInstant::now());
        self.draw();
    }

    /// Returns whether the number that is shown is old.
    pub(super) fn wants_count(&self) -> bool {
        (self.counted + COUNT_INTERVAL).has_passed()
    }

    pub(super) fn running(&mut self, tests: &[ReservedTest]) {
        self.current = match tests {
            [test] => sanitize(&test.test),
            tests => format!("{} tests", tests.len()),
        };
        self.draw();
    }

    /// Counts a result.
    pub(super) fn verdict(&mut self, result: &TestResult, verdict: AckVerdict) {
        let test = sanitize(&result.test);
        match verdict {
            AckVerdict::Passed | AckVerdict::Flaky => self.run += 1,
            AckVerdict::Failed => (self.run, self.failed) = (self.run + 1, self.failed + 1),
            AckVerdict::Requeued => {
                self.requeued += 1;
                self.say(&format!("{test} is run again"));
            }
            AckVerdict::Returned => {}
            AckVerdict::Lost => {
                self.say(&format!("{test} was lost to another node; its result does not count"));
            }
        }
    }

    /// Shows the output of a failed test.
    pub(super) fn failed(&mut self, test: &str, code: &str, output: &str) {
        self.line.clear();
        let head = color::state(&format!("FAILED {} ({})", sanitize(test), sanitize(code)));
        anstream::eprintln!("{head}");
        for line in output.lines() {
            anstream::eprintln!("    {line}");
        }
    }

    fn say(&mut self, text: &str) {
        self.line.clear();
        message::say(text);
    }

    fn draw(&mut self) {
        let done = self.total.saturating_sub(self.remaining);
        let (total, rate) = (self.total, self.rate());
        let mut line = format!("build {}: {done}/{total} tests, {rate}/s", self.build);
        if self.failed > 0 {
            line += &format!(", {} failed here", self.failed);
        }
        if self.requeued > 0 {
            line += &format!(", {} run again", self.requeued);
        }
        line += &format!(", {} leads; {}", self.leader, self.current);
        let change = (done * STEPS).checked_div(total).unwrap_or(STEPS).to_string();
        self.line.show(line.trim_end_matches("; "), &change);
    }

    /// Returns the number of tests that all nodes finish per second.
    fn rate(&self) -> usize {
        let (remaining, since) = self.started;
        let elapsed = BootInstant::now().saturating_duration_since(since);
        let elapsed = elapsed.max(Duration::from_millis(1)).as_millis();
        let done = remaining.saturating_sub(self.remaining) as u128;
        usize::try_from(done * 1_000 / elapsed).unwrap_or(usize::MAX)
    }
}

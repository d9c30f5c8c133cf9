//! What must be true again after each fault, and the report of how long that took.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::clock::{stopwatch, until};
use crate::load::{Caller, Load};
use crate::site::{Fleet, RESOURCES, WORKERS, traces};
use crate::trace::Trace;

/// One line of the report.
struct Line {
    fault: &'static str,
    times: usize,
    recovered: Duration,
    jobs: usize,
    commands: usize,
}

/// What came of all faults.
#[derive(Default)]
pub(crate) struct Report {
    lines: Vec<Line>,
    probes: usize,
}

impl Report {
    /// Lets a fault happen, and waits until everything is as before.
    pub(crate) fn phase(
        &mut self,
        fleet: &mut Fleet,
        load: &Load,
        fault: &'static str,
        inject: impl FnOnce(&mut Fleet, &Load) -> usize,
    ) {
        println!("{fault} ...");
        let (jobs, commands) = (load.board.done(), load.board.commands());
        let times = inject(fleet, load);
        let over = stopwatch();
        self.back_again(fleet, load);
        let recovered = over.elapsed();
        let (jobs, commands) = (load.board.done() - jobs, load.board.commands() - commands);
        fleet.check(load, self.lines.len() % 2);
        self.lines.push(Line { fault, times, recovered, jobs, commands });
        println!("{fault}: recovered after {recovered:?}, {jobs} jobs");
    }

    /// Waits until both servers are ready, everybody works and every lane moves.
    pub(crate) fn back_again(&mut self, fleet: &Fleet, load: &Load) {
        for n in 0..2 {
            let link = fleet.link(n);
            until(|| {
                let ready = load.runtime.block_on(link.get::<Value>("/readyz"));
                let ready =
                    ready.map_err(|error| format!("server {n}: {error}; {}", fleet.logs()))?;
                if ready["ready"] == true { Ok(()) } else { Err(ready.to_string()) }
            });
        }
        let commands = load.board.commands();
        let known: BTreeSet<String> = load.board.acknowledged().into_keys().collect();
        let open = format!(
            "SELECT id FROM tenure.jobs WHERE ended IS NULL AND id IN ('{}')",
            known.into_iter().collect::<Vec<_>>().join("','")
        );
        self.probes += 1;
        let by = format!("probe {}", self.probes);
        let probe = |resource| {
            let links = [fleet.link(0), fleet.link(1)];
            let (board, by) = (Arc::clone(&load.board), by.clone());
            let mut caller = Caller { board, links, resource, priority: 1000, asked: 0 };
            let probing = async move {
                // The first asks one server, the second the other.
                let jobs = [caller.submit(&by).await, caller.submit(&by).await];
                for job in jobs {
                    caller.over(&job.expect("it is taken")).await;
                }
            };
            let most = Duration::from_secs(40);
            load.runtime.spawn(async move { tokio::time::timeout(most, probing).await })
        };
        let probes: Vec<_> = RESOURCES.into_iter().map(probe).collect();
        for (probe, resource) in probes.into_iter().zip(RESOURCES) {
            let probed = load.runtime.block_on(probe).expect("it does not panic");
            assert!(probed.is_ok(), "{resource} does not move: {}", fleet.logs());
        }
        until(|| match fleet.sql(&open)? {
            none if none.is_empty() => Ok(()),
            some => Err(format!("not over: {some}; {}", fleet.logs())),
        });
        until(|| fleet.all_work(load));
        until(|| match load.board.commands() - commands {
            0 => Err(format!("nobody gets a lock: {}", fleet.logs())),
            _ => Ok(()),
        });
    }
}

impl Drop for Report {
    /// Prints it, also when a phase has failed.
    fn drop(&mut self) {
        if self.lines.is_empty() {
            return;
        }
        let [a, b, c, d, e] = ["FAULT", "TIMES", "RECOVERED AFTER", "JOBS", "COMMANDS"];
        println!("\n{a:<58} {b:>5} {c:>15} {d:>5} {e:>8}");
        for Line { fault, times, recovered, jobs, commands } in &self.lines {
            let seconds = format!("{:.2} s", recovered.as_secs_f64());
            println!("{fault:<58} {times:>5} {seconds:>15} {jobs:>5} {commands:>8}");
        }
    }
}

impl Fleet {
    /// Whether each worker has a session that asks for jobs.
    fn all_work(&self, load: &Load) -> Result<(), String> {
        let workers = load.runtime.block_on(self.link(1).get::<Value>("/v1/workers"));
        let workers = workers.map_err(|error| error.to_string())?;
        let items = workers["items"].as_array().expect("a list").iter();
        let names: BTreeSet<&str> = items.filter_map(|worker| worker["name"].as_str()).collect();
        let missing = WORKERS.iter().find(|name| !names.contains(**name));
        missing.map_or(Ok(()), |name| Err(format!("{name} does not work: {}", self.logs())))
    }

    /// Nothing was lost or done twice at once, and the history proves it.
    pub(crate) fn check(&self, load: &Load, server: usize) {
        assert_eq!(load.board.problems(), [] as [String; 0], "{}", self.logs());
        let acknowledged = load.board.acknowledged();
        // Reading all of history brings the tables up to date.
        let verified = self.verify(server);
        assert!(verified.is_ok(), "{verified:?}\n{}", self.logs());
        let known = self.sql("SELECT id FROM tenure.jobs").expect("it answers");
        let known: BTreeSet<&str> = known.lines().collect();
        let lost: Vec<_> = acknowledged.keys().filter(|id| !known.contains(&***id)).collect();
        assert!(lost.is_empty(), "acknowledged, and lost: {lost:?}\n{}", self.logs());
        let trace = Trace::read(&traces(self.dir.path()));
        assert_eq!(trace.falls, [] as [String; 0], "{}", self.logs());
        assert_eq!(trace.overlaps, [] as [String; 0], "{}", self.logs());
    }

    /// When nobody asks any more: each job was made once, and was done.
    pub(crate) fn check_the_end(&self, load: &Load) {
        self.check(load, 1);
        let count =
            |sql: &str| -> usize { self.sql(sql).expect("it answers").parse().expect("a number") };
        let (made, acknowledged) =
            (count("SELECT count(*) FROM tenure.jobs"), load.board.acknowledged().len());
        assert_eq!(made, acknowledged, "a repeated submit made a second job");
        let done = count("SELECT count(*) FROM tenure.jobs WHERE state = 'succeeded'");
        assert_eq!(done, acknowledged, "some are not done");
        let trace = Trace::read(&traces(self.dir.path()));
        let least = acknowledged + load.board.commands();
        assert!(trace.ended >= least, "{} ended, {least} were told", trace.ended);
        let (begun, ended) = (trace.begun, trace.ended);
        println!("{acknowledged} jobs; {begun} runs, {} of them cut short", begun - ended);
        println!("{}", self.verify(0).expect("it is proven"));
    }
}

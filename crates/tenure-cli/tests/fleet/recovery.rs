//! Checks after each fault, and the report of the recovery times.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::clock::{stopwatch, until};
use crate::load::{Caller, Load};
use crate::site::{Fleet, RESOURCES, WORKERS, traces};
use crate::trace::Trace;

/// One row of the report.
struct PhaseResult {
    fault: &'static str,
    times: usize,
    recovered: Duration,
    jobs: usize,
    commands: usize,
}

/// Results of all faults, printed on drop.
#[derive(Default)]
pub(crate) struct Report {
    phases: Vec<PhaseResult>,
    probes: usize,
}

impl Report {
    /// Injects a fault and waits until the fleet has recovered.
    pub(crate) fn phase(
        &mut self,
        fleet: &mut Fleet,
        load: &Load,
        fault: &'static str,
        inject: impl FnOnce(&mut Fleet, &Load) -> usize,
    ) {
        println!("{fault} ...");
        let (jobs, commands) = (load.ledger.done(), load.ledger.commands());
        let times = inject(fleet, load);
        let injected = stopwatch();
        self.wait_until_recovered(fleet, load);
        let recovered = injected.elapsed();
        let (jobs, commands) = (load.ledger.done() - jobs, load.ledger.commands() - commands);
        fleet.check(load, self.phases.len() % 2);
        self.phases.push(PhaseResult { fault, times, recovered, jobs, commands });
        println!("{fault}: recovered after {recovered:?}, {jobs} jobs");
    }

    /// Waits until both servers are ready, all workers have sessions and every lane makes progress.
    pub(crate) fn wait_until_recovered(&mut self, fleet: &Fleet, load: &Load) {
        for n in 0..2 {
            let transport = fleet.transport(n);
            until(|| {
                let ready = load.runtime.block_on(transport.get::<Value>("/readyz"));
                let ready =
                    ready.map_err(|error| format!("server {n}: {error}; {}", fleet.logs()))?;
                if ready["ready"] == true { Ok(()) } else { Err(ready.to_string()) }
            });
        }
        let commands = load.ledger.commands();
        let known: BTreeSet<String> = load.ledger.acknowledged().into_keys().collect();
        let open = format!(
            "SELECT id FROM tenure.jobs WHERE ended IS NULL AND id IN ('{}')",
            known.into_iter().collect::<Vec<_>>().join("','")
        );
        self.probes += 1;
        let by = format!("probe {}", self.probes);
        let probe = |resource| {
            let transports = [fleet.transport(0), fleet.transport(1)];
            let (ledger, by) = (Arc::clone(&load.ledger), by.clone());
            let mut caller = Caller { ledger, transports, resource, priority: 1000, sent: 0 };
            let probing = async move {
                // Each goes to another server first.
                let jobs = [caller.submit(&by).await, caller.submit(&by).await];
                for job in jobs {
                    caller.wait_until_finished(&job.expect("it is accepted")).await;
                }
            };
            let timeout = Duration::from_secs(40);
            load.runtime.spawn(async move { tokio::time::timeout(timeout, probing).await })
        };
        let probes: Vec<_> = RESOURCES.into_iter().map(probe).collect();
        for (probe, resource) in probes.into_iter().zip(RESOURCES) {
            let probed = load.runtime.block_on(probe).expect("it does not panic");
            assert!(probed.is_ok(), "{resource} makes no progress: {}", fleet.logs());
        }
        until(|| match fleet.sql(&open)? {
            none if none.is_empty() => Ok(()),
            some => Err(format!("unfinished: {some}; {}", fleet.logs())),
        });
        until(|| fleet.check_workers(load));
        until(|| match load.ledger.commands() - commands {
            0 => Err(format!("no command ran under a lock: {}", fleet.logs())),
            _ => Ok(()),
        });
    }
}

impl Drop for Report {
    /// Prints the report, even if a phase has failed.
    fn drop(&mut self) {
        if self.phases.is_empty() {
            return;
        }
        let [a, b, c, d, e] = ["FAULT", "TIMES", "RECOVERED AFTER", "JOBS", "COMMANDS"];
        println!("\n{a:<58} {b:>5} {c:>15} {d:>5} {e:>8}");
        for PhaseResult { fault, times, recovered, jobs, commands } in &self.phases {
            let seconds = format!("{:.2} s", recovered.as_secs_f64());
            println!("{fault:<58} {times:>5} {seconds:>15} {jobs:>5} {commands:>8}");
        }
    }
}

impl Fleet {
    /// Checks that each worker has a session.
    fn check_workers(&self, load: &Load) -> Result<(), String> {
        let workers = load.runtime.block_on(self.transport(1).get::<Value>("/v1/workers"));
        let workers = workers.map_err(|error| error.to_string())?;
        let items = workers["items"].as_array().expect("a list").iter();
        let names: BTreeSet<&str> = items.filter_map(|worker| worker["name"].as_str()).collect();
        let missing = WORKERS.iter().find(|name| !names.contains(**name));
        missing.map_or(Ok(()), |name| Err(format!("{name} has no session: {}", self.logs())))
    }

    /// Checks that nothing was lost or run concurrently, also by the history.
    pub(crate) fn check(&self, load: &Load, server: usize) {
        assert_eq!(load.ledger.problems(), [] as [String; 0], "{}", self.logs());
        let acknowledged = load.ledger.acknowledged();
        // Verification flushes the projection.
        let verified = self.verify(server);
        assert!(verified.is_ok(), "{verified:?}\n{}", self.logs());
        let known = self.sql("SELECT id FROM tenure.jobs").expect("it answers");
        let known: BTreeSet<&str> = known.lines().collect();
        let lost: Vec<_> = acknowledged.keys().filter(|id| !known.contains(&***id)).collect();
        assert!(lost.is_empty(), "acknowledged but lost: {lost:?}\n{}", self.logs());
        let trace = Trace::read(&traces(self.dir.path()));
        assert_eq!(trace.non_increasing, [] as [String; 0], "{}", self.logs());
        assert_eq!(trace.overlaps, [] as [String; 0], "{}", self.logs());
    }

    /// Checks after the load has stopped that each job was created once and succeeded.
    pub(crate) fn check_final_state(&self, load: &Load) {
        self.check(load, 1);
        let count =
            |sql: &str| -> usize { self.sql(sql).expect("it answers").parse().expect("a number") };
        let (created, acknowledged) =
            (count("SELECT count(*) FROM tenure.jobs"), load.ledger.acknowledged().len());
        assert_eq!(created, acknowledged, "a repeated submit created a second job");
        let succeeded = count("SELECT count(*) FROM tenure.jobs WHERE state = 'succeeded'");
        assert_eq!(succeeded, acknowledged, "some jobs did not succeed");
        let trace = Trace::read(&traces(self.dir.path()));
        let expected = acknowledged + load.ledger.commands();
        assert!(trace.ended >= expected, "{} ended, expected {expected}", trace.ended);
        let (started, ended) = (trace.started, trace.ended);
        println!("{acknowledged} jobs; {started} runs, {} of them interrupted", started - ended);
        println!("{}", self.verify(0).expect("it is proven"));
    }
}

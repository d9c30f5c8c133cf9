//! Fault injection, one phase per fault, while the load runs. `FLEET_ONLY=frozen` selects the
//! faults whose names contain that word.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tenure_testbed::Fault;

use crate::clock::{sleep, until};
use crate::load::Load;
use crate::recovery::Report;
use crate::site::{Fleet, WORKERS, free_address, traces};

/// Longer than the TTL of all sessions.
const PAST_TTL: Duration = Duration::from_millis(4_500);

/// Injects a fault and returns how often it occurred.
type Inject = fn(&mut Fleet, &Load) -> usize;

#[test]
fn a_fleet_recovers_from_every_fault() {
    let _exclusive = crate::lock_exclusive();
    let mut fleet = Fleet::start();
    let mut load = Load::start(&fleet);
    let mut report = Report::default();
    let all: [(&'static str, Inject); 11] = [
        ("none", no_fault),
        ("kill -9 of a worker", kill_a_worker),
        ("kill -9 of a server", kill_a_server),
        ("immediate stop of PostgreSQL", kill_the_database),
        ("a worker frozen past its TTL", freeze_a_worker),
        ("a server frozen past the TTL of sessions", freeze_a_server),
        ("PostgreSQL frozen", freeze_the_database),
        ("all connections terminated by the database", end_connections),
        ("connections cut at COMMIT, before and after", cut_at_commit),
        ("a server without notifications", drop_notifications),
        ("a server and the database partitioned, then reset", partition),
    ];
    let wanted = std::env::var("FLEET_ONLY").unwrap_or_default();
    for (fault, inject) in all.into_iter().filter(|(fault, _)| fault.contains(&*wanted)) {
        report.phase(&mut fleet, &load, fault, inject);
    }
    load.stop();
    fleet.check_final_state(&load);
}

#[test]
fn a_server_recovers_from_a_partition_without_a_connection_reset() {
    let _exclusive = crate::lock_exclusive();
    let mut fleet = Fleet::start();
    let mut load = Load::start(&fleet);
    let mut report = Report::default();
    wait_for_jobs(&load, 10);
    let fault = "a server and the database partitioned, without a reset";
    report.phase(&mut fleet, &load, fault, blackhole);
    load.stop();
    fleet.check_final_state(&load);
}

fn no_fault(_: &mut Fleet, load: &Load) -> usize {
    wait_for_jobs(load, 20);
    0
}

/// Waits until `jobs` more jobs have finished.
pub(crate) fn wait_for_jobs(load: &Load, jobs: usize) {
    let before = load.ledger.done();
    until(|| match load.ledger.done() - before {
        done if done >= jobs => Ok(()),
        done => Err(format!("only {done} jobs have finished")),
    });
}

/// Returns a long job that `worker` is running and whose command has started.
fn running_job_of(fleet: &Fleet, load: &Load, worker: &str) -> String {
    let transport = fleet.transport(1);
    until(|| {
        let path = "/v1/jobs?kind=steady&state=running";
        let jobs = load.runtime.block_on(transport.get::<Value>(path));
        let jobs = jobs.map_err(|error| error.to_string())?;
        let is_running = |job: &&Value| {
            let last = job["attempts"].as_array().and_then(|attempts| attempts.last());
            let name = job["name"].as_str().expect("it has a name");
            let trace = traces(fleet.dir.path()).join(format!("steady.{name}"));
            let trace = std::fs::read_to_string(trace).unwrap_or_default();
            let at = |last: &Value| format!("at {}", last["token"]);
            last.is_some_and(|l| l["worker"] == worker && trace.lines().last() == Some(&at(l)))
        };
        let job = jobs["items"].as_array().expect("a list").iter().find(is_running);
        let job = job.ok_or_else(|| format!("{worker} runs no job: {jobs}"))?;
        Ok(job["id"].as_str().expect("it has an id").to_owned())
    })
}

/// Waits until the lost attempt of a job is followed by one that succeeds.
fn wait_until_retried(fleet: &Fleet, load: &Load, job: &str) {
    let transport = fleet.transport(1);
    until(|| {
        let found = load.runtime.block_on(transport.get::<Value>(&format!("/v1/jobs/{job}")));
        let found = found.map_err(|error| error.to_string())?;
        let attempts = found["attempts"].as_array().expect("a list");
        let is = |n: usize, outcome: &str| attempts[n]["outcome"] == outcome;
        if attempts.len() >= 2 && is(attempts.len() - 1, "ok") && is(0, "lost") {
            return Ok(());
        }
        Err(found.to_string())
    });
}

fn kill_a_worker(fleet: &mut Fleet, load: &Load) -> usize {
    for n in [0, 1] {
        let job = running_job_of(fleet, load, WORKERS[n]);
        fleet.workers[n].kill();
        fleet.workers[n].launch();
        wait_until_retried(fleet, load, &job);
    }
    2
}

fn kill_a_server(fleet: &mut Fleet, load: &Load) -> usize {
    for (n, time) in [(0, Duration::from_millis(300)), (1, PAST_TTL)] {
        fleet.servers[n].kill();
        sleep(time);
        wait_for_jobs(load, 5);
        fleet.servers[n].launch();
        fleet.wait_until_listening(n);
    }
    2
}

fn kill_the_database(fleet: &mut Fleet, load: &Load) -> usize {
    for _ in 0..3 {
        fleet.postgres.kill();
        sleep(Duration::from_millis(300));
        fleet.postgres.resume().expect("it starts again");
        wait_for_jobs(load, 5);
    }
    3
}

fn freeze_a_worker(fleet: &mut Fleet, load: &Load) -> usize {
    let job = running_job_of(fleet, load, WORKERS[2]);
    fleet.workers[2].signal("STOP");
    sleep(PAST_TTL);
    wait_until_retried(fleet, load, &job);
    fleet.workers[2].signal("CONT");
    1
}

fn freeze_a_server(fleet: &mut Fleet, load: &Load) -> usize {
    for n in [0, 1] {
        fleet.servers[n].signal("STOP");
        sleep(PAST_TTL);
        // The other server keeps serving.
        wait_for_jobs(load, 5);
        fleet.servers[n].signal("CONT");
    }
    2
}

fn freeze_the_database(fleet: &mut Fleet, load: &Load) -> usize {
    for time in [Duration::from_secs(1), PAST_TTL] {
        fleet.postgres.signal(Signal::STOP).expect("it runs");
        sleep(time);
        fleet.postgres.signal(Signal::CONT).expect("it runs");
        wait_for_jobs(load, 5);
    }
    2
}

fn end_connections(fleet: &mut Fleet, load: &Load) -> usize {
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
               WHERE application_name = 'tenure'";
    let mut ended = 0;
    for _ in 0..10 {
        let count = fleet.sql(end).expect("it answers");
        ended += count.parse::<usize>().expect("a number");
        wait_for_jobs(load, 1);
    }
    ended
}

fn cut_at_commit(fleet: &mut Fleet, load: &Load) -> usize {
    let before = fleet.proxies[0].triggered();
    for _ in 0..4 {
        for fault in
            [Fault::DisconnectAfter(b"COMMIT".into()), Fault::DisconnectBefore(b"COMMIT".into())]
        {
            fleet.proxies[0].set_fault(fault);
            let cuts = fleet.proxies[0].triggered();
            until(|| match fleet.proxies[0].triggered() - cuts {
                0..3 => Err("no commit was cut".to_owned()),
                _ => Ok(()),
            });
            fleet.proxies[0].set_fault(Fault::None);
            wait_for_jobs(load, 2);
        }
    }
    fleet.proxies[0].triggered() - before
}

/// Packets are dropped and connections stay open: requests in flight are never answered.
fn blackhole(fleet: &mut Fleet, load: &Load) -> usize {
    fleet.proxies[0].set_fault(Fault::Blackhole);
    sleep(PAST_TTL);
    // The other side of the partition keeps working.
    wait_for_jobs(load, 5);
    fleet.proxies[0].set_fault(Fault::None);
    1
}

/// Packets are dropped, then connections are reset.
fn partition(fleet: &mut Fleet, load: &Load) -> usize {
    blackhole(fleet, load);
    fleet.proxies[0].disconnect_all();
    1
}

/// One server receives no notifications and finds work by polling.
fn drop_notifications(fleet: &mut Fleet, load: &Load) -> usize {
    let store = fleet.store(1);
    let without_notifications = format!("{store}?listen={}", free_address());
    restart_with_store(fleet, &without_notifications);
    let transport = fleet.transport(1);
    until(|| {
        let ready = load.runtime.block_on(transport.get::<Value>("/readyz"));
        let ready = ready.map_err(|error| error.to_string())?;
        let all = ready["dependencies"].as_array().expect("a list").clone();
        let failed = |one: &&Value| one["name"] == "wake-ups" && one["ok"] == false;
        all.iter().find(failed).map(|_| ()).ok_or_else(|| ready.to_string())
    });
    wait_for_jobs(load, 40);
    restart_with_store(fleet, &store);
    1
}

/// Restarts the second server with another store URL.
fn restart_with_store(fleet: &mut Fleet, store: &str) {
    let server = &mut fleet.servers[1];
    server.kill();
    let at = server.args.iter().position(|arg| arg == "--store").expect("it has one");
    store.clone_into(&mut server.args[at + 1]);
    server.launch();
    fleet.wait_until_listening(1);
}

//! The faults, one phase for each, while the load runs. `FLEET_ONLY=frozen` chooses those whose
//! names have that word in them.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tenure_testbed::Fault;

use crate::clock::{lasts, until};
use crate::load::Load;
use crate::recovery::Report;
use crate::site::{Fleet, WORKERS, free_address, traces};

/// Longer than the time to live of all sessions.
const PAST_TTL: Duration = Duration::from_millis(4_500);

/// Lets a fault happen, and says how often it did.
type Inject = fn(&mut Fleet, &Load) -> usize;

#[test]
fn a_fleet_survives_whatever_happens_to_its_parts() {
    let _alone = crate::alone();
    let mut fleet = Fleet::start();
    let mut load = Load::start(&fleet);
    let mut report = Report::default();
    let all: [(&'static str, Inject); 11] = [
        ("nothing", nothing),
        ("kill -9 of a worker", kill_a_worker),
        ("kill -9 of a server", kill_a_server),
        ("immediate stop of PostgreSQL", kill_the_database),
        ("a worker frozen past its time to live", freeze_a_worker),
        ("a server frozen past the time to live of sessions", freeze_a_server),
        ("PostgreSQL frozen", freeze_the_database),
        ("all connections ended by the database", end_connections),
        ("connections cut at COMMIT, before and after", cut_at_commit),
        ("a server that hears no notifications", deafen),
        ("a server and the database partitioned, then reset", partition),
    ];
    let wanted = std::env::var("FLEET_ONLY").unwrap_or_default();
    for (fault, inject) in all.into_iter().filter(|(fault, _)| fault.contains(&*wanted)) {
        report.phase(&mut fleet, &load, fault, inject);
    }
    load.stop();
    fleet.check_the_end(&load);
}

#[test]
fn a_server_comes_back_from_a_partition_that_nobody_is_told_of() {
    let _alone = crate::alone();
    let mut fleet = Fleet::start();
    let mut load = Load::start(&fleet);
    let mut report = Report::default();
    goes_on(&load, 10);
    let fault = "a server and the database partitioned, nobody is told";
    report.phase(&mut fleet, &load, fault, partition_in_silence);
    load.stop();
    fleet.check_the_end(&load);
}

fn nothing(_: &mut Fleet, load: &Load) -> usize {
    goes_on(load, 20);
    0
}

/// Waits until some more jobs are done.
pub(crate) fn goes_on(load: &Load, jobs: usize) {
    let before = load.board.done();
    until(|| match load.board.done() - before {
        done if done >= jobs => Ok(()),
        done => Err(format!("only {done} jobs are done")),
    });
}

/// A long job that a worker has under way: its command is alive.
fn running_on(fleet: &Fleet, load: &Load, worker: &str) -> String {
    let link = fleet.link(1);
    until(|| {
        let path = "/v1/jobs?kind=steady&state=running";
        let jobs = load.runtime.block_on(link.get::<Value>(path));
        let jobs = jobs.map_err(|error| error.to_string())?;
        let here = |job: &&Value| {
            let last = job["attempts"].as_array().and_then(|attempts| attempts.last());
            let name = job["name"].as_str().expect("it has a name");
            let trace = traces(fleet.dir.path()).join(format!("steady.{name}"));
            let trace = std::fs::read_to_string(trace).unwrap_or_default();
            let at = |last: &Value| format!("at {}", last["token"]);
            last.is_some_and(|l| l["worker"] == worker && trace.lines().last() == Some(&at(l)))
        };
        let job = jobs["items"].as_array().expect("a list").iter().find(here);
        let job = job.ok_or_else(|| format!("{worker} has nothing to do: {jobs}"))?;
        Ok(job["id"].as_str().expect("it has an id").to_owned())
    })
}

/// The attempt at a job that its worker lost is followed by one that succeeds.
fn was_done_by_another(fleet: &Fleet, load: &Load, job: &str) {
    let link = fleet.link(1);
    until(|| {
        let found = load.runtime.block_on(link.get::<Value>(&format!("/v1/jobs/{job}")));
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
        let job = running_on(fleet, load, WORKERS[n]);
        fleet.workers[n].kill();
        fleet.workers[n].launch();
        was_done_by_another(fleet, load, &job);
    }
    2
}

fn kill_a_server(fleet: &mut Fleet, load: &Load) -> usize {
    for (n, time) in [(0, Duration::from_millis(300)), (1, PAST_TTL)] {
        fleet.servers[n].kill();
        lasts(time);
        goes_on(load, 5);
        fleet.servers[n].launch();
        fleet.until_answers(n);
    }
    2
}

fn kill_the_database(fleet: &mut Fleet, load: &Load) -> usize {
    for _ in 0..3 {
        fleet.postgres.kill();
        lasts(Duration::from_millis(300));
        fleet.postgres.resume().expect("it starts again");
        goes_on(load, 5);
    }
    3
}

fn freeze_a_worker(fleet: &mut Fleet, load: &Load) -> usize {
    let job = running_on(fleet, load, WORKERS[2]);
    fleet.workers[2].signal("STOP");
    lasts(PAST_TTL);
    was_done_by_another(fleet, load, &job);
    fleet.workers[2].signal("CONT");
    1
}

fn freeze_a_server(fleet: &mut Fleet, load: &Load) -> usize {
    for n in [0, 1] {
        fleet.servers[n].signal("STOP");
        lasts(PAST_TTL);
        // The other goes on alone.
        goes_on(load, 5);
        fleet.servers[n].signal("CONT");
    }
    2
}

fn freeze_the_database(fleet: &mut Fleet, load: &Load) -> usize {
    for time in [Duration::from_secs(1), PAST_TTL] {
        fleet.postgres.signal(Signal::STOP).expect("it runs");
        lasts(time);
        fleet.postgres.signal(Signal::CONT).expect("it runs");
        goes_on(load, 5);
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
        goes_on(load, 1);
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
            goes_on(load, 2);
        }
    }
    fleet.proxies[0].triggered() - before
}

/// What was on its way is lost, and connections stay up: whoever waits for an answer waits in vain.
fn partition_in_silence(fleet: &mut Fleet, load: &Load) -> usize {
    fleet.proxies[0].set_fault(Fault::Blackhole);
    lasts(PAST_TTL);
    // Who is on the other side goes on.
    goes_on(load, 5);
    fleet.proxies[0].set_fault(Fault::None);
    1
}

/// What was on its way is lost, and the ends of the connections are told so.
fn partition(fleet: &mut Fleet, load: &Load) -> usize {
    partition_in_silence(fleet, load);
    fleet.proxies[0].disconnect_all();
    1
}

/// One server hears nothing of what others do, and finds all the same what there is to do.
fn deafen(fleet: &mut Fleet, load: &Load) -> usize {
    let (hears, deaf) = (fleet.store(1), format!("{}?listen={}", fleet.store(1), free_address()));
    start_again_on(fleet, &deaf);
    let link = fleet.link(1);
    until(|| {
        let ready = load.runtime.block_on(link.get::<Value>("/readyz"));
        let ready = ready.map_err(|error| error.to_string())?;
        let all = ready["dependencies"].as_array().expect("a list").clone();
        let deaf = |one: &&Value| one["name"] == "wake-ups" && one["ok"] == false;
        all.iter().find(deaf).map(|_| ()).ok_or_else(|| ready.to_string())
    });
    goes_on(load, 40);
    start_again_on(fleet, &hears);
    1
}

/// Starts the second server again, with another address of the database.
fn start_again_on(fleet: &mut Fleet, store: &str) {
    let server = &mut fleet.servers[1];
    server.kill();
    let at = server.args.iter().position(|arg| arg == "--store").expect("it has one");
    store.clone_into(&mut server.args[at + 1]);
    server.launch();
    fleet.until_answers(1);
}

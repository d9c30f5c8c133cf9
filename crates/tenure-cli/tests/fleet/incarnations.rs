//! Databases that lose acknowledged writes: a lagging standby is promoted, an old backup restored.

use serde_json::{Value, json};
use tenure_testbed::{Durability, Fault, Proxy};

use crate::clock::{stopwatch, until};
use crate::common::{stderr, tenure};
use crate::faults::wait_for_jobs;
use crate::load::Load;
use crate::recovery::Report;
use crate::site::{Fleet, traces};
use crate::trace::Trace;

/// Checks that in the new incarnation jobs run again and tokens are higher than all before.
fn check_new_incarnation(fleet: &Fleet, load: &mut Load) {
    let started = stopwatch();
    Report::default().wait_until_recovered(fleet, load);
    let recovered = started.elapsed();
    wait_for_jobs(load, 10);
    load.stop();
    assert_eq!(load.ledger.problems(), [] as [String; 0], "{}", fleet.logs());
    let trace = Trace::read(&traces(fleet.dir.path()));
    assert_eq!(trace.non_increasing, [] as [String; 0], "{}", fleet.logs());
    for n in [0, 1] {
        let ready = load.runtime.block_on(fleet.transport(n).get::<Value>("/readyz"));
        assert_eq!(ready.expect("it is ready")["incarnation"], 1);
        fleet.verify(n).unwrap_or_else(|why| panic!("{why}\n{}", fleet.logs()));
    }
    let lost = load.ledger.lost();
    println!("recovered after {recovered:?}, {lost} jobs were lost or interrupted");
}

#[test]
fn promotion_of_a_lagging_standby_starts_a_new_incarnation() {
    let _exclusive = crate::lock_exclusive();
    let mut fleet = Fleet::start();
    let replication = Proxy::start(fleet.postgres.port()).expect("a proxy");
    let standby = fleet.postgres.standby_through(replication.port(), Durability::Disk);
    let standby = standby.expect("a standby");
    let mut load = Load::start(&fleet);
    wait_for_jobs(&load, 10);
    load.ledger.may_lose_jobs();
    replication.set_fault(Fault::Blackhole);
    wait_for_jobs(&load, 10);
    fleet.postgres.kill();
    standby.promote().expect("it becomes the primary");
    for proxy in &fleet.proxies {
        proxy.redirect(standby.port());
    }
    fleet.postgres = standby;
    check_new_incarnation(&fleet, &mut load);
    assert!(load.ledger.lost() > 0, "the standby did not lag");
}

#[test]
fn restore_of_an_old_backup_under_running_servers_needs_a_new_incarnation() {
    let _exclusive = crate::lock_exclusive();
    let mut fleet = Fleet::start();
    let mut load = Load::start(&fleet);
    wait_for_jobs(&load, 10);
    let backup = fleet.postgres.backup().expect("a backup");
    wait_for_jobs(&load, 10);
    load.ledger.may_lose_jobs();
    fleet.postgres.restore(&backup).expect("it is restored");
    for n in [0, 1] {
        let transport = fleet.transport(n);
        until(|| {
            let body = json!({ "operation": "run" });
            let path = "/v1/resources/quick/new/jobs";
            let request = transport.post::<Value>(path, None, &body, std::time::Duration::ZERO);
            match load.runtime.block_on(request) {
                Ok(accepted) => panic!("server {n} accepted a job after the restore: {accepted}"),
                Err(error) if error.to_string().contains("--new-incarnation") => Ok(()),
                Err(error) => Err(error.to_string()),
            }
        });
    }
    let mut migrate = tenure(fleet.dir.path());
    migrate.args(["migrate", "--new-incarnation", "--store", &fleet.store(1)]);
    let output = migrate.output().expect("it runs");
    assert!(output.status.success(), "{}", stderr(&output));
    check_new_incarnation(&fleet, &mut load);
}

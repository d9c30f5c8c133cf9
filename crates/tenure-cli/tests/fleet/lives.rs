//! Databases that forget: a standby that was behind is promoted, an old backup is put in place.

use serde_json::{Value, json};
use tenure_testbed::{Durability, Fault, Proxy};

use crate::clock::{stopwatch, until};
use crate::common::{stderr, tenure};
use crate::faults::goes_on;
use crate::load::Load;
use crate::recovery::Report;
use crate::site::{Fleet, traces};
use crate::trace::Trace;

/// After a new life has begun, jobs run again, and tokens are above all that were seen.
fn lives_on(fleet: &Fleet, load: &mut Load) {
    let began = stopwatch();
    Report::default().back_again(fleet, load);
    let recovered = began.elapsed();
    goes_on(load, 10);
    load.stop();
    assert_eq!(load.board.problems(), [] as [String; 0], "{}", fleet.logs());
    let trace = Trace::read(&traces(fleet.dir.path()));
    assert_eq!(trace.falls, [] as [String; 0], "{}", fleet.logs());
    for n in [0, 1] {
        let ready = load.runtime.block_on(fleet.link(n).get::<Value>("/readyz"));
        assert_eq!(ready.expect("it is ready")["incarnation"], 1);
        fleet.verify(n).unwrap_or_else(|why| panic!("{why}\n{}", fleet.logs()));
    }
    let forgotten = load.board.forgotten();
    println!("recovered after {recovered:?}, {forgotten} jobs were forgotten or cut short");
}

#[test]
fn a_standby_that_was_behind_is_promoted() {
    let _alone = crate::alone();
    let mut fleet = Fleet::start();
    let replication = Proxy::start(fleet.postgres.port()).expect("a proxy");
    let standby = fleet.postgres.standby_through(replication.port(), Durability::Disk);
    let standby = standby.expect("a standby");
    let mut load = Load::start(&fleet);
    goes_on(&load, 10);
    load.board.may_forget();
    replication.set_fault(Fault::Blackhole);
    goes_on(&load, 10);
    fleet.postgres.kill();
    standby.promote().expect("it becomes the primary");
    for proxy in &fleet.proxies {
        proxy.redirect(standby.port());
    }
    fleet.postgres = standby;
    lives_on(&fleet, &mut load);
    assert!(load.board.forgotten() > 0, "it was not behind");
}

#[test]
fn an_old_backup_is_put_in_place_while_servers_run() {
    let _alone = crate::alone();
    let mut fleet = Fleet::start();
    let mut load = Load::start(&fleet);
    goes_on(&load, 10);
    let backup = fleet.postgres.backup().expect("a backup");
    goes_on(&load, 10);
    load.board.may_forget();
    fleet.postgres.restore(&backup).expect("it is put in place");
    for n in [0, 1] {
        let link = fleet.link(n);
        until(|| {
            let body = json!({ "operation": "run" });
            let path = "/v1/resources/quick/new/jobs";
            let ask = link.post::<Value>(path, None, &body, std::time::Duration::ZERO);
            match load.runtime.block_on(ask) {
                Ok(taken) => panic!("server {n} goes on in the past: {taken}"),
                Err(error) if error.to_string().contains("--new-incarnation") => Ok(()),
                Err(error) => Err(error.to_string()),
            }
        });
    }
    let mut migrate = tenure(fleet.dir.path());
    migrate.args(["migrate", "--new-incarnation", "--store", &fleet.store(1)]);
    let output = migrate.output().expect("it runs");
    assert!(output.status.success(), "{}", stderr(&output));
    lives_on(&fleet, &mut load);
}

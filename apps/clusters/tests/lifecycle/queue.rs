//! The transport over SQS: a message wakes a worker and decides nothing.
//!
//! Each test runs on two imitations of SQS, which differ in details that nothing may depend on.

use std::time::Duration;

use serde_json::{Value, json};
use tenure_testbed::{Fault, Proxy, PythonServer};

use crate::bed::{Bed, StoreKind};
use crate::cloud;
use crate::common::until;
use crate::sqs::{Sqs, wakeup};

/// Only messages wake workers with it: the interval does not pass during a test.
const NO_INTERVAL: &str = "claim_interval = \"10m\"";

/// Makes a test of each function for each server.
macro_rules! on_both {
    ($($name:ident)+) => {
        mod moto {
            $(#[test] fn $name() { super::$name(super::cloud::shared()); })+
        }
        mod ministack {
            $(#[test] fn $name() { super::$name(super::cloud::ministack()); })+
        }
    };
}

on_both! {
    a_message_wakes_a_worker
    duplicates_for_a_busy_cluster_are_deleted_and_change_nothing
    a_message_is_kept_until_the_store_has_answered
    a_message_that_is_deleted_late_changes_nothing
    a_lost_message_costs_the_claim_interval
    a_busy_worker_receives_nothing_and_releases_what_it_has
    an_unreadable_message_becomes_a_dead_letter_and_readable_ones_are_sent_again
    settings_reach_the_queue_and_differences_are_shown
    a_missing_queue_is_named_with_its_remedy_and_workers_claim_anyway
}

/// A server, and a queue on an imitation of SQS.
struct Queued {
    bed: Bed,
    sqs: Sqs,
}

impl Queued {
    /// Starts a server with these lines in `[clusters.sqs]`.
    fn start(server: &'static PythonServer, lines: &str) -> Self {
        let lines = format!("create = true\n{lines}");
        let queued = Self::through(&server.url(), Sqs::new(server), &lines);
        // Created by one process: AWS allows several at once, moto loses messages then.
        queued.queue();
        queued
    }

    /// Starts a server that reaches the queue at another address.
    fn through(url: &str, sqs: Sqs, lines: &str) -> Self {
        let bed = Bed::on(StoreKind::Embedded, url, &sqs.table(lines), Vec::new());
        Self { bed, sqs }
    }

    /// Plans an install without resources, which only one of the servers has.
    fn plan(&self, cluster: &str, hold: &str) {
        let plan = json!({"create cluster": [{"resources": 0, "hold": hold}]});
        self.bed.plan(cluster, &plan);
    }

    /// Waits until a worker has claimed all it can get at its start.
    fn settle_worker(&self) {
        self.plan("warm", "");
        self.bed.create("warm");
        self.bed.settled("warm", "READY");
        until(|| self.sqs.is_drained());
    }

    fn queue(&self) -> Value {
        self.bed.api("GET", "/v1/clusters/queue", &Value::Null).1
    }
}

/// Waits for a time in which a wrong program would have acted.
fn hold_back(duration: Duration) {
    let started = tenure_store::clock::stopwatch();
    until(|| started.elapsed() >= duration);
}

fn a_message_wakes_a_worker(server: &'static PythonServer) {
    let queued = Queued::start(server, &format!("{NO_INTERVAL}\nwait = \"1s\""));
    let Queued { bed, sqs } = &queued;
    let _worker = bed.worker("a");
    queued.settle_worker();
    queued.plan("demo", "");
    bed.create("demo");
    bed.settled("demo", "READY");
    until(|| sqs.is_drained());
    assert_eq!(bed.runs("demo", "create cluster"), 1);
}

/// Contention never burns a receive: a message is deleted although its cluster is busy.
fn duplicates_for_a_busy_cluster_are_deleted_and_change_nothing(server: &'static PythonServer) {
    let queued = Queued::start(server, &format!("{NO_INTERVAL}\nwait = \"1s\"\nreceives = 1"));
    let Queued { bed, sqs } = &queued;
    let _worker = bed.worker("a");
    queued.plan("demo", "begin");
    let (_, answer) = bed.create("demo");
    bed.reached("demo", "begin");
    for _ in 0..10 {
        sqs.wake("demo");
    }
    until(|| sqs.is_drained());
    assert_eq!(bed.state("demo"), "CREATING");
    bed.go("demo", "begin");
    bed.settled("demo", "READY");
    sqs.wake("demo");
    until(|| sqs.is_drained());
    assert_eq!(bed.runs("demo", "create cluster"), 1);
    assert_eq!(bed.job(&answer["job"]["id"])["attempt"], 1);
    assert_eq!(sqs.visible(&sqs.dead_letters), 0);
}

fn a_message_is_kept_until_the_store_has_answered(server: &'static PythonServer) {
    let lines = format!("{NO_INTERVAL}\nwait = \"1s\"\nvisibility = \"2s\"\nreceives = 100");
    let mut queued = Queued::start(server, &lines);
    let mut worker = queued.bed.worker("a");
    queued.settle_worker();
    queued.bed.kill_server();
    let Queued { bed, sqs } = &queued;
    sqs.wake("demo");
    until(|| bed.read("a.log").contains("claim failed"));
    worker.kill();
    // Nothing has deleted it.
    until(|| sqs.visible(&sqs.queue) == 1);
    queued.bed.launch();
    let Queued { bed, sqs } = &queued;
    let _other = bed.worker("b");
    until(|| sqs.is_drained());
}

fn a_message_that_is_deleted_late_changes_nothing(server: &'static PythonServer) {
    let sqs = Sqs::new(server);
    let proxy = Proxy::start(sqs.port()).expect("it starts");
    let url = format!("http://127.0.0.1:{}", proxy.port());
    let lines = format!("create = true\n{NO_INTERVAL}\nwait = \"1s\"\nvisibility = \"1s\"");
    let queued = Queued::through(&url, sqs, &lines);
    let Queued { bed, sqs } = &queued;
    let _worker = bed.worker("a");
    queued.settle_worker();
    proxy.set_fault(Fault::DisconnectBefore(b"AmazonSQS.DeleteMessage".to_vec()));
    queued.plan("demo", "");
    let (_, answer) = bed.create("demo");
    bed.settled("demo", "READY");
    // By the fourth try the receipt has expired.
    until(|| proxy.triggered() >= 4);
    proxy.set_fault(Fault::None);
    until(|| sqs.is_drained());
    assert_eq!(bed.runs("demo", "create cluster"), 1);
    assert_eq!(bed.job(&answer["job"]["id"])["attempt"], 1);
}

fn a_lost_message_costs_the_claim_interval(server: &'static PythonServer) {
    let sqs = Sqs::new(server);
    let proxy = Proxy::start(sqs.port()).expect("it starts");
    let url = format!("http://127.0.0.1:{}", proxy.port());
    let lines = "create = true\nclaim_interval = \"1s\"\nwait = \"1s\"";
    let queued = Queued::through(&url, sqs, lines);
    let Queued { bed, sqs } = &queued;
    let _worker = bed.worker("a");
    queued.settle_worker();
    proxy.set_fault(Fault::Down);
    queued.plan("unsent", "");
    bed.create("unsent");
    bed.settled("unsent", "READY");
    until(|| bed.read("server.log").contains("cannot send a wake-up to SQS"));
    until(|| bed.read("a.log").contains("claiming jobs at an interval"));
    assert_eq!(bed.api("GET", "/v1/clusters/queue", &Value::Null).0, 503);
    for log in ["server.log", "a.log"] {
        assert!(!bed.read(log).contains(" ERROR "), "{}", bed.read(log));
    }
    // The queue works again, and a message is lost in it.
    proxy.set_fault(Fault::None);
    sqs.wake("unsent");
    until(|| sqs.is_drained());
    queued.plan("purged", "");
    bed.create("purged");
    sqs.purge();
    bed.settled("purged", "READY");
    assert_eq!(bed.runs("purged", "create cluster"), 1);
}

fn a_busy_worker_receives_nothing_and_releases_what_it_has(server: &'static PythonServer) {
    let lines = "claim_interval = \"2s\"\nwait = \"20s\"\nvisibility = \"5m\"";
    let mut queued = Queued::start(server, lines);
    // This server sends nothing, so that the worker waits for a message when it gets a job.
    queued.bed.kill_server();
    let config = queued.bed.read("server.toml");
    queued.bed.write("server.toml", &config.replace(&server.url(), "http://127.0.0.1:9"));
    queued.bed.launch();
    let Queued { bed, sqs } = &queued;
    let _worker = bed.worker_with("a", &["--slots", "1"]);
    queued.plan("warm", "");
    bed.create("warm");
    bed.settled("warm", "READY");
    queued.plan("demo", "begin");
    bed.create("demo");
    bed.reached("demo", "begin");
    // It has asked for this one while it had a free slot.
    sqs.wake("other");
    until(|| sqs.attribute(&sqs.queue, "ApproximateNumberOfMessagesNotVisible") == "1");
    until(|| sqs.visible(&sqs.queue) == 1);
    // Longer than a long poll of a worker that receives although it has no free slot.
    hold_back(Duration::from_millis(1_500));
    assert_eq!(sqs.visible(&sqs.queue), 1, "nobody receives it");
    let messages = sqs.receive(&sqs.queue);
    assert_eq!(messages, [(wakeup("other"), "2".to_owned())], "one receive by the worker");
    // Another one has the time for it.
    sqs.wake("another");
    let _other = bed.worker("b");
    until(|| sqs.visible(&sqs.queue) == 0);
    assert_eq!(sqs.visible(&sqs.dead_letters), 0);
    bed.go("demo", "begin");
    bed.settled("demo", "READY");
}

fn an_unreadable_message_becomes_a_dead_letter_and_readable_ones_are_sent_again(
    server: &'static PythonServer,
) {
    let lines = format!("{NO_INTERVAL}\nwait = \"1s\"\nvisibility = \"1s\"");
    let queued = Queued::start(server, &lines);
    let Queued { bed, sqs } = &queued;
    let mut worker = bed.worker("a");
    queued.settle_worker();
    let unreadable = r#"{"cluster_id": "hunter2"}"#;
    sqs.send(&sqs.queue, "group", unreadable);
    until(|| sqs.visible(&sqs.dead_letters) == 1);
    let log = bed.read("a.log");
    assert_eq!(log.matches("cannot be read").count(), 3, "{log}");
    assert!(!log.contains("hunter2"), "{log}");
    let shown = queued.queue();
    assert_eq!((&shown["dead_letters"], &shown["waiting"]), (&json!(1), &json!(0)), "{shown}");
    let (code, text) = bed.run(&["cluster", "queue"]);
    assert!(code == Some(0) && text.contains("tenure cluster queue --redrive"), "{text}");
    let metrics = || bed.request("GET", "/metrics", &Value::Null).1;
    until(|| metrics().contains("\nocpctl_dlq_messages 1"));
    worker.kill();
    // The same text was sent to the queue a moment ago.
    let (_, answer) = bed.create("demo");
    until(|| sqs.visible(&sqs.queue) == 1);
    let (body, _) = sqs.receive(&sqs.queue).remove(0);
    assert!(body.contains(answer["job"]["id"].as_str().expect("an id")), "{body}");
    sqs.purge();
    sqs.send(&sqs.dead_letters, "cluster-aws:demo", &body);
    let redrive = || bed.api("POST", "/v1/clusters/queue/redrive", &Value::Null);
    assert_eq!(redrive(), (200, json!({"sent": 1, "unreadable": 1})));
    until(|| sqs.visible(&sqs.queue) == 1);
    let count = |name| sqs.attribute(&sqs.dead_letters, name);
    let hidden = count("ApproximateNumberOfMessagesNotVisible");
    assert_eq!((hidden.as_str(), sqs.visible(&sqs.dead_letters)), ("1", 0));
    assert_eq!(redrive(), (200, json!({"sent": 0, "unreadable": 0})), "it is still hidden");
    queued.plan("demo", "");
    let _other = bed.worker("b");
    bed.settled("demo", "READY");
    until(|| sqs.visible(&sqs.queue) == 0);
    assert_eq!(queued.queue()["dead_letters"], 1, "it stays");
    // Without a queue there are no dead letters either.
    let config = bed.read("worker.toml");
    bed.write("worker.toml", config.split("[clusters.sqs]").next().expect("a part"));
    until(|| metrics().contains("\nocpctl_dlq_messages 0"));
}

fn settings_reach_the_queue_and_differences_are_shown(server: &'static PythonServer) {
    let lines = "visibility = \"7s\"\nwait = \"3s\"\nreceives = 2\nretention = \"2d\"";
    let queued = Queued::start(server, lines);
    let sqs = &queued.sqs;
    assert_eq!(queued.queue()["problems"], json!([]));
    for (name, attribute, value) in [
        (&sqs.queue, "VisibilityTimeout", "7"),
        (&sqs.queue, "ReceiveMessageWaitTimeSeconds", "3"),
        (&sqs.queue, "ContentBasedDeduplication", "true"),
        (&sqs.dead_letters, "MessageRetentionPeriod", "172800"),
    ] {
        assert_eq!(sqs.attribute(name, attribute), value, "{attribute}");
    }
    let redrive = sqs.attribute(&sqs.queue, "RedrivePolicy");
    assert!(redrive.contains(&sqs.dead_letters) && redrive.contains('2'), "{redrive}");
    // Queues that others have created.
    let sqs = Sqs::new(server);
    let attributes = json!({"FifoQueue": "true", "VisibilityTimeout": "5"});
    sqs.create(&sqs.queue, &attributes);
    let queued = Queued::through(&server.url(), sqs, "create = true\nvisibility = \"7s\"");
    let sqs = &queued.sqs;
    let problems = queued.queue()["problems"].to_string();
    let expected = format!("the queue {} has VisibilityTimeout 5; the settings say 7", sqs.queue);
    assert!(problems.contains(&expected), "{problems}");
    for attribute in ["RedrivePolicy", "ContentBasedDeduplication"] {
        assert!(problems.contains(attribute), "{attribute}: {problems}");
    }
    let (code, text) = queued.bed.run(&["cluster", "queue"]);
    assert!(code == Some(0) && text.contains(&expected), "{text}");
    assert_eq!(sqs.attribute(&sqs.queue, "VisibilityTimeout"), "5", "it is not changed");
}

fn a_missing_queue_is_named_with_its_remedy_and_workers_claim_anyway(
    server: &'static PythonServer,
) {
    let queued =
        Queued::through(&server.url(), Sqs::new(server), "claim_interval = \"1s\"\nwait = \"1s\"");
    let Queued { bed, sqs } = &queued;
    let expected = format!(
        "there is no queue {} in us-east-1; create it, or set `create = true` in [clusters.sqs]",
        sqs.queue
    );
    let (status, problem) = bed.api("GET", "/v1/clusters/queue", &Value::Null);
    let detail = problem["detail"].as_str().unwrap_or_default();
    assert!(status == 503 && detail.contains(&expected), "{problem}");
    assert_eq!(bed.api("POST", "/v1/clusters/queue/redrive", &Value::Null).0, 503);
    let (code, text) = bed.run(&["cluster", "queue"]);
    assert!(code != Some(0) && text.contains(&expected), "{text}");
    let _worker = bed.worker("a");
    queued.plan("demo", "");
    bed.create("demo");
    bed.settled("demo", "READY");
    until(|| bed.read("server.log").contains(&expected));
    until(|| bed.read("a.log").contains(&expected));
}

/// A job that waits for another one of its cluster needs no message of its own.
#[test]
fn a_destroy_runs_as_soon_as_the_create_has_ended() {
    let queued = Queued::start(cloud::shared(), &format!("{NO_INTERVAL}\nwait = \"1s\""));
    let Queued { bed, sqs } = &queued;
    let _worker = bed.worker("a");
    let held = json!({"hold": "infrastructure", "ignore_term": true});
    bed.plan("demo", &json!({"create cluster": [held]}));
    bed.create("demo");
    bed.reached("demo", "infrastructure");
    bed.destroy("demo");
    bed.settled("demo", "DESTROYED");
    until(|| sqs.is_drained());
    bed.check(&[]);
}

#[test]
fn without_a_queue_there_is_nothing_to_show() {
    let bed = Bed::start(StoreKind::Embedded);
    let (status, problem) = bed.api("GET", "/v1/clusters/queue", &Value::Null);
    let detail = problem["detail"].as_str().unwrap_or_default();
    assert!(status == 404 && detail.contains("[clusters.sqs]"), "{problem}");
    assert_eq!(bed.api("POST", "/v1/clusters/queue/redrive", &Value::Null).0, 404);
}

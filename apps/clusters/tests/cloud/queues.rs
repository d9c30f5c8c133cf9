//! Queues on SQS.
//!
//! Nothing in here relies on a delete with an expired receipt, which the imitations accept and AWS
//! refuses.

use std::time::Duration;

use tenure_clusters::aws::sqs::{BODY_BYTES_MAX, Counts, GROUP_BYTES_MAX, Message, Queue};
use tenure_clusters::settings::SqsSettings;

use crate::bed::{Cloud, REGION, on_both, unique};

const NO_WAIT: Duration = Duration::ZERO;
const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

fn settings() -> SqsSettings {
    let name = unique("jobs");
    SqsSettings {
        queue: format!("{name}.fifo"),
        dead_letters: format!("{name}-dlq.fifo"),
        region: REGION.to_owned(),
        visibility_ms: 600_000,
        wait_ms: 20_000,
        receives: 3,
        retention_ms: 14 * DAY_MS,
        claim_interval_ms: 30_000,
        create: true,
    }
}

async fn create(cloud: Cloud, settings: &SqsSettings) -> Queue {
    Queue::create(&cloud.client(REGION), settings).await.unwrap()
}

fn bodies(messages: &[Message]) -> Vec<&str> {
    messages.iter().map(|message| message.body.as_str()).collect()
}

async fn queues_are_created_as_the_settings_say(cloud: Cloud) {
    let (client, settings) = (cloud.client(REGION), settings());
    assert!(Queue::find(&client, &settings.queue).await.unwrap().is_none());
    let queue = create(cloud, &settings).await;
    assert_eq!(queue.differences(&settings).await.unwrap(), []);
    let attributes = queue.attributes().await.unwrap();
    let attribute = |name| attributes.get(name).map(String::as_str);
    assert_eq!(attribute("FifoQueue"), Some("true"));
    assert_eq!(attribute("ContentBasedDeduplication"), Some("true"));
    assert_eq!(attribute("VisibilityTimeout"), Some("600"));
    assert_eq!(attribute("ReceiveMessageWaitTimeSeconds"), Some("20"));
    let redrive = attribute("RedrivePolicy").unwrap();
    assert!(redrive.contains(&settings.dead_letters) && redrive.contains('3'), "{redrive}");
    let dead_letters = Queue::find(&client, &settings.dead_letters).await.unwrap().unwrap();
    let attributes = dead_letters.attributes().await.unwrap();
    assert_eq!(attributes["MessageRetentionPeriod"], (14 * DAY_MS / 1_000).to_string());
    // Both exist now.
    create(cloud, &settings).await;
    assert!(Queue::find(&client, &settings.queue).await.unwrap().is_some());
}

async fn differences_are_named(cloud: Cloud) {
    let (client, created) = (cloud.client(REGION), settings());
    let queue = create(cloud, &created).await;
    let mut wanted = created.clone();
    (wanted.visibility_ms, wanted.receives, wanted.retention_ms) = (60_000, 5, DAY_MS);
    let found = queue.differences(&wanted).await.unwrap();
    let names: Vec<_> =
        found.iter().map(|found| (found.queue.as_str(), found.attribute.as_str())).collect();
    let expected = [
        (created.queue.as_str(), "VisibilityTimeout"),
        (created.queue.as_str(), "RedrivePolicy"),
        (created.dead_letters.as_str(), "MessageRetentionPeriod"),
    ];
    assert_eq!(names, expected);
    // An existing queue is not changed, and not an error.
    let again = Queue::create(&client, &wanted).await.unwrap();
    assert_eq!(again.differences(&wanted).await.unwrap(), found);
    wanted.dead_letters = "missing-dlq.fifo".to_owned();
    let found = queue.differences(&wanted).await.unwrap();
    assert!(found.iter().any(|found| found.found == "no such queue"), "{found:?}");
}

async fn messages_of_a_group_arrive_in_order(cloud: Cloud) {
    let queue = create(cloud, &settings()).await;
    for body in ["1", "2", "3"] {
        queue.send("cluster-a", body).await.unwrap();
    }
    queue.send("cluster-b", "4").await.unwrap();
    let mut received = Vec::new();
    while received.len() < 4 {
        let messages = queue.receive(10, NO_WAIT).await.unwrap();
        assert!(!messages.is_empty());
        for message in messages {
            assert_eq!(message.receives, 1);
            queue.delete(&message.receipt).await.unwrap();
            received.push((message.group.unwrap(), message.body));
        }
    }
    let of = |group: &str| {
        let found = received.iter().filter(|(found, _)| found == group);
        found.map(|(_, body)| body.as_str()).collect::<Vec<_>>()
    };
    assert_eq!((of("cluster-a"), of("cluster-b")), (vec!["1", "2", "3"], vec!["4"]));
    assert_eq!(queue.counts().await.unwrap(), Counts::default());
}

async fn the_same_message_is_sent_once(cloud: Cloud) {
    let queue = create(cloud, &settings()).await;
    for _ in 0..3 {
        queue.send("cluster-a", r#"{"job":"1"}"#).await.unwrap();
    }
    assert_eq!(queue.counts().await.unwrap().visible, 1);
    let messages = queue.receive(10, NO_WAIT).await.unwrap();
    assert_eq!(bodies(&messages), [r#"{"job":"1"}"#]);
    assert_eq!(queue.receive(10, NO_WAIT).await.unwrap(), []);
}

async fn a_received_message_is_hidden_until_it_is_released(cloud: Cloud) {
    let queue = create(cloud, &settings()).await;
    queue.send("cluster-a", "1").await.unwrap();
    let first = queue.receive(1, NO_WAIT).await.unwrap().remove(0);
    assert_eq!(queue.receive(1, NO_WAIT).await.unwrap(), []);
    let counts = queue.counts().await.unwrap();
    assert_eq!(counts, Counts { visible: 0, in_flight: 1, delayed: 0 });
    queue.change_visibility(&first.receipt, Duration::ZERO).await.unwrap();
    let second = queue.receive(1, NO_WAIT).await.unwrap().remove(0);
    assert_eq!((second.id, second.receives), (first.id, 2));
    queue.delete(&second.receipt).await.unwrap();
    assert_eq!(queue.receive(1, NO_WAIT).await.unwrap(), []);
}

async fn a_message_that_is_never_deleted_goes_to_the_dead_letters(cloud: Cloud) {
    let settings = settings();
    let queue = create(cloud, &settings).await;
    queue.send("cluster-a", "unreadable").await.unwrap();
    for receives in 1..=3 {
        let message = queue.receive(1, NO_WAIT).await.unwrap().remove(0);
        assert_eq!(message.receives, receives);
        queue.change_visibility(&message.receipt, Duration::ZERO).await.unwrap();
    }
    assert_eq!(queue.receive(1, NO_WAIT).await.unwrap(), []);
    let client = cloud.client(REGION);
    let dead_letters = Queue::find(&client, &settings.dead_letters).await.unwrap().unwrap();
    let messages = dead_letters.receive(10, NO_WAIT).await.unwrap();
    assert_eq!(bodies(&messages), ["unreadable"]);
}

async fn a_long_poll_ends_with_the_first_message(cloud: Cloud) {
    let queue = create(cloud, &settings()).await;
    let poll = queue.receive(10, Duration::from_secs(20));
    let send = queue.send("cluster-a", "1");
    let (messages, sent) = tokio::join!(poll, send);
    sent.unwrap();
    assert_eq!(bodies(&messages.unwrap()), ["1"]);
}

async fn limits_are_checked_before_a_request(cloud: Cloud) {
    let queue = create(cloud, &settings()).await;
    queue.send(&"g".repeat(GROUP_BYTES_MAX), &"x".repeat(BODY_BYTES_MAX)).await.unwrap();
    let messages = queue.receive(usize::MAX, NO_WAIT).await.unwrap();
    assert_eq!(messages[0].body.len(), BODY_BYTES_MAX);
    queue.change_visibility(&messages[0].receipt, Duration::MAX).await.unwrap();
    for (group, body) in [
        ("g".repeat(GROUP_BYTES_MAX + 1), "x".to_owned()),
        (String::new(), "x".to_owned()),
        ("a b".to_owned(), "x".to_owned()),
        ("g".to_owned(), "x".repeat(BODY_BYTES_MAX + 1)),
        ("g".to_owned(), String::new()),
    ] {
        let error = queue.send(&group, &body).await.unwrap_err().to_string();
        assert!(error.contains("cannot send SendMessage to sqs"), "{error}");
    }
}

on_both!(
    queues_are_created_as_the_settings_say,
    differences_are_named,
    messages_of_a_group_arrive_in_order,
    the_same_message_is_sent_once,
    a_received_message_is_hidden_until_it_is_released,
    a_message_that_is_never_deleted_goes_to_the_dead_letters,
    a_long_poll_ends_with_the_first_message,
    limits_are_checked_before_a_request,
);

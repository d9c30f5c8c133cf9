//! Requests to SQS that do not use the code under test.

use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};
use tenure_testbed::PythonServer;

use crate::common;

/// Region of all queues.
const REGION: &str = "us-east-1";

/// A queue and its dead-letter queue, with names that no other test has.
pub(crate) struct Sqs {
    server: &'static PythonServer,
    pub(crate) queue: String,
    pub(crate) dead_letters: String,
}

impl Sqs {
    pub(crate) fn new(server: &'static PythonServer) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("jobs-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let (queue, dead_letters) = (format!("{name}.fifo"), format!("{name}-dlq.fifo"));
        Self { server, queue, dead_letters }
    }

    /// Returns the table of the configuration.
    pub(crate) fn table(&self, lines: &str) -> String {
        let Self { queue, dead_letters, .. } = self;
        format!(
            "[clusters.sqs]\nqueue = \"{queue}\"\ndead_letters = \"{dead_letters}\"\n\
             region = \"{REGION}\"\n{lines}\n"
        )
    }

    pub(crate) fn port(&self) -> u16 {
        let url = self.server.url();
        url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port")
    }

    /// Sends a request, and returns the answer; `None` if the queue does not exist.
    fn call(&self, action: &str, request: &Value) -> Option<Value> {
        let listen = format!("127.0.0.1:{}", self.port());
        let target = format!("x-amz-target: AmazonSQS.{action}");
        let authorization = format!(
            "authorization: AWS4-HMAC-SHA256 Credential=test/20260101/{REGION}/sqs/aws4_request, \
             SignedHeaders=host, Signature=none"
        );
        let lines = [
            // Without chunks in the answer.
            "POST / HTTP/1.0",
            "content-type: application/x-amz-json-1.0",
            &target,
            &authorization,
        ];
        let answer = common::http(&listen, &lines, &request.to_string()).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        let status = head.split(' ').nth(1).expect("a status");
        if status != "200" {
            assert!(body.contains("QueueDoesNotExist"), "{action}: {head}\n{body}");
            return None;
        }
        Some(serde_json::from_str(body).unwrap_or_default())
    }

    fn url(&self, name: &str) -> Option<String> {
        let answer = self.call("GetQueueUrl", &json!({"QueueName": name}))?;
        Some(answer["QueueUrl"].as_str().expect("an address").to_owned())
    }

    /// Creates a queue with these attributes.
    pub(crate) fn create(&self, name: &str, attributes: &Value) {
        self.call("CreateQueue", &json!({"QueueName": name, "Attributes": attributes}));
    }

    /// Sends a message, which is not deduplicated.
    pub(crate) fn send(&self, name: &str, group: &str, body: &str) {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let id = format!("test-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let request = json!({
            "QueueUrl": self.url(name).expect("it exists"), "MessageBody": body,
            "MessageGroupId": group, "MessageDeduplicationId": id,
        });
        self.call("SendMessage", &request);
    }

    /// Sends a wake-up of a cluster.
    pub(crate) fn wake(&self, cluster: &str) {
        self.send(&self.queue, &format!("cluster-aws:{cluster}"), &wakeup(cluster));
    }

    pub(crate) fn purge(&self) {
        let url = self.url(&self.queue).expect("it exists");
        self.call("PurgeQueue", &json!({"QueueUrl": url}));
    }

    /// Receives messages; returns the body of each, and how often it was received.
    pub(crate) fn receive(&self, name: &str) -> Vec<(String, String)> {
        let request = json!({
            "QueueUrl": self.url(name).expect("it exists"), "MaxNumberOfMessages": 10,
            "AttributeNames": ["ApproximateReceiveCount"], "WaitTimeSeconds": 0,
        });
        let answer = self.call("ReceiveMessage", &request).expect("it exists");
        let messages = answer["Messages"].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let read = |message: &Value| {
            (text(&message["Body"]), text(&message["Attributes"]["ApproximateReceiveCount"]))
        };
        messages.iter().map(read).collect()
    }

    /// Returns an attribute of a queue; empty if there is no such queue or attribute.
    pub(crate) fn attribute(&self, name: &str, attribute: &str) -> String {
        let Some(url) = self.url(name) else { return String::new() };
        let request = json!({"QueueUrl": url, "AttributeNames": ["All"]});
        let answer = self.call("GetQueueAttributes", &request).expect("it exists");
        match &answer["Attributes"][attribute] {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            other => other.to_string(),
        }
    }

    /// Returns the number of messages that can be received.
    pub(crate) fn visible(&self, name: &str) -> u64 {
        self.attribute(name, "ApproximateNumberOfMessages").parse().unwrap_or(0)
    }

    fn hidden(&self, name: &str) -> u64 {
        self.attribute(name, "ApproximateNumberOfMessagesNotVisible").parse().unwrap_or(0)
    }

    /// Returns whether all messages were deleted.
    pub(crate) fn is_drained(&self) -> bool {
        let count = |name: &str| self.visible(name) + self.hidden(name);
        self.url(&self.queue).is_some() && count(&self.queue) == 0 && count(&self.dead_letters) == 0
    }
}

/// Returns the content of a wake-up of a cluster.
pub(crate) fn wakeup(cluster: &str) -> String {
    let id = format!("aws:{cluster}.dev.example.com");
    let job = "018f2b8a00000000000000000000002a";
    json!({"tenant": "default", "cluster_id": id, "job_id": job, "job_type": "CREATE"}).to_string()
}

//! Queues on SQS: FIFO, with deduplication by content and a dead-letter queue.
//!
//! A message is a hint that wakes a worker; the job is what counts. So a message may be lost,
//! delivered twice, or still be there after it was deleted too late: nothing depends on it.
//!
//! Every request can be repeated: a message that was sent twice is deduplicated by its content.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{AwsError, Client, Protocol, Service};
use crate::settings::SqsSettings;

const SQS: Service = Service { name: "sqs", protocol: Protocol::Json10, target: "AmazonSQS" };

/// Maximum size of a message.
pub const BODY_BYTES_MAX: usize = 256 << 10;
/// Maximum length of the name of a group.
pub const GROUP_BYTES_MAX: usize = 128;
/// Maximum number of messages of one receive.
pub const RECEIVE_MAX: usize = 10;
/// Maximum duration of one long poll.
pub const WAIT_MAX: Duration = Duration::from_secs(20);
/// Maximum time for which a message is hidden: SQS permits twelve hours from its receive.
pub const VISIBILITY_MAX: Duration = Duration::from_secs(11 * 60 * 60);
/// Maximum length of the name of a queue.
const NAME_BYTES_MAX: usize = 80;
/// Ending of the names of FIFO queues.
const FIFO: &str = ".fifo";

/// A queue.
#[derive(Clone, Debug)]
pub struct Queue {
    client: Client,
    name: String,
    url: String,
}

/// A message that was received. Its body is hidden from debug output.
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    /// Id of the message.
    pub id: String,
    /// Content.
    pub body: String,
    /// What [`Queue::delete`] needs. It expires with the visibility timeout.
    pub receipt: String,
    /// Group.
    pub group: Option<String>,
    /// Number of receives, with this one.
    pub receives: u32,
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("id", &self.id)
            .field("group", &self.group)
            .field("receives", &self.receives)
            .finish_non_exhaustive()
    }
}

/// Approximate numbers of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that can be received.
    pub visible: u64,
    /// Messages that were received and are hidden.
    pub in_flight: u64,
    /// Messages that become visible later.
    pub delayed: u64,
}

/// An attribute of a queue that is not as the settings say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Queue.
    pub queue: String,
    /// Name of the attribute on SQS.
    pub attribute: String,
    /// Value of the settings.
    pub expected: String,
    /// Value of the queue.
    pub found: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queue, attribute, expected, found } = self;
        write!(f, "the queue {queue} has {attribute} {found}; the settings say {expected}")
    }
}

impl Queue {
    /// Returns the queue with a name, or none if it does not exist.
    ///
    /// # Errors
    ///
    /// Fails if the request fails.
    pub async fn find(client: &Client, name: &str) -> Result<Option<Self>, AwsError> {
        check_name("GetQueueUrl", name)?;
        let request = json!({"QueueName": name});
        let found: Result<QueueUrl, _> = call(client, "GetQueueUrl", &request).await;
        match found {
            Ok(QueueUrl { url }) => {
                Ok(Some(Self { client: client.clone(), name: name.to_owned(), url }))
            }
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates the queue of the settings with its dead-letter queue. Queues that exist keep their
    /// attributes; see [`Queue::differences`].
    ///
    /// # Errors
    ///
    /// Fails if a request fails.
    pub async fn create(client: &Client, settings: &SqsSettings) -> Result<Self, AwsError> {
        let dead_letters = match Self::find(client, &settings.dead_letters).await? {
            Some(queue) => queue,
            None => {
                let attributes = dead_letter_attributes(settings);
                Self::create_one(client, &settings.dead_letters, &attributes).await?
            }
        };
        if let Some(queue) = Self::find(client, &settings.queue).await? {
            return Ok(queue);
        }
        let mut attributes = queue_attributes(settings);
        let redrive = redrive_policy(&dead_letters.arn().await?, settings.receives);
        attributes.insert("RedrivePolicy", redrive);
        Self::create_one(client, &settings.queue, &attributes).await
    }

    async fn create_one(
        client: &Client,
        name: &str,
        attributes: &BTreeMap<&'static str, String>,
    ) -> Result<Self, AwsError> {
        check_name("CreateQueue", name)?;
        let request = json!({"QueueName": name, "Attributes": attributes});
        let QueueUrl { url } = call(client, "CreateQueue", &request).await?;
        Ok(Self { client: client.clone(), name: name.to_owned(), url })
    }

    /// Returns what is not as the settings say, of this queue and of its dead-letter queue.
    ///
    /// # Errors
    ///
    /// Fails if a request fails.
    pub async fn differences(&self, settings: &SqsSettings) -> Result<Vec<Difference>, AwsError> {
        let mut found = compare(&self.name, &queue_attributes(settings), &self.attributes().await?);
        let Some(dead_letters) = Self::find(&self.client, &settings.dead_letters).await? else {
            let (queue, attribute) = (self.name.clone(), "RedrivePolicy".to_owned());
            let (expected, missing) = (settings.dead_letters.clone(), "no such queue".to_owned());
            found.push(Difference { queue, attribute, expected, found: missing });
            return Ok(found);
        };
        let redrive = redrive_policy(&dead_letters.arn().await?, settings.receives);
        let redrive = BTreeMap::from([("RedrivePolicy", redrive)]);
        found.extend(compare(&self.name, &redrive, &self.attributes().await?));
        let expected = dead_letter_attributes(settings);
        found.extend(compare(&dead_letters.name, &expected, &dead_letters.attributes().await?));
        Ok(found)
    }

    /// Sends a message. Two with the same body within five minutes are one. Returns its id.
    ///
    /// # Errors
    ///
    /// Fails if the request fails, or group or body are too long.
    pub async fn send(&self, group: &str, body: &str) -> Result<String, AwsError> {
        self.send_as(None, group, body).await
    }

    /// Sends a message again, although one with the same body may have been sent shortly before.
    /// Two with the same `id` are one.
    ///
    /// # Errors
    ///
    /// See [`Queue::send`].
    pub async fn send_again(&self, id: &str, group: &str, body: &str) -> Result<String, AwsError> {
        self.send_as(Some(id), group, body).await
    }

    async fn send_as(&self, id: Option<&str>, group: &str, body: &str) -> Result<String, AwsError> {
        #[derive(Deserialize)]
        struct Answer {
            #[serde(rename = "MessageId")]
            id: String,
        }
        let action = "SendMessage";
        if group.is_empty() || group.len() > GROUP_BYTES_MAX || !group.bytes().all(is_graphic) {
            return Err(limit(
                action,
                format!("the group {group:?} is not 1 to {GROUP_BYTES_MAX} ASCII characters"),
            ));
        }
        if body.is_empty() || body.len() > BODY_BYTES_MAX {
            let size = body.len();
            return Err(limit(
                action,
                format!("the message has {size} bytes; allowed are 1 to {BODY_BYTES_MAX}"),
            ));
        }
        let mut request =
            json!({"QueueUrl": self.url, "MessageBody": body, "MessageGroupId": group});
        if let Some(id) = id {
            request["MessageDeduplicationId"] = id.into();
        }
        let answer: Answer = call(&self.client, action, &request).await?;
        Ok(answer.id)
    }

    /// Receives up to `max` messages, waiting for the first one for up to `wait`. Both are
    /// lowered to what SQS permits.
    ///
    /// # Errors
    ///
    /// Fails if the request fails. Messages whose answer was lost become visible again.
    pub async fn receive(&self, max: usize, wait: Duration) -> Result<Vec<Message>, AwsError> {
        #[derive(Deserialize)]
        struct Answer {
            #[serde(rename = "Messages", default)]
            messages: Option<Vec<Received>>,
        }
        let wait = wait.min(WAIT_MAX);
        let request = json!({
            "QueueUrl": self.url,
            "MaxNumberOfMessages": max.clamp(1, RECEIVE_MAX),
            "WaitTimeSeconds": wait.as_secs(),
            "MessageSystemAttributeNames": ["ApproximateReceiveCount", "MessageGroupId"],
            // Servers that only know its former name.
            "AttributeNames": ["ApproximateReceiveCount", "MessageGroupId"],
        });
        let answer: Answer = self.client.call(SQS, "ReceiveMessage", &request, wait).await?;
        Ok(answer.messages.unwrap_or_default().into_iter().map(Message::from).collect())
    }

    /// Deletes a message. After its visibility timeout this may have no effect.
    ///
    /// # Errors
    ///
    /// Fails if the request fails, for example because the receipt has expired.
    pub async fn delete(&self, receipt: &str) -> Result<(), AwsError> {
        let request = json!({"QueueUrl": self.url, "ReceiptHandle": receipt});
        let _: Value = call(&self.client, "DeleteMessage", &request).await?;
        Ok(())
    }

    /// Hides a message for a time from now, at most for [`VISIBILITY_MAX`]; with zero it is
    /// visible at once.
    ///
    /// # Errors
    ///
    /// Fails if the request fails, for example because the receipt has expired.
    pub async fn change_visibility(&self, receipt: &str, time: Duration) -> Result<(), AwsError> {
        let request = json!({
            "QueueUrl": self.url,
            "ReceiptHandle": receipt,
            "VisibilityTimeout": time.min(VISIBILITY_MAX).as_secs(),
        });
        let _: Value = call(&self.client, "ChangeMessageVisibility", &request).await?;
        Ok(())
    }

    /// Returns the numbers of messages.
    ///
    /// # Errors
    ///
    /// Fails if the request fails.
    pub async fn counts(&self) -> Result<Counts, AwsError> {
        let attributes = self.attributes().await?;
        let count = |name: &str| attributes.get(name).and_then(|n| n.parse().ok()).unwrap_or(0);
        Ok(Counts {
            visible: count("ApproximateNumberOfMessages"),
            in_flight: count("ApproximateNumberOfMessagesNotVisible"),
            delayed: count("ApproximateNumberOfMessagesDelayed"),
        })
    }

    /// Returns all attributes.
    ///
    /// # Errors
    ///
    /// Fails if the request fails.
    pub async fn attributes(&self) -> Result<BTreeMap<String, String>, AwsError> {
        #[derive(Deserialize)]
        struct Answer {
            #[serde(rename = "Attributes", default)]
            attributes: BTreeMap<String, Value>,
        }
        let request = json!({"QueueUrl": self.url, "AttributeNames": ["All"]});
        let answer: Answer = call(&self.client, "GetQueueAttributes", &request).await?;
        // They are texts on AWS; imitations also have numbers.
        Ok(answer.attributes.into_iter().map(|(name, value)| (name, text(value))).collect())
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    async fn arn(&self) -> Result<String, AwsError> {
        self.attributes().await?.remove("QueueArn").ok_or_else(|| AwsError::Answer {
            service: SQS.name,
            action: "GetQueueAttributes",
            why: format!("the queue {} has no ARN", self.name),
        })
    }
}

/// The answer with the address of a queue.
#[derive(Deserialize)]
struct QueueUrl {
    #[serde(rename = "QueueUrl")]
    url: String,
}

/// A message as SQS sends it.
#[derive(Deserialize)]
struct Received {
    #[serde(rename = "MessageId")]
    id: String,
    #[serde(rename = "Body", default)]
    body: String,
    #[serde(rename = "ReceiptHandle")]
    receipt: String,
    #[serde(rename = "Attributes", default)]
    attributes: BTreeMap<String, Value>,
}

impl From<Received> for Message {
    fn from(mut received: Received) -> Self {
        let mut attribute = |name| received.attributes.remove(name).map(text);
        let group = attribute("MessageGroupId");
        let receives = attribute("ApproximateReceiveCount").and_then(|count| count.parse().ok());
        let Received { id, body, receipt, .. } = received;
        Self { id, body, receipt, group, receives: receives.unwrap_or(1) }
    }
}

async fn call<T: serde::de::DeserializeOwned>(
    client: &Client,
    action: &'static str,
    request: &Value,
) -> Result<T, AwsError> {
    client.call(SQS, action, request, Duration::ZERO).await
}

fn is_missing(error: &AwsError) -> bool {
    matches!(error.code(), Some("QueueDoesNotExist" | "NonExistentQueue"))
}

/// Attributes of the queue, without its redrive policy.
fn queue_attributes(settings: &SqsSettings) -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        ("FifoQueue", "true".to_owned()),
        ("ContentBasedDeduplication", "true".to_owned()),
        ("DelaySeconds", "0".to_owned()),
        ("VisibilityTimeout", seconds(settings.visibility_ms)),
        ("ReceiveMessageWaitTimeSeconds", seconds(settings.wait_ms)),
    ])
}

fn dead_letter_attributes(settings: &SqsSettings) -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        ("FifoQueue", "true".to_owned()),
        ("ContentBasedDeduplication", "true".to_owned()),
        ("MessageRetentionPeriod", seconds(settings.retention_ms)),
    ])
}

fn redrive_policy(dead_letters: &str, receives: u32) -> String {
    json!({"deadLetterTargetArn": dead_letters, "maxReceiveCount": receives}).to_string()
}

fn seconds(ms: u64) -> String {
    (ms / 1_000).to_string()
}

fn compare(
    queue: &str,
    expected: &BTreeMap<&'static str, String>,
    found: &BTreeMap<String, String>,
) -> Vec<Difference> {
    let differing = expected.iter().filter_map(|(attribute, expected)| {
        let found = found.get(*attribute);
        if found.is_some_and(|found| canonical(found) == canonical(expected)) {
            return None;
        }
        Some(Difference {
            queue: queue.to_owned(),
            attribute: (*attribute).to_owned(),
            expected: expected.clone(),
            found: found.map_or_else(|| "not set".to_owned(), Clone::clone),
        })
    });
    differing.collect()
}

/// Returns a value with numbers and texts written alike, also in a policy.
fn canonical(value: &str) -> Value {
    match serde_json::from_str(value) {
        Ok(Value::Object(fields)) => {
            fields.into_iter().map(|(name, value)| (name, Value::from(text(value)))).collect()
        }
        _ => Value::from(value.to_lowercase()),
    }
}

fn text(value: Value) -> String {
    match value {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

fn check_name(action: &'static str, name: &str) -> Result<(), AwsError> {
    let base = name.strip_suffix(FIFO).unwrap_or_default();
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if base.is_empty() || name.len() > NAME_BYTES_MAX || !base.chars().all(allowed) {
        return Err(limit(
            action,
            format!(
                "{name:?} is not the name of a FIFO queue: up to {NAME_BYTES_MAX} letters, digits, \
                 hyphens and underscores, ending in {FIFO}"
            ),
        ));
    }
    Ok(())
}

fn is_graphic(byte: u8) -> bool {
    byte.is_ascii_graphic()
}

fn limit(action: &'static str, why: String) -> AwsError {
    AwsError::Limit { service: SQS.name, action, why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_queues_are_checked() {
        check_name("GetQueueUrl", "ocpctl-jobs.fifo").unwrap();
        check_name("GetQueueUrl", &format!("{}.fifo", "a".repeat(NAME_BYTES_MAX - 5))).unwrap();
        let long = format!("{}.fifo", "a".repeat(NAME_BYTES_MAX - 4));
        for name in ["", ".fifo", "jobs", "a b.fifo", "a.b.fifo", long.as_str()] {
            let error = check_name("GetQueueUrl", name).unwrap_err().to_string();
            assert!(error.contains("is not the name of a FIFO queue"), "{error}");
        }
    }

    #[test]
    fn attributes_are_compared_by_value() {
        let expected = BTreeMap::from([
            ("FifoQueue", "true".to_owned()),
            ("RedrivePolicy", redrive_policy("arn:q", 3)),
            ("VisibilityTimeout", "600".to_owned()),
        ]);
        let mut found: BTreeMap<String, String> = [
            ("FifoQueue", "True"),
            ("RedrivePolicy", r#"{"maxReceiveCount":"3","deadLetterTargetArn":"arn:q"}"#),
            ("VisibilityTimeout", "600"),
            ("Other", "x"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        assert_eq!(compare("q", &expected, &found), []);
        found.insert("VisibilityTimeout".to_owned(), "30".to_owned());
        found.remove("RedrivePolicy");
        let texts: Vec<_> =
            compare("q", &expected, &found).iter().map(Difference::to_string).collect();
        assert!(texts[0].starts_with("the queue q has RedrivePolicy not set; the settings say {"));
        assert_eq!(texts[1], "the queue q has VisibilityTimeout 30; the settings say 600");
    }

    #[test]
    fn bodies_are_not_in_debug_output() {
        let message = Message {
            id: "1".into(),
            body: "hunter2".into(),
            receipt: "r".into(),
            group: None,
            receives: 1,
        };
        assert!(!format!("{message:?}").contains("hunter2"));
    }
}

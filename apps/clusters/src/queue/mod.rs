//! The transport over SQS FIFO.
//!
//! A message wakes a worker and decides nothing: the job is in the store, and the claim decides who
//! runs it. So a message is deleted as soon as the store has answered the claim, with or without a
//! job; a busy cluster never makes a message be received again. A message that is lost, delivered
//! twice or deleted too late changes nothing, because workers also claim at an interval. Only a
//! message that cannot be read stays, until SQS moves it to the dead-letter queue.
//!
//! `receiver.rs` wakes workers, `dead_letters.rs` watches the dead-letter queue.

mod dead_letters;
mod receiver;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tenure::worker::Wakeups;
use tenure_core::{JobId, ResourceKey};
use tenure_wire::JobInfo;

use crate::LoadedClusters;
use crate::aws::sqs::{GROUP_BYTES_MAX, Queue};
use crate::aws::{AwsError, Client};
use crate::names::cluster_key;
use crate::settings::{Settings, SqsSettings};

pub(crate) use dead_letters::{DeadLetterWatch, dead_messages, kind, redrive};

/// Time within which a message is sent; the request that submitted the job does not wait for it.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// Content of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Wakeup {
    tenant: String,
    cluster_id: String,
    job_id: JobId,
    job_type: String,
}

impl Wakeup {
    /// Returns the cluster, unless the message cannot be read.
    pub(crate) fn parse(body: &str) -> Result<ResourceKey, String> {
        let wakeup: Self = serde_json::from_str(body).map_err(|error| error.to_string())?;
        cluster_key(&wakeup.tenant, &wakeup.cluster_id).map_err(|error| error.to_string())
    }
}

/// Opens the queue; creates it and its dead-letter queue if they are missing and may be created.
pub(crate) async fn open(settings: &Settings, sqs: &SqsSettings) -> Result<Queue, AwsError> {
    let client = client(settings, sqs)?;
    if sqs.create {
        return Queue::create(&client, sqs).await;
    }
    find(&client, &sqs.queue).await
}

/// Opens the dead-letter queue.
pub(crate) async fn open_dead_letters(
    settings: &Settings,
    sqs: &SqsSettings,
) -> Result<Queue, AwsError> {
    if sqs.create {
        open(settings, sqs).await?;
    }
    find(&client(settings, sqs)?, &sqs.dead_letters).await
}

fn client(settings: &Settings, sqs: &SqsSettings) -> Result<Client, AwsError> {
    Client::from_env(&sqs.region, settings.aws_endpoint.as_deref())
}

async fn find(client: &Client, name: &str) -> Result<Queue, AwsError> {
    Queue::find(client, name).await?.ok_or_else(|| {
        let region = client.region();
        AwsError::Setup(format!(
            "there is no queue {name} in {region}; create it, or set `create = true` in \
             [clusters.sqs]"
        ))
    })
}

/// Sends a message for a submitted job, if there is a queue. A message that cannot be sent costs
/// latency only, so the caller need not know.
pub(crate) fn send_wakeup(app: &LoadedClusters, key: &ResourceKey, job: &JobInfo) {
    let Some(sqs) = app.settings.sqs.clone() else { return };
    let settings = app.settings.clone();
    let wakeup = Wakeup {
        tenant: key.tenant().to_owned(),
        cluster_id: key.name().to_owned(),
        job_id: job.id,
        job_type: job.operation.clone(),
    };
    tokio::spawn(async move {
        let send = async {
            let body = serde_json::to_string(&wakeup).expect("plain data");
            open(&settings, &sqs).await?.send(&group(&wakeup.cluster_id), &body).await
        };
        match tokio::time::timeout(SEND_TIMEOUT, send).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                tracing::warn!(job = %wakeup.job_id, %error, "cannot send a wake-up to SQS");
            }
            Err(_) => tracing::warn!(job = %wakeup.job_id, "SQS did not accept a wake-up in time"),
        }
    });
}

/// Returns the group of the messages of a cluster: `cluster-ID`. One that is too long, or has
/// characters that SQS refuses, ends with a hash.
fn group(cluster: &str) -> String {
    let group = format!("cluster-{cluster}");
    if group.len() <= GROUP_BYTES_MAX && group.bytes().all(|byte| byte.is_ascii_graphic()) {
        return group;
    }
    let mut short = "cluster-".to_owned();
    for byte in &Sha256::digest(cluster.as_bytes())[..16] {
        write!(short, "{byte:02x}").expect("a string has room");
    }
    short
}

/// Returns what wakes workers, if there is a queue.
pub(crate) fn wakeups(settings: &Settings) -> Option<Arc<dyn Wakeups>> {
    let sqs = settings.sqs.clone()?;
    Some(Arc::new(receiver::SqsWakeups::new(settings.clone(), sqs)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_the_cluster() {
        let wakeup = Wakeup {
            tenant: "acme".to_owned(),
            cluster_id: "aws:demo.dev.example.com".to_owned(),
            job_id: JobId(7),
            job_type: "CREATE".to_owned(),
        };
        let body = serde_json::to_string(&wakeup).unwrap();
        let key = Wakeup::parse(&body).unwrap();
        assert_eq!(key.to_string(), "acme/cluster/aws:demo.dev.example.com");
        for bad in ["", "{}", "[]", r#"{"tenant":"a","cluster_id":"","job_id":"0","job_type":""}"#]
        {
            assert!(Wakeup::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn groups_are_names_that_sqs_accepts() {
        assert_eq!(group("aws:demo.dev.example.com"), "cluster-aws:demo.dev.example.com");
        for long in ["a".repeat(200), "é".to_owned()] {
            let group = group(&long);
            assert!(group.len() <= GROUP_BYTES_MAX && group.is_ascii(), "{group}");
        }
        assert_ne!(group(&"a".repeat(200)), group(&"b".repeat(200)));
    }
}

//! Watches the dead-letter queue.
//!
//! One process of the fleet counts the messages and stores the number as the spec of a resource, so
//! that every server can show and export it.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tenure::Failure;
use tenure_app::controller::SYSTEM_TENANT;
use tenure_app::{Controller, ControllerContext};
use tenure_core::{Kind, ResourceKey};
use tenure_store::{Store, StoreError};

use super::{Wakeup, open, open_dead_letters};
use crate::LoadedClusters;
use crate::aws::AwsError;
use crate::aws::sqs::{Message, RECEIVE_MAX};
use crate::settings::{Settings, SqsSettings};
use crate::wire::RedriveQueueResponse;

/// Kind of the resource with the number of dead messages.
const KIND: &str = "cluster-queue";
/// Its name.
const NAME: &str = "dead-letters";
/// Interval between two looks.
const INTERVAL: Duration = Duration::from_secs(10);
/// Code of a queue that cannot be read.
const QUEUE: &str = "QUEUE";
/// Maximum number of receives of one redrive.
const RECEIVES_MAX: usize = 100;

/// What was seen last.
#[derive(Serialize, Deserialize)]
struct Seen {
    messages: u64,
}

/// Returns the kind.
pub(crate) fn kind() -> Kind {
    Kind::new(KIND)
}

/// Counts the messages of the dead-letter queue.
pub(crate) struct DeadLetterWatch;

#[async_trait]
impl Controller for DeadLetterWatch {
    fn name(&self) -> &'static str {
        "cluster-dead-letters"
    }

    async fn run(&self, cx: ControllerContext) -> Result<(), Failure> {
        let resource = cx.client.for_tenant(SYSTEM_TENANT)?.resource(&format!("{KIND}/{NAME}"))?;
        let mut shown = resource.get().await?.is_some();
        let mut before = 0;
        loop {
            let app = cx.live.app::<LoadedClusters>();
            let settings = app.as_ref().map(|app| &app.settings);
            let queue = settings.and_then(|settings| Some((settings, settings.sqs.as_ref()?)));
            let messages = match queue {
                Some((settings, sqs)) => {
                    let counted = count(settings, sqs).await;
                    let messages = counted.map_err(|error| Failure::new(QUEUE, error))?;
                    if messages > before {
                        let (queue, remedy) = (&sqs.dead_letters, "see `tenure cluster queue`");
                        tracing::warn!(queue, messages, remedy, "a queue has dead messages");
                    }
                    Some(messages)
                }
                // A queue that is not configured any more has none.
                None => shown.then_some(0),
            };
            if let Some(messages) = messages {
                cx.check()?;
                resource.put(&Seen { messages }).await?;
                (before, shown) = (messages, true);
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }
}

async fn count(settings: &Settings, sqs: &SqsSettings) -> Result<u64, AwsError> {
    let counts = open_dead_letters(settings, sqs).await?.counts().await?;
    Ok(counts.visible + counts.in_flight)
}

/// Returns the number of dead messages, as of the last look.
pub(crate) async fn dead_messages(store: &dyn Store) -> Result<u64, StoreError> {
    let key = ResourceKey::new(SYSTEM_TENANT, KIND, NAME).expect("a valid name");
    let Some(detail) = store.reads().show(&key).await? else { return Ok(0) };
    let spec = detail.record.resource.and_then(|resource| resource.spec);
    let seen = spec.and_then(|spec| serde_json::from_str::<Seen>(&spec).ok());
    Ok(seen.map_or(0, |seen| seen.messages))
}

/// Sends the messages of the dead-letter queue again. Those that cannot be read stay: they are
/// hidden for a while, and come back.
pub(crate) async fn redrive(
    settings: &Settings,
    sqs: &SqsSettings,
) -> Result<RedriveQueueResponse, AwsError> {
    let queue = open(settings, sqs).await?;
    let dead = open_dead_letters(settings, sqs).await?;
    let (mut sent, mut unreadable) = (0, BTreeSet::new());
    for _ in 0..RECEIVES_MAX {
        let messages = dead.receive(RECEIVE_MAX, Duration::ZERO).await?;
        let mut found = false;
        for Message { id, body, receipt, .. } in messages {
            let Ok(key) = Wakeup::parse(&body) else {
                // Those seen before have become visible again.
                found |= unreadable.insert(id);
                continue;
            };
            // With its id: a message with the same body may have been sent minutes ago.
            queue.send_again(&id, &super::group(key.name()), &body).await?;
            dead.delete(&receipt).await?;
            (sent, found) = (sent + 1, true);
        }
        if !found {
            break;
        }
    }
    Ok(RedriveQueueResponse { sent, unreadable: unreadable.len() as u64 })
}

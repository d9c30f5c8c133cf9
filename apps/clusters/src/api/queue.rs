//! Requests about the queue on SQS.

use tenure_app::{Problem, Services};

use super::loaded;
use crate::LoadedClusters;
use crate::aws::AwsError;
use crate::queue::{self, open_dead_letters};
use crate::settings::SqsSettings;
use crate::wire::{QueueResponse, RedriveQueueResponse};

pub(super) use crate::queue::send_wakeup;

/// Shows the queue and its dead-letter queue.
pub(super) async fn show(services: &Services) -> Result<QueueResponse, Problem> {
    let app = loaded(services)?;
    let sqs = configured(&app)?;
    let read = async {
        let queue = queue::open(&app.settings, sqs).await?;
        let counts = queue.counts().await?;
        let dead = open_dead_letters(&app.settings, sqs).await?.counts().await?;
        let differences = queue.differences(sqs).await?;
        Ok(QueueResponse {
            queue: sqs.queue.clone(),
            waiting: counts.visible + counts.delayed,
            in_flight: counts.in_flight,
            dead_letter_queue: sqs.dead_letters.clone(),
            dead_letters: dead.visible + dead.in_flight,
            problems: differences.iter().map(ToString::to_string).collect(),
        })
    };
    read.await.map_err(|error| unavailable(&error))
}

/// Sends dead messages again.
pub(super) async fn redrive(services: &Services) -> Result<RedriveQueueResponse, Problem> {
    let app = loaded(services)?;
    queue::redrive(&app.settings, configured(&app)?).await.map_err(|error| unavailable(&error))
}

fn configured(app: &LoadedClusters) -> Result<&SqsSettings, Problem> {
    app.settings.sqs.as_ref().ok_or_else(|| {
        Problem::not_found("no queue is configured; add the table [clusters.sqs] to use one")
    })
}

fn unavailable(error: &AwsError) -> Problem {
    Problem::unavailable(&format!("the queue cannot be used: {error}"))
}

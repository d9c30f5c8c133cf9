//! Requests that wait here for a hint that they were granted.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use tenure_core::{RequestId, TenureView};
use tokio::sync::{broadcast, watch};

use crate::store::Hint;

pub(super) async fn wake_on_hints(mut hints: broadcast::Receiver<Hint>, sleepers: Arc<Sleepers>) {
    loop {
        match hints.recv().await {
            Ok(Hint::Granted(tenure)) => sleepers.tell(&tenure),
            Ok(_) => {}
            // What was missed is found by asking again.
            Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => return,
        }
    }
}

/// Requests that wait here for a hint.
#[derive(Default)]
pub(super) struct Sleepers(Mutex<HashMap<RequestId, watch::Sender<Option<Arc<TenureView>>>>>);

impl Sleepers {
    pub(super) fn register(self: &Arc<Self>, request: RequestId) -> Sleeper {
        let told = self.map().entry(request).or_default().subscribe();
        Sleeper { request, told, sleepers: Arc::clone(self) }
    }

    fn tell(&self, tenure: &Arc<TenureView>) {
        if let Some(sender) = self.map().get(&tenure.request) {
            sender.send_replace(Some(Arc::clone(tenure)));
        }
    }

    fn map(&self) -> MutexGuard<'_, HashMap<RequestId, watch::Sender<Option<Arc<TenureView>>>>> {
        self.0.lock().expect("nothing panics while the map is locked")
    }
}

/// A place among the sleepers, given up on drop.
pub(super) struct Sleeper {
    request: RequestId,
    told: watch::Receiver<Option<Arc<TenureView>>>,
    sleepers: Arc<Sleepers>,
}

impl Sleeper {
    /// Completes when the request is granted, if a hint says so.
    pub(super) async fn told(&mut self) -> Arc<TenureView> {
        let told = self.told.wait_for(Option::is_some).await.ok().and_then(|told| told.clone());
        match told {
            Some(tenure) => tenure,
            // Another waiter of the same request has gone and taken the sender with it.
            None => std::future::pending().await,
        }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.sleepers.map().remove(&self.request);
    }
}

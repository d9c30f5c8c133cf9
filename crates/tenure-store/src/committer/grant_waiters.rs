//! Requests that wait for the hint that they were granted.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use tenure_core::{RequestId, TenureView};
use tokio::sync::{broadcast, watch};

use crate::store::Hint;

pub(super) async fn wake_on_hints(
    mut hints: broadcast::Receiver<Hint>,
    waiters: Arc<GrantWaiters>,
) {
    loop {
        match hints.recv().await {
            Ok(Hint::Granted(tenure)) => waiters.notify(&tenure),
            Ok(_) => {}
            // Waiters find what was missed by polling.
            Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => return,
        }
    }
}

/// Registry of waiting requests.
#[derive(Default)]
pub(super) struct GrantWaiters(Mutex<HashMap<RequestId, watch::Sender<Option<Arc<TenureView>>>>>);

impl GrantWaiters {
    pub(super) fn register(self: &Arc<Self>, request: RequestId) -> GrantWaiter {
        let granted = self.map().entry(request).or_default().subscribe();
        GrantWaiter { request, granted, registry: Arc::clone(self) }
    }

    fn notify(&self, tenure: &Arc<TenureView>) {
        if let Some(sender) = self.map().get(&tenure.request) {
            sender.send_replace(Some(Arc::clone(tenure)));
        }
    }

    fn map(&self) -> MutexGuard<'_, HashMap<RequestId, watch::Sender<Option<Arc<TenureView>>>>> {
        self.0.lock().expect("no panic while the map is locked")
    }
}

/// Registration of a waiting request, removed on drop.
pub(super) struct GrantWaiter {
    request: RequestId,
    granted: watch::Receiver<Option<Arc<TenureView>>>,
    registry: Arc<GrantWaiters>,
}

impl GrantWaiter {
    /// Waits for the hint that the request was granted.
    pub(super) async fn granted(&mut self) -> Arc<TenureView> {
        let granted = self.granted.wait_for(Option::is_some).await.ok();
        match granted.and_then(|granted| granted.clone()) {
            Some(tenure) => tenure,
            // The sender is removed with the last waiter.
            None => std::future::pending().await,
        }
    }
}

impl Drop for GrantWaiter {
    fn drop(&mut self) {
        let mut map = self.registry.map();
        // Another copy of the request may still wait, and it may have another caller.
        if map.get(&self.request).is_some_and(|sender| sender.receiver_count() == 1) {
            map.remove(&self.request);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_one_waiter_keeps_the_others() {
        let waiters = Arc::new(GrantWaiters::default());
        let request = RequestId(1);
        let (first, second) = (waiters.register(request), waiters.register(request));
        drop(second);
        assert!(waiters.map().contains_key(&request), "the first still waits");
        drop(first);
        assert!(waiters.map().is_empty());
    }
}

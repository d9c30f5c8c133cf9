//! Faults that a test plants: on the next requests that match a method and a part of a path.

use tokio::sync::oneshot;

use super::objects::Objects;

/// How the server misbehaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KubeFault {
    /// Answers with this status, and does nothing.
    Status(u16),
    /// Answers with this status and `Retry-After` in seconds, and does nothing.
    RetryAfter(u16, u32),
    /// Does what is asked, and answers with this status.
    AppliedThenStatus(u16),
    /// Closes the connection without an answer, and does nothing.
    Disconnect,
    /// Does what is asked, and closes the connection without an answer.
    AppliedThenDisconnect,
    /// Never answers.
    Hang,
}

/// A request that is held until the test releases it.
#[derive(Debug)]
pub struct Held {
    arrived: oneshot::Receiver<()>,
    release: oneshot::Sender<()>,
}

impl Held {
    /// Completes when the request has arrived.
    pub async fn arrived(&mut self) {
        (&mut self.arrived).await.ok();
    }

    /// Lets the request pass. A dropped handle does, too.
    pub fn release(self) {
        self.release.send(()).ok();
    }
}

/// The server's side of [`Held`].
pub(super) struct Holding {
    arrived: oneshot::Sender<()>,
    release: oneshot::Receiver<()>,
}

impl Holding {
    /// Reports the request and waits for its release.
    pub(super) async fn wait(self) {
        self.arrived.send(()).ok();
        self.release.await.ok();
    }
}

/// A change of objects that happens right before a request is handled.
type Edit = Box<dyn FnOnce(&mut Objects) + Send>;

pub(super) enum Action {
    Misbehave(KubeFault),
    EditFirst(Edit),
    Hold(Holding),
}

struct Rule {
    method: String,
    path: String,
    action: Action,
}

/// Planted faults, in the order in which they are used up.
#[derive(Default)]
pub(super) struct Faults(Vec<Rule>);

impl Faults {
    pub(super) fn plant(&mut self, method: &str, path: &str, action: Action) {
        self.0.push(Rule { method: method.to_owned(), path: path.to_owned(), action });
    }

    pub(super) fn hold(&mut self, method: &str, path: &str) -> Held {
        let (arrived_sender, arrived) = oneshot::channel();
        let (release, release_receiver) = oneshot::channel();
        let holding = Holding { arrived: arrived_sender, release: release_receiver };
        self.plant(method, path, Action::Hold(holding));
        Held { arrived, release }
    }

    /// Removes and returns the first fault for a request. `path` has the query.
    pub(super) fn take(&mut self, method: &str, path: &str) -> Option<Action> {
        let matches = |rule: &Rule| rule.method == method && path.contains(&rule.path);
        let at = self.0.iter().position(matches)?;
        Some(self.0.remove(at).action)
    }

    pub(super) fn planted(&self) -> usize {
        self.0.len()
    }
}

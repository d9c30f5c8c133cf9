//! What happens between the read of a request or a duty and its write.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use serde_json::json;
use tenure_core::{
    Claim, Command, JobAction, Kinds, Outcome, Put, RequestId, ResourceAction, ResourceKey,
    SessionId, StatusUpdate, Submit,
};
use tenure_store::observer::Observer;
use tenure_store::store::{Hint, Pruned, Reads, Result, Retention, Status, Swept};
use tenure_store::{KeyRing, Memory, Store};
use tenure_wire::{instant, parse_document, to_document};
use tokio::sync::broadcast;

use crate::bed::{Bed, HOUR_MS, directory, id, new_clock, path};
use crate::duties::{HOLDERS, RETENTION, Run};

/// What others do right before a command.
type Interference = Box<dyn FnOnce(Arc<Memory>) -> BoxFuture<'static, ()> + Send>;

/// Matches the action before which others are faster.
type Matcher = fn(&ResourceAction) -> bool;

/// A store that lets others be faster, once.
struct Interfered {
    memory: Arc<Memory>,
    planted: Mutex<Option<(Matcher, Interference)>>,
}

impl Interfered {
    /// Plants what others do before the next command with such an action.
    fn before(&self, action: Matcher, interference: Interference) {
        *self.planted.lock().expect("not poisoned") = Some((action, interference));
    }

    fn take(&self, commands: &[Command]) -> Option<Interference> {
        let mut planted = self.planted.lock().expect("not poisoned");
        let matches = |matches: Matcher| {
            let mut actions = commands.iter().filter_map(|command| match command {
                Command::Resource { action, .. } => Some(action),
                _ => None,
            });
            actions.any(matches)
        };
        planted.take_if(|(action, _)| matches(*action)).map(|(_, interference)| interference)
    }
}

#[async_trait]
impl Store for Interfered {
    async fn apply(&self, commands: Vec<Command>) -> Result<Vec<Outcome>> {
        if let Some(interference) = self.take(&commands) {
            interference(Arc::clone(&self.memory)).await;
        }
        self.memory.apply(commands).await
    }

    async fn sweep(&self) -> Result<Swept> {
        self.memory.sweep().await
    }

    async fn prune(&self, keep: Retention) -> Result<Pruned> {
        self.memory.prune(keep).await
    }

    async fn declare(&self, kinds: Arc<Kinds>) -> Result<()> {
        self.memory.declare(kinds).await
    }

    fn watch(&self) -> broadcast::Receiver<Hint> {
        self.memory.watch()
    }

    fn observe(&self, observer: &Arc<dyn Observer>) {
        self.memory.observe(observer);
    }

    async fn status(&self) -> Result<Status> {
        self.memory.status().await
    }

    fn reads(&self) -> &dyn Reads {
        self.memory.reads()
    }

    fn key_ring(&self) -> &dyn KeyRing {
        self.memory.key_ring()
    }
}

async fn start() -> (Bed, Arc<Interfered>) {
    let clock = new_clock();
    let memory = Arc::new(Memory::with_clock(clock.clone()));
    let store = Arc::new(Interfered { memory, planted: Mutex::default() });
    let shared = Arc::clone(&store) as Arc<dyn Store>;
    (Bed::start_on(shared, directory(), clock).await, store)
}

fn key(name: &str) -> ResourceKey {
    ResourceKey::new("default", "cluster", id(name).as_str()).expect("a name")
}

async fn send(store: &Memory, command: Command) -> Outcome {
    store.apply(vec![command]).await.expect("the store works").remove(0)
}

/// Writes a spec, as a user who extends the cluster does.
fn specify(name: &'static str) -> Interference {
    Box::new(move |store| {
        Box::pin(async move {
            let put = ResourceAction::Put(Put::new("{\"other\":1}".into(), "ann".into()));
            send(&store, Command::Resource { key: key(name), action: put }).await;
        })
    })
}

fn is_put(action: &ResourceAction) -> bool {
    matches!(action, ResourceAction::Put(_))
}

fn is_delete(action: &ResourceAction) -> bool {
    matches!(action, ResourceAction::Delete { .. })
}

#[tokio::test]
async fn a_cluster_that_somebody_changes_does_not_leave_the_lists() {
    let (bed, store) = start().await;
    let worker = bed.worker("a").await;
    bed.create("a").await;
    bed.destroy("a").await;
    let job = worker.claim("a").await.unwrap();
    worker.finish_destroy(&job).await;
    bed.skip(25 * HOUR_MS).await;
    let mut duty = Run::new(&bed, RETENTION);
    store.before(is_delete, specify("a"));
    assert_eq!(duty.run().await, 0);
    assert_eq!(bed.server.get(&path("a")).await.0, 200);
    assert_eq!(duty.run().await, 1, "the next run looks at it anew");
}

#[tokio::test]
async fn an_incident_does_not_overwrite_what_a_user_writes() {
    let (bed, store) = start().await;
    let worker = bed.worker("a").await;
    bed.ready(&worker, "a", json!({})).await;
    let mut duty = Run::new(&bed, HOLDERS);
    duty.contradict("a", 5);
    store.before(is_put, specify("a"));
    assert_eq!(duty.run().await, 0);
    let spec = async || {
        let path = format!("/v1/resources/cluster/{}", id("a"));
        bed.server.get(&path).await.1["spec"].clone()
    };
    assert_eq!(spec().await, json!({ "other": 1 }));
    assert_eq!(duty.run().await, 1, "it is done by the next run");
    assert_eq!(spec().await, json!({ "incident": 5 }));
}

#[tokio::test]
async fn an_extension_that_meets_the_begin_of_another_life_belongs_to_that_life() {
    let (bed, store) = start().await;
    let worker = bed.worker("a").await;
    bed.bring(&worker, "a", "FAILED").await;
    let session = worker.session.parse().expect("an id");
    store.before(is_put, Box::new(move |store| Box::pin(begin_again(store, session))));
    let (status, answer) = bed.extend("a", 5 * HOUR_MS).await;
    assert_eq!(status, 200, "{answer}");
    let at = json!(instant(bed.now().plus(5 * HOUR_MS)));
    assert_eq!(answer["expires_at"], at);
    assert_eq!(bed.show("a").await["expires_at"], at, "it is not that of the life before");
}

/// Creates the cluster `a` again, and begins.
async fn begin_again(store: Arc<Memory>, session: SessionId) {
    let detail = store.reads().show(&key("a")).await.expect("the store works").expect("it exists");
    let resource = detail.record.resource.expect("it exists");
    let status = parse_document(&resource.status.expect("it was created").document);
    let args = Some(to_document(&status["config"]));
    let submit = Submit { args, ..Submit::new(RequestId(1), "CREATE", "ann".into()) };
    let action = ResourceAction::Submit(submit);
    send(&store, Command::Resource { key: key("a"), action }).await;
    let (request, kinds) = (RequestId(2), vec!["cluster".into()]);
    let claim = Claim { session, request, kinds, max: 1, only: None, tenant: None };
    let Outcome::Claimed(jobs) = send(&store, Command::Claim(claim)).await else {
        panic!("it can be claimed");
    };
    let (job, token) = (jobs[0].job.id, jobs[0].tenure.token);
    let merge = json!({ "create_job": job, "expires_at": 1 });
    let update =
        Box::new(StatusUpdate { merge: Some(to_document(&merge)), ..StatusUpdate::default() });
    let action = JobAction::Status { token, update };
    send(&store, Command::Job { id: job, action }).await;
}

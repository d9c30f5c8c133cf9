//! The load: callers that submit jobs at either server and retry requests without an answer, and
//! threads that run commands under locks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use tenure::Error;
use tenure::http::HttpTransport;
use tenure_core::Refusal;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle as Task;

use crate::common::tenure;
use crate::site::{Fleet, RESOURCES};

/// Timeout after which a caller retries at the other server.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Jobs that a caller has in flight, all on one resource.
const BURST: usize = 3;

/// What the callers have had acknowledged.
#[derive(Default)]
pub(crate) struct Ledger {
    stop: AtomicBool,
    /// Acknowledged jobs with their resource.
    acknowledged: Mutex<BTreeMap<String, String>>,
    done: AtomicUsize,
    commands: AtomicUsize,
    problems: Mutex<Vec<String>>,
    /// Whether the database may lose jobs, as after a restore; and how many it lost.
    may_lose_jobs: AtomicBool,
    lost: AtomicUsize,
}

impl Ledger {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    fn report(&self, what: String) {
        self.problems.lock().expect("no panic").push(what);
    }

    /// Allows the database to lose acknowledged jobs from now on.
    pub(crate) fn may_lose_jobs(&self) {
        self.may_lose_jobs.store(true, Ordering::SeqCst);
    }

    /// Counts a lost job and returns whether losses are allowed.
    fn count_lost(&self) -> bool {
        self.lost.fetch_add(1, Ordering::SeqCst);
        self.may_lose_jobs.load(Ordering::SeqCst)
    }

    /// Acknowledged jobs that were lost or interrupted.
    pub(crate) fn lost(&self) -> usize {
        self.lost.load(Ordering::SeqCst)
    }

    /// Jobs that callers have seen finish.
    pub(crate) fn done(&self) -> usize {
        self.done.load(Ordering::SeqCst)
    }

    /// Commands that completed under a lock.
    pub(crate) fn commands(&self) -> usize {
        self.commands.load(Ordering::SeqCst)
    }

    pub(crate) fn acknowledged(&self) -> BTreeMap<String, String> {
        self.acknowledged.lock().expect("no panic").clone()
    }

    pub(crate) fn problems(&self) -> Vec<String> {
        self.problems.lock().expect("no panic").clone()
    }
}

/// The load, until it is stopped.
pub(crate) struct Load {
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) runtime: Runtime,
    callers: Vec<Task<()>>,
    holders: Vec<JoinHandle<()>>,
}

impl Load {
    pub(crate) fn start(fleet: &Fleet) -> Self {
        let ledger = Arc::new(Ledger::default());
        let runtime = Runtime::new().expect("a runtime");
        let caller = |resource: &'static str| {
            let transports = [fleet.transport(0), fleet.transport(1)];
            let caller =
                Caller { ledger: Arc::clone(&ledger), transports, resource, priority: 0, sent: 0 };
            runtime.spawn(caller.run())
        };
        let callers = RESOURCES.into_iter().map(caller).collect();
        let holder = |n: usize| {
            let (url, key, dir) = (fleet.url(n % 2), fleet.key().to_owned(), fleet.file(""));
            let (ledger, door) = (Arc::clone(&ledger), format!("door/d{}", n / 2));
            std::thread::spawn(move || run_under_lock(&ledger, &dir, &url, &key, &door))
        };
        let holders = (0..4).map(holder).collect();
        Self { ledger, runtime, callers, holders }
    }

    /// Stops the load and waits until all callers and holders have ended.
    pub(crate) fn stop(&mut self) {
        self.ledger.stop.store(true, Ordering::SeqCst);
        for caller in self.callers.drain(..) {
            self.runtime.block_on(caller).expect("no caller panics");
        }
        for holder in self.holders.drain(..) {
            holder.join().expect("no holder panics");
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.ledger.stop.store(true, Ordering::SeqCst);
    }
}

/// Submits jobs for one resource, a few at a time, and waits until they finish.
pub(crate) struct Caller {
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) transports: [HttpTransport; 2],
    pub(crate) resource: &'static str,
    pub(crate) priority: i32,
    pub(crate) sent: usize,
}

impl Caller {
    async fn run(mut self) {
        while !self.ledger.stopped() {
            let mut jobs = Vec::new();
            for _ in 0..BURST {
                jobs.extend(self.submit("load").await);
            }
            for job in jobs {
                self.wait_until_finished(&job).await;
            }
        }
    }

    /// Submits a job; retries with the same idempotency key until there is an answer.
    pub(crate) async fn submit(&mut self, by: &str) -> Option<String> {
        self.sent += 1;
        let key = format!("{by} {}", self.sent);
        let path = format!("/v1/resources/{}/jobs", self.resource);
        let body = json!({ "operation": "run", "priority": self.priority });
        for n in self.sent.. {
            let transport = &self.transports[n % 2];
            let request = transport.post::<Value>(&path, Some(key.clone()), &body, Duration::ZERO);
            let why = match tokio::time::timeout(REQUEST_TIMEOUT, request).await {
                Ok(Ok(answer)) => {
                    let id = answer["job"]["id"].as_str().expect("it has an id").to_owned();
                    let mut all = self.ledger.acknowledged.lock().expect("no panic");
                    if all.insert(id.clone(), self.resource.to_owned()).is_some() {
                        self.ledger.report(format!("the answer to {key} is an older job: {id}"));
                    }
                    return Some(id);
                }
                Ok(Err(error)) if !error.is_unavailable() => Some(error),
                Ok(Err(_)) | Err(_) => None,
            };
            if let Some(error) = why {
                self.ledger.report(format!("submit on {}: {error}", self.resource));
                return None;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        None
    }

    /// Waits until a job has finished, polling both servers alternately.
    pub(crate) async fn wait_until_finished(&self, id: &str) {
        let path = format!("/v1/jobs/{id}?wait_ms=1000");
        for n in 0.. {
            let request =
                self.transports[n % 2].get_with_wait::<Value>(&path, Duration::from_secs(1));
            match tokio::time::timeout(REQUEST_TIMEOUT, request).await {
                Ok(Ok(job)) if job["ended_at"].is_string() => {
                    if job["state"] != "succeeded" && !self.ledger.count_lost() {
                        self.ledger.report(format!("it did not succeed: {job:#}"));
                    }
                    self.ledger.done.fetch_add(1, Ordering::SeqCst);
                    return;
                }
                Ok(Ok(_)) => {}
                Ok(Err(Error::Unavailable(_))) | Err(_) => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Ok(Err(Error::Refused(Refusal::NoSuchJob))) if self.ledger.count_lost() => return,
                Ok(Err(error)) => {
                    return self.ledger.report(format!("job {id} of {}: {error}", self.resource));
                }
            }
        }
    }
}

/// Runs commands under a lock, one after the other.
fn run_under_lock(ledger: &Ledger, dir: &Path, url: &str, key: &str, door: &str) {
    let script: PathBuf = dir.join("work.sh");
    while !ledger.stopped() {
        let mut command: Command = tenure(dir);
        command.env("TENURE_KEY", key).stdout(Stdio::null()).stderr(Stdio::piped());
        command.args(["exec", "--server", url, "--wait", "5s", "--ttl", "3s", door, "--"]);
        let output = command.arg(&script).args(["4", "0.05", door]).output().expect("it runs");
        match output.status.code() {
            Some(0) => {
                ledger.commands.fetch_add(1, Ordering::SeqCst);
            }
            // Lost, held by another for too long, or server unavailable: expected during faults.
            Some(122 | 123 | 125) => crate::clock::sleep(Duration::from_millis(100)),
            code => {
                let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
                ledger.report(format!("exec on {door} exited with {code:?}: {stderr}"));
            }
        }
    }
}

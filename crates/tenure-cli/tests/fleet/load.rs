//! The load: callers that submit jobs at either server and repeat what got no answer, and people
//! who run commands under locks.

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

/// How long a caller waits for an answer before it asks the other server.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Jobs that a caller has under way at once, all on one resource.
const BURST: usize = 3;

/// What the callers know.
#[derive(Default)]
pub(crate) struct Board {
    stop: AtomicBool,
    /// Every job that was acknowledged, with its resource.
    acknowledged: Mutex<BTreeMap<String, String>>,
    done: AtomicUsize,
    commands: AtomicUsize,
    problems: Mutex<Vec<String>>,
    /// Whether the database may forget, as after a restore; and how many jobs are gone.
    may_forget: AtomicBool,
    forgotten: AtomicUsize,
}

impl Board {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    fn wrong(&self, what: String) {
        self.problems.lock().expect("no panic").push(what);
    }

    /// From now on the database may forget what it has acknowledged.
    pub(crate) fn may_forget(&self) {
        self.may_forget.store(true, Ordering::SeqCst);
    }

    fn forgot(&self) -> bool {
        self.forgotten.fetch_add(1, Ordering::SeqCst);
        self.may_forget.load(Ordering::SeqCst)
    }

    /// Jobs that were acknowledged and are gone, or were cut short.
    pub(crate) fn forgotten(&self) -> usize {
        self.forgotten.load(Ordering::SeqCst)
    }

    /// Jobs that are over, by what callers were told.
    pub(crate) fn done(&self) -> usize {
        self.done.load(Ordering::SeqCst)
    }

    /// Commands that ran to their end under a lock.
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
    pub(crate) board: Arc<Board>,
    pub(crate) runtime: Runtime,
    callers: Vec<Task<()>>,
    people: Vec<JoinHandle<()>>,
}

impl Load {
    pub(crate) fn start(fleet: &Fleet) -> Self {
        let board = Arc::new(Board::default());
        let runtime = Runtime::new().expect("a runtime");
        let caller = |resource: &'static str| {
            let links = [fleet.link(0), fleet.link(1)];
            let caller =
                Caller { board: Arc::clone(&board), links, resource, priority: 0, asked: 0 };
            runtime.spawn(caller.go_on())
        };
        let callers = RESOURCES.into_iter().map(caller).collect();
        let person = |n: usize| {
            let (url, key, dir) = (fleet.url(n % 2), fleet.key().to_owned(), fleet.file(""));
            let (board, door) = (Arc::clone(&board), format!("door/d{}", n / 2));
            std::thread::spawn(move || hold(&board, &dir, &url, &key, &door))
        };
        let people = (0..4).map(person).collect();
        Self { board, runtime, callers, people }
    }

    /// Stops asking, and waits for all who have asked.
    pub(crate) fn stop(&mut self) {
        self.board.stop.store(true, Ordering::SeqCst);
        for caller in self.callers.drain(..) {
            self.runtime.block_on(caller).expect("no caller panics");
        }
        for person in self.people.drain(..) {
            person.join().expect("nobody panics");
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.board.stop.store(true, Ordering::SeqCst);
    }
}

/// Somebody who submits jobs for one resource, a few at a time, and waits for their ends.
pub(crate) struct Caller {
    pub(crate) board: Arc<Board>,
    pub(crate) links: [HttpTransport; 2],
    pub(crate) resource: &'static str,
    pub(crate) priority: i32,
    pub(crate) asked: usize,
}

impl Caller {
    async fn go_on(mut self) {
        while !self.board.stopped() {
            let mut jobs = Vec::new();
            for _ in 0..BURST {
                jobs.extend(self.submit("load").await);
            }
            for job in jobs {
                self.over(&job).await;
            }
        }
    }

    /// Submits a job, with one key until there is an answer.
    pub(crate) async fn submit(&mut self, by: &str) -> Option<String> {
        self.asked += 1;
        let key = format!("{by} {}", self.asked);
        let path = format!("/v1/resources/{}/jobs", self.resource);
        let body = json!({ "operation": "run", "priority": self.priority });
        for n in self.asked.. {
            let link = &self.links[n % 2];
            let ask = link.post::<Value>(&path, Some(key.clone()), &body, Duration::ZERO);
            let why = match tokio::time::timeout(ANSWER_MAX, ask).await {
                Ok(Ok(answer)) => {
                    let id = answer["job"]["id"].as_str().expect("it has an id").to_owned();
                    let mut all = self.board.acknowledged.lock().expect("no panic");
                    if all.insert(id.clone(), self.resource.to_owned()).is_some() {
                        self.board.wrong(format!("the answer to {key} is an older job: {id}"));
                    }
                    return Some(id);
                }
                Ok(Err(error)) if !error.is_unavailable() => Some(error),
                Ok(Err(_)) | Err(_) => None,
            };
            if let Some(error) = why {
                self.board.wrong(format!("submit on {}: {error}", self.resource));
                return None;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        None
    }

    /// Waits until a job is over, asking both servers in turn.
    pub(crate) async fn over(&self, id: &str) {
        let path = format!("/v1/jobs/{id}?wait_ms=1000");
        for n in 0.. {
            let ask = self.links[n % 2].get_with_wait::<Value>(&path, Duration::from_secs(1));
            match tokio::time::timeout(ANSWER_MAX, ask).await {
                Ok(Ok(job)) if job["ended_at"].is_string() => {
                    if job["state"] != "succeeded" && !self.board.forgot() {
                        self.board.wrong(format!("it did not succeed: {job:#}"));
                    }
                    self.board.done.fetch_add(1, Ordering::SeqCst);
                    return;
                }
                Ok(Ok(_)) => {}
                Ok(Err(Error::Unavailable(_))) | Err(_) => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Ok(Err(Error::Refused(Refusal::NoSuchJob))) if self.board.forgot() => return,
                Ok(Err(error)) => {
                    return self.board.wrong(format!("job {id} of {}: {error}", self.resource));
                }
            }
        }
    }
}

/// Runs commands under a lock, one after the other.
fn hold(board: &Board, dir: &Path, url: &str, key: &str, door: &str) {
    let script: PathBuf = dir.join("work.sh");
    while !board.stopped() {
        let mut command: Command = tenure(dir);
        command.env("TENURE_KEY", key).stdout(Stdio::null()).stderr(Stdio::piped());
        command.args(["exec", "--server", url, "--wait", "5s", "--ttl", "3s", door, "--"]);
        let output = command.arg(&script).args(["4", "0.05", door]).output().expect("it runs");
        match output.status.code() {
            Some(0) => {
                board.commands.fetch_add(1, Ordering::SeqCst);
            }
            // Lost, held by another for too long, or nobody to ask: what a fault may do to it.
            Some(122 | 123 | 125) => crate::clock::lasts(Duration::from_millis(100)),
            code => {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                board.wrong(format!("exec on {door} ended with {code:?}: {said}"));
            }
        }
    }
}

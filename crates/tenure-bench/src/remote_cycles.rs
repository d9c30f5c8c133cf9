//! Cycles of jobs over HTTP, on a server in a process of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tokio::task::JoinSet;

use crate::cycles::{Floor, KIND, Measured, Shape, Times, WORK};
use crate::http::Connection;
use crate::kept::Kept;
use crate::servers::Scratch;

/// Connections of workers.
const WORKERS: usize = 16;
/// Most jobs that a worker takes with one claim.
const CLAIM_MAX: usize = 32;

/// Keeps `in_flight` jobs under way on a server with its data in a directory.
pub(crate) async fn measure(
    kept: &Kept,
    scratch: &Scratch,
    shape: Shape,
    in_flight: usize,
    budget: Duration,
) -> Result<Measured> {
    let config = scratch.path().join("tenure.toml");
    std::fs::write(&config, format!("[kinds.{KIND}.operations.{WORK}]\n"))?;
    let server = kept.serve(scratch, &["--config".as_ref(), config.as_os_str()]).await?;
    let floor = Floor::new(shape, in_flight, budget);
    let mut submitters = JoinSet::new();
    for submitter in 0..in_flight {
        let bearer = format!("Bearer {}", server.key());
        submitters.spawn(submit_all(server.addr(), bearer, Arc::clone(&floor), shape, submitter));
    }
    let mut workers = JoinSet::new();
    let max = in_flight.div_ceil(WORKERS).min(CLAIM_MAX);
    for _ in 0..WORKERS.min(in_flight) {
        let bearer = format!("Bearer {}", server.key());
        workers.spawn(work_all(server.addr(), bearer, Arc::clone(&floor), max));
    }
    while let Some(done) = submitters.join_next().await {
        done??;
    }
    let mut times = Times::new()?;
    while let Some(done) = workers.join_next().await {
        times.merge(&done??)?;
    }
    Ok(floor.measured(&times))
}

async fn submit_all(
    addr: SocketAddr,
    bearer: String,
    floor: Arc<Floor>,
    shape: Shape,
    submitter: usize,
) -> Result<()> {
    let mut connection = Connection::open(addr).await?;
    let headers = [("authorization", bearer.as_str())];
    while floor.open() {
        let random = u64::try_from(tenure_store::random::request_id().0 >> 64)?;
        let resource = shape.pick(random);
        let args = floor.submit(submitter, resource);
        let path = format!("/v1/resources/{KIND}/r{resource}/jobs");
        let body = format!(r#"{{"operation":"{WORK}","args":{args}}}"#);
        let (status, answer) = connection.post(&path, &headers, body.as_bytes()).await?;
        let text = || String::from_utf8_lossy(answer);
        ensure!(status == 202, "a submit was answered with {status}: {}", text());
        floor.wait(submitter).await?;
    }
    Ok(())
}

async fn work_all(
    addr: SocketAddr,
    bearer: String,
    floor: Arc<Floor>,
    max: usize,
) -> Result<Times> {
    let mut connection = Connection::open(addr).await?;
    let headers = [("authorization", bearer.as_str())];
    let body = r#"{"name":"bench","ttl_ms":3600000}"#;
    let (status, answer) = connection.post("/v1/sessions", &headers, body.as_bytes()).await?;
    ensure!(status == 200, "opening a session was answered with {status}");
    let answer: Value = serde_json::from_slice(answer)?;
    let session = answer["session"].as_str().context("read the session")?.to_owned();
    let mut times = Times::new()?;
    loop {
        // Claims go on for a while after the load has ended, so that nobody is left waiting.
        let open = floor.open();
        let wait_ms = if open { 500 } else { 50 };
        let body = format!(
            r#"{{"session":"{session}","kinds":["{KIND}"],"max":{max},"wait_ms":{wait_ms}}}"#
        );
        let (status, answer) = connection.post("/v1/jobs/claim", &headers, body.as_bytes()).await?;
        ensure!(status == 200, "a claim was answered with {status}");
        let answer: Value = serde_json::from_slice(answer)?;
        let jobs = answer["jobs"].as_array().context("read the jobs")?;
        if jobs.is_empty() && !open {
            return Ok(times);
        }
        let mut tickets = Vec::with_capacity(jobs.len());
        for job in jobs {
            tickets.push(floor.started(job["job"]["args"].as_str().unwrap_or(""), &mut times)?);
        }
        for (job, ticket) in jobs.iter().zip(tickets) {
            let id = job["job"]["id"].as_str().context("read the id")?;
            let body = format!(r#"{{"token":{},"outcome":"ok"}}"#, job["tenure"]["token"]);
            floor.finishing(ticket);
            let path = format!("/v1/jobs/{id}/finish");
            let (status, _) = connection.post(&path, &headers, body.as_bytes()).await?;
            ensure!(status == 200, "a finish was answered with {status}");
            floor.finished(ticket);
        }
    }
}

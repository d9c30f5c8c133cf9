//! Job cycles over HTTP on a server in a separate process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tokio::task::JoinSet;

use crate::cycles::{KIND, KeyDistribution, LoadState, Measured, Times, WORK};
use crate::http::Connection;
use crate::servers::Scratch;
use crate::store_args::StoreArgs;

/// Number of workers, each with its own connection.
const WORKERS: usize = 16;
/// Maximum number of jobs of one claim.
const CLAIM_MAX: usize = 32;

/// Keeps `in_flight` jobs in flight on a server.
pub(crate) async fn measure(
    store: &StoreArgs,
    scratch: &Scratch,
    distribution: KeyDistribution,
    in_flight: usize,
    budget: Duration,
) -> Result<Measured> {
    let config = scratch.path().join("tenure.toml");
    std::fs::write(&config, format!("[kinds.{KIND}.operations.{WORK}]\n"))?;
    let server = store.serve(scratch, &["--config".as_ref(), config.as_os_str()]).await?;
    let state = LoadState::new(distribution, in_flight, budget);
    let mut submitters = JoinSet::new();
    for submitter in 0..in_flight {
        let bearer = format!("Bearer {}", server.key());
        submitters.spawn(submit_all(
            server.addr(),
            bearer,
            Arc::clone(&state),
            distribution,
            submitter,
        ));
    }
    let mut workers = JoinSet::new();
    let max = in_flight.div_ceil(WORKERS).min(CLAIM_MAX);
    for _ in 0..WORKERS.min(in_flight) {
        let bearer = format!("Bearer {}", server.key());
        workers.spawn(work_all(server.addr(), bearer, Arc::clone(&state), max));
    }
    while let Some(done) = submitters.join_next().await {
        done??;
    }
    let mut times = Times::new()?;
    while let Some(done) = workers.join_next().await {
        times.merge(&done??)?;
    }
    Ok(state.measured(&times))
}

async fn submit_all(
    addr: SocketAddr,
    bearer: String,
    state: Arc<LoadState>,
    distribution: KeyDistribution,
    submitter: usize,
) -> Result<()> {
    let mut connection = Connection::open(addr).await?;
    let headers = [("authorization", bearer.as_str())];
    while state.is_open() {
        let random = u64::try_from(tenure_store::random::request_id().0 >> 64)?;
        let resource = distribution.pick(random);
        let args = state.submit(submitter, resource);
        let path = format!("/v1/resources/{KIND}/r{resource}/jobs");
        let body = format!(r#"{{"operation":"{WORK}","args":{args}}}"#);
        let (status, response) = connection.post(&path, &headers, body.as_bytes()).await?;
        let text = || String::from_utf8_lossy(response);
        ensure!(status == 202, "a submit returned status {status}: {}", text());
        state.wait(submitter).await?;
    }
    Ok(())
}

async fn work_all(
    addr: SocketAddr,
    bearer: String,
    state: Arc<LoadState>,
    max: usize,
) -> Result<Times> {
    let mut connection = Connection::open(addr).await?;
    let headers = [("authorization", bearer.as_str())];
    let body = r#"{"name":"bench","ttl_ms":3600000}"#;
    let (status, response) = connection.post("/v1/sessions", &headers, body.as_bytes()).await?;
    ensure!(status == 200, "opening a session returned status {status}");
    let response: Value = serde_json::from_slice(response)?;
    let session = response["session"].as_str().context("read the session")?.to_owned();
    let mut times = Times::new()?;
    loop {
        // Claims continue after the load has ended, so that no job is left.
        let open = state.is_open();
        let wait_ms = if open { 500 } else { 50 };
        let body = format!(
            r#"{{"session":"{session}","kinds":["{KIND}"],"max":{max},"wait_ms":{wait_ms}}}"#
        );
        let (status, response) =
            connection.post("/v1/jobs/claim", &headers, body.as_bytes()).await?;
        ensure!(status == 200, "a claim returned status {status}");
        let response: Value = serde_json::from_slice(response)?;
        let jobs = response["jobs"].as_array().context("read the jobs")?;
        if jobs.is_empty() && !open {
            return Ok(times);
        }
        let mut tickets = Vec::with_capacity(jobs.len());
        for job in jobs {
            tickets.push(state.started(job["job"]["args"].as_str().unwrap_or(""), &mut times)?);
        }
        for (job, ticket) in jobs.iter().zip(tickets) {
            let id = job["job"]["id"].as_str().context("read the id")?;
            let body = format!(r#"{{"token":{},"outcome":"ok"}}"#, job["tenure"]["token"]);
            state.finishing(ticket);
            let path = format!("/v1/jobs/{id}/finish");
            let (status, _) = connection.post(&path, &headers, body.as_bytes()).await?;
            ensure!(status == 200, "a finish returned status {status}");
            state.finished(ticket);
        }
    }
}

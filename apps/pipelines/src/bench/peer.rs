//! The peer: a lock in memory in front of the same handler.
//!
//! The same HTTP stack, body and check of parameters, and in place of the store a map of what runs.
//! It forgets everything with its process, knows no second server, and asks nobody for a key: the
//! least that the same route can cost.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Catalog;
use crate::wire::{RunStatus, TriggerAnswer, TriggerBody};
use anyhow::Result;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use serde::Deserialize;
use tenure_bench::in_process::serve_plain;
use tenure_core::JobId;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::runs::Runs;
use super::triggers::Site;

/// Tenant and pipeline.
type Key = (String, String);

struct Locks {
    catalog: Arc<Catalog>,
    held: Mutex<HashMap<Key, JobId>>,
    runs: Arc<Runs>,
}

impl Locks {
    /// The run of a pipeline, and whether it is a new one.
    fn take(&self, key: &Key) -> (JobId, bool) {
        let mut held = self.held();
        if let Some(id) = held.get(key) {
            return (*id, false);
        }
        let id = JobId(tenure_store::random::request_id().0);
        held.insert(key.clone(), id);
        (id, true)
    }

    async fn run(self: Arc<Self>, key: Key, id: JobId) {
        if let Err(error) = self.runs.handle(&key.1, id).await {
            tracing::error!(%error, "a run failed");
        }
        self.held().remove(&key);
        self.runs.over(id);
    }

    fn held(&self) -> MutexGuard<'_, HashMap<Key, JobId>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Deserialize)]
struct Whose {
    tenant: String,
}

async fn trigger(
    State(locks): State<Arc<Locks>>,
    Path(name): Path<String>,
    Query(Whose { tenant }): Query<Whose>,
    Json(body): Json<TriggerBody>,
) -> Result<Json<TriggerAnswer>, (StatusCode, String)> {
    let pipeline = locks.catalog.get(&tenant, &name);
    let pipeline = pipeline.ok_or((StatusCode::NOT_FOUND, "no such pipeline".to_owned()))?;
    pipeline.fill(&body.parameters).map_err(|why| (StatusCode::BAD_REQUEST, why))?;
    let key = (tenant.clone(), name.clone());
    let (id, new) = locks.take(&key);
    let (status, message) = if new {
        tokio::spawn(Arc::clone(&locks).run(key, id));
        (RunStatus::Pending, format!("{name} was triggered"))
    } else {
        (RunStatus::Running, format!("{name} is running already; this is the run that goes on"))
    };
    let (pipeline_logging_id, pipeline_id, tenant_id) = (id, name, tenant);
    Ok(Json(TriggerAnswer { pipeline_logging_id, pipeline_id, tenant_id, status, message }))
}

/// The peer, until it is dropped.
pub(crate) struct Peer {
    pub(crate) site: Site,
    _stop: DropGuard,
}

impl Peer {
    pub(crate) async fn start(
        catalog: Arc<Catalog>,
        tenant: &str,
        pipelines: &[String],
    ) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (addr, runs) = (listener.local_addr()?, Runs::of(pipelines));
        let held = Mutex::default();
        let locks = Arc::new(Locks { catalog, held, runs: Arc::clone(&runs) });
        let router = Router::new().route("/pipelines/run/{name}", post(trigger)).with_state(locks);
        let stop = CancellationToken::new();
        tokio::spawn(serve_plain(listener, router, stop.clone()));
        let (bearer, tenant) = ("Bearer nobody".to_owned(), tenant.to_owned());
        Ok(Self { site: Site { addr, bearer, tenant, runs }, _stop: stop.drop_guard() })
    }
}

//! The baseline: an in-memory lock in front of the same handler.
//!
//! It has the same HTTP stack, body and check of parameters, but a map of active runs instead of
//! the store. It is not durable, supports one server only, and does not authenticate: a lower bound
//! of the cost of the route.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Catalog;
use crate::wire::{RunStatus, TriggerRequest, TriggerResponse};
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

use super::runs::RunRecorder;
use super::triggers::Target;

/// Tenant and pipeline.
type Key = (String, String);

struct RunLocks {
    catalog: Arc<Catalog>,
    held: Mutex<HashMap<Key, JobId>>,
    runs: Arc<RunRecorder>,
}

impl RunLocks {
    /// Returns the run of a pipeline, and whether it is new.
    fn acquire(&self, key: &Key) -> (JobId, bool) {
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
            tracing::error!(%error, "run failed");
        }
        self.held().remove(&key);
        self.runs.record_end(id);
    }

    fn held(&self) -> MutexGuard<'_, HashMap<Key, JobId>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Deserialize)]
struct TenantQuery {
    tenant: String,
}

async fn trigger(
    State(locks): State<Arc<RunLocks>>,
    Path(name): Path<String>,
    Query(TenantQuery { tenant }): Query<TenantQuery>,
    Json(body): Json<TriggerRequest>,
) -> Result<Json<TriggerResponse>, (StatusCode, String)> {
    let pipeline = locks.catalog.get(&tenant, &name);
    let pipeline = pipeline.ok_or((StatusCode::NOT_FOUND, "no such pipeline".to_owned()))?;
    pipeline.fill(&body.parameters).map_err(|why| (StatusCode::BAD_REQUEST, why))?;
    let key = (tenant.clone(), name.clone());
    let (id, new) = locks.acquire(&key);
    let (status, message) = if new {
        tokio::spawn(Arc::clone(&locks).run(key, id));
        (RunStatus::Pending, format!("{name} was triggered"))
    } else {
        (RunStatus::Running, format!("{name} is already running; returning the active run"))
    };
    Ok(Json(TriggerResponse {
        pipeline_logging_id: Some(id),
        external_id: None,
        pipeline_id: name,
        tenant_id: tenant,
        status,
        message,
    }))
}

/// The running baseline; dropping it stops it.
pub(crate) struct Baseline {
    pub(crate) target: Target,
    _stop: DropGuard,
}

impl Baseline {
    pub(crate) async fn start(
        catalog: Arc<Catalog>,
        tenant: &str,
        pipelines: &[String],
    ) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (addr, runs) = (listener.local_addr()?, RunRecorder::new(pipelines));
        let held = Mutex::default();
        let locks = Arc::new(RunLocks { catalog, held, runs: Arc::clone(&runs) });
        let router = Router::new().route("/pipelines/run/{name}", post(trigger)).with_state(locks);
        let stop = CancellationToken::new();
        tokio::spawn(serve_plain(listener, router, stop.clone()));
        let (bearer, tenant) = ("Bearer none".to_owned(), tenant.to_owned());
        Ok(Self { target: Target { addr, bearer, tenant, runs }, _stop: stop.drop_guard() })
    }
}

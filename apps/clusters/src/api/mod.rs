//! HTTP API of clusters.
//!
//! A request is one command: what may happen to a cluster is decided by the rules of its kind, in
//! the step that executes the command. `change.rs` has the requests that change a cluster,
//! `queue.rs` those about the queue on SQS.

mod change;
mod profiles;
mod queue;

use std::sync::Arc;

use axum::Json;
use axum::extract::{FromRequestParts, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde::Deserialize;
use tenure_app::extract::{Body, Idempotency, OnName, Params};
use tenure_app::openapi::{Conflict, NotFound, path, tenant};
use tenure_app::pages::{HistoryParams, LogParams};
use tenure_app::services::page_size;
use tenure_app::{Access, AppRoutes, Caller, Problem, Rule, Services};
use tenure_core::{Millis, ResourceKey, Role};
use tenure_store::store::{HistoryQuery, ResourceQuery};
use tenure_wire::{HistoryEntry, ListResponse, LogResponse, instant, schema};
use utoipa::openapi::path::{Parameter, ParameterIn};
use utoipa::{IntoParams, PartialSchema as _};
use utoipa_axum::routes;

use crate::LoadedClusters;
use crate::cluster::{self, Cluster};
use crate::names::{CLUSTER, CREATE};
use crate::request::CreateRequest;
use crate::state::ClusterState;
use crate::wire::{
    ClusterId, ClusterInfo, ClusterLockResponse, ClusterOutputsResponse, ClusterResponse,
    ClusterStateName, CredentialsResponse, ExtendRequest, ExtendResponse, JobLockInfo, ProfileInfo,
    QueueResponse, RedriveQueueResponse, ScaleRequest,
};

pub(crate) use change::check_submit;

/// Maximum number of pages of resources that are read for one page of clusters.
const PAGES_MAX: usize = 10;

/// The routes.
pub(crate) fn routes() -> AppRoutes {
    let read = |path| Rule::read(path, Access::VIEWER);
    // The queue has messages of all tenants.
    let all_tenants = |rule| Rule { access: Access::AllTenants(Role::Operator), ..rule };
    let write = |method, path, action| Rule::write(method, path, Role::Operator, action);
    let one = "/v1/clusters/{id}";
    AppRoutes::new("clusters", "OpenShift clusters: create, scale, destroy")
        .route(
            routes!(list, create),
            [read("/v1/clusters"), write("POST", "/v1/clusters", "cluster.create")],
        )
        .route(routes!(show, destroy), [read(one), write("DELETE", one, "cluster.destroy")])
        .route(routes!(scale), [write("POST", "/v1/clusters/{id}/scale", "cluster.scale")])
        .route(routes!(extend), [write("POST", "/v1/clusters/{id}/ttl", "cluster.extend")])
        .route(routes!(logs), [read("/v1/clusters/{id}/logs")])
        .route(routes!(outputs), [read("/v1/clusters/{id}/outputs")])
        .route(
            routes!(credentials),
            [write("POST", "/v1/clusters/{id}/credentials", "cluster.credentials")],
        )
        .route(routes!(history), [read("/v1/clusters/{id}/history")])
        .route(routes!(lock), [read("/v1/clusters/{id}/lock")])
        .route(routes!(list_profiles), [read("/v1/profiles")])
        .route(routes!(queue_status), [all_tenants(read("/v1/clusters/queue"))])
        .route(
            routes!(redrive_queue),
            [all_tenants(write("POST", "/v1/clusters/queue/redrive", "cluster.redrive_queue"))],
        )
}

/// Returns the configured app, unless the app is not configured.
pub(crate) fn loaded(services: &Services) -> Result<Arc<LoadedClusters>, Problem> {
    services.live.app::<LoadedClusters>().ok_or_else(|| {
        Problem::not_found(
            "clusters are not enabled on this server; add the table [clusters] to its tenure.toml",
        )
    })
}

/// The caller and the cluster in the path.
pub(crate) struct OnCluster {
    pub(crate) caller: Caller,
    pub(crate) key: ResourceKey,
}

impl<S: Send + Sync> FromRequestParts<S> for OnCluster {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let OnName { caller, name } = OnName::from_request_parts(parts, state).await?;
        let key = cluster::key(&caller, &name)?;
        Ok(Self { caller, key })
    }
}

impl IntoParams for OnCluster {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let id = path("id", "The cluster", ClusterId::schema());
        vec![id, tenant(schema::Tenant::schema())]
    }
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct ListParams {
    /// Filter by state.
    #[param(value_type = ClusterStateName, required = false, inline)]
    state: Option<String>,
    /// Filter by profile.
    #[param(value_type = String, required = false, inline)]
    profile: Option<String>,
    /// Filter by owner.
    #[param(value_type = String, required = false, inline)]
    owner: Option<String>,
    /// Filter by region.
    #[param(value_type = String, required = false, inline)]
    region: Option<String>,
    /// Filter by tag: `NAME=VALUE`.
    #[param(value_type = String, required = false, inline)]
    tag: Option<String>,
    /// Maximum number of items. Defaults to 100.
    #[param(value_type = schema::PageSize, required = false, inline)]
    limit: Option<usize>,
    /// Value of `next` of the previous page.
    #[param(value_type = schema::ResourcePath, required = false, inline)]
    cursor: Option<String>,
}

impl ListParams {
    fn matches(&self, info: &ClusterInfo) -> bool {
        let equal = |filter: &Option<String>, value: &str| {
            filter.as_ref().is_none_or(|filter| filter == value)
        };
        let tag = self.tag.as_ref().is_none_or(|tag| {
            let (name, value) = tag.split_once('=').unwrap_or((tag, ""));
            info.tags.get(name).is_some_and(|of| of == value)
        });
        equal(&self.profile, &info.profile)
            && equal(&self.owner, &info.owner)
            && equal(&self.region, &info.region)
            && tag
    }
}

/// Lists clusters by id.
#[utoipa::path(
    get,
    path = "/v1/clusters",
    tag = "clusters",
    operation_id = "list_clusters",
    params(Caller, ListParams),
    responses((status = 200, description = "A page", body = ListResponse<ClusterInfo>))
)]
async fn list(
    State(services): State<Services>,
    caller: Caller,
    Params(params): Params<ListParams>,
) -> Result<Json<ListResponse<ClusterInfo>>, Problem> {
    let limit = page_size(params.limit)?;
    if let Some(state) = &params.state
        && ClusterState::parse(state).is_none()
    {
        let all = ClusterState::ALL.map(ClusterState::as_str).join(", ");
        return Err(Problem::invalid(&format!("state is {state:?}; it must be one of {all}")));
    }
    let cursor = params.cursor.as_ref().map(|cursor| cursor.parse::<ResourceKey>()).transpose();
    let mut after = cursor.map_err(|error| Problem::invalid(&format!("cursor: {error}")))?;
    let now = services.store().status().await?.now;
    let mut items = Vec::new();
    for _ in 0..PAGES_MAX {
        let query = ResourceQuery {
            tenant: caller.only_tenant(),
            kind: Some(CLUSTER.into()),
            state: params.state.as_deref().map(Into::into),
            after: after.take(),
            limit: limit - items.len(),
            ..ResourceQuery::default()
        };
        let page = services.store().reads().resources(query).await?;
        for view in page.items {
            let info = Cluster::from_view(view)?.info(now, &[]);
            items.extend(info.filter(|info| params.matches(info)));
        }
        after = page.next;
        if after.is_none() || items.len() == limit {
            break;
        }
    }
    Ok(Json(ListResponse { items, next: after.map(|key| key.to_string()) }))
}

/// Creates a cluster.
///
/// Repeating the request attaches to the create that is running. A cluster that exists with the
/// same configuration is not created again.
#[utoipa::path(
    post,
    path = "/v1/clusters",
    tag = "clusters",
    operation_id = "create_cluster",
    params(tenure_app::openapi::OneTenant, Idempotency),
    request_body = CreateRequest,
    responses(
        (status = 202, description = "The create is submitted", body = ClusterResponse),
        (status = 200, description = "The cluster exists", body = ClusterResponse),
        NotFound, Conflict
    )
)]
async fn create(
    State(services): State<Services>,
    caller: Caller,
    key: Idempotency,
    Body(body): Body<CreateRequest>,
) -> Result<(StatusCode, Json<ClusterResponse>), Problem> {
    change::create(&services, &caller, &key, &body).await
}

/// Shows a cluster.
#[utoipa::path(
    get,
    path = "/v1/clusters/{id}",
    tag = "clusters",
    operation_id = "show_cluster",
    params(OnCluster),
    responses((status = 200, description = "The cluster", body = ClusterInfo), NotFound)
)]
async fn show(
    State(services): State<Services>,
    on: OnCluster,
) -> Result<Json<ClusterInfo>, Problem> {
    let cluster = Cluster::load(&services, &on.key).await?;
    let now = services.store().status().await?.now;
    let installs = match (cluster.current_job(), cluster.config()) {
        (Some(job), Some(config)) if *job.operation == *CREATE => {
            cluster::installs(&services, on.key.tenant(), &config.profile).await?
        }
        _ => Vec::new(),
    };
    let info = cluster.info(now, &installs);
    info.map(Json).ok_or_else(|| {
        Problem::not_found("the resource exists, but it was never requested as a cluster")
    })
}

/// Destroys a cluster. A create that is running is cancelled first.
#[utoipa::path(
    delete,
    path = "/v1/clusters/{id}",
    tag = "clusters",
    operation_id = "destroy_cluster",
    params(OnCluster, Idempotency),
    responses(
        (status = 202, description = "The destroy is submitted", body = ClusterResponse),
        NotFound, Conflict
    )
)]
async fn destroy(
    State(services): State<Services>,
    on: OnCluster,
    key: Idempotency,
) -> Result<(StatusCode, Json<ClusterResponse>), Problem> {
    change::destroy(&services, &on, &key).await
}

/// Changes the number of workers.
#[utoipa::path(
    post,
    path = "/v1/clusters/{id}/scale",
    tag = "clusters",
    operation_id = "scale_cluster",
    params(OnCluster, Idempotency),
    request_body = ScaleRequest,
    responses(
        (status = 202, description = "The change is submitted", body = ClusterResponse),
        NotFound, Conflict
    )
)]
async fn scale(
    State(services): State<Services>,
    on: OnCluster,
    key: Idempotency,
    Body(body): Body<ScaleRequest>,
) -> Result<(StatusCode, Json<ClusterResponse>), Problem> {
    change::scale(&services, &on, &key, body).await
}

/// Moves the time of the automatic destroy.
#[utoipa::path(
    post,
    path = "/v1/clusters/{id}/ttl",
    tag = "clusters",
    operation_id = "extend_cluster",
    params(OnCluster),
    request_body = ExtendRequest,
    responses(
        (status = 200, description = "The new time", body = ExtendResponse),
        NotFound, Conflict
    )
)]
async fn extend(
    State(services): State<Services>,
    on: OnCluster,
    Body(body): Body<ExtendRequest>,
) -> Result<Json<ExtendResponse>, Problem> {
    Ok(Json(change::extend(&services, &on, body).await?))
}

/// Reads the log of the current job of a cluster, or of its last one.
#[utoipa::path(
    get,
    path = "/v1/clusters/{id}/logs",
    tag = "clusters",
    operation_id = "read_cluster_logs",
    params(OnCluster, LogParams),
    responses((status = 200, description = "A page of the log", body = LogResponse), NotFound)
)]
async fn logs(
    State(services): State<Services>,
    on: OnCluster,
    Params(params): Params<LogParams>,
) -> Result<Json<LogResponse>, Problem> {
    let cluster = Cluster::load(&services, &on.key).await?;
    let job = cluster.current_job().map(|job| job.id).or(cluster.resource.last_job);
    let job = job.ok_or_else(|| Problem::not_found("the cluster has had no job yet"))?;
    Ok(Json(services.log_page(&on.caller, job, &params).await?))
}

/// Shows how a running cluster is reached.
#[utoipa::path(
    get,
    path = "/v1/clusters/{id}/outputs",
    tag = "clusters",
    operation_id = "show_cluster_outputs",
    params(OnCluster),
    responses(
        (status = 200, description = "The addresses", body = ClusterOutputsResponse),
        NotFound
    )
)]
async fn outputs(
    State(services): State<Services>,
    on: OnCluster,
) -> Result<Json<ClusterOutputsResponse>, Problem> {
    let cluster = Cluster::load(&services, &on.key).await?;
    let outputs = cluster.outputs().ok_or_else(not_running)?;
    let status = cluster.status;
    Ok(Json(ClusterOutputsResponse {
        id: on.key.name().to_owned(),
        outputs,
        infra_id: status.infra.map(|infra| infra.infra_id),
        snapshot: status.snapshot.map(|snapshot| snapshot.path),
    }))
}

fn not_running() -> Problem {
    Problem::not_found("the cluster has no outputs: it does not run yet, or not any more")
}

/// Returns the credentials of the administrator of a cluster.
#[utoipa::path(
    post,
    path = "/v1/clusters/{id}/credentials",
    tag = "clusters",
    operation_id = "read_cluster_credentials",
    params(OnCluster),
    responses(
        (status = 200, description = "The credentials", body = CredentialsResponse),
        NotFound
    )
)]
async fn credentials(
    State(services): State<Services>,
    on: OnCluster,
) -> Result<Json<CredentialsResponse>, Problem> {
    let cluster = Cluster::load(&services, &on.key).await?;
    let snapshot = cluster.status.snapshot.filter(|_| cluster.status.outputs.is_some());
    let snapshot = snapshot.ok_or_else(not_running)?;
    let app = loaded(&services)?;
    let artifacts = app.artifacts().map_err(|why| Problem::unavailable(&why))?;
    let read = async |name| {
        let file = artifacts.read_secret_file(&snapshot, name).await.map_err(|error| {
            Problem::unavailable(&format!("this server cannot read the snapshot: {error}"))
        })?;
        Ok::<_, Problem>(file.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    };
    let kubeconfig = read("auth/kubeconfig").await?;
    let password = read("auth/kubeadmin-password").await?;
    let missing = || Problem::not_found("the snapshot has no kubeconfig");
    Ok(Json(CredentialsResponse {
        id: on.key.name().to_owned(),
        kubeconfig: kubeconfig.ok_or_else(missing)?,
        password,
    }))
}

/// Lists the events of a cluster, newest first.
#[utoipa::path(
    get,
    path = "/v1/clusters/{id}/history",
    tag = "clusters",
    operation_id = "list_cluster_history",
    params(OnCluster, HistoryParams),
    responses((status = 200, description = "A page of events", body = ListResponse<HistoryEntry>))
)]
async fn history(
    State(services): State<Services>,
    on: OnCluster,
    Params(params): Params<HistoryParams>,
) -> Result<Json<ListResponse<HistoryEntry>>, Problem> {
    let OnCluster { caller, key } = on;
    let query = |before, limit| HistoryQuery::Of { key, before, limit };
    Ok(Json(services.history_page(&caller, &params, query).await?))
}

/// Shows who has the lock of a cluster.
#[utoipa::path(
    get,
    path = "/v1/clusters/{id}/lock",
    tag = "clusters",
    operation_id = "show_cluster_lock",
    params(OnCluster),
    responses((status = 200, description = "The lock", body = ClusterLockResponse), NotFound)
)]
async fn lock(
    State(services): State<Services>,
    on: OnCluster,
) -> Result<Json<ClusterLockResponse>, Problem> {
    let cluster = Cluster::load(&services, &on.key).await?;
    let now = services.store().status().await?.now;
    let lock = cluster.tenure.map(|tenure| JobLockInfo {
        job_id: tenure.job,
        locked_at: instant(tenure.since),
        locked_by: tenure.holder.to_string(),
        expires_at: instant(Millis(now.0.saturating_add(tenure.expires_in_ms))),
        token: tenure.token,
    });
    Ok(Json(ClusterLockResponse { cluster_id: on.key.name().to_owned(), lock }))
}

/// Lists the profiles that the tenant can use.
#[utoipa::path(
    get,
    path = "/v1/profiles",
    tag = "clusters",
    operation_id = "list_profiles",
    params(Caller),
    responses(
        (status = 200, description = "The profiles", body = ListResponse<ProfileInfo>),
        NotFound
    )
)]
async fn list_profiles(
    State(services): State<Services>,
    caller: Caller,
) -> Result<Json<ListResponse<ProfileInfo>>, Problem> {
    let app = loaded(&services)?;
    Ok(Json(ListResponse { items: profiles::list(&app, &caller), next: None }))
}

/// Shows the queue on SQS.
#[utoipa::path(
    get,
    path = "/v1/clusters/queue",
    tag = "clusters",
    operation_id = "show_cluster_queue",
    params(Caller),
    responses((status = 200, description = "The queue", body = QueueResponse), NotFound)
)]
async fn queue_status(
    State(services): State<Services>,
    _caller: Caller,
) -> Result<Json<QueueResponse>, Problem> {
    Ok(Json(queue::show(&services).await?))
}

/// Sends the messages of the dead-letter queue again.
#[utoipa::path(
    post,
    path = "/v1/clusters/queue/redrive",
    tag = "clusters",
    operation_id = "redrive_cluster_queue",
    params(Caller),
    responses((status = 200, description = "What was sent", body = RedriveQueueResponse), NotFound)
)]
async fn redrive_queue(
    State(services): State<Services>,
    _caller: Caller,
) -> Result<Json<RedriveQueueResponse>, Problem> {
    Ok(Json(queue::redrive(&services).await?))
}

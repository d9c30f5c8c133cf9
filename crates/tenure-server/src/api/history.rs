//! What happened, and the proof that it was right.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use tenure::wire::{HistoryLine, ListAnswer, VerifyAnswer, instant, schema};
use tenure_core::history::Entry;
use tenure_store::store::{HistoryQuery, Line};
use utoipa::IntoParams;

use super::page_size;
use crate::App;
use crate::auth::{Caller, Role};
use crate::extract::{On, Params};
use crate::problem::Problem;

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Paging {
    /// How many rows at most; 100 when nothing is said.
    #[param(value_type = schema::PageSize, required = false, inline)]
    limit: Option<usize>,
    /// `next` of the page before.
    #[param(value_type = schema::Count, required = false, inline)]
    cursor: Option<u64>,
}

/// Lists what happened to a resource, newest first.
#[utoipa::path(
    get,
    path = "/v1/resources/{kind}/{name}/history",
    tag = "resources",
    operation_id = "list_resource_history",
    params(On, Paging),
    responses((status = 200, description = "A page", body = ListAnswer<HistoryLine>))
)]
pub(super) async fn of_resource(
    State(app): State<Arc<App>>,
    on: On,
    Params(paging): Params<Paging>,
) -> Result<Json<ListAnswer<HistoryLine>>, Problem> {
    on.caller.require(Role::Viewer)?;
    let limit = page_size(paging.limit)?;
    let query = HistoryQuery::Of { key: on.key, before: paging.cursor, limit };
    page(app.committer.store().reads().history(query).await?, limit)
}

/// Lists what happened to all resources, newest first.
#[utoipa::path(
    get,
    path = "/v1/history",
    tag = "insight",
    operation_id = "list_history",
    params(Caller, Paging),
    responses((status = 200, description = "A page", body = ListAnswer<HistoryLine>))
)]
pub(super) async fn newest(
    State(app): State<Arc<App>>,
    caller: Caller,
    Params(paging): Params<Paging>,
) -> Result<Json<ListAnswer<HistoryLine>>, Problem> {
    caller.require(Role::Viewer)?;
    let limit = page_size(paging.limit)?;
    let query = HistoryQuery::Newest { tenant: caller.only(), before: paging.cursor, limit };
    page(app.committer.store().reads().history(query).await?, limit)
}

/// Proves exclusivity from the whole history, or names the contradictions.
#[utoipa::path(
    get,
    path = "/v1/verify",
    tag = "insight",
    operation_id = "verify",
    params(Caller),
    responses((status = 200, description = "The proof", body = VerifyAnswer))
)]
pub(super) async fn verify(
    State(app): State<Arc<App>>,
    caller: Caller,
) -> Result<Json<VerifyAnswer>, Problem> {
    caller.require(Role::Operator)?;
    let report = tenure_store::verify::verify(app.committer.store()).await?;
    Ok(Json(VerifyAnswer {
        ok: report.problems.is_empty(),
        resources: report.resources,
        entries: report.entries,
        grants: report.grants,
        problems: report.problems.iter().map(ToString::to_string).collect(),
    }))
}

fn page(lines: Vec<Line>, limit: usize) -> Result<Json<ListAnswer<HistoryLine>>, Problem> {
    let full = lines.len() == limit;
    let next = lines.last().filter(|_| full).map(|line| line.position.to_string());
    let items = lines.into_iter().map(answer).collect::<Result<_, _>>()?;
    Ok(Json(ListAnswer { items, next }))
}

fn answer(line: Line) -> Result<HistoryLine, Problem> {
    let damaged = |error| {
        let (key, position) = (&line.key, line.position);
        Problem::unavailable(&format!("entry {position} of {key} cannot be read: {error}"))
    };
    let entry = Entry::parse(&line.text).map_err(damaged)?;
    Ok(HistoryLine {
        position: line.position,
        at: instant(entry.at),
        hash: line.hash.to_string(),
        resource: line.key,
        line: line.text,
    })
}

//! What happened, and the proof that it was right.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use tenure::wire::{HistoryLine, ListAnswer, VerifyAnswer, instant};
use tenure_core::history::Entry;
use tenure_store::store::{HistoryQuery, Line};
use tenure_store::verify::verify_of;

use super::page_size;
use crate::App;
use crate::auth::{Caller, Veil};
use crate::extract::{On, Params};
use crate::problem::Problem;

#[derive(Deserialize)]
pub(super) struct Paging {
    limit: Option<usize>,
    cursor: Option<u64>,
}

pub(super) async fn of_resource(
    State(app): State<Arc<App>>,
    on: On,
    Params(paging): Params<Paging>,
) -> Result<Json<ListAnswer<HistoryLine>>, Problem> {
    let limit = page_size(paging.limit)?;
    let before = app.position(&on.caller, paging.cursor);
    let query = HistoryQuery::Of { key: on.key, before, limit };
    page(&app, &on.caller, query, limit).await
}

pub(super) async fn newest(
    State(app): State<Arc<App>>,
    caller: Caller,
    Params(paging): Params<Paging>,
) -> Result<Json<ListAnswer<HistoryLine>>, Problem> {
    let limit = page_size(paging.limit)?;
    let before = app.position(&caller, paging.cursor);
    let query = HistoryQuery::Newest { tenant: caller.only(), before, limit };
    page(&app, &caller, query, limit).await
}

pub(super) async fn verify(
    State(app): State<Arc<App>>,
    caller: Caller,
) -> Result<Json<VerifyAnswer>, Problem> {
    // A key of all tenants proves it for all of them at once.
    let tenant = caller.bound().map(|home| &**home);
    let report = verify_of(app.committer.store(), tenant).await?;
    Ok(Json(VerifyAnswer {
        ok: report.problems.is_empty(),
        resources: report.resources,
        entries: report.entries,
        grants: report.grants,
        problems: report.problems.iter().map(ToString::to_string).collect(),
    }))
}

async fn page(
    app: &App,
    caller: &Caller,
    query: HistoryQuery,
    limit: usize,
) -> Result<Json<ListAnswer<HistoryLine>>, Problem> {
    let lines = app.committer.store().reads().history(query).await?;
    let veil = app.veil(caller);
    let full = lines.len() == limit;
    let lines = lines.into_iter().map(|line| answer(line, veil.as_ref()));
    let items = lines.collect::<Result<Vec<_>, _>>()?;
    let next = items.last().filter(|_| full).map(|line| line.position.to_string());
    Ok(Json(ListAnswer { items, next }))
}

/// A line as a caller sees it: positions count across all tenants, so they are hidden from one.
pub(super) fn answer(line: Line, veil: Option<&Veil>) -> Result<HistoryLine, Problem> {
    let damaged = |error| {
        let (key, position) = (&line.key, line.position);
        Problem::unavailable(&format!("entry {position} of {key} cannot be read: {error}"))
    };
    let entry = Entry::parse(&line.text).map_err(damaged)?;
    Ok(HistoryLine {
        position: veil.map_or(line.position, |veil| veil.hide(line.position)),
        at: instant(entry.at),
        hash: line.hash.to_string(),
        resource: line.key,
        line: line.text,
    })
}

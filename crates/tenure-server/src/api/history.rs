//! What happened, and the proof that it was right.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use tenure::wire::{HistoryLine, ListAnswer, VerifyAnswer, instant};
use tenure_core::history::Entry;
use tenure_store::store::{HistoryQuery, Line};

use super::page_size;
use crate::App;
use crate::auth::{Caller, Role};
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
    on.caller.require(Role::Viewer)?;
    let limit = page_size(paging.limit)?;
    let query = HistoryQuery::Of { key: on.key, before: paging.cursor, limit };
    page(app.committer.store().reads().history(query).await?, limit)
}

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

//! Batches: many requests in one.
//!
//! Each request takes the way of a single one, with the key of the caller: its access rule, rate
//! limit, handler, audit entry and metrics are its own. Their commands are enqueued together, so
//! they share store batches; those on one resource are applied in the order of the batch. A batch
//! never contains a request that waits: `plan` refuses those before anything is executed.

mod plan;

use std::convert::Infallible;
use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::to_bytes;
use axum::extract::{Extension, FromRequestParts as _, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::{Router, body};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use tenure_app::extract::{Body, Idempotency};
use tenure_app::openapi::BadRequest;
use tenure_app::{Caller, Problem};
use tenure_store::committer::CommandGroup;
use tenure_wire::{BATCH_BODY_BYTES_MAX, BATCH_REQUESTS_MAX, BatchRequest, BatchResponse};
use tokio::sync::Semaphore;
use tower_service::Service as _;

use crate::ServerState;
use plan::{Origin, PlannedRequest};

/// Maximum number of batches that are applied at the same time; others wait.
pub(crate) const BATCHES_MAX: usize = 16;
/// Maximum number of requests of a batch that read at the same time.
const READS_MAX: usize = 16;
/// Maximum size of the bodies of all answers. Those beyond it are left out.
const ANSWERS_BYTES_MAX: usize = 64 * 1024 * 1024;

type BatchBody = Body<BatchRequest, BATCH_BODY_BYTES_MAX>;

/// The routes that requests of a batch may use, with all middleware.
#[derive(Clone)]
pub(super) struct SingleRequests(Router);

impl SingleRequests {
    pub(super) fn new(router: Router) -> Self {
        Self(router)
    }

    async fn send(&self, request: Request) -> Response {
        let sent: Result<Response, Infallible> = self.0.clone().call(request).await;
        sent.unwrap_or_else(|never| match never {})
    }
}

/// Applies many requests. Each is answered on its own; those on one resource are applied in order.
#[utoipa::path(
    post,
    path = "/v1/batch",
    tag = "batches",
    operation_id = "batch",
    params(Caller, Idempotency),
    request_body = BatchRequest,
    responses(
        (status = 200, description = "The answers, in the order of the requests",
            body = BatchResponse),
        BadRequest
    )
)]
pub(super) async fn run(
    State(state): State<ServerState>,
    Extension(single): Extension<SingleRequests>,
    request: Request,
) -> Result<Response, Problem> {
    let (mut parts, body) = request.into_parts();
    let caller = Caller::from_request_parts(&mut parts, &state).await?;
    let ids = Idempotency::from_request_parts(&mut parts, &state).await?.batch_ids()?;
    let origin = Origin::new(&parts, &caller);
    let request = Request::from_parts(parts, body);
    // Keeps its part of the budget of bodies until the batch is answered: batches that wait for a
    // permit must not fill the memory either.
    let body = BatchBody::read(request, &state.services).await?;
    // Fails only if the semaphore is closed.
    let _permit = state.batches.acquire().await.ok();
    let Body(batch) = BatchBody::parse(&body.bytes)?;
    if batch.requests.len() > BATCH_REQUESTS_MAX {
        let detail = format!(
            "the batch has {} requests; send at most {BATCH_REQUESTS_MAX} at once",
            batch.requests.len()
        );
        return Err(Problem::new(413, "too_large", &detail));
    }
    let planned = batch.requests.into_iter().enumerate();
    let planned = planned.map(|(index, request)| {
        let id = ids.as_ref().map(|ids| ids(index));
        origin.plan(index, request, id)
    });
    let mut planned = planned.collect::<Result<Vec<_>, _>>()?;
    plan::order(&mut planned, &state.services).await?;
    Ok(response(&send_all(&state, &single, planned).await))
}

/// Answer to a request of a batch.
struct Answer {
    status: StatusCode,
    /// JSON text.
    body: body::Bytes,
}

/// Sends all requests and returns their answers in order.
async fn send_all(
    state: &ServerState,
    single: &SingleRequests,
    planned: Vec<PlannedRequest>,
) -> Vec<Answer> {
    let mut answers: Vec<Option<Answer>> = planned.iter().map(|_| None).collect();
    let mut group = CommandGroup::new(&state.services.committer, planned.len());
    let (reads, size) = (&Semaphore::new(READS_MAX), &AtomicUsize::new(0));
    let mut running = FuturesUnordered::new();
    for (index, planned) in planned.into_iter().enumerate() {
        let PlannedRequest { request, lane, exclusive } = planned;
        let call = async move {
            let is_read = request.method() == Method::GET;
            // Fails only if the semaphore is closed.
            let _permit = if is_read { reads.acquire().await.ok() } else { None };
            (index, answer(single.send(request).await, is_read, size).await)
        };
        running.push(group.call(lane.as_deref(), exclusive, call).boxed());
    }
    while let Some((index, answer)) = running.next().await {
        answers[index] = Some(answer);
    }
    answers.into_iter().map(|answer| answer.expect("every request was sent")).collect()
}

/// Reads a response; `size` is that of all bodies so far.
async fn answer(response: Response, is_read: bool, size: &AtomicUsize) -> Answer {
    let (parts, body) = response.into_parts();
    let left = ANSWERS_BYTES_MAX.saturating_sub(size.load(Ordering::Relaxed));
    let Ok(body) = to_bytes(body, left).await else {
        // What was read may be read again; what was applied must not look refused.
        if is_read {
            let detail = format!(
                "the answers of the batch have more than {ANSWERS_BYTES_MAX} bytes; send this \
                 request on its own"
            );
            let problem = Problem::new(413, "too_large", &detail).into_response();
            let body = to_bytes(problem.into_body(), usize::MAX).await.unwrap_or_default();
            return Answer { status: StatusCode::PAYLOAD_TOO_LARGE, body };
        }
        return Answer { status: parts.status, body: body::Bytes::from_static(b"null") };
    };
    size.fetch_add(body.len(), Ordering::Relaxed);
    let is_json = (parts.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes))
        .is_some_and(|kind| kind == b"application/json" || kind == b"application/problem+json");
    let body = if is_json {
        body
    } else if body.is_empty() {
        body::Bytes::from_static(b"null")
    } else {
        serde_json::Value::from(String::from_utf8_lossy(&body)).to_string().into()
    };
    Answer { status: parts.status, body }
}

/// Builds the response: a [`BatchResponse`] from bodies that are JSON already.
fn response(answers: &[Answer]) -> Response {
    let bodies: usize = answers.iter().map(|answer| answer.body.len()).sum();
    let mut text = Vec::with_capacity(bodies + 32 * answers.len() + 16);
    text.extend_from_slice(b"{\"answers\":[");
    for (index, Answer { status, body }) in answers.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        write!(text, "{comma}{{\"status\":{},\"body\":", status.as_u16())
            .expect("memory can be written");
        text.extend_from_slice(body);
        text.push(b'}');
    }
    text.extend_from_slice(b"]}");
    ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], text).into_response()
}

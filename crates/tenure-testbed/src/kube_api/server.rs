//! Serves the API over TLS: authentication, faults, and the way from a request to its answer.
//!
//! Must never listen beyond loopback.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, Limited, StreamBody};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::TOKEN;
use super::faults::{Action, KubeFault};
use super::refusal::Refusal;
use super::routes::{Answer, Call, Query, answer};
use super::state::{Shared, State};
use super::watching;

/// Largest body of a request, as in a real server.
const BODY_BYTES_MAX: usize = 3 * 1024 * 1024;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Serves connections until it is dropped, or cannot accept any.
pub(super) async fn serve(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    shared: Arc<Shared>,
) -> io::Result<()> {
    let acceptor = TlsAcceptor::from(tls);
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(serve_connection(stream, acceptor.clone(), Arc::clone(&shared)));
    }
}

async fn serve_connection(stream: TcpStream, acceptor: TlsAcceptor, shared: Arc<Shared>) {
    let Ok(stream) = acceptor.accept(stream).await else { return };
    let has_certificate = stream.get_ref().1.peer_certificates().is_some();
    let service = service_fn(move |request| {
        let shared = Arc::clone(&shared);
        async move { handle(&shared, request, has_certificate).await }
    });
    http1::Builder::new().serve_connection(TokioIo::new(stream), service).await.ok();
}

/// Handles a request. An error closes the connection without an answer.
async fn handle(
    shared: &Arc<Shared>,
    request: Request<Incoming>,
    has_certificate: bool,
) -> Result<Response<Body>, io::Error> {
    let token = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let is_known =
        has_certificate || token.and_then(|all| all.strip_prefix("Bearer ")) == Some(TOKEN);
    let call = read(request).await?;
    let path = call.path_and_query();
    if path.starts_with("/standin/") {
        return Ok(control(shared, &call));
    }
    let fault = shared.with(|state| {
        state.log(&call.method, &path);
        state.faults.take(&call.method, &path)
    });
    if !is_known {
        return Ok(refused(&Refusal::of_code(401)));
    }
    match fault {
        None => Ok(respond(shared, &call)),
        Some(Action::Hold(holding)) => {
            holding.wait().await;
            Ok(respond(shared, &call))
        }
        Some(Action::EditFirst(edit)) => {
            shared.with(|state| edit(&mut state.objects));
            Ok(respond(shared, &call))
        }
        Some(Action::Misbehave(fault)) => misbehave(shared, &call, &fault).await,
    }
}

async fn misbehave(
    shared: &Arc<Shared>,
    call: &Call,
    fault: &KubeFault,
) -> Result<Response<Body>, io::Error> {
    let disconnected = || io::Error::other("the test disconnects");
    match *fault {
        KubeFault::Status(code) => Ok(refused(&Refusal::of_code(code))),
        KubeFault::RetryAfter(code, seconds) => {
            let mut response = refused(&Refusal::of_code(code));
            response.headers_mut().insert(RETRY_AFTER, seconds.into());
            Ok(response)
        }
        KubeFault::AppliedThenStatus(code) => {
            drop(respond(shared, call));
            Ok(refused(&Refusal::of_code(code)))
        }
        KubeFault::Disconnect => Err(disconnected()),
        KubeFault::AppliedThenDisconnect => {
            drop(respond(shared, call));
            Err(disconnected())
        }
        KubeFault::Hang => std::future::pending().await,
    }
}

async fn read(request: Request<Incoming>) -> Result<Call, io::Error> {
    let (head, body) = request.into_parts();
    let content_type = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let body = Limited::new(body, BODY_BYTES_MAX).collect().await.map_err(io::Error::other)?;
    Ok(Call {
        method: head.method.as_str().to_owned(),
        path: head.uri.path().to_owned(),
        query: Query::parse(head.uri.query().unwrap_or_default()),
        raw_query: head.uri.query().map(|query| format!("?{query}")).unwrap_or_default(),
        content_type: content_type.unwrap_or_default().to_owned(),
        body: body.to_bytes().to_vec(),
    })
}

fn respond(shared: &Arc<Shared>, call: &Call) -> Response<Body> {
    let answered = shared.with(|state| {
        let answered = answer(state, call);
        if state.auto && call.method != "GET" {
            state.settle();
        }
        answered
    });
    match answered {
        Ok(Answer::Json(code, value)) => json_response(code, &value),
        Ok(Answer::Watch(selection)) => {
            let lines = watching::open(shared, selection, &call.query);
            response(200, StreamBody::new(lines).boxed_unsync())
        }
        Err(refusal) => refused(&refusal),
    }
}

/// Answers `POST /standin/…`, with which other processes do what tests do with the handle.
fn control(shared: &Arc<Shared>, call: &Call) -> Response<Body> {
    let number = || call.query.get("count").parse().unwrap_or(1);
    let run = |state: &mut State| match (call.method.as_str(), call.path.as_str()) {
        ("POST", "/standin/advance") => Some(json!({"changed": state.advance()})),
        ("POST", "/standin/settle") => {
            state.settle();
            Some(json!({}))
        }
        ("POST", "/standin/stick") => {
            state.machines.stick(number());
            Some(json!({}))
        }
        ("POST", "/standin/unstick") => {
            state.machines.unstick();
            Some(json!({}))
        }
        _ => None,
    };
    match shared.with(run) {
        Some(value) => json_response(200, &value),
        None => refused(&Refusal::no_such_path()),
    }
}

fn refused(refusal: &Refusal) -> Response<Body> {
    json_response(refusal.code, &refusal.status())
}

fn json_response(code: u16, value: &Value) -> Response<Body> {
    response(code, Full::new(Bytes::from(value.to_string())).boxed_unsync())
}

fn response(code: u16, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = hyper::StatusCode::from_u16(code).unwrap_or_default();
    let json = hyper::header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

//! With the feature `otel`: spans of requests and attempts are exported, in the right traces.

mod common;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use common::{free_address, http, signal, tenure, until};
use serde_json::Value;
use tempfile::TempDir;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";
const CONFIG: &str = "
[kinds.db.operations.create]
run = [\"sh\", \"-c\", \"echo $TRACEPARENT $TENURE_TRACEPARENT > trace.new; mv trace.new trace\"]
";

/// Returns the length-delimited fields of a protobuf message.
fn fields(mut message: &[u8]) -> Vec<(u64, &[u8])> {
    let mut found = Vec::new();
    while !message.is_empty() {
        let tag = number(&mut message);
        let length = match tag & 7 {
            0 => {
                number(&mut message);
                continue;
            }
            1 => 8,
            5 => 4,
            _ => usize::try_from(number(&mut message)).expect("it is small"),
        };
        let (field, rest) = message.split_at(length);
        found.push((tag >> 3, field));
        message = rest;
    }
    found
}

fn number(message: &mut &[u8]) -> u64 {
    let (mut value, mut shift) = (0, 0);
    loop {
        let (byte, rest) = message.split_first().expect("it is whole");
        *message = rest;
        value |= u64::from(byte & 127) << shift;
        shift += 7;
        if byte & 128 == 0 {
            return value;
        }
    }
}

fn inside<'a>(messages: &[&'a [u8]], number: u64) -> Vec<&'a [u8]> {
    let all = messages.iter().flat_map(|message| fields(message));
    all.filter(|(n, _)| *n == number).map(|(_, field)| field).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[derive(Debug)]
struct Span {
    trace: String,
    id: String,
    parent: String,
    name: String,
    /// Linked traces.
    links: Vec<String>,
    attributes: String,
}

impl Span {
    fn read(span: &[u8]) -> Self {
        let one = |n| inside(&[span], n).first().copied().unwrap_or_default();
        let links = inside(&inside(&[span], 13), 1);
        Self {
            trace: hex(one(1)),
            id: hex(one(2)),
            parent: hex(one(4)),
            name: String::from_utf8_lossy(one(5)).into_owned(),
            links: links.into_iter().map(hex).collect(),
            attributes: String::from_utf8_lossy(&inside(&[span], 9).concat()).into_owned(),
        }
    }
}

/// A collector that stores the received requests.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<Vec<u8>>>>);

impl Collector {
    fn start() -> (Self, String) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        let collector = Self::default();
        let shared = collector.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = shared.clone();
                std::thread::spawn(move || shared.serve(stream));
            }
        });
        (collector, url)
    }

    fn serve(&self, stream: TcpStream) -> Option<()> {
        let mut stream = BufReader::new(stream);
        loop {
            let (mut head, mut length) = (String::new(), 0);
            while !head.ends_with("\r\n\r\n") {
                let from = head.len();
                stream.read_line(&mut head).ok().filter(|read| *read > 0)?;
                let line = head[from..].to_ascii_lowercase();
                if let Some(value) = line.strip_prefix("content-length:") {
                    length = value.trim().parse().ok()?;
                }
            }
            assert!(head.starts_with("POST /v1/traces "), "{head}");
            let mut body = vec![0; length];
            stream.read_exact(&mut body).ok()?;
            self.0.lock().expect("no panic").push(body);
            let response = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
            stream.get_mut().write_all(response.as_bytes()).ok()?;
        }
    }

    fn spans(&self) -> Vec<Span> {
        let bodies = self.0.lock().expect("no panic");
        let requests: Vec<&[u8]> = bodies.iter().map(Vec::as_slice).collect();
        let spans = inside(&inside(&inside(&requests, 1), 2), 2);
        spans.into_iter().map(Span::read).collect()
    }

    fn has(&self, name: &str) -> bool {
        self.spans().iter().any(|span| span.name == name)
    }
}

const SUBMIT: &str = "POST /v1/resources/{kind}/{name}/jobs";

#[test]
fn requests_join_the_trace_of_the_caller_and_attempts_that_of_the_job() {
    let (collector, url) = Collector::start();
    let dir = TempDir::new().expect("a directory");
    std::fs::write(dir.path().join("tenure.toml"), CONFIG).expect("it is writable");
    let listen = free_address();
    let mut command = tenure(dir.path());
    command.args(["serve", "--listen", &listen, "--log-format", "json"]).current_dir(dir.path());
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &url).env("OTEL_BSP_SCHEDULE_DELAY", "50");
    let mut server =
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    until(|| dir.path().join("server.url").exists());
    let key = std::fs::read_to_string(dir.path().join("admin.key")).expect("it was created");
    let key = format!("authorization: Bearer {}", key.trim());
    let trace = format!("traceparent: 00-{TRACE}-{CALLER}-01");
    let lines = ["POST /v1/resources/db/orders/jobs HTTP/1.1", &key, &trace];
    let lines = [&lines[..], &["content-type: application/json"]].concat();
    let answer = http(&listen, &lines, "{\"operation\":\"create\"}").expect("it answers");
    let body = answer.split_once("\r\n\r\n").expect("it has a body").1;
    let created: Value =
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"));
    let job = created["job"]["id"].as_str().expect("it has an id").to_owned();
    until(|| dir.path().join("trace").exists());
    until(|| collector.has(SUBMIT) && collector.has("attempt"));
    signal(server.id(), "TERM");
    assert!(server.wait().expect("it is ours").success());

    let spans = collector.spans();
    let find = |name| spans.iter().find(|span| span.name == name).expect("it was sent");
    let request = find(SUBMIT);
    assert_eq!((&*request.trace, &*request.parent), (TRACE, CALLER), "{request:?}");
    assert_eq!(request.links, [&*job], "{request:?}");
    let attempt = find("attempt");
    assert_eq!(attempt.trace, job, "{attempt:?}");
    assert!(attempt.attributes.contains(&job), "{attempt:?}");
    let trace = std::fs::read_to_string(dir.path().join("trace")).expect("it was written");
    let parent = format!("00-{job}-{}-01", attempt.id);
    assert_eq!(
        trace.trim(),
        format!("{parent} {parent}"),
        "the attempt is the parent of the command"
    );
}

//! A server for tests of what asks more than once: it gives the answers that it was given.

use serde_json::Value;
use tenure::http::HttpTransport;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Gives these answers, one after the other, and none instead of a null; the task gives what was
/// asked for.
pub(crate) async fn canned(answers: Vec<Value>) -> (HttpTransport, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    let task = tokio::spawn(async move {
        let mut asked = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().await.expect("a caller");
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.expect("a whole request"));
            }
            let request = String::from_utf8(request).expect("plain letters");
            let path = request.split_whitespace().nth(1).expect("a path").to_owned();
            asked.push(path);
            if answer.is_null() {
                continue;
            }
            let (body, close) = (answer.to_string(), "connection: close");
            let head = format!("HTTP/1.1 200 OK\r\n{close}\r\ncontent-length: {}", body.len());
            let answered = stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).await;
            answered.expect("a caller that waits");
        }
        asked
    });
    (HttpTransport::new(&url, "key", "default").expect("an address"), task)
}

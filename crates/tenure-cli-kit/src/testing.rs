//! An HTTP server with scripted responses, for tests of code that sends several requests.

use serde_json::Value;
use tenure::http::HttpTransport;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Serves `responses` in order; a `null` closes the connection without a response. The task returns
/// the requested paths.
pub(crate) async fn serve_responses(
    responses: Vec<Value>,
) -> (HttpTransport, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let task = tokio::spawn(async move {
        let mut requests = Vec::new();
        for response in responses {
            let (mut stream, _) = listener.accept().await.expect("a caller");
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.expect("a whole request"));
            }
            let request = String::from_utf8(request).expect("ASCII");
            let path = request.split_whitespace().nth(1).expect("a path").to_owned();
            requests.push(path);
            if response.is_null() {
                continue;
            }
            let (body, close) = (response.to_string(), "connection: close");
            let head = format!("HTTP/1.1 200 OK\r\n{close}\r\ncontent-length: {}", body.len());
            let written = stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).await;
            written.expect("a waiting caller");
        }
        requests
    });
    (HttpTransport::new(&url, "key", "default").expect("an address"), task)
}

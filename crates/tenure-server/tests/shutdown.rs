//! A shutdown answers requests that were sent before it.

mod common;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

use common::Server;
use tenure_store::Memory;

const REQUEST: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: tenure\r\n\r\n";

/// Reads until the server closes the connection.
fn read_to_end(mut stream: TcpStream) -> std::io::Result<String> {
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Single-threaded, so that the server sees the shutdown before the requests.
#[tokio::test]
async fn requests_sent_before_a_shutdown_are_answered_on_new_and_used_connections() {
    let mut server = Server::start(Arc::new(Memory::new())).await;
    let connect = || TcpStream::connect(server.url.strip_prefix("http://").expect("an address"));
    let mut used = connect().expect("it listens");
    let mut new = connect().expect("it listens");
    used.write_all(REQUEST).expect("open");
    // It has accepted both connections when it answers on a third.
    assert_eq!(server.get("/readyz").await.0, 200);
    for stream in [&mut used, &mut new] {
        stream.write_all(REQUEST).expect("open");
    }
    let stopped = server.stop();
    let read = |stream| tokio::task::spawn_blocking(move || read_to_end(stream));
    let (used, new) = (read(used), read(new));
    let used = used.await.expect("no panic").expect("not reset");
    assert_eq!(used.matches("HTTP/1.1 200 OK").count(), 2, "{used}");
    let new = new.await.expect("no panic").expect("not reset");
    assert!(new.starts_with("HTTP/1.1 200 OK"), "{new}");
    assert!(new.contains("connection: close"), "{new}");
    stopped.await.expect("no panic").expect("a graceful shutdown");
}

//! A process that competes for a controller: `process URL KEY GUARD NAME`.
//!
//! While it runs the controller, it repeatedly writes a line `TOKEN NAME` to the guard, which
//! stands for an external system.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure::Client;
use tenure::worker::Failure;
use tenure_app::{Controller, ControllerContext, ControllerRunner, Live, LiveConfig};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

struct Writer {
    guard: SocketAddr,
    name: String,
}

#[async_trait]
impl Controller for Writer {
    fn name(&self) -> &'static str {
        "writer"
    }

    async fn run(&self, cx: ControllerContext) -> Result<(), Failure> {
        let failed = |error: std::io::Error| Failure::new("GUARD", error);
        let mut guard = TcpStream::connect(self.guard).await.map_err(failed)?;
        loop {
            let line = format!("{} {}\n", cx.token(), self.name);
            guard.write_all(line.as_bytes()).await.map_err(failed)?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, key, guard, name] = &arguments[..] else { return Err("URL KEY GUARD NAME".into()) };
    let writer = Arc::new(Writer { guard: guard.parse()?, name: name.clone() });
    let (client, live) = (Client::connect(url, key).await?, Live::fixed(LiveConfig::default()));
    let runner = ControllerRunner::new(writer, client, live, name).ttl(Duration::from_secs(2));
    runner.run(CancellationToken::new()).await;
    Ok(())
}

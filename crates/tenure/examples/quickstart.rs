//! Locks in one screen: `cargo run -p tenure --example quickstart --features local`.
//!
//! Two workers in one process share a durable store in a temporary file. Both acquire the same
//! cluster; the second waits until the first has released it. With `Client::connect` the same code
//! talks to a server.

use std::time::Duration;

use tenure::{Client, Error, Kinds};

async fn install(client: Client, worker: &str) -> Result<(), Error> {
    let session = client.session(worker, Duration::from_secs(10)).await?;
    let request = session.lock("cluster/c1")?.wait(Duration::from_secs(30)).purpose("install");
    let tenure = request.acquire().await?;
    println!("{worker} installs with token {}", tenure.token());
    tokio::select! {
        () = tokio::time::sleep(Duration::from_millis(200)) => tenure.release().await?,
        lost = tenure.lost() => println!("{worker} must stop: {lost}"),
    }
    session.close().await;
    Ok(())
}

/// Runs both workers concurrently.
#[tokio::main]
pub(crate) async fn main() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let client = Client::open(dir.path().join("tenure.db"), Kinds::default()).await?;
    tokio::try_join!(install(client.clone(), "worker A"), install(client, "worker B"))?;
    Ok(())
}

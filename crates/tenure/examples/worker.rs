//! A worker in one screen: `cargo run -p tenure --example worker --features local,worker`.
//!
//! A kind declares what can happen to a database, jobs request it, and a worker executes them: one
//! at a time per database, and again after a transient failure. With `Client::connect` the same
//! worker works for a server; for commands instead of handlers see `Worker::commands`.

use std::time::Duration;

use tenure::{Client, Context, Done, Failure, Kind, Kinds, Operation, Policy, Retry, Worker};

async fn create(job: Context) -> Result<Done, Failure> {
    let size_gb: u32 = job.args()?;
    job.log(&format!("attempt {} of {}", job.attempt(), job.attempts_max()));
    if job.attempt() == 1 {
        return Err(Failure::transient("DISK_BUSY", "the disk is busy"));
    }
    for percent in [25, 50, 75] {
        job.progress(percent, "copying");
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(10)) => {}
            reason = job.cancelled() => return Err(Failure::new("STOPPED", reason)),
        }
    }
    job.check()?; // right before the effect: is the tenure still held?
    Ok(Done::with(&format!("{size_gb} GB under token {}", job.token()))?)
}

fn kinds() -> anyhow::Result<Kinds> {
    let states = ["PENDING", "CREATING", "READY", "FAILED"];
    let retry = Retry { attempts: 3, initial_ms: 10, ..Retry::default() };
    let create = Operation::new("create").path(&["PENDING"], "CREATING", "READY", "FAILED");
    let create = create.retry(retry).meets("create", Policy::Attach);
    Ok(Kinds::new([Kind::new("database").states(&states).operation(create)])?)
}

/// Creates two databases, one of them submitted twice.
#[tokio::main]
pub(crate) async fn main() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let client = Client::open(dir.path().join("tenure.db"), kinds()?).await?;

    let mut jobs = Vec::new();
    for name in ["orders", "orders", "people"] {
        let submission = client.submit(&format!("database/{name}"), "create").args(&20);
        let submitted = submission.by("ann").send().await?;
        println!("{name}: {} as job {}", submitted.verdict.as_str(), submitted.job.id());
        jobs.push(submitted.job);
    }
    let worker = Worker::new(&client, "creator").slots(2).handle("database", create);
    let all_finished = async {
        for job in &jobs {
            match job.wait().await {
                Ok(result) => println!("{}: {result}", job.id()),
                Err(error) => println!("{error}"),
            }
        }
    };
    let summary = worker.run(all_finished).await?;
    println!("{summary:?}");
    anyhow::ensure!(summary.succeeded == 2, "two databases, two successes");
    Ok(())
}

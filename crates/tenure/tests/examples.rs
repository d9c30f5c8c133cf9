//! The examples of the documentation run.

#[path = "../examples/worker.rs"]
mod worker;

#[test]
fn the_worker_of_the_example_does_its_jobs() {
    worker::main().expect("all jobs are done");
}

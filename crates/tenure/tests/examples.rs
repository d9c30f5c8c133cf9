//! Runs the examples of the documentation.

#[path = "../examples/worker.rs"]
mod worker;

#[test]
fn the_worker_example_completes_its_jobs() {
    worker::main().expect("all jobs are done");
}

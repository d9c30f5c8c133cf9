//! Runs the quick start of the documentation.

#[path = "../examples/quickstart.rs"]
mod quickstart;

#[test]
fn the_quick_start_runs() {
    quickstart::main().expect("both workers acquire the lock");
}

//! The quick start of the documentation runs.

#[path = "../examples/quickstart.rs"]
mod quickstart;

#[test]
fn the_quick_start_runs() {
    quickstart::main().expect("both workers get their turn");
}

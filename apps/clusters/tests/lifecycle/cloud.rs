//! The cloud of these tests: one server for all of them. Each test looks at its own installations.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tenure_testbed::PythonServer;

/// Returns the server.
pub(crate) fn shared() -> &'static PythonServer {
    static SERVER: OnceLock<PythonServer> = OnceLock::new();
    SERVER.get_or_init(|| PythonServer::moto(&environment()).expect("moto starts"))
}

/// Returns the Python environment with the imitations of AWS, which `cargo xtask prepare` installs.
fn environment() -> PathBuf {
    let binary = Path::new(crate::common::TENURE);
    let target = binary.ancestors().nth(2).expect("it is in target/debug");
    target.join("cloud/python")
}

//! The clouds of these tests: one server of each kind for all of them. Each test looks at its own
//! installations and queues.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tenure_testbed::PythonServer;

use crate::common;

/// Prefix of the tags of installations.
const TAG: &str = "kubernetes.io/cluster/";

/// Returns the server.
pub(crate) fn shared() -> &'static PythonServer {
    static SERVER: OnceLock<PythonServer> = OnceLock::new();
    SERVER.get_or_init(|| PythonServer::moto(&environment()).expect("moto starts"))
}

/// Returns the installations of which at least one resource exists. The journal of the stand-in is
/// not enough: a process can be killed between an effect and its line.
pub(crate) fn infras() -> BTreeSet<String> {
    let listen = shared().url().trim_start_matches("http://").to_owned();
    // It wants a signature, but does not check it.
    let credential = "AKIAIOSFODNN7EXAMPLE/20261119/us-east-1/ec2/aws4_request";
    let authorization = format!(
        "authorization: AWS4-HMAC-SHA256 Credential={credential}, \
         SignedHeaders=host;x-amz-date, Signature=00"
    );
    let lines = [
        "POST / HTTP/1.1",
        &authorization,
        "content-type: application/x-www-form-urlencoded",
        "x-amz-date: 20261119T000000Z",
    ];
    let body = "Action=DescribeVolumes&Version=2016-11-15";
    let answer = common::http(&listen, &lines, body).expect("an answer");
    assert!(answer.contains("DescribeVolumesResponse"), "{answer}");
    let tags = answer.split(TAG).skip(1);
    tags.filter_map(|rest| Some(rest.split_once('<')?.0.to_owned())).collect()
}

/// Returns another implementation of queues.
pub(crate) fn ministack() -> &'static PythonServer {
    static SERVER: OnceLock<PythonServer> = OnceLock::new();
    SERVER.get_or_init(|| PythonServer::ministack(&environment()).expect("MiniStack starts"))
}

/// Returns the Python environment with the imitations of AWS, which `cargo xtask prepare` installs.
fn environment() -> PathBuf {
    let binary = Path::new(crate::common::TENURE);
    let target = binary.ancestors().nth(2).expect("it is in target/debug");
    target.join("cloud/python")
}

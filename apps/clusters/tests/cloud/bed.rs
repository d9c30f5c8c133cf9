//! The servers, and requests to them that do not use the code under test.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use object_store::aws::{AmazonS3, AmazonS3Builder};
use tenure_clusters::aws::Client;
use tenure_testbed::PythonServer;

/// Region of all tests that do not need another one.
pub(crate) const REGION: &str = "eu-central-1";

/// One imitation of AWS.
#[derive(Clone, Copy)]
pub(crate) struct Cloud {
    server: &'static PythonServer,
}

/// Returns the environment with the servers.
pub(crate) fn environment() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target directory");
    target.join("cloud/python")
}

pub(crate) fn moto() -> Cloud {
    static SERVER: OnceLock<PythonServer> = OnceLock::new();
    let start = || PythonServer::moto(&environment()).expect("moto starts");
    Cloud { server: SERVER.get_or_init(start) }
}

/// Returns a server that no other test changes. It ends with the process.
pub(crate) fn own_moto() -> Cloud {
    let server = PythonServer::moto(&environment()).expect("moto starts");
    Cloud { server: Box::leak(Box::new(server)) }
}

pub(crate) fn ministack() -> Cloud {
    static SERVER: OnceLock<PythonServer> = OnceLock::new();
    let start = || PythonServer::ministack(&environment()).expect("MiniStack starts");
    Cloud { server: SERVER.get_or_init(start) }
}

/// Makes a test of each function for each server.
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod moto {
            $(#[tokio::test]
            async fn $name() {
                super::$name(crate::bed::moto()).await;
            })*
        }
        mod ministack {
            $(#[tokio::test]
            async fn $name() {
                super::$name(crate::bed::ministack()).await;
            })*
        }
    };
}
pub(crate) use on_both;

/// Returns a name that no other test has.
pub(crate) fn unique(prefix: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{prefix}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Returns credentials as options.
pub(crate) fn credentials(key: &str, secret: &str) -> BTreeMap<String, String> {
    let options = [("access_key_id", key), ("secret_access_key", secret)];
    options.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

impl Cloud {
    pub(crate) fn url(self) -> String {
        self.server.url()
    }

    pub(crate) fn client(self, region: &str) -> Client {
        let credentials = credentials("test", "test");
        Client::with_credentials(region, Some(&self.url()), &credentials).expect("a client")
    }

    /// Options of the store of snapshots.
    pub(crate) fn options(self) -> BTreeMap<String, String> {
        let mut options = credentials("test", "test");
        options.insert("endpoint".to_owned(), self.url());
        options.insert("region".to_owned(), REGION.to_owned());
        options
    }

    /// Creates a bucket and returns its name.
    pub(crate) async fn bucket(self) -> String {
        let bucket = unique("artifacts");
        let url = format!("{}/{bucket}", self.url());
        let location = format!(
            "<CreateBucketConfiguration><LocationConstraint>{REGION}</LocationConstraint>\
             </CreateBucketConfiguration>"
        );
        let request = http().put(url).body(location);
        let request = request.header("authorization", authorization("s3", REGION));
        let answer = request.send().await.expect("an answer");
        assert!(answer.status().is_success(), "{}", answer.text().await.expect("text"));
        bucket
    }

    /// Returns the objects of a bucket.
    pub(crate) fn objects(self, bucket: &str) -> AmazonS3 {
        let builder = AmazonS3Builder::new().with_bucket_name(bucket).with_region(REGION);
        let builder = builder.with_endpoint(self.url()).with_allow_http(true);
        let builder = builder.with_access_key_id("test").with_secret_access_key("test");
        builder.build().expect("a store")
    }

    /// Sends a request of the query protocol, and returns the answer.
    pub(crate) async fn query(self, service: &str, region: &str, form: &str) -> String {
        query(&self.url(), service, region, form).await
    }
}

/// Sends a request of the query protocol, and returns the answer.
pub(crate) async fn query(url: &str, service: &str, region: &str, form: &str) -> String {
    let request = http().post(url).body(form.to_owned());
    let request = request.header("content-type", "application/x-www-form-urlencoded");
    let request = request.header("authorization", authorization(service, region));
    let answer = request.send().await.expect("an answer");
    let (status, text) = (answer.status(), answer.text().await.expect("text"));
    assert!(status.is_success(), "{form}: {text}");
    text
}

/// A signature that names service and region, which is all that the servers read of it.
fn authorization(service: &str, region: &str) -> String {
    format!(
        "AWS4-HMAC-SHA256 Credential=test/20260101/{region}/{service}/aws4_request, \
         SignedHeaders=host, Signature=none"
    )
}

pub(crate) fn http() -> reqwest::Client {
    rustls::crypto::ring::default_provider().install_default().ok();
    reqwest::Client::new()
}

/// Returns the content of the first element with a name.
pub(crate) fn element(xml: &str, name: &str) -> String {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let rest = xml.split_once(&open).unwrap_or_else(|| panic!("no {name}: {xml}")).1;
    rest.split_once(&close).expect("the end of the element").0.to_owned()
}

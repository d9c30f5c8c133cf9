//! Signatures and permissions, which moto checks if it is asked to.

use tenure_clusters::artifacts::{ArtifactError, Artifacts};
use tenure_clusters::aws::Client;
use tenure_clusters::aws::sqs::Queue;
use tenure_clusters::inventory::{AwsInventory, Inventory as _};
use tenure_testbed::PythonServer;

use crate::bed::{REGION, credentials, element, environment, http, query};
use crate::snapshots::{install_dir, new};

/// What the user may do.
const POLICY: &str = "%7B%22Version%22%3A%222012-10-17%22%2C%22Statement%22%3A%5B%7B%22Effect%22%3A\
                      %22Allow%22%2C%22Action%22%3A%5B%22sqs%3A%2A%22%2C%22ec2%3ADescribe%2A%22%5D\
                      %2C%22Resource%22%3A%22%2A%22%7D%5D%7D";

/// A server that checks signatures, and the keys of a user that may use SQS and read EC2.
async fn strict() -> (PythonServer, String, String) {
    let server = PythonServer::moto(&environment()).expect("moto starts");
    let iam = async |form: &str| {
        let form = format!("Action={form}&Version=2010-05-08&UserName=worker");
        query(&server.url(), "iam", "us-east-1", &form).await
    };
    iam("CreateUser").await;
    iam(&format!("PutUserPolicy&PolicyName=p&PolicyDocument={POLICY}")).await;
    let keys = iam("CreateAccessKey").await;
    let url = format!("{}/moto-api/reset-auth", server.url());
    http().post(url).body("0").send().await.expect("an answer");
    (server, element(&keys, "AccessKeyId"), element(&keys, "SecretAccessKey"))
}

#[tokio::test]
async fn requests_have_valid_signatures() {
    let (server, key, secret) = strict().await;
    let url = server.url();
    let client = |secret: &str| {
        Client::with_credentials(REGION, Some(&url), &credentials(&key, secret)).unwrap()
    };
    assert!(Queue::find(&client(&secret), "none.fifo").await.unwrap().is_none());
    let error = Queue::find(&client("wrong"), "none.fifo").await.unwrap_err();
    assert_eq!(error.code(), Some("SignatureDoesNotMatch"), "{error}");
    assert!(!format!("{error} {error:?}").contains("wrong"));
    let unknown = Client::with_credentials(REGION, Some(&url), &credentials("AKIA", "x")).unwrap();
    let error = Queue::find(&unknown, "none.fifo").await.unwrap_err();
    assert!(!error.is_transient(), "{error}");
    // It may not read tags: nothing is known.
    let infra = tenure_clusters::status::Infra {
        infra_id: "demo".to_owned(),
        cluster_id: "6f2c".to_owned(),
        region: REGION.to_owned(),
        token: tenure_core::Token(1),
        metadata: serde_json::Value::Null,
    };
    let error = AwsInventory::new(client(&secret)).list(&infra).await.unwrap_err().to_string();
    assert!(error.contains("AccessDenied"), "{error}");
}

#[tokio::test]
async fn a_refused_snapshot_names_no_credentials() {
    let (server, key, _) = strict().await;
    let mut options = credentials(&key, "hunter2");
    options.insert("endpoint".to_owned(), server.url());
    options.insert("region".to_owned(), REGION.to_owned());
    options.insert("session_token".to_owned(), "swordfish".to_owned());
    let artifacts = Artifacts::open("s3://bucket", &options).unwrap();
    let error = artifacts.save(&new(9, 1), install_dir().path()).await.unwrap_err();
    assert!(matches!(error, ArtifactError::Store { .. }), "{error}");
    let text = format!("{error} {error:?} {artifacts:?}");
    assert!(!text.contains("hunter2") && !text.contains("swordfish"), "{text}");
}

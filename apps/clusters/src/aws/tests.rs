//! The client against servers that throttle, fail, and answer nonsense.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;

const TEST: Service = Service { name: "sqs", protocol: Protocol::Json10, target: "AmazonSQS" };

/// A server that gives its answers one after the other, and the last one again and again.
struct Server {
    url: String,
    requests: Arc<AtomicUsize>,
}

impl Server {
    async fn new(answers: &[(u16, &str)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(AtomicUsize::new(0));
        let (count, answers) = (requests.clone(), answers.to_vec());
        let answers: Vec<(u16, String)> =
            answers.into_iter().map(|(status, body)| (status, body.to_owned())).collect();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let at = count.fetch_add(1, Ordering::SeqCst).min(answers.len() - 1);
                let (status, body) = &answers[at];
                let mut request = Vec::new();
                // All of it: closing a connection with unread bytes resets it.
                while !request.ends_with(b"{}") {
                    assert!(stream.read_buf(&mut request).await.unwrap() > 0);
                }
                let length = body.len();
                let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {length}\r\n");
                let answer = format!("{head}connection: close\r\n\r\n{body}");
                stream.write_all(answer.as_bytes()).await.ok();
            }
        });
        Self { url, requests }
    }

    fn client(&self) -> Client {
        let mut client = client(Some(&self.url)).unwrap();
        client.backoff = Duration::from_millis(1);
        client
    }

    async fn call(&self) -> Result<Value, AwsError> {
        self.client().call(TEST, "SendMessage", &json!({}), Duration::ZERO).await
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

fn client(endpoint: Option<&str>) -> Result<Client, AwsError> {
    let options = [("access_key_id", "AKIATEST"), ("secret_access_key", "hunter2")];
    let options = options.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    Client::with_credentials("eu-central-1", endpoint, &options)
}

const THROTTLED: (u16, &str) =
    (400, r#"{"__type":"com.amazonaws.sqs#RequestThrottled","message":"Rate exceeded"}"#);

#[tokio::test]
async fn throttled_requests_are_repeated() {
    let server = Server::new(&[THROTTLED, (503, ""), THROTTLED, (200, r#"{"a":1}"#)]).await;
    assert_eq!(server.call().await.unwrap(), json!({"a": 1}));
    assert_eq!(server.requests(), 4);
}

#[tokio::test]
async fn the_number_of_tries_is_bounded() {
    let server = Server::new(&[THROTTLED]).await;
    let error = server.call().await.unwrap_err();
    assert!(error.is_throttling() && error.is_transient());
    let expected = "sqs refused SendMessage with RequestThrottled (400): Rate exceeded";
    assert_eq!(error.to_string(), expected);
    assert_eq!(server.requests(), TRIES_MAX as usize);
}

#[tokio::test]
async fn refused_requests_are_not_repeated() {
    let body = r#"{"__type":"InvalidClientTokenId","message":"x-amz-security-token:hunter2"}"#;
    let server = Server::new(&[(403, body)]).await;
    let error = server.call().await.unwrap_err();
    assert_eq!(error.code(), Some("InvalidClientTokenId"));
    assert!(!error.is_transient());
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    assert_eq!(server.requests(), 1);
}

#[tokio::test]
async fn answers_that_cannot_be_read_are_failures() {
    let server = Server::new(&[(200, "<html>")]).await;
    assert!(matches!(server.call().await.unwrap_err(), AwsError::Answer { .. }));
    let server = Server::new(&[(200, "")]).await;
    assert_eq!(server.call().await.unwrap(), json!({}));
    // A redirect would need another signature.
    let server = Server::new(&[(307, "")]).await;
    assert_eq!(server.call().await.unwrap_err().code(), Some("HTTP 307"));
}

#[tokio::test]
async fn answers_are_bounded() {
    let long = format!("\"{}\"", "a".repeat(ANSWER_BYTES_MAX - 2));
    let server = Server::new(&[(200, &long)]).await;
    assert_eq!(server.call().await.unwrap().as_str().unwrap().len(), ANSWER_BYTES_MAX - 2);
    let server = Server::new(&[(200, &format!("{long} "))]).await;
    let error = server.call().await.unwrap_err().to_string();
    assert!(error.contains("it has more than"), "{error}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let mut client = client(Some(&url)).unwrap();
    client.backoff = Duration::from_millis(1);
    let result: Result<Value, _> =
        client.call(TEST, "SendMessage", &json!({}), Duration::ZERO).await;
    let error = result.unwrap_err();
    assert!(matches!(error, AwsError::Unreachable { .. }) && error.is_transient(), "{error}");
}

#[test]
fn addresses_follow_the_region_and_the_partition() {
    let client = client(None).unwrap();
    let address = |region| client.in_region(region).address(TEST).map(|url| url.to_string());
    assert_eq!(address("eu-central-1").unwrap(), "https://sqs.eu-central-1.amazonaws.com/");
    assert_eq!(address("cn-north-1").unwrap(), "https://sqs.cn-north-1.amazonaws.com.cn/");
    for region in ["", "a.b", "x/y", "evil.example.com#"] {
        assert!(address(region).is_err(), "{region}");
    }
}

#[test]
fn endpoints_have_no_credentials() {
    let error = client(Some("http://key:hunter2@127.0.0.1:1")).unwrap_err();
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    for endpoint in ["127.0.0.1:1", "ftp://a", "", "http://a/?x=y"] {
        assert!(client(Some(endpoint)).is_err(), "{endpoint}");
    }
}

#[test]
fn debug_output_has_no_credentials() {
    let text = format!("{:?}", client(None).unwrap());
    assert!(text.contains("eu-central-1") && !text.contains("hunter2"), "{text}");
}

#[tokio::test]
async fn requests_are_signed_with_all_their_headers() {
    let client = client(None).unwrap();
    let url = client.address(TEST).unwrap();
    let headers = client.sign(TEST, "SendMessage", &url, b"{}".to_vec()).await.unwrap();
    assert_eq!(headers["x-amz-target"], "AmazonSQS.SendMessage");
    let authorization = headers["authorization"].to_str().unwrap();
    let signed = "SignedHeaders=content-type;host;x-amz-content-sha256;x-amz-date;x-amz-target";
    assert!(authorization.contains(signed), "{authorization}");
    assert!(authorization.contains("/eu-central-1/sqs/aws4_request"), "{authorization}");
    // Of the body: moto does not compare it.
    let digest = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";
    assert_eq!(headers["x-amz-content-sha256"], digest);
}

//! The object store below the snapshots: objects are created once, and never overwritten.
//!
//! Errors of the store can quote requests, with their credentials: they pass through [`describe`].

use std::collections::BTreeMap;
use std::fmt;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path as FilePath;
use std::str::FromStr;
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _};
use object_store::aws::AmazonS3ConfigKey;
use object_store::azure::AzureConfigKey;
use object_store::gcp::GoogleConfigKey;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{Error, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, PutPayload};
use reqwest::Url;

use super::ArtifactError;
use super::redact::is_suspicious;

/// Time limit of one request, unless the options have another one.
const REQUEST_TIMEOUT: &str = "120s";
/// Maximum length of what is quoted of an error.
const ERROR_CHARS_MAX: usize = 400;
/// Number of tries to create an object that another one is writing.
const CREATE_TRIES_MAX: usize = 4;
/// Time between them.
const CREATE_BACKOFF: Duration = Duration::from_millis(250);
/// Number of objects that are listed before they are deleted.
const DELETE_BATCH_MAX: usize = 5_000;

/// A store of objects that are written once.
pub(super) struct Store {
    inner: Box<dyn ObjectStore>,
    /// Its URL, which has no credentials.
    pub(super) url: String,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Store {
    /// Opens the store of a URL with options; those that are not given come from the environment.
    pub(super) fn open(
        url: &str,
        options: &BTreeMap<String, String>,
    ) -> Result<Self, ArtifactError> {
        crate::aws::install_crypto();
        let fail = |why: String| ArtifactError::Open { url: url.to_owned(), why };
        // Not `fail`, which quotes it.
        let hide = |why: &str| ArtifactError::Open { url: "(hidden)".to_owned(), why: why.into() };
        let parsed = Url::parse(url).map_err(|error| fail(error.to_string()))?;
        if parsed.password().is_some() {
            return Err(hide("the URL has a password; put credentials into the environment"));
        }
        let open = |prefix: &str, key: fn(&str) -> Option<String>| {
            let options = merge(options, prefix, key).map_err(fail)?;
            let (store, path) = object_store::parse_url_opts(&parsed, options)
                .map_err(|error| fail(describe(&error)))?;
            Ok::<_, ArtifactError>(Box::new(PrefixStore::new(store, path)) as Box<dyn ObjectStore>)
        };
        let inner = match parsed.scheme() {
            "file" => open_local(&parsed, options).map_err(fail)?,
            "s3" | "s3a" => open("aws_", key::<AmazonS3ConfigKey>)?,
            "gs" => open("google_", key::<GoogleConfigKey>)?,
            "az" | "abfs" | "abfss" => open("azure_", key::<AzureConfigKey>)?,
            other => {
                return Err(fail(format!(
                    "the scheme {other:?} is not known; use file, s3, gs, az, abfs or abfss"
                )));
            }
        };
        Ok(Self { inner, url: url.to_owned() })
    }

    /// Creates an object. It may exist already if it is the same, as when the answer to an earlier
    /// try was lost.
    pub(super) async fn create(&self, path: &Path, bytes: &[u8]) -> Result<(), ArtifactError> {
        let payload = PutPayload::from(bytes.to_vec());
        for _ in 0..CREATE_TRIES_MAX {
            let options = PutOptions::from(PutMode::Create);
            match self.inner.put_opts(path, payload.clone(), options).await {
                Ok(_) => return Ok(()),
                Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => {}
                Err(error) => return Err(failure("write", path, &error)),
            }
            // One more byte is enough to differ.
            match self.read(path, bytes.len() as u64).await {
                Ok(existing) if existing == bytes => return Ok(()),
                // S3 answers like this while another one writes it, who may yet fail.
                Err(ArtifactError::Missing { .. }) => tokio::time::sleep(CREATE_BACKOFF).await,
                Ok(_) | Err(ArtifactError::Corrupt { .. }) => break,
                Err(error) => return Err(error),
            }
        }
        Err(ArtifactError::Conflict { path: path.to_string() })
    }

    /// Reads an object of at most `max` bytes.
    pub(super) async fn read(&self, path: &Path, max: u64) -> Result<Vec<u8>, ArtifactError> {
        let fail = |error| failure("read", path, &error);
        let object = self.inner.get(path).await.map_err(fail)?;
        let size = object.meta.size;
        if size > max {
            let why = format!("it has {size} bytes; the maximum is {max}");
            return Err(ArtifactError::Corrupt { path: path.to_string(), why });
        }
        Ok(object.bytes().await.map_err(fail)?.to_vec())
    }

    /// Deletes the objects below a path that `is_deleted` selects. Returns their number.
    pub(super) async fn delete(
        &self,
        below: &Path,
        is_deleted: impl Fn(&Path) -> bool + Send + Sync,
    ) -> Result<usize, ArtifactError> {
        let mut deleted = 0;
        loop {
            let listed = self.inner.list(Some(below)).map_ok(|object| object.location);
            let selected = listed.try_filter(|path| std::future::ready(is_deleted(path)));
            let batch: Vec<Path> = selected
                .take(DELETE_BATCH_MAX)
                .try_collect()
                .await
                .map_err(|error| failure("list", below, &error))?;
            let count = batch.len();
            let batch = futures_util::stream::iter(batch.into_iter().map(Ok)).boxed();
            let mut results = self.inner.delete_stream(batch);
            while let Some(result) = results.next().await {
                match result {
                    // Another one deleted it.
                    Ok(_) | Err(Error::NotFound { .. }) => {}
                    Err(error) => return Err(failure("delete", below, &error)),
                }
            }
            deleted += count;
            if count < DELETE_BATCH_MAX {
                return Ok(deleted);
            }
        }
    }
}

/// Opens a folder of this machine, which is created.
fn open_local(
    url: &Url,
    options: &BTreeMap<String, String>,
) -> Result<Box<dyn ObjectStore>, String> {
    if let Some(key) = options.keys().next() {
        return Err(format!("the option {key:?} is not known: files have none; remove it"));
    }
    let root = url.to_file_path().map_err(|()| "it is not the URL of a folder".to_owned())?;
    let create = |path: &FilePath, mode| {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(mode);
        builder.create(path).map_err(|error| format!("cannot create {}: {error}", path.display()))
    };
    create(&root, 0o700)?;
    // The root may have existed, and be readable by others.
    create(&root.join(super::PUBLIC), 0o700)?;
    create(&root.join(super::SECRETS), 0o700)?;
    let store = LocalFileSystem::new_with_prefix(root).map_err(|error| error.to_string())?;
    Ok(Box::new(store.with_fsync(true).with_automatic_cleanup(true)))
}

/// Returns the options of a store: those of the environment with a prefix, replaced by `options`.
fn merge(
    options: &BTreeMap<String, String>,
    prefix: &str,
    key: fn(&str) -> Option<String>,
) -> Result<Vec<(String, String)>, String> {
    let unknown = options.keys().find(|name| key(name).is_none());
    if let Some(name) = unknown {
        return Err(format!(
            "the option {name:?} is not known; see `object_store` for their names"
        ));
    }
    let environment = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?.to_ascii_lowercase();
        Some((name, value.into_string().ok()?)).filter(|(name, _)| name.starts_with(prefix))
    });
    let given = options.iter().map(|(name, value)| (name.clone(), value.clone()));
    let mut merged: Vec<_> = environment.chain(given).collect();
    let last = |wanted: &str| {
        let found = merged.iter().rev().find(|(name, _)| key(name).as_deref() == Some(wanted));
        found.map(|(_, value)| value.clone())
    };
    if last("aws_conditional_put").is_some_and(|value| value.trim() != "etag") {
        return Err("conditional_put has to stay on: without it a worker that has lost its lock \
                    could overwrite snapshots"
            .to_owned());
    }
    let (timeout, allow_http) = (last("timeout"), last("allow_http"));
    // An address with `http:` asks for it.
    let is_plain = ["endpoint", "aws_endpoint_url_s3"].into_iter().any(|name| {
        key(name).and_then(|name| last(&name)).is_some_and(|url| url.starts_with("http:"))
    });
    if timeout.is_none() {
        merged.push(("timeout".to_owned(), REQUEST_TIMEOUT.to_owned()));
    }
    if allow_http.is_none() && is_plain {
        merged.push(("allow_http".to_owned(), "true".to_owned()));
    }
    Ok(merged)
}

/// Returns the full name of an option.
fn key<K: FromStr + AsRef<str>>(name: &str) -> Option<String> {
    name.to_ascii_lowercase().parse::<K>().ok().map(|key| key.as_ref().to_owned())
}

fn failure(what: &'static str, path: &Path, error: &Error) -> ArtifactError {
    let path = path.to_string();
    match error {
        Error::NotFound { .. } => ArtifactError::Missing { path },
        _ => ArtifactError::Store { what, path, why: describe(error) },
    }
}

/// Returns the text of an error of the store, shortened, and without credentials: answers of S3 can
/// quote signed requests.
fn describe(error: &Error) -> String {
    let text = error.to_string();
    if is_suspicious(&text) {
        let code = ["SignatureDoesNotMatch", "InvalidAccessKeyId", "ExpiredToken", "AccessDenied"]
            .into_iter()
            .find(|code| text.contains(code));
        let code = code.unwrap_or("the store refused the request");
        return format!("{code} (the answer is not shown: it may have credentials)");
    }
    text.chars().take(ERROR_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[track_caller]
    fn refuses(url: &str, pairs: &[(&str, &str)], part: &str) {
        let error = Store::open(url, &options(pairs)).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }

    #[test]
    fn every_scheme_can_be_opened() {
        Store::open("s3://bucket/prefix", &options(&[("region", "eu-central-1")])).unwrap();
        Store::open("gs://bucket", &options(&[("skip_signature", "true")])).unwrap();
        let azure = options(&[("account_name", "a"), ("azure_skip_signature", "true")]);
        Store::open("az://container/prefix", &azure).unwrap();
    }

    #[test]
    fn mistakes_are_named() {
        refuses("ftp://a/b", &[], "use file, s3, gs, az");
        refuses("no url", &[], "cannot open");
        refuses("s3://b", &[("endpiont", "x")], "the option \"endpiont\" is not known");
        refuses("s3://b", &[("conditional_put", "disabled")], "conditional_put has to stay on");
        refuses("file:///tmp/x", &[("endpoint", "x")], "files have none");
        refuses("s3://b", &[("allow_http", "perhaps")], "perhaps");
    }

    #[test]
    fn credentials_in_urls_are_not_quoted() {
        let error = Store::open("s3://key:hunter2@bucket", &BTreeMap::new()).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    }

    #[test]
    fn errors_that_quote_requests_are_not_shown() {
        let quoted = "SignatureDoesNotMatch <CanonicalRequest>x-amz-security-token:hunter2";
        let error = Error::Generic { store: "S3", source: quoted.into() };
        let text = describe(&error);
        assert!(text.contains("SignatureDoesNotMatch") && !text.contains("hunter2"), "{text}");
        let error = Error::Generic { store: "S3", source: "x".repeat(1_000).into() };
        assert_eq!(describe(&error).len(), ERROR_CHARS_MAX);
    }

    #[test]
    fn plain_http_is_allowed_if_the_endpoint_says_so() {
        let merged = |pairs| merge(&options(pairs), "no_such_", key::<AmazonS3ConfigKey>).unwrap();
        let has = |merged: &[(String, String)]| merged.iter().any(|(name, _)| name == "allow_http");
        assert!(has(&merged(&[("endpoint", "http://127.0.0.1:1")])));
        assert!(!has(&merged(&[("endpoint", "https://s3.example.com")])));
    }
}

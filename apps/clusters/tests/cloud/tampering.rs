//! Snapshots that were changed in the store.

use object_store::{ObjectStore, ObjectStoreExt as _};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tenure_clusters::artifacts::{ArtifactError, Artifacts, Parts, Snapshot};
use tenure_core::Token;

use crate::bed::{Cloud, on_both};
use crate::snapshots::{install_dir, new, open, path, read};

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn overwrite(objects: &dyn ObjectStore, key: &str, bytes: Vec<u8>) {
    objects.put(&path(key), bytes.into()).await.expect("a put");
}

/// Asserts that nothing of the snapshot can be used.
#[track_caller]
fn assert_refused(result: Result<(), ArtifactError>, part: &str) {
    let error = result.expect_err("a refusal");
    assert!(matches!(error, ArtifactError::Corrupt { .. }), "{error}");
    assert!(error.to_string().contains(part), "{error}");
}

async fn restore(artifacts: &Artifacts, snapshot: &Snapshot) -> Result<(), ArtifactError> {
    let target = tempfile::tempdir().expect("a directory");
    let into = target.path().join("into");
    let restored = artifacts.restore(snapshot, &into, Parts::All).await;
    assert_eq!(into.exists(), restored.is_ok(), "nothing is written before all is checked");
    restored
}

async fn changed_objects_are_refused(cloud: Cloud) {
    let (artifacts, objects) = open(cloud).await;
    let snapshot = artifacts.save(&new(9, 1), install_dir().path()).await.unwrap();
    let base = format!("some/prefix/{}", snapshot.path);
    let archives =
        [format!("{base}.tar.zst"), format!("some/prefix/secrets/{}.tar.zst", snapshot.path)];
    for key in &archives {
        let good = read(&*objects, key).await;
        let mut bad = good.clone();
        let at = bad.len() / 2;
        bad[at] ^= 1;
        overwrite(&*objects, key, bad).await;
        assert_refused(restore(&artifacts, &snapshot).await, "its SHA-256 is");
        let longer = [good.as_slice(), b"x"].concat();
        overwrite(&*objects, key, longer).await;
        assert_refused(restore(&artifacts, &snapshot).await, "the maximum is");
        overwrite(&*objects, key, good).await;
        restore(&artifacts, &snapshot).await.unwrap();
    }
    let key = format!("{base}.json");
    let good = read(&*objects, &key).await;
    let mut manifest: Value = serde_json::from_slice(&good).unwrap();
    manifest["worker"] = json!("worker-2");
    overwrite(&*objects, &key, serde_json::to_vec(&manifest).unwrap()).await;
    assert_refused(restore(&artifacts, &snapshot).await, "its SHA-256 is");
    let secret = artifacts.read_secret_file(&snapshot, "auth/kubeconfig").await;
    assert_refused(secret.map(drop), "its SHA-256 is");
}

/// Changes the manifest and the pointer to it, as only a holder of the lock could.
async fn manifests_of_other_snapshots_are_refused(cloud: Cloud) {
    let (artifacts, objects) = open(cloud).await;
    let snapshot = artifacts.save(&new(9, 1), install_dir().path()).await.unwrap();
    let other = artifacts.save(&new(8, 1), install_dir().path()).await.unwrap();
    let key = format!("some/prefix/{}.json", snapshot.path);
    let original = read(&*objects, &key).await;
    let good: Value = serde_json::from_slice(&original).unwrap();
    let cases = [
        ("/token", json!(8), "that of another snapshot"),
        ("/tenant", json!("other"), "that of another snapshot"),
        ("/version", json!(2), "its version is 2"),
        ("/archives/0/path", json!(format!("{}.tar.zst", other.path)), "it names the archive"),
        ("/archives/1/path", json!("../../etc/passwd"), "it names the archive"),
        ("/archives/1/files/0/path", json!("another"), "are not those of the manifest"),
        ("/archives/1/size", json!(1), "the maximum is 1"),
        ("/archives/1/sha256", json!("00"), "not 00"),
        ("/seq", json!("x"), "it is not a manifest"),
    ];
    for (field, value, part) in cases {
        let mut manifest = good.clone();
        *manifest.pointer_mut(field).unwrap() = value;
        let text = serde_json::to_vec(&manifest).unwrap();
        let snapshot = Snapshot { sha256: digest(&text), ..snapshot.clone() };
        overwrite(&*objects, &key, text).await;
        assert_refused(restore(&artifacts, &snapshot).await, part);
    }
    overwrite(&*objects, &key, original).await;
    let older = Snapshot { token: Token(8), ..snapshot };
    assert_refused(restore(&artifacts, &older).await, "that of another snapshot");
}

/// An archive with a valid digest that leaves its folder.
async fn malicious_archives_are_refused(cloud: Cloud) {
    let (artifacts, objects) = open(cloud).await;
    let snapshot = artifacts.save(&new(9, 1), install_dir().path()).await.unwrap();
    let key = format!("some/prefix/{}.json", snapshot.path);
    let mut manifest: Value = serde_json::from_slice(&read(&*objects, &key).await).unwrap();
    let mut header = tar::Header::new_ustar();
    header.as_old_mut().name[..9].copy_from_slice(b"../escape");
    header.set_size(1);
    header.set_cksum();
    let mut builder = tar::Builder::new(Vec::new());
    builder.append(&header, b"x".as_slice()).unwrap();
    let archive = zstd::encode_all(builder.into_inner().unwrap().as_slice(), 1).unwrap();
    manifest["archives"][1]["sha256"] = json!(digest(&archive));
    manifest["archives"][1]["size"] = json!(archive.len());
    manifest["archives"][1]["files"] = json!([{"path": "../escape", "size": 1}]);
    let text = serde_json::to_vec(&manifest).unwrap();
    let pointer = Snapshot { sha256: digest(&text), ..snapshot.clone() };
    overwrite(&*objects, &key, text).await;
    overwrite(&*objects, &format!("some/prefix/{}.tar.zst", snapshot.path), archive).await;
    let target = tempfile::tempdir().unwrap();
    let into = target.path().join("into");
    let refused = artifacts.restore(&pointer, &into, Parts::Public).await;
    assert_refused(refused, "is not relative and plain");
    assert_eq!(std::fs::read_dir(target.path()).unwrap().count(), 0);
}

on_both!(
    changed_objects_are_refused,
    manifests_of_other_snapshots_are_refused,
    malicious_archives_are_refused,
);

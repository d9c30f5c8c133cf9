//! Snapshots on S3 and in a folder.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use futures_util::{StreamExt as _, TryStreamExt as _};
use object_store::{ObjectStore, ObjectStoreExt as _};
use tempfile::TempDir;
use tenure_clusters::artifacts::{ArtifactError, Artifacts, NewSnapshot, Part, Parts, Snapshot};
use tenure_core::{JobId, Token};
use tenure_testbed::{Fault, Proxy};

use crate::bed::{Cloud, on_both};

pub(crate) const CLUSTER: &str = "aws:demo.dev.example.com";

/// An install directory with a secret in every file.
const FILES: [(&str, &str); 9] = [
    (".clusterapi_output/Machine.yaml", "hunter2"),
    (".openshift_install.log", "level=info msg=started\nlevel=debug password=hunter2\nend\n"),
    (".openshift_install_state.json", "{\"pullSecret\":\"hunter2\"}"),
    ("auth/kubeadmin-password", "hunter2"),
    ("auth/kubeconfig", "apiVersion: v1 # hunter2"),
    ("bootstrap.ign", "hunter2"),
    ("install-config.yaml", "baseDomain: dev.example.com\npullSecret: hunter2\n"),
    ("metadata.json", r#"{"infraID":"demo-x7k2p","vsphere":{"password":"hunter2"}}"#),
    ("tls/root-ca.key", "hunter2"),
];

pub(crate) fn install_dir() -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    for (name, content) in FILES {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("writable");
        fs::write(path, content).expect("writable");
    }
    dir
}

pub(crate) fn new(token: u64, seq: u32) -> NewSnapshot<'static> {
    NewSnapshot {
        tenant: "default",
        cluster: CLUSTER,
        token: Token(token),
        seq,
        phase: "created",
        job: JobId(7),
        worker: "worker-1",
    }
}

pub(crate) async fn open(cloud: Cloud) -> (Artifacts, Box<dyn ObjectStore>) {
    let bucket = cloud.bucket().await;
    let url = format!("s3://{bucket}/some/prefix");
    let artifacts = Artifacts::open(&url, &cloud.options()).expect("a store");
    (artifacts, Box::new(cloud.objects(&bucket)))
}

async fn keys(objects: &dyn ObjectStore) -> Vec<String> {
    let listed = objects.list(None).map_ok(|object| object.location.to_string());
    let mut keys: Vec<String> = listed.try_collect().await.expect("a list");
    keys.sort();
    keys
}

pub(crate) fn path(key: &str) -> object_store::path::Path {
    object_store::path::Path::parse(key).expect("a path")
}

pub(crate) async fn read(objects: &dyn ObjectStore, key: &str) -> Vec<u8> {
    let object = objects.get(&path(key)).await.expect("an object");
    object.bytes().await.expect("its bytes").to_vec()
}

#[track_caller]
fn assert_restored(dir: &Path, names: &[&str]) {
    let mut found = Vec::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder").flatten() {
            if entry.path().is_dir() {
                folders.push(entry.path());
            } else {
                let path = entry.path();
                found.push(path.strip_prefix(dir).expect("below").to_str().expect("a").to_owned());
            }
        }
    }
    found.sort();
    assert_eq!(found, names);
}

const PUBLIC: [&str; 3] = [".openshift_install.log", "install-config.yaml", "metadata.json"];

async fn a_snapshot_is_restored_with_its_secrets_apart(cloud: Cloud) {
    let (artifacts, objects) = open(cloud).await;
    let dir = install_dir();
    let snapshot = artifacts.save(&new(9, 1), dir.path()).await.unwrap();
    assert_eq!(snapshot.path, format!("clusters/default/{CLUSTER}/9/1-created"));
    let base = format!("some/prefix/clusters/default/{CLUSTER}/9/1-created");
    let secrets = format!("some/prefix/secrets/clusters/default/{CLUSTER}/9/1-created.tar.zst");
    let expected = [format!("{base}.json"), format!("{base}.tar.zst"), secrets.clone()];
    assert_eq!(keys(&*objects).await, expected);
    for key in &expected[..2] {
        let mut bytes = read(&*objects, key).await;
        if key.ends_with(".zst") {
            bytes = zstd::decode_all(bytes.as_slice()).unwrap();
        }
        assert!(!String::from_utf8_lossy(&bytes).contains("hunter2"), "{key}");
    }
    let target = tempfile::tempdir().unwrap();
    let into = |name: &str| target.path().join(name);
    artifacts.restore(&snapshot, &into("public"), Parts::Public).await.unwrap();
    assert_restored(&into("public"), &PUBLIC);
    artifacts.restore(&snapshot, &into("all"), Parts::All).await.unwrap();
    assert_restored(&into("all"), &FILES.map(|(name, _)| name));
    for (name, content) in FILES.iter().filter(|(name, _)| !PUBLIC.contains(name)) {
        assert_eq!(fs::read_to_string(into("all").join(name)).unwrap(), *content);
    }
    let log = fs::read_to_string(into("all").join(".openshift_install.log")).unwrap();
    assert_eq!(log, "level=info msg=started\nend\n");
    artifacts.restore(&snapshot, &into("public"), Parts::Secrets).await.unwrap();
    assert_restored(&into("public"), &FILES.map(|(name, _)| name));
    // Nothing is replaced.
    let again = artifacts.restore(&snapshot, &into("all"), Parts::Public).await;
    assert!(matches!(again, Err(ArtifactError::Directory { .. })), "{again:?}");
}

async fn one_secret_file_can_be_read(cloud: Cloud) {
    let (artifacts, _) = open(cloud).await;
    let snapshot = artifacts.save(&new(9, 1), install_dir().path()).await.unwrap();
    let read = |name| artifacts.read_secret_file(&snapshot, name);
    let kubeconfig = read("auth/kubeconfig").await.unwrap().unwrap();
    assert_eq!(kubeconfig, b"apiVersion: v1 # hunter2");
    assert_eq!(read("auth/none").await.unwrap(), None);
    assert_eq!(read("metadata.json").await.unwrap(), None, "it is not secret");
    let manifest = artifacts.manifest(&snapshot).await.unwrap();
    let parts: Vec<Part> = manifest.archives.iter().map(|archive| archive.part).collect();
    assert_eq!(parts, [Part::Secrets, Part::Public]);
    assert_eq!((manifest.job, manifest.worker.as_str()), (JobId(7), "worker-1"));
}

async fn a_repeated_save_succeeds_and_another_one_is_refused(cloud: Cloud) {
    let (artifacts, objects) = open(cloud).await;
    let dir = install_dir();
    let snapshot = artifacts.save(&new(9, 1), dir.path()).await.unwrap();
    assert_eq!(artifacts.save(&new(9, 1), dir.path()).await.unwrap(), snapshot);
    let manifest = format!("some/prefix/{}.json", snapshot.path);
    let before = read(&*objects, &manifest).await;
    let other = NewSnapshot { worker: "worker-2", ..new(9, 1) };
    let refused = artifacts.save(&other, dir.path()).await.unwrap_err();
    assert!(matches!(refused, ArtifactError::Conflict { .. }), "{refused}");
    assert!(refused.to_string().contains("another worker wrote it"), "{refused}");
    fs::write(dir.path().join("auth/kubeconfig"), "another one").unwrap();
    let refused = artifacts.save(&new(9, 1), dir.path()).await.unwrap_err();
    assert!(matches!(refused, ArtifactError::Conflict { .. }), "{refused}");
    assert_eq!(read(&*objects, &manifest).await, before);
    artifacts.save(&new(9, 2), dir.path()).await.unwrap();
}

async fn a_worker_with_an_older_token_replaces_nothing(cloud: Cloud) {
    let (artifacts, objects) = open(cloud).await;
    let (dir, old_dir) = (install_dir(), install_dir());
    fs::write(old_dir.path().join("metadata.json"), r#"{"infraID":"demo-old"}"#).unwrap();
    let snapshot = artifacts.save(&new(9, 1), dir.path()).await.unwrap();
    let mut contents = BTreeMap::new();
    for key in keys(&*objects).await {
        contents.insert(key.clone(), read(&*objects, &key).await);
    }
    let zombie = artifacts.save(&new(8, 1), old_dir.path()).await.unwrap();
    assert_ne!(zombie.path, snapshot.path);
    for (key, content) in &contents {
        assert_eq!(&read(&*objects, key).await, content, "{key}");
    }
    // Not even with the token of its successor.
    artifacts.save(&new(9, 1), old_dir.path()).await.unwrap_err();
    for (key, content) in &contents {
        assert_eq!(&read(&*objects, key).await, content, "{key}");
    }
    let target = tempfile::tempdir().unwrap();
    artifacts.restore(&snapshot, &target.path().join("a"), Parts::All).await.unwrap();
}

async fn one_of_concurrent_saves_succeeds(cloud: Cloud) {
    let (artifacts, _) = open(cloud).await;
    let dir = install_dir();
    let workers: Vec<String> = (0..8).map(|n| format!("worker-{n}")).collect();
    let saves = workers.iter().map(|worker| {
        let new = NewSnapshot { worker, ..new(9, 1) };
        let (artifacts, dir) = (&artifacts, dir.path());
        async move { artifacts.save(&new, dir).await }
    });
    let results = futures_util::future::join_all(saves).await;
    let (saved, refused): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    assert_eq!((saved.len(), refused.len()), (1, 7), "{refused:?}");
    for error in refused {
        assert!(matches!(error, Err(ArtifactError::Conflict { .. })), "{error:?}");
    }
}

async fn a_save_whose_answer_was_lost_is_repeated(cloud: Cloud) {
    let bucket = cloud.bucket().await;
    let port = cloud.url().rsplit(':').next().unwrap().parse().unwrap();
    let proxy = Proxy::start(port).unwrap();
    let mut options = cloud.options();
    options.insert("endpoint".to_owned(), format!("http://127.0.0.1:{}", proxy.port()));
    options.insert("timeout".to_owned(), "1s".to_owned());
    let artifacts = Artifacts::open(&format!("s3://{bucket}"), &options).unwrap();
    let dir = install_dir();
    // The manifest arrives, and the answer does not.
    proxy.set_fault(Fault::DropResponsesAfter(b".json HTTP/1.1".to_vec()));
    let save = new(9, 1);
    let first = artifacts.save(&save, dir.path());
    let repaired = async {
        while proxy.triggered() == 0 {
            tokio::task::yield_now().await;
        }
        while cloud.objects(&bucket).list(None).count().await < 3 {
            tokio::task::yield_now().await;
        }
        proxy.set_fault(Fault::None);
        proxy.disconnect_all();
    };
    let (first, ()) = tokio::join!(first, repaired);
    let second = artifacts.save(&save, dir.path()).await.unwrap();
    if let Ok(first) = first {
        assert_eq!(first, second);
    }
    assert_eq!(proxy.triggered(), 1);
}

async fn incomplete_snapshots_cannot_be_restored(cloud: Cloud) {
    let (artifacts, objects) = open(cloud).await;
    let dir = install_dir();
    let target = tempfile::tempdir().unwrap();
    for (seq, missing) in [(1, ".json"), (2, ".tar.zst"), (3, "secrets")] {
        let snapshot = artifacts.save(&new(9, seq), dir.path()).await.unwrap();
        let key = match missing {
            "secrets" => format!("some/prefix/secrets/{}.tar.zst", snapshot.path),
            ending => format!("some/prefix/{}{ending}", snapshot.path),
        };
        objects.delete(&path(&key)).await.unwrap();
        let into = target.path().join(missing);
        let refused = artifacts.restore(&snapshot, &into, Parts::All).await.unwrap_err();
        assert!(matches!(refused, ArtifactError::Missing { .. }), "{refused}");
        assert!(!into.exists());
    }
    // The repeated save completes it.
    let snapshot = artifacts.save(&new(9, 1), dir.path()).await.unwrap();
    artifacts.restore(&snapshot, &target.path().join("done"), Parts::All).await.unwrap();
}

/// Number of objects that need a second page.
const MANY: usize = 1_100;

async fn snapshots_are_deleted_up_to_a_token(cloud: Cloud) {
    let (artifacts, objects) = open(cloud).await;
    let dir = install_dir();
    let puts = (0..MANY).map(|n| {
        let key = format!("some/prefix/clusters/default/{CLUSTER}/{}/{n}-x.json", 1 + n % 9);
        let objects = &objects;
        async move { objects.put(&path(&key), "x".into()).await.map(drop) }
    });
    let puts = futures_util::stream::iter(puts).buffer_unordered(16);
    puts.try_collect::<Vec<()>>().await.unwrap();
    let kept = [
        new(10, 1),
        new(100, 1),
        NewSnapshot { cluster: "aws:demo.dev.example.com2", ..new(1, 1) },
        NewSnapshot { tenant: "other", ..new(1, 1) },
    ];
    for new in &kept {
        artifacts.save(new, dir.path()).await.unwrap();
    }
    let before = keys(&*objects).await;
    artifacts.save(&new(9, 1), dir.path()).await.unwrap();
    let deleted = artifacts.delete("default", CLUSTER, Token(9)).await.unwrap();
    assert_eq!(deleted, MANY + 3);
    let after = keys(&*objects).await;
    assert_eq!(after.len(), 3 * kept.len());
    assert!(after.iter().all(|key| before.contains(key)));
    assert_eq!(artifacts.delete("default", CLUSTER, Token(9)).await.unwrap(), 0);
}

on_both!(
    a_snapshot_is_restored_with_its_secrets_apart,
    one_secret_file_can_be_read,
    a_repeated_save_succeeds_and_another_one_is_refused,
    a_worker_with_an_older_token_replaces_nothing,
    one_of_concurrent_saves_succeeds,
    a_save_whose_answer_was_lost_is_repeated,
    incomplete_snapshots_cannot_be_restored,
    snapshots_are_deleted_up_to_a_token,
);

mod folder {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    fn open(root: &Path) -> Artifacts {
        Artifacts::open(&format!("file://{}", root.display()), &BTreeMap::new()).unwrap()
    }

    #[tokio::test]
    async fn snapshots_are_kept_from_other_users() {
        let root = tempfile::tempdir().unwrap();
        let artifacts = open(&root.path().join("new/store"));
        let snapshot = artifacts.save(&new(9, 1), install_dir().path()).await.unwrap();
        artifacts.restore(&snapshot, &root.path().join("a"), Parts::All).await.unwrap();
        assert_restored(&root.path().join("a"), &FILES.map(|(name, _)| name));
        for name in ["", "clusters", "secrets"] {
            let mode = fs::metadata(root.path().join("new/store").join(name)).unwrap().mode();
            assert_eq!(mode & 0o777, 0o700, "{name}");
        }
        let target = root.path().join("a");
        assert_eq!(fs::metadata(&target).unwrap().mode() & 0o777, 0o700);
        let mode = fs::metadata(target.join("auth/kubeconfig")).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[tokio::test]
    async fn nothing_is_overwritten() {
        let root = tempfile::tempdir().unwrap();
        let (artifacts, dir) = (open(root.path()), install_dir());
        let snapshot = artifacts.save(&new(9, 1), dir.path()).await.unwrap();
        assert_eq!(artifacts.save(&new(9, 1), dir.path()).await.unwrap(), snapshot);
        fs::write(dir.path().join("metadata.json"), "{}").unwrap();
        let refused = artifacts.save(&new(9, 1), dir.path()).await.unwrap_err();
        assert!(matches!(refused, ArtifactError::Conflict { .. }), "{refused}");
    }

    #[tokio::test]
    async fn more_objects_than_one_batch_are_deleted() {
        let root = tempfile::tempdir().unwrap();
        let artifacts = open(root.path());
        let folder = root.path().join("clusters/default").join(CLUSTER).join("3");
        fs::create_dir_all(&folder).unwrap();
        for n in 0..5_001 {
            fs::write(folder.join(format!("{n}-x.json")), "").unwrap();
        }
        artifacts.save(&new(4, 1), install_dir().path()).await.unwrap();
        let deleted = artifacts.delete("default", CLUSTER, Token(3)).await.unwrap();
        assert_eq!(deleted, 5_001);
        assert!(!folder.exists());
        assert_eq!(artifacts.delete("default", CLUSTER, Token(4)).await.unwrap(), 3);
    }

    #[tokio::test]
    async fn names_of_all_languages_are_places() {
        let root = tempfile::tempdir().unwrap();
        let (artifacts, dir) = (open(root.path()), install_dir());
        let new = NewSnapshot { tenant: "größe", ..new(9, 1) };
        let snapshot = artifacts.save(&new, dir.path()).await.unwrap();
        artifacts.restore(&snapshot, &root.path().join("a"), Parts::All).await.unwrap();
        assert_eq!(artifacts.delete("größe", CLUSTER, Token(9)).await.unwrap(), 3);
    }

    #[tokio::test]
    async fn names_that_are_not_places_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let (artifacts, dir) = (open(root.path()), install_dir());
        for new in [
            NewSnapshot { tenant: "..", ..new(9, 1) },
            NewSnapshot { cluster: "a/b", ..new(9, 1) },
            NewSnapshot { phase: "", ..new(9, 1) },
            NewSnapshot { phase: "a/../b", ..new(9, 1) },
        ] {
            let refused = artifacts.save(&new, dir.path()).await.unwrap_err();
            assert!(matches!(refused, ArtifactError::Invalid(_)), "{refused}");
        }
        for path in ["../../etc/passwd", "clusters/default/../x", "", "/"] {
            let snapshot =
                Snapshot { path: path.to_owned(), token: Token(1), sha256: String::new() };
            artifacts.manifest(&snapshot).await.unwrap_err();
        }
        let missing = artifacts.save(&new(9, 1), Path::new("/nonexistent")).await.unwrap_err();
        assert!(matches!(missing, ArtifactError::Directory { .. }), "{missing}");
    }
}

//! From the text of a kubeconfig to the first answer, or to an error without secrets.

use std::time::Duration;

use tenure_kube::{Error, Kube, KubeOptions, WorkerPools};
use tenure_testbed::{KubeApi, KubeFault};

use super::{connect, options, pools};

async fn list(kubeconfig: &str, options: KubeOptions) -> Result<usize, Error> {
    let kube = Kube::from_kubeconfig(kubeconfig, options).await?;
    Ok(WorkerPools::new(kube).list().await?.len())
}

#[tokio::test]
async fn a_token_and_a_client_certificate_are_accepted() {
    let api = KubeApi::start(3).unwrap();
    assert_eq!(list(&api.kubeconfig(), options()).await.unwrap(), 3);
    assert_eq!(list(&api.kubeconfig_with_certificate(), options()).await.unwrap(), 3);
}

#[test]
fn proxies_of_the_environment_are_not_used() {
    let test = "connect::a_token_and_a_client_certificate_are_accepted";
    for proxy in ["http://127.0.0.1:1", "::"] {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test]);
        for variable in ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "ALL_PROXY"] {
            command.env(variable, proxy);
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
    }
}

#[tokio::test]
async fn a_wrong_token_is_unauthorized() {
    let api = KubeApi::start(3).unwrap();
    let error = list(&api.kubeconfig_for("token: wrong"), options()).await.unwrap_err();
    assert!(matches!(error, Error::Unauthorized { .. }), "{error}");
    assert_eq!(api.requests().len(), 1);
}

fn plugin(command: &str) -> String {
    format!(
        "exec:\n      apiVersion: client.authentication.k8s.io/v1\n      \
         interactiveMode: Never\n      command: sh\n      args: [-c, '{command}']"
    )
}

#[tokio::test]
async fn a_plugin_gives_the_credentials() {
    let api = KubeApi::start(3).unwrap();
    let credential = serde_json::json!({
        "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
        "status": {"token": api.token()},
    });
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), credential.to_string()).unwrap();
    let kubeconfig = api.kubeconfig_for(&plugin(&format!("cat {}", file.path().display())));
    assert_eq!(list(&kubeconfig, options()).await.unwrap(), 3);

    let error = list(&kubeconfig, KubeOptions { exec_plugins: false, ..options() }).await;
    let error = error.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
}

#[tokio::test]
async fn a_plugin_that_fails_or_hangs_is_unauthorized() {
    let api = KubeApi::start(3).unwrap();
    let failing = api.kubeconfig_for(&plugin("echo hunter2; echo hunter2 >&2; exit 1"));
    let error = list(&failing, options()).await.unwrap_err();
    assert!(matches!(error, Error::Unauthorized { .. }), "{error}");
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");

    // Blocks until the writer appears, which is after the error.
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let hanging = api.kubeconfig_for(&plugin(&format!("cat {}", pipe.display())));
    let brief = KubeOptions { request_timeout: Duration::from_millis(20), ..options() };
    let error = list(&hanging, brief).await.unwrap_err();
    std::fs::write(&pipe, "{}").unwrap();
    assert!(matches!(error, Error::Unauthorized { .. }), "{error}");
}

#[tokio::test]
async fn a_plugin_that_fails_later_is_unauthorized() {
    let api = KubeApi::start(3).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (credential, ran) = (dir.path().join("credential"), dir.path().join("ran"));
    let expired = serde_json::json!({
        "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
        "status": {"token": api.token(), "expirationTimestamp": "2000-01-01T00:00:00Z"},
    });
    std::fs::write(&credential, expired.to_string()).unwrap();
    let script = format!(
        "test -e {ran} && echo hunter2 && exit 1; touch {ran}; cat {credential}",
        ran = ran.display(),
        credential = credential.display()
    );
    let error = list(&api.kubeconfig_for(&plugin(&script)), options()).await.unwrap_err();
    assert!(matches!(error, Error::Unauthorized { .. }), "{error}");
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    assert!(ran.exists() && api.requests().is_empty());
}

#[tokio::test]
async fn a_kubeconfig_that_cannot_be_used_is_invalid_and_not_quoted() {
    let api = KubeApi::start(3).unwrap();
    let good = api.kubeconfig_for("token: hunter2");
    let without = |line: &str| good.replace(line, "");
    let broken = [
        ("YAML", format!("hunter2: [{good}")),
        ("YAML", good.replace("token: hunter2", "token: [hunter2, hunter2]")),
        ("YAML", "hunter2".to_owned()),
        ("current-context", without("current-context: admin\n")),
        ("cluster", good.replace("    cluster: demo", "    cluster: hunter2")),
        ("base64", good.replace("authority-data: ", "authority-data: hunter2!")),
        ("URL", good.replace("https://", "https://hunter2:hunter2 ")),
        (
            "proxy-url",
            good.replace("    server:", "    proxy-url: http://a:hunter2@b\n    server:"),
        ),
        (
            "TLS",
            api.kubeconfig_with_certificate().replace("key-data: ", "key-data: aHVudGVyMgo= #"),
        ),
        (
            "base64",
            good.replace(
                "token: hunter2",
                "client-key-data: hunter2!\n    client-certificate-data: YQ==",
            ),
        ),
    ];
    for (problem, text) in broken {
        let error = match Kube::from_kubeconfig(&text, options()).await {
            Ok(kube) => panic!("{problem}: {kube:?}"),
            Err(error) => error,
        };
        assert!(matches!(error, Error::Invalid { .. }), "{problem}: {error}");
        assert!(error.to_string().contains(problem), "{problem}: {error}");
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    }
}

#[tokio::test]
async fn debug_output_shows_the_server_only() {
    let api = KubeApi::start(3).unwrap();
    let address = api.url().replace("https://", "");
    let with_password = api.kubeconfig().replace("https://", "https://admin:hunter2@");
    let kube = connect(&with_password).await;
    assert_eq!(kube.server(), address);
    let expected = format!("WorkerPools {{ kube: Kube {{ server: \"{address}\", .. }} }}");
    assert_eq!(format!("{:?}", WorkerPools::new(kube)), expected);
}

#[tokio::test]
async fn a_server_that_is_gone_is_unreachable_after_all_attempts() {
    let api = KubeApi::start(3).unwrap();
    let pools = pools(&api).await;
    drop(api);
    let error = pools.list().await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { attempts: 4, .. }), "{error}");
    assert!(error.to_string().starts_with("cannot list the MachineSets: "), "{error}");
    assert!(std::error::Error::source(&error).is_some());
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_unreachable() {
    let api = KubeApi::start(3).unwrap();
    api.inject("GET", "machinesets", KubeFault::Hang);
    let brief =
        KubeOptions { request_timeout: Duration::from_millis(100), attempts_max: 1, ..options() };
    let error = list(&api.kubeconfig(), brief).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { attempts: 1, .. }), "{error}");
}

#[tokio::test]
async fn refusals_are_final_and_have_types() {
    let api = KubeApi::start(3).unwrap();
    let pools = pools(&api).await;
    for code in [401, 403, 404, 409, 400, 422, 418] {
        api.inject("GET", "machinesets", KubeFault::Status(code));
        let before = api.requests().len();
        let error = pools.list().await.unwrap_err();
        let expected = match code {
            401 => matches!(error, Error::Unauthorized { .. }),
            403 => matches!(error, Error::Forbidden { .. }),
            404 => matches!(error, Error::NotFound { .. }),
            409 => matches!(error, Error::Conflict { .. }),
            _ => matches!(error, Error::Invalid { .. }),
        };
        assert!(expected, "{code}: {error}");
        assert!(error.to_string().contains(&format!("injected status {code}")), "{error}");
        assert_eq!(api.requests().len() - before, 1, "{code}");
    }
}

#[tokio::test]
async fn failures_that_may_pass_are_repeated() {
    let api = KubeApi::start(3).unwrap();
    let pools = pools(&api).await;
    for fault in [
        KubeFault::RetryAfter(429, 0),
        KubeFault::RetryAfter(503, 0),
        KubeFault::Status(500),
        KubeFault::Status(504),
        KubeFault::Disconnect,
    ] {
        for _ in 0..3 {
            api.inject("GET", "machinesets", fault.clone());
        }
        assert_eq!(pools.list().await.unwrap().len(), 3, "{fault:?}");
        assert_eq!(api.planted(), 0, "{fault:?}");
    }
}

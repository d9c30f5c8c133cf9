//! The app contract end to end: a server runs the configuration, kind, worker, route, duty, metric
//! and CLI subcommand of the example app.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use tenure::{Client, Worker};
use tenure_app::{App as _, Apps, Live, WorkerEnv};
use tenure_cli_kit::{CliContext, Output, ServerArgs};
use tenure_example_app::Greetings;
use tenure_server::auth::Keys;
use tenure_server::{Config, Server};
use tenure_store::Memory;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

const KEY: &str = "tenure_0123456789abcdef0123456789abcdef";

fn apps() -> Apps {
    Apps::new(vec![Arc::new(Greetings)])
}

#[test]
fn problems_of_the_section_are_reported_with_their_line() {
    let bad = apps().parse("[greetings]\ntxt = \"hi\"\n", Path::new("/")).err().unwrap();
    assert!(bad.to_string().contains("line 2: greetings.txt: unknown key"), "{bad}");
    let kind = "[greetings]\ntext = \"hi\"\n[kinds.greeting.operations.greet]\n";
    let bad = apps().parse(kind, Path::new("/")).err().unwrap().to_string();
    assert!(bad.contains("this kind belongs to the app [greetings]"), "{bad}");
    assert!(Apps::default().parse("[greetings]\n", Path::new("/")).is_err(), "no such app");
}

#[derive(Parser)]
struct SharedArgs {
    #[command(flatten)]
    server: ServerArgs,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_serves_every_part_of_the_app() {
    rustls::crypto::ring::default_provider().install_default().ok();
    let loaded = apps().parse("[greetings]\ntext = \"Hello\"\n", Path::new("/")).unwrap();
    let live = loaded.live();
    let config = Config {
        apps: apps(),
        live: live.clone(),
        ..Config::new(Keys::admin(KEY), Arc::default())
    };
    let server = Server::start(Arc::new(Memory::new()), config, "test").await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (url, stop) =
        (format!("http://{}", listener.local_addr().unwrap()), CancellationToken::new());
    let client = Client::with_committer(server.state().services.committer.clone(), "default");
    let env =
        WorkerEnv { live: Live::fixed(live.clone()), store: "memory".to_owned(), span: || None };
    let app = live.apps.named("greetings").unwrap().worker(&env).unwrap().unwrap();
    let mut worker = Worker::new(&client, "test").slots(app.slots);
    for (kind, handler) in app.handlers {
        worker = worker.handle(kind, handler);
    }
    let working = tokio::spawn(worker.run(stop.clone().cancelled_owned()));
    let serving = tokio::spawn(server.serve(listener, stop.clone().cancelled_owned()));

    // The subcommand, its route, the kind and the handler.
    let verb = Greetings.cli().unwrap();
    let matches = verb.command().get_matches_from(["greet", "ann"]);
    let shared = SharedArgs::parse_from(["tenure", "--server", &url, "--key", KEY]);
    let cx = CliContext { server: shared.server, output: Output::Json };
    verb.run(&matches, &cx).await.unwrap();
    let get = async |path: &str| {
        let request = reqwest::Client::new().get(format!("{url}{path}"));
        request.header("x-api-key", KEY).send().await.unwrap().text().await.unwrap()
    };
    let wait = async |path: &str, text: &str| {
        let found = async {
            while !get(path).await.contains(text) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), found).await.unwrap_or_else(|_| {
            panic!("{path} never had {text}");
        });
    };
    wait("/v1/jobs?kind=greeting", "Hello, ann").await;
    // The metric, the duty, the OpenAPI document and the access rule.
    wait("/metrics", "greetings_total{kind=\"greeting\"} 1").await;
    wait("/v1/janitor", "\"duty\":\"greetings\"").await;
    assert!(get("/openapi.json").await.contains("/v1/greetings/{name}"));
    let denied = reqwest::Client::new().post(format!("{url}/v1/greetings/ann")).send().await;
    assert_eq!(denied.unwrap().status(), 401);
    stop.cancel();
    serving.await.unwrap().unwrap();
    working.await.unwrap().unwrap();
}

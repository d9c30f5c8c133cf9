//! The OpenAPI document is complete, and equal in the repository and on the server.

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use common::Server;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};
use tenure_app::Rule;
use tenure_store::Memory;

fn document_text() -> String {
    tenure_server::api::document_text(&common::apps())
}

fn document() -> Value {
    serde_json::from_str(&document_text()).expect("JSON")
}

/// Returns each operation with its method and path.
fn operations(document: &Value) -> Vec<(String, Value)> {
    let paths = document["paths"].as_object().expect("paths");
    let of = |(path, item): (&String, &Value)| {
        let item = item.as_object().expect("methods").clone();
        let path = path.clone();
        item.into_iter().map(move |(method, value)| (format!("{method} {path}"), value))
    };
    paths.iter().flat_map(of).collect()
}

#[test]
fn the_committed_document_is_up_to_date() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../openapi.json");
    let committed = std::fs::read_to_string(file).expect("openapi.json");
    let first =
        committed.lines().zip(document_text().lines().map(str::to_owned).collect::<Vec<_>>());
    let differs = first.enumerate().find(|(_, (old, new))| old != new);
    assert!(
        committed == document_text(),
        "openapi.json is outdated, first difference: {differs:?}. If the change is intended, run \
         `cargo xtask openapi` and commit the file"
    );
}

#[test]
fn every_operation_has_a_summary_a_tag_an_id_and_responses() {
    let document = document();
    let tags = document["tags"].as_array().expect("tags");
    let mut ids = BTreeSet::new();
    for (name, operation) in operations(&document) {
        let summary = operation["summary"].as_str().unwrap_or_default();
        assert!(summary.ends_with('.') && summary.len() > 10, "{name}: no summary");
        assert!(tags.iter().any(|tag| tag["name"] == operation["tags"][0]), "{name}: its tag");
        assert!(ids.insert(operation["operationId"].to_string()), "{name}: its id is not unique");
        let answers = operation["responses"].as_object().expect("answers");
        assert!(
            answers.keys().any(|status| status.starts_with('2')),
            "{name}: no success response"
        );
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            assert!(parameter["description"].is_string(), "{name}: {parameter} has no description");
        }
    }
    assert!(ids.len() > 40, "only {ids:?}");
}

#[test]
fn operations_declare_the_role_of_their_rule_and_their_refusals() {
    for (name, operation) in operations(&document()) {
        let keys = json!([{ "bearer": [] }, { "api_key": [] }]);
        let (method, path) = name.split_once(' ').expect("a method and a path");
        let of = |rule: &&Rule| rule.path == path && rule.method.eq_ignore_ascii_case(method);
        let rules = common::rules();
        let rule = rules.iter().find(of).unwrap_or_else(|| panic!("{name} has no rule"));
        let Some(role) = rule.access.role() else {
            assert_eq!(operation["security"], json!([{}]), "{name} needs no key");
            continue;
        };
        let text = operation["description"].as_str().unwrap_or_default();
        assert!(text.contains(role.as_str()), "{name} does not name its role: {text}");
        assert_eq!(operation["security"], keys, "{name}");
        for status in ["401", "403", "422", "429", "503"] {
            assert!(operation["responses"][status].is_object(), "{name}: {status} is missing");
        }
        let body = operation["requestBody"].is_object();
        assert_eq!(operation["responses"]["413"].is_object(), body, "{name}: 413");
    }
}

#[test]
fn body_schemas_forbid_unknown_fields() {
    let document = document();
    let schemas = &document["components"]["schemas"];
    let name = |schema: &Value| {
        schema["$ref"].as_str().and_then(|to| to.rsplit('/').next().map(str::to_owned))
    };
    for (operation, value) in operations(&document) {
        let body = &value["requestBody"]["content"]["application/json"]["schema"];
        let Some(body) = name(body) else { continue };
        let alternatives = schemas[&body]["oneOf"].as_array();
        let parts =
            alternatives.map_or(vec![body.clone()], |all| all.iter().filter_map(name).collect());
        // The parameters of a trigger depend on the pipeline.
        for part in parts.into_iter().filter(|part| part != "TriggerRequest") {
            assert_eq!(schemas[&part]["additionalProperties"], false, "{operation}: {part}");
        }
    }
}

async fn fetch(server: &Server, path: &str) -> (HeaderMap, String) {
    let answer =
        common::http().get(format!("{}{path}", server.url)).send().await.expect("an answer");
    assert_eq!(answer.status(), 200, "{path}");
    (answer.headers().clone(), answer.text().await.expect("a complete response"))
}

#[tokio::test]
async fn the_document_is_served_without_a_key() {
    let server = Server::start(Arc::new(Memory::new())).await;
    let (headers, text) = fetch(&server, "/openapi.json").await;
    assert_eq!(headers["content-type"], "application/json");
    assert!(text == document_text(), "the served document differs");
}

#[tokio::test]
async fn the_page_shows_every_operation_parameter_schema_and_code() {
    let server = Server::start(Arc::new(Memory::new())).await;
    let (headers, page) = fetch(&server, "/docs").await;
    assert_eq!(headers["content-type"], "text/html; charset=utf-8");
    let document = document();
    for (name, operation) in operations(&document) {
        let id = operation["operationId"].as_str().expect("an id");
        let (_, section) = page.split_once(&format!("id=\"{id}\"")).expect("a section");
        let (section, _) = section.split_once("</section>").expect("its end");
        assert!(section.contains("curl -s"), "{name}: no example");
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let parameter = parameter["name"].as_str().expect("a name");
            assert!(section.contains(&format!("<code>{parameter}</code>")), "{name}: {parameter}");
        }
        for status in operation["responses"].as_object().expect("answers").keys() {
            assert!(section.contains(&format!(">{status}</span>")), "{name}: {status}");
        }
        if operation["requestBody"].is_object() {
            assert!(section.contains("<h4>Body: ") && section.contains(" -d "), "{name}: its body");
        }
    }
    for schema in document["components"]["schemas"].as_object().expect("schemas").keys() {
        assert!(page.contains(&format!("id=\"schema-{schema}\"")), "{schema}");
    }
    for code in tenure::wire::CODES {
        assert!(page.contains(&format!("href=\"/docs/errors/{code}\"")), "{code}");
    }
}

#[tokio::test]
async fn pages_have_no_scripts_and_no_external_resources() {
    let server = Server::start(Arc::new(Memory::new())).await;
    for path in ["/docs", "/docs/errors/held"] {
        let (headers, page) = fetch(&server, path).await;
        let policy = headers["content-security-policy"].to_str().expect("a text");
        assert!(policy.starts_with("default-src 'none'; style-src 'self'"), "{policy}");
        for banned in ["<script", "<style", " style=", " onclick=", "src=", "javascript:"] {
            assert!(!page.contains(banned), "{path} has {banned}");
        }
        let links = page.split("href=\"").skip(1);
        for link in links {
            assert!(link.starts_with(['/', '#']), "{path} leads to {}", &link[..40]);
        }
        assert!(page.contains("href=\"/docs/style.css\""));
    }
    let (headers, style) = fetch(&server, "/docs/style.css").await;
    assert_eq!(headers["content-type"], "text/css; charset=utf-8");
    assert!(style.contains("prefers-color-scheme: dark") && !style.contains("url("));
}

#[tokio::test]
async fn every_anchor_link_has_one_target() {
    let server = Server::start(Arc::new(Memory::new())).await;
    let (_, page) = fetch(&server, "/docs").await;
    let links = page.split("href=\"#").skip(1).filter_map(|rest| rest.split('"').next());
    for link in links.collect::<BTreeSet<_>>() {
        assert_eq!(page.matches(&format!("id=\"{link}\"")).count(), 1, "#{link}");
    }
}

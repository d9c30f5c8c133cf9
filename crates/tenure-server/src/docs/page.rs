//! Renders the OpenAPI document as one page: contents, operations by tag, error codes, schemas.

use serde_json::Value;

use super::operation::Operation;
use super::schema::{fields, kind};
use super::{errors, escape, html, markdown};

const METHODS: [&str; 4] = ["get", "put", "post", "delete"];

pub(super) fn render(document: &Value) -> String {
    let operations = operations(document);
    let tags = document["tags"].as_array().map(Vec::as_slice).unwrap_or_default();
    let contents: String = tags.iter().map(|tag| contents(tag, &operations)).collect();
    let sections: String = tags.iter().map(|tag| section(tag, &operations)).collect();
    let schemas = schemas(&document["components"]["schemas"]);
    let content = format!(
        "<nav>\n<h2><a href=\"#top\">Tenure API</a></h2>\n{contents}\
         <h3><a href=\"#errors\">error codes</a></h3>\n<h3><a href=\"#schemas\">schemas</a></h3>\n\
         </nav>\n<main id=\"top\">\n{}{sections}{}{schemas}</main>\n",
        introduction(document),
        error_codes(),
    );
    html("Tenure API", "reference", &content)
}

fn operations(document: &Value) -> Vec<Operation<'_>> {
    let components = &document["components"];
    let paths = document["paths"].as_object().into_iter().flatten();
    let all = paths
        .flat_map(|(path, item)| METHODS.iter().map(move |method| (path, *method, &item[*method])));
    let defined = all.filter(|(_, _, value)| value.is_object());
    defined.map(|(path, method, value)| Operation { method, path, value, components }).collect()
}

fn introduction(document: &Value) -> String {
    let info = &document["info"];
    let text = |field: &str| markdown::inline(info[field].as_str().unwrap_or_default());
    format!(
        "<h1>{} <small>{}</small></h1>\n<p>{}</p>\n\
         <p>Machine-readable: <a href=\"/openapi.json\">openapi.json</a>. The examples use \
         the address of the server and a key from the environment:</p>\n\
         <pre><code>export TENURE_SERVER=http://127.0.0.1:7117\n\
         export TENURE_KEY=$(cat ~/.local/share/tenure/admin.key)</code></pre>\n",
        text("title"),
        text("version"),
        text("description"),
    )
}

fn contents(tag: &Value, operations: &[Operation<'_>]) -> String {
    let name = tag["name"].as_str().unwrap_or_default();
    let tagged = operations.iter().filter(|operation| operation.has_tag(name));
    let entries: String = tagged.map(Operation::contents_entry).collect();
    format!("<h3><a href=\"#{}\">{}</a></h3>\n<ul>\n{entries}</ul>\n", anchor(name), escape(name))
}

fn section(tag: &Value, operations: &[Operation<'_>]) -> String {
    let name = tag["name"].as_str().unwrap_or_default();
    let description = markdown::inline(tag["description"].as_str().unwrap_or_default());
    let tagged = operations.iter().filter(|operation| operation.has_tag(name));
    let sections: String = tagged.map(Operation::section).collect();
    let (anchor, name) = (anchor(name), escape(name));
    format!("<h2 id=\"{anchor}\">{name}</h2>\n<p>{description}.</p>\n{sections}")
}

/// Returns the anchor of a tag.
fn anchor(name: &str) -> String {
    format!("tag-{}", escape(&name.replace(' ', "-")))
}

fn error_codes() -> String {
    let row = |(code, text): &(&str, &str)| {
        let (status, meaning) = (errors::status(text), errors::meaning(text));
        format!(
            "<tr><td><a href=\"/docs/errors/{code}\"><code>{code}</code></a></td>\
             <td>{}</td><td>{meaning}</td></tr>\n",
            markdown::inline(status.split(" · ").next().unwrap_or_default())
        )
    };
    let rows: String = errors::PAGES.iter().map(row).collect();
    format!(
        "<h2 id=\"errors\">error codes</h2>\n<p>Every error is a \
         <a href=\"#schema-Problem\">Problem</a> with one of these codes.</p>\n\
         <table>\n<tbody>\n{rows}</tbody>\n</table>\n"
    )
}

fn schemas(schemas: &Value) -> String {
    let one = |(name, schema): (&String, &Value)| {
        let (name, fields) = (escape(name), fields(schema, schemas));
        let text = markdown::inline(schema["description"].as_str().unwrap_or_default());
        let kind = if schema["properties"].is_object() { String::new() } else { kind(schema) };
        format!(
            "<section class=\"schema\" id=\"schema-{name}\">\n<h3><a href=\"#schema-{name}\">{name}\
             </a></h3>\n<p>{text} <span class=\"kind\">{kind}</span></p>\n{fields}</section>\n"
        )
    };
    let all: String = schemas.as_object().into_iter().flatten().map(one).collect();
    format!("<h2 id=\"schemas\">schemas</h2>\n{all}")
}

//! Renders one operation of the API: parameters, body, responses and an example.

use serde_json::Value;

use super::schema::{fields, kind, resolve};
use super::{escape, markdown};

/// An operation of the OpenAPI document.
pub(super) struct Operation<'a> {
    pub(super) method: &'a str,
    pub(super) path: &'a str,
    pub(super) value: &'a Value,
    pub(super) components: &'a Value,
}

impl Operation<'_> {
    pub(super) fn id(&self) -> &str {
        self.value["operationId"].as_str().unwrap_or_default()
    }

    pub(super) fn has_tag(&self, tag: &str) -> bool {
        self.value["tags"][0] == tag
    }

    /// Renders the entry of the table of contents.
    pub(super) fn contents_entry(&self) -> String {
        let (id, path) = (escape(self.id()), escape(self.path));
        format!("<li><a href=\"#{id}\">{} {path}</a></li>\n", self.badge())
    }

    fn badge(&self) -> String {
        let (method, label) = (escape(self.method), self.method.to_uppercase());
        format!("<span class=\"method {method}\">{}</span>", escape(&label))
    }

    pub(super) fn section(&self) -> String {
        let (id, path, badge) = (escape(self.id()), escape(self.path), self.badge());
        let text = |field: &str| markdown::inline(self.value[field].as_str().unwrap_or_default());
        let (summary, description) = (text("summary"), text("description"));
        let parts = [self.parameters(), self.body(), self.responses(), self.example()].concat();
        format!(
            "<section class=\"operation\" id=\"{id}\">\n\
             <h3><a href=\"#{id}\">{badge} <code>{path}</code></a></h3>\n\
             <p>{summary} {description}</p>\n{parts}</section>\n"
        )
    }

    fn parameters(&self) -> String {
        let Some(parameters) = self.value["parameters"].as_array() else { return String::new() };
        let row = |one: &Value| {
            let text = |field: &str| one[field].as_str().unwrap_or_default();
            let mark = if one["required"] == true { "required" } else { "" };
            let (name, place, description) =
                (escape(text("name")), escape(text("in")), markdown::inline(text("description")));
            let kind = kind(&one["schema"]);
            format!(
                "<tr><td><code>{name}</code> <span class=\"required\">{mark}</span></td>\
                 <td>{place}</td><td>{kind}</td><td>{description}</td></tr>\n"
            )
        };
        let rows: String = parameters.iter().map(row).collect();
        format!("<h4>Parameters</h4>\n<table>\n<tbody>\n{rows}</tbody>\n</table>\n")
    }

    fn body_schema(&self) -> Option<&Value> {
        let schema = &self.value["requestBody"]["content"]["application/json"]["schema"];
        (!schema.is_null()).then_some(schema)
    }

    fn body(&self) -> String {
        let Some(schema) = self.body_schema() else { return String::new() };
        let schemas = &self.components["schemas"];
        let fields = fields(resolve(schema, schemas), schemas);
        let optional =
            if self.value["requestBody"]["required"] == true { "" } else { ", optional" };
        format!("<h4>Body: {}{optional}</h4>\n{fields}", kind(schema))
    }

    fn responses(&self) -> String {
        let Some(responses) = self.value["responses"].as_object() else { return String::new() };
        let row = |(status, response): (&String, &Value)| {
            let name = response["$ref"].as_str().and_then(|to| to.rsplit('/').next());
            let response = name.map_or(response, |name| &self.components["responses"][name]);
            let description =
                markdown::inline(response["description"].as_str().unwrap_or_default());
            let content =
                response["content"].as_object().and_then(|content| content.values().next());
            let kind = content.map(|content| kind(&content["schema"])).unwrap_or_default();
            let class = status.chars().next().unwrap_or_default();
            format!(
                "<tr><td><span class=\"status s{class}\">{status}</span></td><td>{kind}</td>\
                 <td>{description}</td></tr>\n"
            )
        };
        let rows: String = responses.iter().map(row).collect();
        format!("<h4>Responses</h4>\n<table>\n<tbody>\n{rows}</tbody>\n</table>\n")
    }

    fn example(&self) -> String {
        let mut call = String::from("curl -s");
        if self.value["security"]
            .as_array()
            .is_some_and(|all| all.iter().any(|one| one["bearer"].is_array()))
        {
            call += " -H \"Authorization: Bearer $TENURE_KEY\"";
        }
        if !matches!(self.method, "get" | "post")
            || (self.method == "post" && self.body_schema().is_none())
        {
            call += &format!(" -X {}", self.method.to_uppercase());
        }
        call += &format!(" \\\n  \"$TENURE_SERVER{}\"", self.example_path());
        if let Some(body) = self.body_schema().and_then(|schema| self.example_body(schema)) {
            call += &format!(" \\\n  -d '{body}'");
        }
        format!("<h4>Example</h4>\n<pre><code>{}</code></pre>\n", escape(&call))
    }

    /// Returns the path with examples of its parameters filled in.
    fn example_path(&self) -> String {
        let mut path = self.path.to_owned();
        for one in self.value["parameters"].as_array().into_iter().flatten() {
            let example =
                one["schema"]["examples"][0].as_str().or(one["schema"]["enum"][0].as_str());
            if let (Some(name), Some(example)) = (one["name"].as_str(), example) {
                path = path.replace(&format!("{{{name}}}"), example);
            }
        }
        path
    }

    /// Returns the example of a body, or of its first alternative that has one.
    fn example_body(&self, schema: &Value) -> Option<String> {
        let schema = resolve(schema, &self.components["schemas"]);
        if !schema["example"].is_null() {
            return Some(schema["example"].to_string());
        }
        schema["oneOf"].as_array()?.iter().find_map(|one| self.example_body(one))
    }
}

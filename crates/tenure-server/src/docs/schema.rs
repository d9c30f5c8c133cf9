//! Renders schemas: types in words, and tables of fields.

use serde_json::Value;

use super::{escape, markdown};

/// Renders the fields of an object as a table, with one table for each alternative.
pub(super) fn fields(schema: &Value, schemas: &Value) -> String {
    for keyword in ["oneOf", "allOf"] {
        if let Some(parts) = schema[keyword].as_array() {
            let or = if keyword == "oneOf" { "<p class=\"or\">or</p>\n" } else { "" };
            let parts = parts.iter().map(|part| fields(resolve(part, schemas), schemas));
            return parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join(or);
        }
    }
    let Some(properties) = schema["properties"].as_object() else { return String::new() };
    let required = |name: &str| {
        schema["required"].as_array().is_some_and(|list| list.iter().any(|one| one == name))
    };
    let row = |(name, field): (&String, &Value)| {
        let mark = if required(name) { " <span class=\"required\">required</span>" } else { "" };
        let (name, kind, text) = (escape(name), kind(field), description(field));
        format!("<tr><td><code>{name}</code>{mark}</td><td>{kind}</td><td>{text}</td></tr>\n")
    };
    let rows: String = properties.iter().map(row).collect();
    format!("<table class=\"fields\">\n<tbody>\n{rows}</tbody>\n</table>\n")
}

/// Resolves a schema that is a reference.
pub(super) fn resolve<'a>(schema: &'a Value, schemas: &'a Value) -> &'a Value {
    name(schema).map_or(schema, |name| &schemas[name])
}

fn name(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str()?.rsplit('/').next()
}

/// Returns the description of a schema; of a nullable one, that of its type.
fn description(schema: &Value) -> String {
    let nullable = || schema["oneOf"].as_array()?.first()?["description"].as_str();
    let text = schema["description"].as_str().or_else(nullable).unwrap_or_default();
    markdown::inline(text)
}

/// Describes the type of a value in a few words.
pub(super) fn kind(schema: &Value) -> String {
    if let Some(name) = name(schema) {
        let name = escape(name);
        return format!("<a href=\"#schema-{name}\">{name}</a>");
    }
    if let Some(parts) = schema["oneOf"].as_array().or_else(|| schema["allOf"].as_array()) {
        return parts.iter().map(kind).collect::<Vec<_>>().join(" or ");
    }
    if let Some(values) = schema["enum"].as_array() {
        let values = values.iter().map(|value| format!("<code>{}</code>", plain(value)));
        return values.collect::<Vec<_>>().join(" ");
    }
    let types: Vec<String> = match &schema["type"] {
        Value::Array(types) => {
            types.iter().map(|one| type_name(plain(one).as_str(), schema)).collect()
        }
        Value::String(one) => vec![type_name(one, schema)],
        _ => vec!["any JSON".to_owned()],
    };
    types.join(" or ") + &bounds(schema)
}

fn type_name(name: &str, schema: &Value) -> String {
    match (name, schema["format"].as_str()) {
        ("array", _) => format!("list of {}", kind(&schema["items"])),
        ("string", Some("date-time")) => "instant".to_owned(),
        _ => escape(name).into_owned(),
    }
}

/// Describes the bounds of a value, if it has any.
fn bounds(schema: &Value) -> String {
    let pairs = [
        ("minimum", "maximum", ""),
        ("minLength", "maxLength", " characters"),
        ("minItems", "maxItems", " items"),
    ];
    let bound = pairs.iter().find_map(|(min, max, what)| {
        let (min, max) = (&schema[*min], &schema[*max]);
        (min.is_number() || max.is_number()).then(|| between(min, max) + what)
    });
    bound.map(|bound| format!(", {bound}")).unwrap_or_default()
}

fn between(min: &Value, max: &Value) -> String {
    // The largest integer is no real bound.
    let max = Some(max).filter(|max| max.is_number() && max.as_u64() != Some(u64::MAX));
    match (min.is_number(), max) {
        (true, Some(max)) => format!("{min} to {max}"),
        (_, None) => format!("at least {min}"),
        (false, Some(max)) => format!("at most {max}"),
    }
}

/// Renders a value without quotes.
fn plain(value: &Value) -> String {
    escape(&value.as_str().map_or_else(|| value.to_string(), str::to_owned)).into_owned()
}

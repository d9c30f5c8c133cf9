//! Schemas in words: what a value may be, and the fields of objects.

use serde_json::Value;

use super::{escape, markdown};

/// The fields of an object as a table; of several alternatives one table each.
pub(super) fn fields(schema: &Value, schemas: &Value) -> String {
    for word in ["oneOf", "allOf"] {
        if let Some(parts) = schema[word].as_array() {
            let or = if word == "oneOf" { "<p class=\"or\">or</p>\n" } else { "" };
            let parts = parts.iter().map(|part| fields(resolve(part, schemas), schemas));
            return parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join(or);
        }
    }
    let Some(properties) = schema["properties"].as_object() else { return String::new() };
    let needed = |name: &str| {
        schema["required"].as_array().is_some_and(|list| list.iter().any(|one| one == name))
    };
    let row = |(name, field): (&String, &Value)| {
        let mark = if needed(name) { " <span class=\"needed\">needed</span>" } else { "" };
        let (name, kind, says) = (escape(name), kind(field), said(field));
        format!("<tr><td><code>{name}</code>{mark}</td><td>{kind}</td><td>{says}</td></tr>\n")
    };
    let rows: String = properties.iter().map(row).collect();
    format!("<table class=\"fields\">\n<tbody>\n{rows}</tbody>\n</table>\n")
}

/// What a schema that is only a name stands for.
pub(super) fn resolve<'a>(schema: &'a Value, schemas: &'a Value) -> &'a Value {
    name(schema).map_or(schema, |name| &schemas[name])
}

fn name(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str()?.rsplit('/').next()
}

/// The description, also of one that may be null.
fn said(schema: &Value) -> String {
    let nullable = || schema["oneOf"].as_array()?.first()?["description"].as_str();
    let text = schema["description"].as_str().or_else(nullable).unwrap_or_default();
    markdown::inline(text)
}

/// What a value may be, in a few words.
pub(super) fn kind(schema: &Value) -> String {
    if let Some(name) = name(schema) {
        let name = escape(name);
        return format!("<a href=\"#schema-{name}\">{name}</a>");
    }
    if let Some(parts) = schema["oneOf"].as_array().or_else(|| schema["allOf"].as_array()) {
        return parts.iter().map(kind).collect::<Vec<_>>().join(" or ");
    }
    if let Some(words) = schema["enum"].as_array() {
        let words = words.iter().map(|word| format!("<code>{}</code>", plain(word)));
        return words.collect::<Vec<_>>().join(" ");
    }
    let types: Vec<String> = match &schema["type"] {
        Value::Array(types) => {
            types.iter().map(|one| of_type(plain(one).as_str(), schema)).collect()
        }
        Value::String(one) => vec![of_type(one, schema)],
        _ => vec!["any JSON".to_owned()],
    };
    types.join(" or ") + &bounds(schema)
}

fn of_type(word: &str, schema: &Value) -> String {
    match (word, schema["format"].as_str()) {
        ("array", _) => format!("list of {}", kind(&schema["items"])),
        ("string", Some("date-time")) => "instant".to_owned(),
        _ => escape(word).into_owned(),
    }
}

/// The bounds of a value, if it has any.
fn bounds(schema: &Value) -> String {
    let pairs = [
        ("minimum", "maximum", ""),
        ("minLength", "maxLength", " characters"),
        ("minItems", "maxItems", " of them"),
    ];
    let bound = pairs.iter().find_map(|(min, max, what)| {
        let (min, max) = (&schema[*min], &schema[*max]);
        (min.is_number() || max.is_number()).then(|| between(min, max) + what)
    });
    bound.map(|bound| format!(", {bound}")).unwrap_or_default()
}

fn between(min: &Value, max: &Value) -> String {
    // The largest number there is says nothing.
    let max = Some(max).filter(|max| max.is_number() && max.as_u64() != Some(u64::MAX));
    match (min.is_number(), max) {
        (true, Some(max)) => format!("{min} to {max}"),
        (_, None) => format!("at least {min}"),
        (false, Some(max)) => format!("at most {max}"),
    }
}

/// A value without quotes.
fn plain(value: &Value) -> String {
    escape(&value.as_str().map_or_else(|| value.to_string(), str::to_owned)).into_owned()
}

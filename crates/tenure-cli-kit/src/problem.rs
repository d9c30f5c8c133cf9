//! Errors as JSON: the problem document of the server, if the error is one.

use std::sync::{Mutex, PoisonError};

use serde_json::{Map, Value, json};
use tenure::Error;
use tenure_wire::Problem;

/// The problem document that the server sent last. An [`Error`] has its text and its facts, but not
/// all its fields.
static LAST: Mutex<Option<Problem>> = Mutex::new(None);

/// Remembers a problem document of the server.
pub(crate) fn remember(problem: &Problem) {
    *LAST.lock().unwrap_or_else(PoisonError::into_inner) = Some(problem.clone());
}

/// Returns the fields of an error: a stable code, `message`, and the problem document that caused
/// it, if there is one.
pub(crate) fn error_document(error: &anyhow::Error, message: String) -> Map<String, Value> {
    let text = format!("{error:#}");
    let last = LAST.lock().unwrap_or_else(PoisonError::into_inner).take();
    // An error without its text has another cause, for example a refusal that was handled.
    let cause = last.filter(|problem| text.contains(&*problem.detail));
    let document = cause.and_then(|problem| serde_json::to_value(problem).ok());
    let mut fields = match document {
        Some(Value::Object(fields)) => fields,
        _ => Map::from_iter([("code".to_owned(), json!(code(error)))]),
    };
    fields.insert("message".to_owned(), message.into());
    fields
}

/// Returns the code of an error without a problem document.
fn code(error: &anyhow::Error) -> &'static str {
    match error.downcast_ref::<Error>() {
        Some(Error::Unavailable(_) | Error::Corrupt(_)) => "unavailable",
        Some(Error::NotFound(_)) => "not_found",
        Some(Error::Denied(_)) => "forbidden",
        Some(Error::Waiting { .. }) => "held",
        Some(error) => error.code().map_or("failed", tenure_core::Code::as_str),
        None => "failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_the_problem_document_that_caused_it() {
        let problem = Problem {
            code: "held".to_owned(),
            detail: "held by ann".to_owned(),
            queue_length: Some(2),
            ..Problem::default()
        };
        remember(&problem);
        let error = anyhow::anyhow!("cluster/c1: held by ann");
        let fields = error_document(&error, "text".to_owned());
        assert_eq!((&fields["code"], &fields["queue_length"]), (&json!("held"), &json!(2)));
        assert_eq!(
            (&fields["message"], &fields["detail"]),
            (&json!("text"), &json!("held by ann"))
        );
        remember(&problem);
        let error = Error::Unavailable("no route".to_owned()).into();
        let fields = error_document(&error, "text".to_owned());
        assert_eq!(Value::from(fields), json!({ "code": "unavailable", "message": "text" }));
    }
}

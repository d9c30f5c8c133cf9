//! Status: the durable JSON document of what is known about a resource.
//!
//! The holder of a job writes it with the token of its tenure, by JSON merge patches (RFC 7396). It
//! survives attempts and jobs. History contains the patches; a replay merges them again.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::command::StatusUpdate;
use crate::history::Event;
use crate::id::JobId;
use crate::job::{Job, JobState};
use crate::key::Text;
use crate::limits;
use crate::outcome::Outcome;
use crate::refusal::Refusal;
use crate::step_context::StepContext;
use crate::time::Millis;
use crate::token::Token;

/// Status of a resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Status {
    /// A JSON object.
    pub document: Text,
    /// Token of the tenure that wrote it last.
    pub token: Token,
    /// Time of the last change.
    pub at: Millis,
}

/// A validated update: the merge patch to record, if it changes anything.
pub(crate) struct CheckedUpdate<'a> {
    merge: Option<Text>,
    update: &'a StatusUpdate,
}

impl StepContext<'_> {
    /// Checks an update completely, so that writing it cannot fail.
    pub(crate) fn check_update<'a>(
        &self,
        update: &'a StatusUpdate,
    ) -> Result<CheckedUpdate<'a>, Refusal> {
        self.check_timers(&update.timers)?;
        let Some(merge) = &update.merge else { return Ok(CheckedUpdate { merge: None, update }) };
        check_status_size("merge patch", merge)?;
        let current = self.record.resource.as_ref().and_then(|resource| resource.status.as_ref());
        let current = current.map_or("{}", |status| &*status.document);
        let merged = merge_patch(current, merge).map_err(Refusal::Invalid)?;
        check_status_size("merged status", &merged)?;
        // Compared as written by this version, which normalizes white space and order.
        let unchanged = merge_patch(current, "{}").is_ok_and(|current| current == merged);
        Ok(CheckedUpdate { merge: (!unchanged).then(|| merge.clone()), update })
    }

    /// Writes a checked update on behalf of the tenure with `token`.
    pub(crate) fn write_update(&mut self, token: Token, checked: CheckedUpdate<'_>, by: &Text) {
        if let Some(merge) = checked.merge {
            self.append_event(Event::Observed { token, merge });
        }
        self.write_timers(&checked.update.timers, by);
    }

    /// Updates status and timers on behalf of the running attempt.
    pub(crate) fn update_status(
        &mut self,
        id: JobId,
        token: Token,
        update: &StatusUpdate,
    ) -> Result<Outcome, Refusal> {
        self.check_running(id, token, "status")?;
        let checked = self.check_update(update)?;
        let worker = |job: &Job| job.attempts.last().map(|attempt| attempt.worker.clone());
        let by = self.record.job(id).and_then(worker).unwrap_or_else(|| "".into());
        self.write_update(token, checked, &by);
        self.fire_timers();
        // A timer that fires at once may cancel this job.
        let cancelling = self.record.job(id).is_some_and(|job| job.state == JobState::Cancelling);
        Ok(Outcome::Noted { cancelling })
    }
}

fn check_status_size(what: &str, document: &str) -> Result<(), Refusal> {
    let (got, max) = (document.len(), limits::STATUS_BYTES_MAX);
    if got <= max {
        return Ok(());
    }
    let why = format!("the {what} has {got} bytes; at most {max} are allowed");
    Err(Refusal::TooLarge(why))
}

/// Applies a JSON merge patch (RFC 7396) to a JSON object. Both must be objects.
pub fn merge_patch(document: &str, patch: &str) -> Result<String, String> {
    let object = |what: &str, text: &str| match serde_json::from_str(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(format!("the {what} is not a JSON object")),
        Err(error) => Err(format!("the {what} is not JSON: {error}")),
    };
    let (mut document, patch) = (object("status", document)?, object("merge", patch)?);
    merge(&mut document, patch);
    Ok(Value::Object(document).to_string())
}

fn merge(target: &mut Map<String, Value>, patch: Map<String, Value>) {
    for (name, value) in patch {
        match value {
            Value::Null => {
                target.remove(&name);
            }
            Value::Object(patch) => {
                let member = target.entry(name).or_insert(Value::Null);
                if !member.is_object() {
                    *member = Value::Object(Map::new());
                }
                if let Value::Object(member) = member {
                    merge(member, patch);
                }
            }
            value => {
                target.insert(name, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of RFC 7396, appendix A, whose document and patch are objects.
    #[test]
    fn patches_merge_as_the_rfc_says() {
        let examples = [
            (r#"{"a":"b"}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":"b"}"#, r#"{"b":"c"}"#, r#"{"a":"b","b":"c"}"#),
            (r#"{"a":"b"}"#, r#"{"a":null}"#, r"{}"),
            (r#"{"a":"b","b":"c"}"#, r#"{"a":null}"#, r#"{"b":"c"}"#),
            (r#"{"a":["b"]}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":"c"}"#, r#"{"a":["b"]}"#, r#"{"a":["b"]}"#),
            (r#"{"a":{"b":"c"}}"#, r#"{"a":{"b":"d","c":null}}"#, r#"{"a":{"b":"d"}}"#),
            (r#"{"a":[{"b":"c"}]}"#, r#"{"a":[1]}"#, r#"{"a":[1]}"#),
            (r#"{"e":null}"#, r#"{"a":1}"#, r#"{"a":1,"e":null}"#),
            (r"{}", r#"{"a":{"bb":{"ccc":null}}}"#, r#"{"a":{"bb":{}}}"#),
            (r#"{"a":"foo"}"#, r#"{"a":{"b":1}}"#, r#"{"a":{"b":1}}"#),
        ];
        for (document, patch, merged) in examples {
            assert_eq!(merge_patch(document, patch).unwrap(), merged, "{document} + {patch}");
        }
    }

    #[test]
    fn only_objects_are_merged() {
        for patch in ["[1]", "null", "3", "\"a\"", "{"] {
            assert!(merge_patch("{}", patch).is_err(), "{patch}");
        }
    }
}

//! Arguments of the job that a run is: its parameters, and the tick of a scheduled run.
//!
//! The tick is stored with the job, so that every attempt and every later retry has the same one,
//! even if the schedule changes.

use serde_json::{Map, Value};
use tenure_core::Millis;
use tenure_wire::instant;

/// Key of the tick. No parameter can have this name, because it has a dot.
const SCHEDULED_AT: &str = "run.scheduled_at";

/// Arguments of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RunArgs {
    /// Parameters.
    pub(crate) parameters: Map<String, Value>,
    /// Tick of its schedule in RFC 3339; `None` if the run was triggered otherwise.
    pub(crate) scheduled_at: Option<String>,
}

impl RunArgs {
    /// Returns the arguments of the run of a tick.
    pub(crate) fn of_tick(parameters: Map<String, Value>, tick: Millis) -> Self {
        Self { parameters, scheduled_at: Some(instant(tick)) }
    }

    /// Converts the arguments of a job.
    pub(crate) fn from_json(args: Option<Value>) -> Self {
        let Some(Value::Object(mut parameters)) = args else { return Self::default() };
        let scheduled_at = parameters.remove(SCHEDULED_AT);
        let scheduled_at = scheduled_at.and_then(|at| at.as_str().map(str::to_owned));
        Self { parameters, scheduled_at }
    }

    /// Converts to the arguments of a job.
    pub(crate) fn into_json(self) -> Value {
        let mut args = self.parameters;
        if let Some(at) = self.scheduled_at {
            args.insert(SCHEDULED_AT.to_owned(), at.into());
        }
        Value::Object(args)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_tick_is_beside_the_parameters() {
        let parameters = Map::from_iter([("rows".to_owned(), json!(3))]);
        let args = RunArgs::of_tick(parameters.clone(), Millis(1_770_000_000_000));
        let json = args.clone().into_json();
        assert_eq!(json, json!({ "rows": 3, "run.scheduled_at": "2026-02-02T02:40:00Z" }));
        assert_eq!(RunArgs::from_json(Some(json)), args);
        let manual = RunArgs { parameters, scheduled_at: None };
        assert_eq!(manual.clone().into_json(), json!({ "rows": 3 }));
        assert_eq!(RunArgs::from_json(Some(manual.clone().into_json())), manual);
    }
}

//! Greetings: a complete app in one file, as a template. It runs one greeting at a time per name.
//!
//! It has every part that an app can have: a section in `tenure.toml`, a kind, a handler, a route,
//! a duty, a metric and a CLI subcommand. Only the list of apps of a binary refers to it.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::Json;
use axum::extract::State;
use clap::Args as _;
use prometheus_client::metrics::family::Family;
use serde_json::{Value, json};
use tenure::{Context, Failure, Handler};
use tenure_app::extract::OnName;
use tenure_app::metrics::{self, Counters, Sample, register};
use tenure_app::{
    App, AppMetrics, AppRoutes, AppWorker, Duty, DutyContext, DutyReport, LoadedApp, LoadedApps,
    Problem, Rule, Services, WorkerEnv,
};
use tenure_cli_kit::{CliContext, Done, ParsedVerb, RunVerb, Verb};
use tenure_config::{Report, Section};
use tenure_core::{Command, Kind, MetricEvent, Operation, Policy, ResourceAction, Role, Submit};
use tenure_store::{Store, StoreError};
use utoipa_axum::{router::OpenApiRouter, routes};

const KIND: &str = "greeting";

/// The app.
pub struct Greetings;

/// The section `[greetings]`.
pub struct Settings {
    text: String,
}

impl App for Greetings {
    fn name(&self) -> &'static str {
        "greetings"
    }

    fn load(
        &self,
        section: &Section<'_>,
        _dir: &Path,
        report: &mut Report<'_>,
    ) -> Option<Arc<dyn LoadedApp>> {
        section.check_keys(&["text"], report);
        let text = section.text("text", report)?.to_owned();
        Some(Arc::new(Settings { text }))
    }

    fn routes(&self) -> AppRoutes {
        let rule = Rule::write("POST", "/v1/greetings/{name}", Role::Worker, "greeting.greet");
        let router = OpenApiRouter::new().routes(routes!(greet));
        let tag = Some(("greetings", "One greeting at a time per name"));
        AppRoutes { router, rules: vec![rule], tag, also_under_v1: false }
    }

    fn duties(&self) -> Vec<Box<dyn Duty>> {
        vec![Box::new(CheckConfigured)]
    }

    fn metric_definitions(&self) -> &'static [metrics::Definition] {
        ALL
    }

    fn metrics(&self, registry: &mut metrics::Registry) -> Option<Arc<dyn AppMetrics>> {
        Some(Arc::new(GreetingMetrics(register(registry, GREETINGS, Family::default()))))
    }

    fn cli(&self) -> Option<Box<dyn Verb>> {
        Some(Box::new(ParsedVerb::<Greet>::new(|| {
            Greet::augment_args(clap::Command::new("greet"))
        })))
    }
}

impl LoadedApp for Settings {
    fn kinds(&self) -> Vec<Kind> {
        vec![Kind::new(KIND).operation(Operation::new("greet").meets("greet", Policy::Attach))]
    }

    fn size(&self) -> usize {
        1
    }

    fn worker(&self, _env: &WorkerEnv) -> Result<Option<AppWorker>, tenure::Error> {
        let handler = Greeter { text: self.text.clone() };
        Ok(Some(AppWorker { slots: 4, handlers: vec![(KIND, Arc::new(handler) as _)] }))
    }
}

/// Runs the operation `greet`.
struct Greeter {
    text: String,
}

#[async_trait]
impl Handler for Greeter {
    async fn run(&self, job: &Context) -> Result<tenure::Done, Failure> {
        let greeting = format!("{}, {}", self.text, job.key().name());
        tenure::Done::with(&json!({ "said": greeting }))
            .map_err(|error| Failure::new("JSON", error))
    }
}

/// Greets a name, or attaches to the greeting that is running.
#[utoipa::path(post, path = "/v1/greetings/{name}", tag = "greetings", operation_id = "greet",
    params(("name" = String, Path, description = "The name to greet")),
    responses((status = 200, description = "The job", body = Value)))]
async fn greet(State(services): State<Services>, on: OnName) -> Result<Json<Value>, Problem> {
    let key = on.caller.resource(KIND, &on.name)?;
    let submit = Submit {
        request: tenure_store::random::request_id(),
        operation: "greet".into(),
        args: None,
        priority: 0,
        run_at: None,
        by: on.caller.name.clone(),
    };
    let command = Command::Resource { key, action: ResourceAction::Submit(submit) };
    let outcome = services.submit(command).await?;
    Ok(Json(json!({ "outcome": format!("{outcome:?}") })))
}

/// Reports once a second whether the app is configured.
struct CheckConfigured;

#[async_trait]
impl Duty for CheckConfigured {
    fn name(&self) -> &'static str {
        "greetings"
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(1)
    }

    async fn run(&mut self, cx: &DutyContext) -> Result<DutyReport, StoreError> {
        Ok(DutyReport::done(usize::from(cx.live.app::<Settings>().is_some())))
    }
}

tenure_app::define_metrics! {
    GREETINGS: Counter "greetings_total" ["kind"] "Started greetings";
}

struct GreetingMetrics(Counters<1>);

#[async_trait]
impl AppMetrics for GreetingMetrics {
    fn reload(&self, _apps: &LoadedApps) {}

    fn count(&self, event: &MetricEvent) {
        if matches!(event, MetricEvent::Granted { key, .. } if key.kind() == KIND) {
            self.0.get_or_create(&[("kind", KIND.into())]).inc();
        }
    }

    async fn sample(&self, _store: &dyn Store) -> Result<Sample, StoreError> {
        Ok(Arc::new(|_| {}))
    }
}

/// Greet a name
#[derive(clap::Args)]
struct Greet {
    /// The name
    name: String,
}

#[async_trait(?Send)]
impl RunVerb for Greet {
    async fn run(&self, cx: &CliContext) -> Done {
        let path = format!("/v1/greetings/{}", self.name);
        let answer: Value =
            cx.server.transport()?.post(&path, None, &json!({}), Duration::ZERO).await?;
        tenure_cli_kit::print_json(&answer)?;
        Ok(ExitCode::SUCCESS)
    }
}

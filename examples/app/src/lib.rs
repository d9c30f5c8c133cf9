//! Greetings: a complete app in one file, as a template. It runs one greeting at a time per name.
//!
//! It has every part that an app can have: a section in `tenure.toml`, a kind, a handler, a route,
//! a duty, a metric and a CLI subcommand. Only the list of apps of a binary refers to it.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::CommandFactory as _;
use tenure_app::prelude::*;

const KIND: &str = "greeting";

/// The app.
pub struct Greetings;

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
        Some(Arc::new(Settings { text: section.text("text", report)?.to_owned() }))
    }

    fn routes(&self) -> AppRoutes {
        let rule = Rule::write("POST", "/v1/greetings/{name}", Role::Worker, "greeting.greet");
        AppRoutes::new("greetings", "One greeting at a time per name").route(routes!(greet), [rule])
    }

    fn duties(&self) -> Vec<Box<dyn Duty>> {
        vec![Box::new(CheckConfigured)]
    }

    fn metric_definitions(&self) -> &'static [metrics::Definition] {
        ALL
    }

    fn metrics(&self, registry: &mut metrics::Registry) -> Option<Arc<dyn AppMetrics>> {
        Some(Arc::new(GreetingMetrics(register(registry, GREETINGS, Counters::default()))))
    }

    fn cli(&self) -> Option<Box<dyn Verb>> {
        Some(Box::new(ParsedVerb::<Greet>::new(Greet::command)))
    }
}

/// The section `[greetings]`.
pub struct Settings {
    text: String,
}

impl LoadedApp for Settings {
    fn kinds(&self) -> Vec<Kind> {
        vec![Kind::new(KIND).operation(Operation::new("greet").meets("greet", Policy::Attach))]
    }

    fn worker(&self, _env: &WorkerEnv) -> Result<Option<AppWorker>, tenure::Error> {
        Ok(Some(AppWorker::new(4).handle(KIND, Greeter { text: self.text.clone() })))
    }
}

/// Runs the operation `greet`.
struct Greeter {
    text: String,
}

#[async_trait]
impl Handler for Greeter {
    async fn run(&self, job: &Context) -> Result<Done, Failure> {
        Ok(Done::with(&json!({ "said": format!("{}, {}", self.text, job.key().name()) }))?)
    }
}

/// Greets a name, or attaches to the greeting that is running.
#[utoipa::path(post, path = "/v1/greetings/{name}", tag = "greetings", operation_id = "greet",
    params(("name" = String, Path, description = "The name to greet"), Idempotency),
    responses((status = 200, description = "The job", body = SubmitResponse)))]
async fn greet(
    State(services): State<Services>,
    on: OnName,
    request: Idempotency,
) -> Result<Json<SubmitResponse>, Problem> {
    let key = on.caller.resource(KIND, &on.name)?;
    let submit = Submit::new(request.id(key.as_str())?, "greet", on.caller.name.clone());
    let command = Command::Resource { key, action: ResourceAction::Submit(submit) };
    Ok(Json(services.submit_job(&on.caller, command).await?))
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

impl AppMetrics for GreetingMetrics {
    fn count(&self, event: &MetricEvent) {
        if matches!(event, MetricEvent::Granted { key, .. } if key.kind() == KIND) {
            self.0.get_or_create(&[("kind", KIND.into())]).inc();
        }
    }
}

/// Greet a name
#[derive(clap::Parser)]
#[command(name = "greet")]
struct Greet {
    /// The name
    name: String,
}

#[async_trait(?Send)]
impl RunVerb for Greet {
    async fn run(&self, cx: &CliContext) -> VerbResult {
        let path = format!("/v1/greetings/{}", self.name);
        let answer: Value =
            cx.server.transport()?.post(&path, None, &json!({}), Duration::ZERO).await?;
        print_json(&answer)?;
        Ok(ExitCode::SUCCESS)
    }
}

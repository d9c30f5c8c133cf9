//! Completion of names that only the server knows: `tenure __complete WORD…`, called by the scripts
//! of `tenure completions`.
//!
//! The last word is the one to complete; it may be empty. Candidates for the whole word are printed
//! one per line.
//! There are none if the word is not such a name, or if the server does not answer in time. Errors
//! are silent: a message would end up in the command line of the user.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Arg, Command, Parser};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tenure::http::HttpTransport;
use tenure_cli_kit::text::{parse_duration, print_line, query};
use tenure_cli_kit::{Done, ListedValues, ServerArgs};
use tenure_wire::{JobInfo, KeyInfo, KindInfo, ListResponse, ResourceInfo, TenureInfo};

/// First argument of a request for completion.
pub(super) const VERB: &str = "__complete";
/// Maximum time that a user waits for candidates, unless the environment has another.
const TIMEOUT: Duration = Duration::from_millis(500);
/// Environment variable with another maximum, such as `2s`.
const TIMEOUT_VARIABLE: &str = "TENURE_COMPLETION_TIMEOUT";
/// Maximum number of items that are read from each list.
const ITEMS_MAX: usize = 1_000;

/// The names that a word can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    Resources,
    Locks,
    Jobs,
    ResourcesAndJobs,
    Kinds,
    Keys,
    Listed(ListedValues),
}

/// Verbs of apps, with the arguments whose values the server lists.
type AppValues = [(String, ListedValues)];

/// Returns the words to complete, if the arguments of this process request it.
pub(super) fn requested(args: impl Iterator<Item = OsString>) -> Option<Vec<String>> {
    let mut words = args.skip(1).map(|word| word.to_string_lossy().into_owned());
    let is_requested = words.next().is_some_and(|verb| verb == VERB);
    is_requested.then(|| words.collect())
}

fn timeout() -> Duration {
    let given = std::env::var(TIMEOUT_VARIABLE).ok();
    given.and_then(|text| parse_duration(&text).ok()).unwrap_or(TIMEOUT)
}

/// Prints the candidates for the last of `words`.
pub(super) async fn run(mut command: Command, apps: &AppValues, words: Vec<String>) -> Done {
    command.build();
    let (words, option) = separate_values(&words);
    for name in candidates(&command, apps, &words).await {
        print_line(&format!("{option}{name}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Separates options from their values in words such as `--kind=database`. Also returns the part
/// of the last word before its value: `--kind=`.
fn separate_values(words: &[String]) -> (Vec<String>, &str) {
    let parts = |word: &'_ String| match word.split_once('=') {
        Some((option, value)) if option.starts_with("--") => {
            vec![option.to_owned(), value.to_owned()]
        }
        _ => vec![word.clone()],
    };
    let separate: Vec<String> = words.iter().flat_map(parts).collect();
    let before = words.last().zip(separate.last());
    let before = before.and_then(|(word, value)| word.strip_suffix(&**value));
    (separate, before.unwrap_or_default())
}

async fn candidates(command: &Command, apps: &AppValues, words: &[String]) -> BTreeSet<String> {
    let Some((names, prefix)) = expected(command, apps, words) else { return BTreeSet::new() };
    let Some(server) = server_args(words) else { return BTreeSet::new() };
    let found = tokio::time::timeout(timeout(), fetch_names(&server, names, prefix)).await;
    let mut found = found.unwrap_or_default();
    found.retain(|name| name.starts_with(prefix) && name.chars().all(is_allowed));
    found
}

/// Returns whether a character may be part of a candidate, which a shell sees.
fn is_allowed(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | ':' | '@' | '+' | '=' | '/' | '#')
}

/// Returns which names the last word can be, and its beginning.
fn expected<'a>(root: &Command, apps: &AppValues, words: &'a [String]) -> Option<(Names, &'a str)> {
    let (last, before) = words.split_last()?;
    let (mut command, mut positional, mut option) = (root, 0, None);
    for word in before {
        if option.take().is_some() {
            continue;
        }
        if word == "--" {
            return None;
        }
        if word.starts_with('-') {
            option = find_option(root, command, word).filter(|arg| arg.get_action().takes_values());
        } else if let Some(verb) = command.find_subcommand(word) {
            (command, positional) = (verb, 0);
        } else {
            positional += 1;
        }
    }
    let arg = match option {
        Some(arg) => arg,
        None if last.starts_with('-') => return None,
        None => nth_positional(command, positional)?,
    };
    let verb = before.iter().find(|word| root.find_subcommand(word).is_some())?;
    let arg = arg.get_id().as_str();
    let of_app = apps.iter().find(|(name, values)| name == verb && values.argument == arg);
    let names = of_app.map(|(_, values)| Names::Listed(*values)).or_else(|| names_of(verb, arg));
    Some((names?, last))
}

/// Returns the option of a word whose value is the next word.
fn find_option<'a>(root: &'a Command, command: &'a Command, word: &str) -> Option<&'a Arg> {
    let has_name = |arg: &&Arg| match word.strip_prefix("--") {
        Some(long) => arg.get_long() == Some(long),
        None => arg.get_short().is_some_and(|short| word.ends_with(short)),
    };
    // Global options belong to the root.
    command.get_arguments().chain(root.get_arguments()).find(has_name)
}

/// Returns a positional argument. The last one may have several values.
fn nth_positional(command: &Command, n: usize) -> Option<&Arg> {
    let several = |arg: &&Arg| arg.get_num_args().is_some_and(|range| range.max_values() > 1);
    let last = || command.get_positionals().last().filter(several);
    command.get_positionals().nth(n).filter(|arg| !arg.is_last_set()).or_else(last)
}

/// Returns which names an argument of a verb takes.
fn names_of(verb: &str, arg: &str) -> Option<Names> {
    Some(match (verb, arg) {
        (_, "kind") => Names::Kinds,
        (_, "resource") => Names::Resources,
        ("exec" | "lock", "lock" | "locks") | ("elect", "election") => Names::Locks,
        ("job" | "dead", "id" | "ids") => Names::Jobs,
        ("why", "subject") => Names::ResourcesAndJobs,
        ("key", "id") => Names::Keys,
        _ => return None,
    })
}

/// Address, key and tenant of a command line that is not complete yet.
#[derive(Parser)]
struct PartialLine {
    #[command(flatten)]
    server: ServerArgs,
}

fn server_args(words: &[String]) -> Option<ServerArgs> {
    const OPTIONS: [&str; 4] = ["--server", "--key", "--tenant", "--data"];
    let pairs = words.windows(2).filter(|pair| OPTIONS.contains(&&*pair[0])).flatten();
    let line = std::iter::once("tenure").chain(pairs.map(String::as_str));
    PartialLine::try_parse_from(line).ok().map(|line| line.server)
}

async fn fetch_names(server: &ServerArgs, names: Names, prefix: &str) -> BTreeSet<String> {
    let transport = match names {
        Names::Keys => server.transport_to_all(),
        _ => server.transport(),
    };
    let Ok(transport) = transport else { return BTreeSet::new() };
    let (kinds, keys, jobs) = ("/v1/kinds", "/v1/keys", "/v1/jobs");
    match names {
        Names::Resources => resources(&transport, prefix, false).await,
        Names::Locks => resources(&transport, prefix, true).await,
        Names::Jobs => list(&transport, jobs, None, |job: JobInfo| job.id.to_string()).await,
        Names::ResourcesAndJobs => {
            let resources = resources(&transport, prefix, false);
            let jobs = list(&transport, jobs, None, |job: JobInfo| job.id.to_string());
            let (resources, jobs) = tokio::join!(resources, jobs);
            &resources | &jobs
        }
        Names::Kinds => list(&transport, kinds, None, |kind: KindInfo| kind.name).await,
        Names::Keys => list(&transport, keys, None, |key: KeyInfo| key.id).await,
        Names::Listed(values) => listed(&transport, values).await,
    }
}

/// Returns `KIND/NAME` of resources and of held locks, the latter with `#LOCK` if `with_lock`.
async fn resources(transport: &HttpTransport, prefix: &str, with_lock: bool) -> BTreeSet<String> {
    // One page of a kind is more likely to be complete.
    let kind = prefix.split_once('/').map(|(kind, _)| kind);
    let name = |one: ResourceInfo| format!("{}/{}", one.kind, one.name);
    let path = |tenure: TenureInfo| match tenure.lock.split_once('#') {
        Some((resource, _)) if !with_lock => resource.to_owned(),
        _ => tenure.lock,
    };
    let resources = list(transport, "/v1/resources", kind, name);
    let (resources, locks) = tokio::join!(resources, list(transport, "/v1/locks", kind, path));
    &resources | &locks
}

/// Returns the values that an app lists; none if they cannot be read.
async fn listed(transport: &HttpTransport, values: ListedValues) -> BTreeSet<String> {
    let page: Result<ListResponse<Value>, _> = transport.get(values.list).await;
    let items = page.map(|page| page.items).unwrap_or_default();
    items.iter().filter_map(|item| item[values.field].as_str()).map(str::to_owned).collect()
}

/// Returns the names in the first page of a list; none if it cannot be read.
async fn list<T: DeserializeOwned>(
    transport: &HttpTransport,
    path: &str,
    kind: Option<&str>,
    name: impl Fn(T) -> String,
) -> BTreeSet<String> {
    let parts = [("kind", kind.map(str::to_owned)), ("limit", Some(ITEMS_MAX.to_string()))];
    let page: Result<ListResponse<T>, _> = transport.get(&query(path, &parts)).await;
    page.map(|page| page.items.into_iter().map(name).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_expected_names_follow_from_the_words_before() {
        let mut command = super::super::command();
        command.build();
        // A verb of an app, which names its own arguments.
        let runs = ListedValues { argument: "run", list: "/runs", field: "id" };
        let verb = Command::new("app").subcommand(Command::new("show").arg(Arg::new("run")));
        let (mut command, apps) = (command.subcommand(verb), [("app".to_owned(), runs)]);
        command.build();
        for (line, names) in [
            ("exec ", Some(Names::Locks)),
            ("exec --wait 5s clus", Some(Names::Locks)),
            ("exec cluster/c1 -- ", None),
            ("elect ", Some(Names::Locks)),
            ("lock acquire cluster/c1 ", Some(Names::Locks)),
            ("lock show ", Some(Names::Resources)),
            ("lock ls --kind ", Some(Names::Kinds)),
            ("lock ls --kind=re", Some(Names::Kinds)),
            ("--server=http://127.0.0.1:1 lock show ", Some(Names::Resources)),
            ("lock ls --holder ", None),
            ("-o json job show 01a1", Some(Names::Jobs)),
            ("job show -f ", Some(Names::Jobs)),
            ("job show -", None),
            ("job submit ", Some(Names::Resources)),
            ("job submit report/r1 ", None),
            ("dead redrive 01a1 ", Some(Names::Jobs)),
            ("--tenant acme why ", Some(Names::ResourcesAndJobs)),
            ("key revoke ", Some(Names::Keys)),
            ("key create --name ", None),
            ("app show ", Some(Names::Listed(runs))),
            ("app ", None),
            ("job ", None),
            ("", None),
        ] {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let (words, _) = separate_values(&words);
            assert_eq!(
                expected(&command, &apps, &words).map(|(names, _)| names),
                names,
                "{line:?}"
            );
        }
    }
}

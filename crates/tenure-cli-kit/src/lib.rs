//! Shared parts of the verbs of the command line: server discovery, output, exit codes, tables,
//! logs, following a job until it finishes.
//!
//! Data goes to stdout, messages to stderr; `-o json` prints data for programs; exit codes are part
//! of the contract ([`exit`]). The CLI, the benchmarks and the verbs of apps depend on this crate,
//! which must not depend on any of them.

pub mod bars;
pub mod check;
pub mod clock;
pub mod color;
mod config_file;
pub mod document;
pub mod exit;
pub mod follow;
pub mod hint;
mod id;
pub mod listing;
pub mod log_text;
pub mod message;
mod option_names;
mod output;
mod problem;
mod server_args;
pub mod status_line;
pub mod store;
mod table;
#[cfg(test)]
mod testing;
pub mod text;
mod verb;

pub use config_file::ConfigFile;
pub use id::{JobArg, resolve_key};
pub use output::{Output, print_json};
pub use server_args::{ADMIN_KEY_FILE, DEFAULT_LISTEN, DataDir, ServerArgs, process_name};
pub use verb::{CliContext, Done, ListedValues, ParsedVerb, RunVerb, Verb};

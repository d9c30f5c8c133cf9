//! Verbs added to the command line at run time: those of apps, and benchmarks.

use std::marker::PhantomData;
use std::process::ExitCode;

use async_trait::async_trait;
use clap::{ArgMatches, FromArgMatches};

use crate::{Output, ServerArgs};

/// Result of a verb: an exit code, or an error that [`exit::report`](crate::exit::report) prints.
pub type Done = anyhow::Result<ExitCode>;

/// The options that all verbs share.
#[derive(Clone, Debug)]
pub struct CliContext {
    /// Address and key of the server.
    pub server: ServerArgs,
    /// The form in which data is printed.
    pub output: Output,
}

/// Values of an argument that only the server knows, for the completion of shells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedValues {
    /// Id of the argument.
    pub argument: &'static str,
    /// Route that lists them.
    pub list: &'static str,
    /// Field of an item of the list.
    pub field: &'static str,
}

/// A verb of the command line.
#[async_trait(?Send)]
pub trait Verb {
    /// Returns its name, arguments and help.
    fn command(&self) -> clap::Command;

    /// Returns an example for `tenure --help`: the command line and what it does.
    fn example(&self) -> Option<(&'static str, &'static str)> {
        None
    }

    /// Returns the arguments, also those of its subcommands, whose values the server lists.
    fn listed_values(&self) -> &'static [ListedValues] {
        &[]
    }

    /// Runs it with the parsed arguments of [`Verb::command`].
    async fn run(&self, matches: &ArgMatches, cx: &CliContext) -> Done;
}

/// Arguments that were parsed by clap, ready to run.
#[async_trait(?Send)]
pub trait RunVerb: FromArgMatches {
    /// Runs the verb.
    async fn run(&self, cx: &CliContext) -> Done;
}

/// A [`Verb`] whose arguments are a type derived with clap.
pub struct ParsedVerb<T> {
    command: fn() -> clap::Command,
    example: Option<(&'static str, &'static str)>,
    listed_values: &'static [ListedValues],
    arguments: PhantomData<T>,
}

impl<T: RunVerb> ParsedVerb<T> {
    /// Creates a verb whose arguments `command` describes and `T` parses.
    #[must_use]
    pub fn new(command: fn() -> clap::Command) -> Self {
        Self { command, example: None, listed_values: &[], arguments: PhantomData }
    }

    /// Adds an example to `tenure --help`.
    #[must_use]
    pub fn example(mut self, command: &'static str, meaning: &'static str) -> Self {
        self.example = Some((command, meaning));
        self
    }

    /// Adds arguments whose values the server lists.
    #[must_use]
    pub fn listed_values(mut self, values: &'static [ListedValues]) -> Self {
        self.listed_values = values;
        self
    }
}

#[async_trait(?Send)]
impl<T: RunVerb> Verb for ParsedVerb<T> {
    fn command(&self) -> clap::Command {
        (self.command)()
    }

    fn example(&self) -> Option<(&'static str, &'static str)> {
        self.example
    }

    fn listed_values(&self) -> &'static [ListedValues] {
        self.listed_values
    }

    async fn run(&self, matches: &ArgMatches, cx: &CliContext) -> Done {
        match T::from_arg_matches(matches) {
            Ok(arguments) => arguments.run(cx).await,
            Err(error) => error.exit(),
        }
    }
}

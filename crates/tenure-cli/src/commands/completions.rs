//! `tenure completions`

use std::process::ExitCode;

use clap::Args;
use clap_complete::Shell;

use tenure_cli_kit::Done;

/// Print a completion script for a shell
///
/// Redirect it into a file in the completion directory of the shell.
#[derive(Args)]
pub(super) struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub(super) fn run(&self) -> Done {
        clap_complete::generate(
            self.shell,
            &mut super::command(),
            "tenure",
            &mut std::io::stdout(),
        );
        Ok(ExitCode::SUCCESS)
    }
}

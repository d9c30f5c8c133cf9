//! `tenure verify`: offline proof of mutual exclusion from the history.

use std::process::ExitCode;

use clap::Args;
use tenure_wire::VerifyResponse;

use tenure_cli_kit::ServerArgs;
use tenure_cli_kit::color::Tone;
use tenure_cli_kit::exit;
use tenure_cli_kit::{Done, Output, print_json};

/// Prove from the history that every lock had at most one holder at a time
///
/// Reads the whole history, checks its hash chains, replays every grant and end, and compares the
/// result with the current locks. Exits with 1 and prints a counterexample if the proof fails.
#[derive(Args)]
pub(super) struct Verify {}

impl Verify {
    pub(super) async fn run(&self, server: &ServerArgs, output: Output) -> Done {
        let answer: VerifyResponse = server.transport()?.get("/v1/verify").await?;
        match output {
            Output::Json => print_json(&answer)?,
            Output::Table => print(&answer),
        }
        Ok(if answer.ok { ExitCode::SUCCESS } else { ExitCode::from(exit::FAILED) })
    }
}

fn print(answer: &VerifyResponse) {
    let VerifyResponse { resources, entries, grants, .. } = answer;
    for problem in &answer.problems {
        anstream::println!("{}", Tone::Bad.paint(problem));
    }
    let verdict = if answer.ok {
        Tone::Good.paint("every lock had at most one holder at a time, and tokens only rose")
    } else {
        Tone::Bad.paint("THE HISTORY CONTRADICTS ITSELF")
    };
    anstream::println!("{entries} entries of {resources} resources, {grants} tenures: {verdict}");
}

//! `tenure top`: the status, redrawn until interrupted.

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use super::status;
use tenure_cli_kit::document::usage_error;
use tenure_cli_kit::message::describe;
use tenure_cli_kit::{Done, ServerArgs, color};

/// Interval between two draws.
const INTERVAL: Duration = Duration::from_secs(2);

/// Show what `tenure status` shows, redrawn every two seconds until Ctrl-C
#[derive(Args)]
pub(super) struct Top {}

/// The alternate screen of the terminal, without a cursor. Dropping it restores the terminal.
struct AlternateScreen;

impl AlternateScreen {
    fn open() -> io::Result<Self> {
        write(b"\x1b[?1049h\x1b[?25l").map(|()| Self)
    }
}

impl Drop for AlternateScreen {
    fn drop(&mut self) {
        write(b"\x1b[?25h\x1b[?1049l").ok();
    }
}

/// Replaces what is on the screen.
fn show(text: &str) -> io::Result<()> {
    let text = if color::is_on_stdout() { text.to_owned() } else { color::strip(text) };
    write(format!("\x1b[H\x1b[J{}", text.replace('\n', "\r\n")).as_bytes())
}

fn write(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

impl Top {
    pub(super) async fn run(&self, server: &ServerArgs) -> Done {
        if !io::stdout().is_terminal() {
            let why = "`tenure top` needs a terminal; use `tenure status` for other outputs";
            return Err(usage_error(why.to_owned()));
        }
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        // The first answer decides whether there is something to show.
        let mut text = status::fetch_text(server).await?;
        let _screen = AlternateScreen::open()?;
        loop {
            show(&text)?;
            let next = async {
                tokio::time::sleep(INTERVAL).await;
                status::fetch_text(server).await
            };
            tokio::select! {
                fetched = next => text = fetched.unwrap_or_else(|error| describe(&error)),
                _ = interrupt.recv() => return Ok(ExitCode::SUCCESS),
                _ = terminate.recv() => return Ok(ExitCode::SUCCESS),
            }
        }
    }
}

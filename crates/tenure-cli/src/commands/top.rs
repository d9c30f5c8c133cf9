//! `tenure top`: the status, redrawn until interrupted.

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use rustix::process;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::status;
use tenure_cli_kit::document::usage_error;
use tenure_cli_kit::message::describe;
use tenure_cli_kit::status_line::fit_to_screen;
use tenure_cli_kit::{Done, Output, ServerArgs, color};

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
    let text = fit_to_screen(&text);
    write(format!("\x1b[H\x1b[J{}", text.replace('\n', "\r\n")).as_bytes())
}

fn write(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

/// The signals that end the display.
struct ExitSignals([Signal; 3]);

impl ExitSignals {
    fn listen() -> io::Result<Self> {
        let [interrupt, terminate, quit] =
            [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::quit()].map(signal);
        Ok(Self([interrupt?, terminate?, quit?]))
    }

    async fn recv(&mut self) {
        let [interrupt, terminate, quit] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = quit.recv() => {}
        }
    }
}

/// Stops this process, as Ctrl-Z does with processes that do not catch its signal, and returns when
/// the process is continued.
async fn stop() -> io::Result<()> {
    let mut continued = signal(SignalKind::from_raw(process::Signal::CONT.as_raw()))?;
    process::kill_process(process::getpid(), process::Signal::STOP)?;
    continued.recv().await;
    Ok(())
}

impl Top {
    pub(super) async fn run(&self, server: &ServerArgs, output: Output) -> Done {
        if output == Output::Json {
            let why = "`tenure top` is for people; use `tenure status -o json`";
            return Err(usage_error(why.to_owned()));
        }
        if !io::stdout().is_terminal() {
            let why = "`tenure top` needs a terminal; use `tenure status` for other outputs";
            return Err(usage_error(why.to_owned()));
        }
        let mut exit = ExitSignals::listen()?;
        // The first answer decides whether there is something to show.
        let mut text = tokio::select! {
            text = status::fetch_text(server) => text?,
            () = exit.recv() => return Ok(ExitCode::SUCCESS),
        };
        let mut suspend = signal(SignalKind::from_raw(process::Signal::TSTP.as_raw()))?;
        let mut screen = AlternateScreen::open()?;
        loop {
            show(&text)?;
            let next = async {
                tokio::time::sleep(INTERVAL).await;
                status::fetch_text(server).await
            };
            tokio::select! {
                fetched = next => text = fetched.unwrap_or_else(|error| describe(&error)),
                () = exit.recv() => return Ok(ExitCode::SUCCESS),
                _ = suspend.recv() => {
                    drop(screen);
                    stop().await?;
                    screen = AlternateScreen::open()?;
                }
            }
        }
    }
}

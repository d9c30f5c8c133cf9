//! Runs seeds of the simulation: `sim --seed S [--trace]` or `sim --seeds N [--from S]`.

use std::process::ExitCode;

use tenure_sim::{Stats, run};

const USAGE: &str = "usage: sim --seed S [--trace] | sim --seeds N [--from S]";

/// Command-line arguments.
struct Args {
    from: u64,
    seeds: u64,
    trace: bool,
}

fn main() -> ExitCode {
    match parse(std::env::args().skip(1)) {
        Ok(args) => simulate(&args),
        Err(why) => {
            eprintln!("{why}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Args, String> {
    let mut args = Args { from: 0, seeds: 0, trace: false };
    while let Some(word) = words.next() {
        let mut number = || -> Result<u64, String> {
            let value = words.next().ok_or_else(|| format!("{word} needs a number"))?;
            value.parse().map_err(|_| format!("{value:?} is not a number"))
        };
        match word.as_str() {
            "--seed" => (args.from, args.seeds) = (number()?, 1),
            "--seeds" => args.seeds = number()?,
            "--from" => args.from = number()?,
            "--trace" => args.trace = true,
            other => return Err(format!("unknown argument {other:?}")),
        }
    }
    if args.seeds == 0 { Err("no seeds to run".to_owned()) } else { Ok(args) }
}

fn simulate(args: &Args) -> ExitCode {
    let mut total = Stats::default();
    for seed in args.from..args.from + args.seeds {
        match run(seed, args.trace) {
            Ok(stats) => total += stats,
            Err(violation) => {
                println!("{violation}");
                return ExitCode::FAILURE;
            }
        }
    }
    let (from, seeds) = (args.from, args.seeds);
    println!("{seeds} seeds from {from}, {total}: 0 violations");
    if args.trace {
        println!("{total:#?}");
    }
    ExitCode::SUCCESS
}

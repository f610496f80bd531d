// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line of `met`.
//!
//! One table ([`table`]) holds every command and flag; parser, help, completions and the reference page are made from it.
//! A command takes its values and the [`Machine`]; it writes through the
//! machine's [`Console`] and ends with an [`Exit`] status.

mod again;
mod bench;
mod circuit;
mod console;
mod doctor;
mod exit;
pub mod flags;
mod log;
mod machine;
mod model;
mod options;
pub mod page;
mod parser;
mod pull;
mod run;
mod serve;
mod serve_args;
mod show;
mod signals;
pub mod table;
mod verify;

use std::ffi::OsString;
use std::io;
use std::sync::Arc;

use clap::ArgMatches;

pub use self::console::Console;
pub use self::exit::{Exit, Failure, OrExit};
pub use self::machine::Machine;
pub use self::model::{Located, Model};
pub use self::parser::{Values, clap_command};

/// Runs a command line (its first word is the program's name) and gives the exit status.
pub fn main(
    arguments: impl IntoIterator<Item = OsString>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    console: Console,
) -> Exit {
    let matches = match clap_command().try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(e) if e.use_stderr() => {
            console.error(e.render().to_string().trim_end());
            return Exit::Usage;
        }
        // Help and version are answers.
        Err(e) => {
            return status(
                &console,
                console
                    .print(&e.render().to_string())
                    .map_err(Failure::from),
            );
        }
    };
    let console = Arc::new(console);
    let machine = match Machine::new(environment, Arc::clone(&console)) {
        Ok(machine) => Arc::new(machine),
        Err(failure) => return status(&console, Err(failure)),
    };
    let result = dispatch(&matches, &machine);
    status(&console, result)
}

fn dispatch(matches: &ArgMatches, machine: &Arc<Machine>) -> Result<(), Failure> {
    // clap has checked that there is a command of the table.
    let Some((name, matches)) = matches.subcommand() else {
        return Err(Failure::told(Exit::Usage));
    };
    let values = Values(matches);
    match name {
        "serve" => serve::serve(&values, machine),
        "run" => run::run(&values, machine),
        "pull" => pull::pull(&values, machine),
        "list" => pull::list(machine),
        "show" => show::show(&values, machine),
        "doctor" => doctor::doctor(&values, machine),
        "verify" => verify::verify(&values, machine),
        "bench" => match matches.subcommand() {
            Some((_, m)) => bench::start(&Values(m), machine),
            None => bench::bench(&values, machine),
        },
        "completions" => completions(&values, machine),
        "circuit" => match matches.subcommand() {
            Some(("show", m)) => circuit::show(&Values(m), machine),
            Some(("plan", m)) => circuit::plan(&Values(m), machine),
            Some(("memory", m)) => circuit::memory(&Values(m), machine),
            _ => Err(Failure::told(Exit::Usage)),
        },
        other => Err(Failure::text(
            Exit::Failed,
            format!("the command {other} has no code"),
        )),
    }
}

fn completions(values: &Values<'_>, machine: &Machine) -> Result<(), Failure> {
    let name = values.text("SHELL").unwrap_or_default();
    let shell: clap_complete::Shell = name.parse().map_err(|_| {
        Failure::text(
            Exit::Usage,
            format!("no completions for `{name}`: bash, zsh, fish, elvish, powershell"),
        )
    })?;
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut clap_command(), "met", &mut script);
    machine.console.print(&String::from_utf8_lossy(&script))?;
    Ok(())
}

fn status(console: &Console, result: Result<(), Failure>) -> Exit {
    let Err(failure) = result else {
        return Exit::Done;
    };
    if let Some(why) = &failure.why {
        let gone = why
            .downcast_ref::<io::Error>()
            .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe);
        if gone {
            // Whoever read the output has had enough (`met list | head`).
            return Exit::Done;
        }
        console.error(&format!("met: {}", chain(why)));
    }
    failure.exit
}

/// An error with its causes, each once: many of ours name their cause already.
fn chain(error: &anyhow::Error) -> String {
    let mut out = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !out.contains(&cause) {
            out.push_str(": ");
            out.push_str(&cause);
        }
    }
    out
}

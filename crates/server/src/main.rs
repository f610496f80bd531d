// SPDX-License-Identifier: MIT OR Apache-2.0
//! `met`: the command line of Metrale Engine.

#![forbid(unsafe_code)]

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use metrale_server::cli::{self, Console};

fn main() -> ExitCode {
    // A panic's message may quote a prompt, and prompts are never logged: its place is enough to find it.
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string);
        // Nobody reads a closed standard error.
        let _ = writeln!(
            std::io::stderr(),
            "internal error at {}: this is a fault of met, please report it",
            place.as_deref().unwrap_or("an unknown place")
        );
    }));
    let console = Console::standard(std::io::stderr().is_terminal());
    ExitCode::from(cli::main(std::env::args_os(), std::env::vars_os(), console) as u8)
}

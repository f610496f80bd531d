// SPDX-License-Identifier: MIT OR Apache-2.0
//! `met`: the command line of Metrale Engine.

#![forbid(unsafe_code)]

use std::io::IsTerminal;
use std::process::ExitCode;

use metrale_server::cli::{self, Console};

fn main() -> ExitCode {
    let console = Console::standard(std::io::stderr().is_terminal());
    ExitCode::from(cli::main(std::env::args_os(), std::env::vars_os(), console) as u8)
}

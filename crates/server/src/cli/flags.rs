// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shape of the command line's one table.
//!
//! A command and its flags are data ([`COMMANDS`](super::table::COMMANDS)). From it come the parser, the help, the
//! completions of every shell and the reference page `docs/cli.md`, so that none of them can say something else than
//! another.

use metrale_sampling::Range;

/// What a flag takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Nothing: it is there or not.
    Switch,
    /// Any text.
    Text,
    /// A path.
    Path,
    /// A device: `cpu`, `cuda`, `cuda:N`.
    Device,
    /// A whole number within bounds.
    Count {
        /// Smallest.
        least: u64,
        /// Largest.
        most: u64,
    },
    /// A number within bounds.
    Number {
        /// Smallest.
        least: f64,
        /// Largest.
        most: f64,
    },
    /// A number in the range of a request's sampling field.
    Sampling(Range),
    /// One of these words.
    Choice(&'static [&'static str]),
}

/// A flag.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flag {
    /// Its name, without the dashes.
    pub name: &'static str,
    /// What stands for its value in help; empty for a switch.
    pub value: &'static str,
    /// What it takes.
    pub kind: Kind,
    /// Whether it may be given more than once.
    pub repeats: bool,
    /// What holds without it, in words or as its value; empty if there is nothing to say.
    pub default: &'static str,
    /// What it does, one or two sentences.
    pub help: &'static str,
}

impl Flag {
    /// A flag with a value, given at most once.
    pub(super) const fn new(
        name: &'static str,
        value: &'static str,
        kind: Kind,
        default: &'static str,
        help: &'static str,
    ) -> Self {
        Self {
            name,
            value,
            kind,
            repeats: false,
            default,
            help,
        }
    }

    /// A flag without a value.
    pub(super) const fn switch(name: &'static str, help: &'static str) -> Self {
        Self::new(name, "", Kind::Switch, "", help)
    }

    /// The same flag, allowed more than once.
    pub(super) const fn repeated(self) -> Self {
        Self {
            repeats: true,
            ..self
        }
    }
}

/// Flags under one heading.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// The heading.
    pub heading: &'static str,
    /// The flags.
    pub flags: &'static [Flag],
}

/// A value by position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Argument {
    /// Its name, in capitals.
    pub name: &'static str,
    /// Whether it must be given.
    pub required: bool,
    /// What it is.
    pub help: &'static str,
}

/// A command.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Command {
    /// Its name.
    pub name: &'static str,
    /// What it does, one line.
    pub about: &'static str,
    /// What more is to be known; paragraphs separated by empty lines.
    pub detail: &'static str,
    /// Its values by position.
    pub arguments: &'static [Argument],
    /// Its flags.
    pub groups: &'static [Group],
    /// Its own commands. Without arguments and flags it does nothing by itself.
    pub commands: &'static [Command],
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! How `met` ends.

use std::fmt;

/// Exit statuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Done = 0,
    /// It ran and the result is bad: a mismatch, a failed answer, an error of our own.
    Failed = 1,
    /// The command line or the environment is wrong.
    Usage = 2,
    /// The checkpoint cannot be used.
    Checkpoint = 3,
    /// The model is not there, or could not be fetched.
    NotFound = 4,
    /// The machine stands in the way: memory, port, permissions, a full disk, a GPU.
    Machine = 5,
}

impl Exit {
    /// Every status, for the reference page.
    pub const ALL: [Exit; 6] = [
        Exit::Done,
        Exit::Failed,
        Exit::Usage,
        Exit::Checkpoint,
        Exit::NotFound,
        Exit::Machine,
    ];

    /// What it means, for people.
    pub fn meaning(self) -> &'static str {
        match self {
            Exit::Done => "Done.",
            Exit::Failed => {
                "It ran and the result is bad: a mismatch of `met verify`, a failed answer, or an error of met's own."
            }
            Exit::Usage => "The command line or the environment is wrong.",
            Exit::Checkpoint => "The checkpoint cannot be used.",
            Exit::NotFound => "The model is not there, or no source gave it.",
            Exit::Machine => {
                "The machine stands in the way: memory, a port in use, permissions, a full disk, a GPU that cannot be used."
            }
        }
    }
}

/// A command that did not succeed.
#[derive(Debug)]
pub struct Failure {
    /// The status to end with.
    pub exit: Exit,
    /// Why, with its causes. Empty if all has been said.
    pub why: Option<anyhow::Error>,
}

impl Failure {
    /// With a reason.
    pub fn new(exit: Exit, why: impl Into<anyhow::Error>) -> Self {
        Self {
            exit,
            why: Some(why.into()),
        }
    }

    /// With a reason in words.
    pub fn text(exit: Exit, why: impl fmt::Display) -> Self {
        Self {
            exit,
            why: Some(anyhow::anyhow!("{why}")),
        }
    }

    /// Without one: the command has told it.
    pub fn told(exit: Exit) -> Self {
        Self { exit, why: None }
    }
}

/// An error without a class of its own is a failure of the run.
impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Self {
        Self::new(Exit::Failed, e)
    }
}

/// Gives errors their exit status.
pub trait OrExit<T> {
    /// `exit` if it is an error.
    ///
    /// # Errors
    /// The error, as a [`Failure`].
    fn or_exit(self, exit: Exit) -> Result<T, Failure>;
}

impl<T, E: Into<anyhow::Error>> OrExit<T> for Result<T, E> {
    fn or_exit(self, exit: Exit) -> Result<T, Failure> {
        self.map_err(|e| Failure::new(exit, e))
    }
}

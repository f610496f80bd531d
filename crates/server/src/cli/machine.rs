// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a command knows of the machine it runs on: environment, folders, terminal. Taken once, at the start.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use metrale_config::Levers;

use super::console::Console;
use super::exit::{Exit, Failure, OrExit};
use crate::hub::{Hub, HubOptions};
use crate::recipe::Pip;

/// The machine as a command sees it.
#[derive(Debug)]
pub struct Machine {
    variables: BTreeMap<String, String>,
    /// The checked `METRALE_*` variables.
    pub levers: Levers,
    /// Where output goes.
    pub console: Arc<Console>,
    /// How pip is called.
    pub pip: Pip,
}

impl Machine {
    /// Checks the environment.
    ///
    /// # Errors
    /// A [`Failure`] of use for a `METRALE_*` variable that is unknown or has a wrong value.
    pub fn new(
        environment: impl IntoIterator<Item = (OsString, OsString)>,
        console: Arc<Console>,
    ) -> Result<Self, Failure> {
        let environment: Vec<(OsString, OsString)> = environment.into_iter().collect();
        let levers = Levers::from_env(environment.iter().cloned()).or_exit(Exit::Usage)?;
        let text = |(name, value): (OsString, OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        let variables = environment.into_iter().filter_map(text).collect();
        Ok(Self {
            variables,
            levers,
            console,
            pip: Pip::default(),
        })
    }

    /// An environment variable, if it is set and not empty.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.variables
            .get(name)
            .map(String::as_str)
            .filter(|v| !v.is_empty())
    }

    /// Folder for downloads and state: `METRALE_HOME`, or `metrale` in the user's cache folder.
    pub fn home(&self) -> PathBuf {
        if let Some(home) = self.levers.home() {
            return home.to_owned();
        }
        let cache = self.variable("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = cache.or_else(|| self.variable("HOME").map(|h| Path::new(h).join(".cache")));
        cache
            .unwrap_or_else(|| PathBuf::from(".cache"))
            .join("metrale")
    }

    /// The hub's client settings.
    pub fn hub_options(&self) -> HubOptions {
        HubOptions::from_env(
            |name| self.variables.get(name).cloned(),
            self.levers.offline(),
        )
    }

    /// The hub.
    ///
    /// # Errors
    /// A [`Failure`] of use if `HF_ENDPOINT` or `SSL_CERT_FILE` cannot be used.
    pub fn hub(&self) -> Result<Hub, Failure> {
        Hub::new(self.hub_options()).or_exit(Exit::Usage)
    }
}

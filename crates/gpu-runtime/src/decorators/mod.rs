// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decorators: backends around a backend.
//!
//! - [`Recording`] keeps a log of every call and can replay it on another backend.
//! - [`Checked`] finds kernels that write where they must not, or read what was never written.
//! - [`Faulty`] runs out of memory, hangs or loses the device where it is told to.

mod checked;
mod faulty;
mod recording;
mod replay;

pub use checked::Checked;
pub use faulty::Faulty;
pub use recording::{Call, Recording};
pub use replay::{Divergence, replay};

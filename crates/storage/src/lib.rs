// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tiers for host bytes: where what leaves a device is kept, and found again.
//!
//! Three layers, each usable alone. A [`SlotArena`] is memory in slots of equal size, reserved once ([`Slots`] alone where the
//! memory is a device's). A [`SwapStore`] keeps
//! pages in one, each with a checksum that is compared before a byte of it is used again. A [`Residency`] says which keys
//! have a page and which was used longest ago. Nothing here knows a device, a model or a clock: bytes are given and taken,
//! and whether bringing them back is worth it is the caller's to measure ([`Rate`]).
//!
//! ```
//! use metrale_storage::{Residency, SwapStore};
//!
//! let mut store = SwapStore::new(2, 4).unwrap();
//! let mut kept: Residency<&str, _> = Residency::default();
//! let page = store.put(|bytes| bytes.copy_from_slice(b"abcd")).unwrap();
//! kept.insert("a", page);
//! assert_eq!(store.get(*kept.get(&"a").unwrap()).unwrap(), b"abcd");
//! ```

#![forbid(unsafe_code)]

mod arena;
mod checksum;
mod rate;
mod residency;
mod store;

pub use arena::{ArenaError, Slot, SlotArena, Slots};
pub use checksum::checksum;
pub use rate::Rate;
pub use residency::Residency;
pub use store::{Corrupt, Page, SwapStore};

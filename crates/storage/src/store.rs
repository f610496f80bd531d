// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pages with checksums.

use crate::arena::{ArenaError, Slot, SlotArena};
use crate::checksum::checksum;

/// A page that a [`SwapStore`] keeps. It is given back by [`SwapStore::drop_page`]; one that is only forgotten stays taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    slot: Slot,
    sum: u64,
}

/// A page does not hold what was put into it: memory is at fault, or ourselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a page of {bytes} bytes in host memory has checksum {is:016x} and was stored with {was:016x}: it is not used"
)]
pub struct Corrupt {
    /// Bytes of the page.
    pub bytes: usize,
    /// Sum when it was put.
    pub was: u64,
    /// Sum now.
    pub is: u64,
}

/// Keeps pages of equal size in a [`SlotArena`].
pub struct SwapStore {
    arena: SlotArena,
}

impl SwapStore {
    /// Room for `pages` pages of `page_bytes` bytes.
    ///
    /// # Errors
    /// [`ArenaError`].
    pub fn new(pages: u32, page_bytes: usize) -> Result<SwapStore, ArenaError> {
        Ok(SwapStore {
            arena: SlotArena::new(pages, page_bytes)?,
        })
    }

    /// Puts what `fill` writes. `None`: all pages are taken.
    pub fn put(&mut self, fill: impl FnOnce(&mut [u8])) -> Option<Page> {
        self.try_put(|bytes| {
            fill(bytes);
            Ok::<(), std::convert::Infallible>(())
        })
        .map(|page| match page {
            Ok(page) => page,
            Err(never) => match never {},
        })
    }

    /// As [`SwapStore::put`], where filling may fail: then nothing is kept.
    pub fn try_put<E>(
        &mut self,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Option<Result<Page, E>> {
        let slot = self.arena.take()?;
        if let Err(e) = fill(self.arena.bytes_mut(slot)) {
            self.arena.give_back(slot);
            return Some(Err(e));
        }
        let sum = checksum(self.arena.bytes(slot));
        Some(Ok(Page { slot, sum }))
    }

    /// The bytes of a page, compared with their checksum.
    ///
    /// # Errors
    /// [`Corrupt`]; the page is still to be given back.
    pub fn get(&self, page: Page) -> Result<&[u8], Corrupt> {
        let bytes = self.arena.bytes(page.slot);
        let is = checksum(bytes);
        match is == page.sum {
            true => Ok(bytes),
            false => Err(Corrupt {
                bytes: bytes.len(),
                was: page.sum,
                is,
            }),
        }
    }

    /// Forgets a page.
    pub fn drop_page(&mut self, page: Page) {
        self.arena.give_back(page.slot);
    }

    /// Pages in all.
    #[must_use]
    pub fn pages(&self) -> u32 {
        self.arena.slots()
    }

    /// Pages that are taken.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.arena.used()
    }

    /// Bytes of a page.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.arena.slot_bytes()
    }

    /// The bytes of a page, to be spoilt: for tests of what happens then.
    pub fn raw(&mut self, page: Page) -> &mut [u8] {
        self.arena.bytes_mut(page.slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bit_that_flips_is_noticed_and_the_page_can_be_used_again() {
        let mut store = SwapStore::new(1, 40).unwrap();
        let page = store.put(|b| b.fill(7)).unwrap();
        assert_eq!(store.get(page).unwrap(), [7; 40]);
        assert!(store.put(|_| {}).is_none(), "it is full");
        store.raw(page)[33] ^= 4;
        let error = store.get(page).unwrap_err();
        assert_eq!((error.bytes, error.was == error.is), (40, false));
        store.drop_page(page);
        assert_eq!(store.used(), 0);
        let page = store.put(|b| b.fill(9)).unwrap();
        assert_eq!(store.get(page).unwrap(), [9; 40]);
    }

    #[test]
    fn what_could_not_be_filled_is_not_kept() {
        let mut store = SwapStore::new(1, 8).unwrap();
        assert_eq!(store.try_put(|_| Err("device")), Some(Err("device")));
        assert_eq!(store.used(), 0);
    }
}

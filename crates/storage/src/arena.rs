// SPDX-License-Identifier: MIT OR Apache-2.0
//! Slots of equal size, and memory in them.

/// A slot of a [`SlotArena`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot(u32);

impl Slot {
    /// Its number, from 0.
    #[must_use]
    pub fn index(self) -> u32 {
        self.0
    }
}

/// Which slots are taken, of memory that lies elsewhere.
pub struct Slots {
    slot_bytes: usize,
    /// Given back; the last one is handed out first, while it is warm.
    free: Vec<Slot>,
    /// Slots from here on were never handed out.
    fresh: u32,
    slots: u32,
}

/// Memory in slots of equal size, reserved once; the system backs it as slots are written first.
pub struct SlotArena {
    bytes: Vec<u8>,
    slots: Slots,
}

/// The memory cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{slots} slots of {slot_bytes} bytes for evicted KV cannot be reserved: give a smaller size"
)]
pub struct ArenaError {
    /// Slots asked for.
    pub slots: u32,
    /// Bytes of one.
    pub slot_bytes: usize,
}

impl SlotArena {
    /// Reserves `slots` slots of `slot_bytes` bytes.
    ///
    /// # Errors
    /// [`ArenaError`] if the size overflows, is empty in one direction only, or the system refuses.
    pub fn new(slots: u32, slot_bytes: usize) -> Result<SlotArena, ArenaError> {
        let refused = ArenaError { slots, slot_bytes };
        let size = (slots as usize).checked_mul(slot_bytes);
        let size = size.filter(|s| isize::try_from(*s).is_ok());
        let Some(size) = size.filter(|_| slot_bytes > 0) else {
            return Err(refused);
        };
        let mut probe: Vec<u8> = Vec::new();
        if probe.try_reserve_exact(size).is_err() {
            return Err(refused);
        }
        drop(probe);
        Ok(SlotArena {
            // Zeroed by the allocator: the system gives zero pages at their first use.
            bytes: vec![0; size],
            slots: Slots::new(slots, slot_bytes),
        })
    }

    /// A slot that nobody has. `None`: all are taken.
    pub fn take(&mut self) -> Option<Slot> {
        self.slots.take()
    }

    /// Takes a slot back.
    pub fn give_back(&mut self, slot: Slot) {
        self.slots.give_back(slot);
    }

    /// The bytes of a slot.
    #[must_use]
    pub fn bytes(&self, slot: Slot) -> &[u8] {
        let bytes = self.slots.slot_bytes;
        let at = slot.0 as usize * bytes;
        &self.bytes[at..at + bytes]
    }

    /// The bytes of a slot.
    pub fn bytes_mut(&mut self, slot: Slot) -> &mut [u8] {
        let bytes = self.slots.slot_bytes;
        let at = slot.0 as usize * bytes;
        &mut self.bytes[at..at + bytes]
    }

    /// Slots in all.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slots.slots()
    }

    /// Slots that are taken.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.slots.used()
    }

    /// Bytes of a slot.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        self.slots.slot_bytes()
    }
}

impl Slots {
    /// `slots` slots of `slot_bytes` bytes, all free.
    #[must_use]
    pub fn new(slots: u32, slot_bytes: usize) -> Slots {
        Slots {
            slot_bytes,
            free: Vec::new(),
            fresh: 0,
            slots,
        }
    }

    /// A slot that nobody has. `None`: all are taken.
    pub fn take(&mut self) -> Option<Slot> {
        self.free.pop().or_else(|| {
            (self.fresh < self.slots).then(|| {
                self.fresh += 1;
                Slot(self.fresh - 1)
            })
        })
    }

    /// Takes a slot back.
    pub fn give_back(&mut self, slot: Slot) {
        debug_assert!(slot.0 < self.fresh && !self.free.contains(&slot));
        self.free.push(slot);
    }

    /// Slots in all.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Slots that are taken.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.fresh - self.free.len() as u32
    }

    /// Bytes of a slot.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_do_not_overlap_and_come_back() {
        let mut arena = SlotArena::new(3, 5).unwrap();
        let slots: Vec<Slot> = std::iter::from_fn(|| arena.take()).collect();
        assert_eq!((slots.len(), arena.used()), (3, 3));
        for (i, slot) in slots.iter().enumerate() {
            arena.bytes_mut(*slot).fill(i as u8 + 1);
        }
        for (i, slot) in slots.iter().enumerate() {
            assert_eq!(arena.bytes(*slot), [i as u8 + 1; 5]);
        }
        arena.give_back(slots[1]);
        assert_eq!((arena.used(), arena.take()), (2, Some(slots[1])));
        assert_eq!(arena.take(), None);
    }

    #[test]
    fn what_cannot_be_reserved_is_refused() {
        for (slots, bytes) in [(u32::MAX, usize::MAX), (u32::MAX, 1 << 40), (1, 0)] {
            let error = SlotArena::new(slots, bytes).err().unwrap();
            assert_eq!((error.slots, error.slot_bytes), (slots, bytes));
        }
        assert_eq!(SlotArena::new(0, 5).unwrap().take(), None);
    }
}

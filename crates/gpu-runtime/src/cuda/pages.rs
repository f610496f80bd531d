// SPDX-License-Identifier: MIT OR Apache-2.0
//! Page-locked pages of KV: a block's part of every span, side by side, copied by a stream of its own.
//!
//! A page goes out in two steps: gathered into a place on the device in the order of the compute stream, where it takes
//! microseconds, and from there over the bus on the copy stream, beside what is computed meanwhile. It comes in the other way
//! round. So compute never waits for the bus but where a page that came in is needed, or all places are in use.
//!
//! Host memory is locked in pieces when a page of one is used first.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use cudarc::driver::sys::{self, CUmemorytype};

use super::arenas::Arenas;
use super::driver::{DeviceMemory, Event, Pinned, Stream, check};
use super::inject::Allocations;
use super::state::{Pause, State};
use crate::error::DeviceFault;

/// Places on the device: pages that may be on their way at once.
const PLACES: usize = 16;
/// Bytes of a piece of host memory, in whole pages.
const PIECE: usize = 64 << 20;
/// The driver's limit of a strided copy.
const MAX_PITCH: u64 = (1 << 31) - 1;

/// The pages of a reservation.
#[derive(Debug)]
pub(super) struct Pages {
    pub(super) arenas: u32,
    parts: Parts,
    pub(super) page_bytes: u64,
    count: u32,
    pieces: Vec<Option<Pinned>>,
    /// Whether the system has refused a piece: it is not asked again.
    refused: bool,
    places: Vec<Place>,
    /// What the places lie in.
    _memory: DeviceMemory,
    next: usize,
    /// The last transfer of each page.
    last: HashMap<u32, u64>,
}

/// Where the parts of a block lie.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Parts {
    /// `count` parts of `bytes` bytes, `pitch` bytes from each to the next: one strided copy.
    Even {
        first: u64,
        pitch: u64,
        bytes: u64,
        count: u64,
    },
    /// Address of block 0 and bytes of a block.
    Any(Vec<(u64, u64)>),
}

impl Parts {
    fn new(parts: Vec<(u64, u64)>) -> Parts {
        let even = || {
            let ((first, bytes), (second, _)) = (*parts.first()?, *parts.get(1)?);
            let pitch = second.checked_sub(first)?;
            let same = |(i, part): (usize, &(u64, u64))| {
                *part == (first + i as u64 * pitch, bytes) && bytes <= pitch
            };
            let even = pitch <= MAX_PITCH && parts.iter().enumerate().all(same);
            even.then_some(Parts::Even {
                first,
                pitch,
                bytes,
                count: parts.len() as u64,
            })
        };
        even().unwrap_or(Parts::Any(parts))
    }

    /// Copies a block to or from `place`, where its parts lie side by side.
    fn copy(&self, block: u64, place: u64, out: bool, stream: &Stream) -> Result<(), DeviceFault> {
        match self {
            Parts::Even {
                first,
                pitch,
                bytes,
                count,
            } => {
                let spread = (first + block * bytes, *pitch);
                let packed = (place, *bytes);
                let (src, dst) = if out {
                    (spread, packed)
                } else {
                    (packed, spread)
                };
                strided(src, dst, *bytes, *count, stream)
            }
            Parts::Any(parts) => {
                let mut at = place;
                for (first, bytes) in parts {
                    let part = first + block * bytes;
                    let (src, dst) = if out { (part, at) } else { (at, part) };
                    // SAFETY: the block lies inside its span, as the caller has checked, and the place holds a page.
                    check("gathering a page", unsafe {
                        sys::cuMemcpyDtoDAsync_v2(dst, src, *bytes as usize, stream.0)
                    })?;
                    at += bytes;
                }
                Ok(())
            }
        }
    }
}

fn strided(
    src: (u64, u64),
    dst: (u64, u64),
    width: u64,
    height: u64,
    stream: &Stream,
) -> Result<(), DeviceFault> {
    let copy = sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcHost: std::ptr::null(),
        srcDevice: src.0,
        srcArray: std::ptr::null_mut(),
        srcPitch: src.1 as usize,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstHost: std::ptr::null_mut(),
        dstDevice: dst.0,
        dstArray: std::ptr::null_mut(),
        dstPitch: dst.1 as usize,
        WidthInBytes: width as usize,
        Height: height as usize,
    };
    // SAFETY: the rows lie inside their spans and the place holds a page, as the caller has checked.
    check("gathering a page", unsafe {
        sys::cuMemcpy2DAsync_v2(&copy, stream.0)
    })
}

/// A place on the device.
#[derive(Debug)]
struct Place {
    at: u64,
    /// Both its streams have passed this when it is free.
    free: Event,
    /// Its page is gathered.
    ready: Event,
}

impl Pages {
    /// `spans`: bytes of a block in each span of `arenas`, with the span.
    pub(super) fn new(
        id: u32,
        arenas: &Arenas,
        spans: &[(metrale_core::SpanId, u64)],
        count: u32,
        stream: &Stream,
        allocations: &Allocations,
    ) -> Result<Pages, DeviceFault> {
        let parts = spans.iter().map(|(span, bytes)| {
            let address = arenas.address(*span);
            let address =
                address.ok_or_else(|| DeviceFault::rejected("a page of an unknown span"))?;
            Ok((address, *bytes))
        });
        let parts = parts.collect::<Result<Vec<_>, DeviceFault>>()?;
        let page_bytes: u64 = spans.iter().map(|s| s.1).sum();
        let memory = DeviceMemory::new(page_bytes * PLACES as u64, stream, allocations)?;
        let places = (0..PLACES as u64).map(|i| {
            Ok(Place {
                at: memory.at + i * page_bytes,
                free: Event::new()?,
                ready: Event::new()?,
            })
        });
        let places = places.collect::<Result<Vec<_>, DeviceFault>>()?;
        let of_piece = pages_of_piece(page_bytes);
        Ok(Pages {
            arenas: id,
            parts: Parts::new(parts),
            page_bytes,
            count,
            pieces: (0..count.div_ceil(of_piece)).map(|_| None).collect(),
            refused: false,
            places,
            _memory: memory,
            next: 0,
            last: HashMap::new(),
        })
    }

    /// The host memory of a page: its piece, and the first byte in it. Locks the piece if it is not there yet.
    fn piece(
        &mut self,
        page: u32,
        allocations: &Allocations,
    ) -> Result<(&mut Pinned, usize), DeviceFault> {
        if page >= self.count {
            return Err(DeviceFault::rejected(format!(
                "page {page} of {}",
                self.count
            )));
        }
        let of_piece = pages_of_piece(self.page_bytes);
        let (index, at) = ((page / of_piece) as usize, page % of_piece);
        let bytes = self.page_bytes as usize;
        if self.pieces[index].is_none() {
            if self.refused {
                let what = "the system has refused more page-locked memory";
                return Err(DeviceFault::rejected(what));
            }
            let left = self.count - index as u32 * of_piece;
            let words = (bytes * left.min(of_piece) as usize).div_ceil(4);
            let piece = Pinned::new(words, allocations);
            self.refused = piece.is_err();
            self.pieces[index] = Some(piece?);
        }
        match &mut self.pieces[index] {
            Some(piece) => Ok((piece, at as usize * bytes)),
            // Filled above.
            None => Err(DeviceFault::rejected("a piece of host memory vanished")),
        }
    }

    /// A page's address in host memory and its bytes, and the place on the device whose turn it is.
    fn turn(
        &mut self,
        page: u32,
        allocations: &Allocations,
    ) -> Result<(u64, usize, usize), DeviceFault> {
        let (piece, at) = self.piece(page, allocations)?;
        let address = piece.byte_address(at);
        let place = self.next;
        self.next = (place + 1) % PLACES;
        Ok((address, self.page_bytes as usize, place))
    }
}

fn pages_of_piece(page_bytes: u64) -> u32 {
    (PIECE / (page_bytes as usize).max(1)).max(1) as u32
}

/// The copy stream, and what is on its way.
#[derive(Debug)]
pub(super) struct Transfers {
    stream: Stream,
    next: u64,
    on_the_way: VecDeque<(u64, Event, Event)>,
    /// What took how long, until it is asked for.
    done: HashMap<u64, Duration>,
    spare: Vec<Event>,
}

impl Transfers {
    pub(super) fn new() -> Result<Transfers, DeviceFault> {
        Ok(Transfers {
            stream: Stream::new()?,
            next: 0,
            on_the_way: VecDeque::new(),
            done: HashMap::new(),
            spare: Vec::new(),
        })
    }

    fn event(&mut self) -> Result<Event, DeviceFault> {
        match self.spare.pop() {
            Some(event) => Ok(event),
            None => Event::timed(),
        }
    }

    /// Runs `copy` on the copy stream between two events, the second of which it returns with the transfer's number.
    fn start(
        &mut self,
        copy: impl FnOnce(&Stream) -> Result<(), DeviceFault>,
    ) -> Result<(u64, &Event, &Stream), DeviceFault> {
        let (begin, end) = (self.event()?, self.event()?);
        begin.record(&self.stream)?;
        copy(&self.stream)?;
        end.record(&self.stream)?;
        self.next += 1;
        self.on_the_way.push_back((self.next, begin, end));
        match self.on_the_way.back() {
            Some((id, _, end)) => Ok((*id, end, &self.stream)),
            // Pushed above.
            None => Err(DeviceFault::rejected("a transfer vanished")),
        }
    }

    /// Looks what has been passed.
    fn retire(&mut self) -> Result<(), DeviceFault> {
        while let Some((_, _, end)) = self.on_the_way.front() {
            if !end.passed()? {
                break;
            }
            // The front was just seen.
            let Some((id, begin, end)) = self.on_the_way.pop_front() else {
                break;
            };
            self.done.insert(id, end.since(&begin)?);
            self.spare.extend([begin, end]);
        }
        Ok(())
    }

    /// Lets the compute stream wait for all that is on its way.
    pub(super) fn join(&self, compute: &Stream) -> Result<(), DeviceFault> {
        match self.on_the_way.back() {
            Some((_, _, end)) => end.hold(compute),
            None => Ok(()),
        }
    }
}

impl State {
    /// Starts copying block `index` into a page.
    pub(super) fn page_out(&mut self, id: u32, page: u32, index: u64) -> Result<u64, DeviceFault> {
        let State {
            pages,
            transfers: Some(transfers),
            stream,
            allocations,
            ..
        } = self
        else {
            return Err(no_pages());
        };
        let pages = pages.get_mut(&id).ok_or_else(no_pages)?;
        let (to, bytes, place) = pages.turn(page, allocations)?;
        let place = &pages.places[place];
        place.free.hold(stream)?;
        pages.parts.copy(index, place.at, true, stream)?;
        place.ready.record(stream)?;
        place.ready.hold(&transfers.stream)?;
        let (transfer, _, copying) = transfers.start(|stream| {
            // SAFETY: the page lies in its piece, which stays until all transfers have ended; nobody looks at it before this
            // one has.
            check("copying a page to the host", unsafe {
                sys::cuMemcpyDtoHAsync_v2(to as *mut std::ffi::c_void, place.at, bytes, stream.0)
            })
        })?;
        place.free.record(copying)?;
        pages.last.insert(page, transfer);
        Ok(transfer)
    }

    /// Starts copying a page into block `index`; later work of the compute stream finds it there.
    pub(super) fn page_in(&mut self, id: u32, page: u32, index: u64) -> Result<u64, DeviceFault> {
        let State {
            pages,
            transfers: Some(transfers),
            stream,
            allocations,
            ..
        } = self
        else {
            return Err(no_pages());
        };
        let pages = pages.get_mut(&id).ok_or_else(no_pages)?;
        let (from, bytes, place) = pages.turn(page, allocations)?;
        let place = &pages.places[place];
        place.free.hold(&transfers.stream)?;
        let (transfer, end, _) = transfers.start(|stream| {
            // SAFETY: as in `page_out`; the page is not written before this transfer has ended.
            check("copying a page to the device", unsafe {
                sys::cuMemcpyHtoDAsync_v2(
                    place.at,
                    from as *const std::ffi::c_void,
                    bytes,
                    stream.0,
                )
            })
        })?;
        end.hold(stream)?;
        pages.parts.copy(index, place.at, false, stream)?;
        place.free.record(stream)?;
        pages.last.insert(page, transfer);
        Ok(transfer)
    }

    /// What a transfer took over the bus; `None` while it runs, unless it is to be waited for. Each is asked for once.
    pub(super) fn transferred(
        &mut self,
        transfer: u64,
        wait: bool,
    ) -> Result<Option<Duration>, DeviceFault> {
        let mut pause = Pause::new();
        loop {
            let transfers = self.transfers.as_mut().ok_or_else(no_pages)?;
            transfers.retire()?;
            let front = transfers.on_the_way.front();
            if front.is_none_or(|(id, ..)| *id > transfer) {
                let took = transfers.done.remove(&transfer);
                return Ok(Some(took.unwrap_or_default()));
            }
            if !wait {
                return Ok(None);
            }
            self.patient(&mut pause)?;
        }
    }

    /// Shows a page, once nothing is on its way to or from it.
    pub(super) fn look(
        &mut self,
        id: u32,
        page: u32,
        look: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), DeviceFault> {
        let pages = self.pages.get(&id).ok_or_else(no_pages)?;
        let last = pages.last.get(&page).copied();
        let mut pause = Pause::new();
        loop {
            let transfers = self.transfers.as_mut().ok_or_else(no_pages)?;
            transfers.retire()?;
            let front = transfers.on_the_way.front();
            if front.is_none_or(|(id, ..)| last.is_none_or(|last| *id > last)) {
                break;
            }
            self.patient(&mut pause)?;
        }
        let pages = self.pages.get_mut(&id).ok_or_else(no_pages)?;
        let bytes = pages.page_bytes as usize;
        let (piece, at) = pages.piece(page, &self.allocations)?;
        look(&mut piece.bytes_mut()[at..at + bytes]);
        Ok(())
    }
}

fn no_pages() -> DeviceFault {
    DeviceFault::rejected("these pages do not exist on this device")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_at_even_distances_are_one_copy() {
        let even = vec![(1000, 64), (5000, 64), (9000, 64)];
        assert_eq!(
            Parts::new(even),
            Parts::Even {
                first: 1000,
                pitch: 4000,
                bytes: 64,
                count: 3
            }
        );
        for odd in [
            vec![(1000, 64)],
            vec![(1000, 64), (5000, 64), (9001, 64)],
            vec![(1000, 64), (5000, 32)],
            vec![(5000, 64), (1000, 64)],
            vec![(0, 64), (MAX_PITCH + 1, 64)],
            vec![(0, 64), (32, 64)],
        ] {
            assert_eq!(Parts::new(odd.clone()), Parts::Any(odd));
        }
    }

    #[test]
    fn a_piece_holds_whole_pages() {
        assert_eq!(pages_of_piece(2 << 20), 32);
        assert_eq!(pages_of_piece(3 << 20), 21);
        assert_eq!(pages_of_piece(1 << 30), 1);
    }
}

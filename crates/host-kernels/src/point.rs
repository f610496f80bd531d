// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a kernel point is: its argument list, what its buffers must be, how it is cut, and the code of one tile.

use metrale_core::{ArgDecl, Elem, StepBlock, StepCounts, Unit};

use crate::args::{Args, Grid, Tile};
use crate::scratch::Scratch;

/// What a buffer argument must be, given the launch's constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Values of a format, at least `elems` per `unit`.
    Values {
        /// Format.
        elem: Elem,
        /// Counted per.
        unit: Unit,
        /// Values per unit.
        elems: u64,
    },
    /// A tensor packed by [`crate::layout`], at least `bytes` bytes.
    Packed {
        /// Format it was packed from.
        elem: Elem,
        /// Size.
        bytes: u64,
    },
    /// At least `bytes` bytes of anything (staging).
    Bytes {
        /// Size.
        bytes: u64,
    },
}

/// Constants that no launch of this point can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct BadConstants {
    /// What is wrong, with the values.
    pub what: String,
}

impl BadConstants {
    pub(crate) fn new(what: impl Into<String>) -> BadConstants {
        BadConstants { what: what.into() }
    }
}

/// What a tile found wrong in the step block. The step plan is at fault, not the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TileFault {
    /// A token id that the embedding does not hold.
    #[error("row {row} asks for token {id}, and the vocabulary ends at {vocab}")]
    Token {
        /// Row of the step.
        row: usize,
        /// The id.
        id: u32,
        /// Vocabulary size.
        vocab: usize,
    },
    /// A position past the block table of its slot.
    #[error("position {position} of slot {slot} lies past its block table of {blocks} blocks")]
    Position {
        /// Slot.
        slot: u32,
        /// Position in the sequence.
        position: u32,
        /// Entries per table.
        blocks: usize,
    },
    /// A block-table entry that names no block of the pool.
    #[error("the block table of slot {slot} names block {block}, which the pool does not hold")]
    Block {
        /// Slot.
        slot: u32,
        /// The entry.
        block: u32,
    },
    /// A slot that the state of sequences does not hold.
    #[error("slot {slot} lies past the {slots} that hold state")]
    Slot {
        /// The slot.
        slot: u32,
        /// How many there are.
        slots: usize,
    },
    /// A table write outside the tables.
    #[error("a table delta writes entry {entry} of {entries}")]
    Delta {
        /// Index written.
        entry: u32,
        /// Size of the tables.
        entries: usize,
    },
    /// A slot that names no expert.
    #[error("row {row} asks for expert {id} of {experts}")]
    Expert {
        /// Row of the step.
        row: usize,
        /// The id.
        id: u32,
        /// Experts of the layer.
        experts: usize,
    },
    /// A logits row that names no row of the step.
    #[error("logits row {index} names row {row} of a step of {rows}")]
    LogitsRow {
        /// Index among the logits rows.
        index: usize,
        /// The row it names.
        row: u32,
        /// Rows of the step.
        rows: u32,
    },
}

/// The code of one tile.
pub(crate) type RunTile = fn(&mut Tile<'_>, &StepBlock, &mut Scratch) -> Result<(), TileFault>;

/// A kernel point of class cpu.
#[derive(Debug)]
pub struct HostPoint {
    /// `family/point`.
    pub id: &'static str,
    /// The family's argument list.
    pub args: &'static [ArgDecl],
    pub(crate) needs: fn(&Args) -> Result<Vec<Need>, BadConstants>,
    pub(crate) grid: fn(&Args, StepCounts) -> Grid,
    pub(crate) run: RunTile,
}

impl HostPoint {
    /// What the buffer arguments must be, in the order of the list, given the constants in `args` (its buffers are not
    /// looked at).
    ///
    /// # Errors
    /// [`BadConstants`] if no launch can have these constants.
    pub fn needs(&self, args: &Args) -> Result<Vec<Need>, BadConstants> {
        (self.needs)(args)
    }
}

/// A point with its arguments: what a program walks.
#[derive(Debug)]
pub struct HostLaunch {
    /// The point.
    pub point: &'static HostPoint,
    /// The arguments.
    pub args: Args,
}

impl HostLaunch {
    /// How many tiles a step with these counts has.
    #[must_use]
    pub fn tiles(&self, counts: StepCounts) -> u32 {
        (self.point.grid)(&self.args, counts).tiles()
    }

    /// Runs one tile.
    ///
    /// # Errors
    /// [`TileFault`] if the step block asks for what is not there; the outputs are then unspecified.
    ///
    /// # Safety
    /// The buffers must be valid ([`crate::args::RawBuf::new`]) and as large as [`HostPoint::needs`] says; while the
    /// launch's tiles run, each index below [`HostLaunch::tiles`] of this step runs at most once, and nothing else
    /// touches its buffers.
    pub unsafe fn run(
        &self,
        step: &StepBlock,
        index: u32,
        scratch: &mut Scratch,
    ) -> Result<(), TileFault> {
        let grid = (self.point.grid)(&self.args, step.counts());
        // SAFETY: passed on to the caller; the grid is a function of the launch and the step.
        let mut tile = unsafe { Tile::new(&self.args, grid, index) };
        (self.point.run)(&mut tile, step, scratch)
    }
}

/// Rows of the launch: 0 = the step's rows, 1 = its logits rows.
pub(crate) fn unit_rows(rows_unit: usize, counts: StepCounts) -> u32 {
    if rows_unit == 0 {
        counts.rows
    } else {
        counts.logits_rows
    }
}

/// The unit behind a `rows_unit` constant.
pub(crate) fn row_unit(rows_unit: usize) -> Result<Unit, BadConstants> {
    match rows_unit {
        0 => Ok(Unit::Row),
        1 => Ok(Unit::LogitsRow),
        other => Err(BadConstants::new(format!(
            "rows_unit is {other}: 0 (rows) and 1 (logits rows) exist"
        ))),
    }
}

/// `elems` f32 per `unit`.
pub(crate) fn f32s(unit: Unit, elems: usize) -> Need {
    Need::Values {
        elem: Elem::F32,
        unit,
        elems: elems as u64,
    }
}

/// Refuses zero where a size is needed.
pub(crate) fn positive(sizes: &[(&str, usize)]) -> Result<(), BadConstants> {
    match sizes.iter().find(|(_, v)| *v == 0) {
        Some((name, _)) => Err(BadConstants::new(format!("{name} is 0"))),
        None => Ok(()),
    }
}

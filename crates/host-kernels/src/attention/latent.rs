// SPDX-License-Identifier: MIT OR Apache-2.0
//! `latent_attention`: every query head over one stored row per token, whose first columns are also the value.

use metrale_core::{ArgDecl, StepBlock, Unit};

use super::attend::{Query, Shape, by_sequence};
use super::pools::Pools;
use crate::args::{Args, Grid, RowShape, Tile};
use crate::decl::{STEP, f, r, u, w};
use crate::kv::{Bf16, F16, KvElem, pool, tables};
use crate::point::{BadConstants, HostPoint, Need, TileFault, f32s, positive};
use crate::scratch::{Scratch, grown};

const ARGS: &[ArgDecl] = &[
    r("lat"),
    r("q"),
    r("kv"),
    r("tables"),
    w("a"),
    u("heads"),
    u("head_dim"),
    u("rank"),
    u("rot"),
    u("blocks_per_slot"),
    f("scale"),
    STEP,
];

/// Heads of a tile: they share what is widened.
const TILE_HEADS: u32 = 8;
/// Rows of a tile.
const TILE_ROWS: u32 = 4;

const fn point<T: KvElem>(id: &'static str) -> HostPoint {
    HostPoint {
        id,
        args: ARGS,
        needs: needs::<T>,
        grid: |a, c| Grid {
            rows: c.rows,
            row_block: TILE_ROWS,
            cols: a.u32(5) as u32,
            col_block: TILE_HEADS,
        },
        run: run::<T>,
    }
}

pub(crate) static POINTS: [HostPoint; 3] = [
    point::<f32>("latent_attention/f32"),
    point::<Bf16>("latent_attention/bf16"),
    point::<F16>("latent_attention/f16"),
];

fn needs<T: KvElem>(a: &Args) -> Result<Vec<Need>, BadConstants> {
    let (heads, head_dim, rank) = (a.u32(5), a.u32(6), a.u32(7));
    let (rot, per_slot) = (a.u32(8), a.u32(9));
    positive(&[
        ("heads", heads),
        ("rank", rank),
        ("rot", rot),
        ("blocks_per_slot", per_slot),
    ])?;
    if rot > head_dim {
        return Err(BadConstants::new(format!(
            "rot is {rot}, above head_dim {head_dim}"
        )));
    }
    Ok(vec![
        f32s(Unit::Row, heads * rank),
        f32s(Unit::Row, heads * head_dim),
        pool::<T>(1, rank + rot)?,
        tables(per_slot),
        f32s(Unit::Row, heads * rank),
    ])
}

fn run<T: KvElem>(
    tile: &mut Tile<'_>,
    step: &StepBlock,
    scratch: &mut Scratch,
) -> Result<(), TileFault> {
    let a = tile.args();
    let (heads, head_dim, rank, rot) = (a.u32(5), a.u32(6), a.u32(7), a.u32(8));
    let (dim, own, rows) = (rank + rot, tile.cols(), tile.rows());
    let (latents, q) = (tile.input::<f32>(0), tile.input::<f32>(1));
    let mut put_together = std::mem::take(&mut scratch.queries);
    let queries = grown(&mut put_together, rows.len() * own.len() * dim);
    let mut chunks = queries.chunks_exact_mut(dim);
    for row in rows.clone() {
        for (head, to) in own.clone().zip(&mut chunks) {
            to[..rank].copy_from_slice(&latents[(row * heads + head) * rank..][..rank]);
            let end = (row * heads + head + 1) * head_dim;
            to[rank..].copy_from_slice(&q[end - rot..end]);
        }
    }
    let query = Query {
        data: queries,
        first_row: rows.start,
        row_stride: own.len() * dim,
        first: 0,
        stride: dim,
    };
    let pools = Pools::<T> {
        k: tile.input::<T::Raw>(2),
        v: None,
        tables: tile.input::<u32>(3),
        per_slot: a.u32(9),
        heads: 1,
        head: 0,
        dim,
    };
    let shape = Shape {
        dim,
        width: rank,
        group: own.len(),
        skip: 0,
        window: 0,
        scale: a.f32(10),
        cap: 0.0,
        isa: a.isa,
    };
    let columns = RowShape {
        first: 0,
        ld: heads * rank,
        base: 0,
        width: heads * rank,
        unit: rank,
    };
    let mut out = tile.output::<f32>(4, columns);
    let done = by_sequence(step, rows, |rows| {
        shape.attend(&pools, query, &[], &mut out, step, rows, scratch)
    });
    scratch.queries = put_together;
    done
}

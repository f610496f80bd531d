// SPDX-License-Identifier: MIT OR Apache-2.0
//! `rope_angles` and `rope`: rotary position embedding, arXiv 2104.09864, in the half-split layout of Hugging Face.
//!
//! *Spec*: angle = `f32(position) * inv_freq` in f32; cosine and sine by [`metrale_core::numeric::math::sin_cos`], each
//! times `scale` in f32. Rotation of (a, b) = (`x[i]`, `x[i + rot/2]`): `a*c - b*s` and `b*c + a*s`, each product and the sum
//! rounded. Columns from `rot` on stay.

use metrale_core::numeric::math;
use metrale_core::{StepBlock, Unit};

use crate::args::{Grid, RowShape, Tile};
use crate::isa::on_isa;
use crate::point::{BadConstants, HostPoint, TileFault, f32s, positive};
use crate::scratch::Scratch;
use crate::{decl, tiling};

pub(crate) fn even(rot: usize) -> Result<(), BadConstants> {
    positive(&[("rot", rot)])?;
    if rot.is_multiple_of(2) {
        Ok(())
    } else {
        Err(BadConstants::new(format!(
            "rot is {rot}: pairs are rotated, it must be even"
        )))
    }
}

pub(crate) static ROPE_ANGLES: HostPoint = HostPoint {
    id: "rope_angles/f32",
    args: decl::ROPE_ANGLES,
    needs: |a| {
        let rot = a.u32(2);
        even(rot)?;
        Ok(vec![f32s(Unit::One, rot / 2), f32s(Unit::Row, rot)])
    },
    // A cosine in f64 takes tens of nanoseconds: a row of 64 is a few microseconds.
    grid: |_, c| Grid::rows(c.rows, 4),
    run: rope_angles,
};

fn rope_angles(tile: &mut Tile<'_>, step: &StepBlock, _: &mut Scratch) -> Result<(), TileFault> {
    let (rot, scale) = (tile.args().u32(2), tile.args().f32(3));
    let inv_freq = tile.input::<f32>(0);
    let mut cs = tile.output::<f32>(1, RowShape::whole(rot));
    for r in tile.rows() {
        let position = step.positions()[r] as f32;
        let (cos, sin) = cs.row(r).split_at_mut(rot / 2);
        for i in 0..rot / 2 {
            let (s, c) = math::sin_cos(position * inv_freq[i]);
            cos[i] = c * scale;
            sin[i] = s * scale;
        }
    }
    Ok(())
}

pub(crate) static ROPE: HostPoint = HostPoint {
    id: "rope/f32",
    args: decl::ROPE,
    needs: |a| {
        let (heads, kv, dim, rot) = (a.u32(2), a.u32(3), a.u32(4), a.u32(5));
        positive(&[("heads", heads), ("kv_heads", kv), ("head_dim", dim)])?;
        even(rot)?;
        if rot > dim {
            return Err(BadConstants::new(format!(
                "rot is {rot}, above head_dim {dim}"
            )));
        }
        Ok(vec![
            f32s(Unit::Row, (heads + 2 * kv) * dim),
            f32s(Unit::Row, rot),
        ])
    },
    grid: |a, c| tiling::rows(c.rows, (a.u32(2) + a.u32(3)) * a.u32(4)),
    run: rope,
};

fn rope(tile: &mut Tile<'_>, _: &StepBlock, _: &mut Scratch) -> Result<(), TileFault> {
    let args = tile.args();
    let (heads, kv, dim, rot) = (args.u32(2), args.u32(3), args.u32(4), args.u32(5));
    let cs = tile.input::<f32>(1);
    let mut qkv = tile.output::<f32>(0, RowShape::whole((heads + 2 * kv) * dim));
    for r in tile.rows() {
        let cs = &cs[r * rot..(r + 1) * rot];
        let heads = &mut qkv.row(r)[..(heads + kv) * dim];
        on_isa!(args.isa, rotate_heads, (x: &mut [f32] = heads, dim: usize = dim, cs: &[f32] = cs));
    }
    Ok(())
}

#[inline(always)]
fn rotate_heads(x: &mut [f32], dim: usize, cs: &[f32]) {
    for head in x.chunks_exact_mut(dim) {
        rotate(head, cs);
    }
}

/// Rotates the first columns of `x` by cosines and sines.
#[inline(always)]
pub(crate) fn rotate(x: &mut [f32], cs: &[f32]) {
    let half = cs.len() / 2;
    let (cos, sin) = cs.split_at(half);
    let (a, b) = x.split_at_mut(half);
    let b = &mut b[..half];
    for i in 0..half {
        let (x, y) = (a[i], b[i]);
        a[i] = x * cos[i] - y * sin[i];
        b[i] = y * cos[i] + x * sin[i];
    }
}

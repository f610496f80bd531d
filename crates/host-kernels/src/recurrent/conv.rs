// SPDX-License-Identifier: MIT OR Apache-2.0
//! `conv1d`: a causal convolution over each channel's own history, then SiLU (arXiv 2312.00752, section 3.4).
//!
//! *Spec*: `acc` begins with the bias, or 0; `acc = fma(w[c][j], x[c][t - width + 1 + j], acc)` by ascending `j`, inputs
//! before position 0 being 0; `y = acc / (1 + exp(-acc))`. The state holds the last `width - 1` inputs of a channel,
//! oldest first.

use metrale_core::numeric::math;
use metrale_core::{StepBlock, Unit};

use super::{by_units, state};
use crate::args::{RowShape, Tile};
use crate::decl;
use crate::point::{BadConstants, HostPoint, TileFault, f32s, positive};
use crate::scratch::Scratch;

/// Channels of a tile.
const CHANNELS: usize = 256;

pub(crate) static CONV1D: HostPoint = HostPoint {
    id: "conv1d/f32",
    args: decl::CONV1D,
    needs: |a| {
        let (channels, width, has_bias) = (a.u32(5), a.u32(6), a.u32(7));
        positive(&[("channels", channels)])?;
        if width < 2 {
            return Err(BadConstants::new(format!(
                "width is {width}: a convolution reaches back, it has two taps or more"
            )));
        }
        Ok(vec![
            f32s(Unit::Row, channels),
            f32s(Unit::One, channels * width),
            f32s(Unit::One, if has_bias == 0 { 0 } else { channels }),
            state(channels * (width - 1)),
            f32s(Unit::Row, channels),
        ])
    },
    grid: |a, c| by_units(c, a.u32(5), CHANNELS),
    run: conv1d,
};

fn conv1d(tile: &mut Tile<'_>, step: &StepBlock, _: &mut Scratch) -> Result<(), TileFault> {
    let (channels, width, has_bias) = (
        tile.args().u32(5),
        tile.args().u32(6),
        tile.args().u32(7) != 0,
    );
    let own = tile.cols();
    let (x, w, bias) = (
        tile.input::<f32>(0),
        tile.input::<f32>(1),
        tile.input::<f32>(2),
    );
    let mut history = tile.slot_output::<f32>(3, channels, width - 1);
    let mut y = tile.output::<f32>(4, RowShape::units(channels, 1));
    for r in tile.rows() {
        let past = history.slot(step.slots()[r])?;
        if step.positions()[r] == 0 {
            past.fill(0.0);
        }
        let x = &x[r * channels..][own.clone()];
        for (i, (out, x)) in y.row(r).iter_mut().zip(x).enumerate() {
            let c = own.start + i;
            let past = &mut past[i * (width - 1)..(i + 1) * (width - 1)];
            let w = &w[c * width..(c + 1) * width];
            let mut acc = if has_bias { bias[c] } else { 0.0 };
            for (w, x) in w.iter().zip(past.iter()) {
                acc = w.mul_add(*x, acc);
            }
            acc = w[width - 1].mul_add(*x, acc);
            past.copy_within(1.., 0);
            past[width - 2] = *x;
            *out = acc / (1.0 + math::exp(0.0 - acc));
        }
    }
    Ok(())
}

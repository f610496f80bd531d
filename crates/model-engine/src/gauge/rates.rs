// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the device can do at best: reading memory, and products on a processor.

use std::sync::Arc;

use metrale_core::{Access, Arg, PointId, RowRange, SpanId, StepBlock, StepLayout};
use metrale_gpu_runtime::{Kernel, Launch};

use super::{GaugeError, time};
use crate::model::{Reserved, TransformerModel};

/// Rates of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Bytes per second of launches that only read, the best of several batches of passes.
    pub read: f64,
    /// Bytes of a pass.
    pub read_bytes: u64,
    /// Operations per second of 16-bit integer products, a multiply-add being two; `None` where the class has no such
    /// point.
    pub integer: Option<f64>,
    /// The same of f32 multiply-adds.
    pub float: Option<f64>,
}

/// A span of this size is read alone: larger than any cache. Smaller ones are read one after another.
const ALONE: u64 = 256 << 20;
/// Bytes of a chunk, for each of which `read` writes a word.
const CHUNK: u64 = 64 << 10;
/// Operations of a round of `peak`.
const ROUND: f64 = 1024.0;
/// Rounds of a cell.
const ROUNDS: u32 = 4096;

/// Measures the device of `model`, reading its weights. Nothing of the model changes.
///
/// # Errors
/// [`GaugeError`].
pub fn rates(model: &TransformerModel) -> Result<Rates, GaugeError> {
    let device = model.device();
    let step = StepBlock::new(Arc::new(StepLayout::new(device.plan.limits)));
    let (launches, read_bytes) = readers(device)?;
    let program = device.backend.record(&launches, 1)?;
    let [best, ..] = time::<8>(device.backend.as_ref(), &[program], &step)?;
    Ok(Rates {
        read: read_bytes as f64 / best,
        read_bytes,
        integer: operations(device, &step, "i16")?,
        float: operations(device, &step, "f32")?,
    })
}

fn readers(device: &Reserved) -> Result<(Vec<Launch>, u64), GaugeError> {
    let kernel = device.backend.resolve(&PointId::new("read", "xor"))?;
    let size = |span: &SpanId| device.plan.memory.span(*span).bytes / 16 * 16;
    let room = device.plan.memory.span(device.plan.staging).bytes / 4 * CHUNK;
    let mut spans: Vec<SpanId> = device.plan.weights.iter().map(|w| w.span).collect();
    spans.retain(|s| size(s) > 0 && size(s) <= room);
    if let Some(largest) = spans.iter().copied().max_by_key(size)
        && size(&largest) >= ALONE
    {
        spans = vec![largest];
    }
    let mut launches = Vec::new();
    for span in &spans {
        let args = [
            Arg::Buf {
                span: *span,
                access: Access::Read,
            },
            out(device),
            Arg::U32(u32::try_from(size(span) / 16).unwrap_or(u32::MAX)),
        ];
        launches.push(bind(device, kernel, &args)?);
    }
    Ok((launches, spans.iter().map(size).sum()))
}

fn operations(device: &Reserved, step: &StepBlock, point: &str) -> Result<Option<f64>, GaugeError> {
    let Ok(kernel) = device.backend.resolve(&PointId::new("peak", point)) else {
        return Ok(None);
    };
    let room = device.plan.memory.span(device.plan.staging).bytes / 4;
    let cells = room.min(1024) as u32;
    let args = [out(device), Arg::U32(ROUNDS), Arg::U32(cells)];
    let launch = bind(device, kernel, &args)?;
    let program = device.backend.record(&[launch], 1)?;
    let [best, ..] = time::<8>(device.backend.as_ref(), &[program], step)?;
    Ok(Some(ROUND * f64::from(ROUNDS) * f64::from(cells) / best))
}

/// What a launch writes goes to staging, which nobody needs once the weights are packed.
fn out(device: &Reserved) -> Arg {
    Arg::Buf {
        span: device.plan.staging,
        access: Access::Write,
    }
}

fn bind(device: &Reserved, kernel: Kernel, args: &[Arg]) -> Result<Launch, GaugeError> {
    let points = [(RowRange::ALL, kernel)];
    Ok(device.backend.bind(device.arenas, &points, args)?)
}

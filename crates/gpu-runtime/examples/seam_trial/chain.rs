// SPDX-License-Identifier: MIT OR Apache-2.0
//! The chain as a plan would hold it: spans, and launches as points with arguments. Every edge keeps its own span, so that
//! all of them can be read afterwards.

use metrale_core::{
    Access, ArenaKind, Arg, Elem, Extent, MemoryPlan, Span, SpanId, StepLimits, Unit,
};

use crate::model::{Model, Tensor};

pub const LIMITS: StepLimits = StepLimits {
    rows: 64,
    logits_rows: 64,
    slots: 6,
    blocks_per_slot: 20,
    tables: 1,
    history: 256,
    bias: 64,
    mask_words: 0,
};
pub const KV_BLOCKS: u64 = 96;

/// A point and its arguments.
#[derive(Clone, Debug)]
pub struct Group {
    pub point: String,
    pub args: Vec<Arg>,
}

/// A tensor to be packed: from its raw bytes in `staging` to `span`.
pub struct Weight {
    pub point: String,
    pub span: SpanId,
    pub rows: u32,
    pub cols: u32,
    pub bytes: Vec<u8>,
}

pub struct Chain {
    pub plan: MemoryPlan,
    pub forward: Vec<Group>,
    pub sample: Vec<Group>,
    pub weights: Vec<Weight>,
    pub staging: SpanId,
    pub inv_freq: SpanId,
    /// Edges of the forward program: span and columns.
    pub taps: Vec<(SpanId, usize)>,
    pub outputs: Outputs,
}

#[derive(Clone, Copy)]
pub struct Outputs {
    pub logits: SpanId,
    pub token: SpanId,
    pub logprob: SpanId,
    pub top: SpanId,
    pub status: SpanId,
}

#[derive(Default)]
struct Builder {
    plan: MemoryPlan,
    weights: Vec<Weight>,
    taps: Vec<(SpanId, usize)>,
}

impl Builder {
    fn span(
        &mut self,
        name: &str,
        arena: ArenaKind,
        elem: Elem,
        unit: Unit,
        elems: usize,
    ) -> SpanId {
        let count = match unit {
            Unit::One => 1,
            Unit::Row => u64::from(LIMITS.rows),
            Unit::LogitsRow => u64::from(LIMITS.logits_rows),
            Unit::KvBlock => KV_BLOCKS,
            Unit::Slot => u64::from(LIMITS.slots),
        };
        let offset = self
            .plan
            .arena_bytes(arena)
            .next_multiple_of(MemoryPlan::ALIGN);
        self.plan.spans.push(Span {
            name: name.into(),
            arena,
            offset,
            bytes: count * elem.bytes_for(elems as u64).unwrap(),
            elem,
            extent: Extent {
                unit,
                elems: elems as u64,
            },
            live: None,
        });
        SpanId(self.plan.spans.len() as u32 - 1)
    }

    /// An edge of `cols` f32 a row.
    fn edge(&mut self, name: &str, cols: usize) -> SpanId {
        let span = self.span(name, ArenaKind::Activations, Elem::F32, Unit::Row, cols);
        self.taps.push((span, cols));
        span
    }

    fn matrix(&mut self, name: &str, elem: Elem, t: &Tensor) -> SpanId {
        // Class cpu pads to eight rows.
        let span = self.span(
            name,
            ArenaKind::Weights,
            elem,
            Unit::One,
            t.rows.next_multiple_of(8) * t.cols,
        );
        self.weights.push(Weight {
            point: format!("pack/{elem}"),
            span,
            rows: t.rows as u32,
            cols: t.cols as u32,
            bytes: raw(elem, &t.values),
        });
        span
    }

    fn vector(&mut self, name: &str, t: &Tensor) -> SpanId {
        let span = self.span(name, ArenaKind::Weights, Elem::F32, Unit::One, t.cols);
        let (rows, cols, bytes) = (1, t.cols as u32, raw(Elem::F32, &t.values));
        self.weights.push(Weight {
            point: "pack/f32_vec".into(),
            span,
            rows,
            cols,
            bytes,
        });
        span
    }
}

fn raw(elem: Elem, values: &[f32]) -> Vec<u8> {
    match elem {
        Elem::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        Elem::BF16 => values
            .iter()
            .flat_map(|v| half::bf16::from_f32(*v).to_le_bytes())
            .collect(),
        Elem::F16 => values
            .iter()
            .flat_map(|v| half::f16::from_f32(*v).to_le_bytes())
            .collect(),
        other => panic!("no raw {other}"),
    }
}

fn r(span: SpanId) -> Arg {
    Arg::Buf {
        span,
        access: Access::Read,
    }
}
fn w(span: SpanId) -> Arg {
    Arg::Buf {
        span,
        access: Access::Write,
    }
}
fn rw(span: SpanId) -> Arg {
    Arg::Buf {
        span,
        access: Access::ReadWrite,
    }
}
fn u(v: usize) -> Arg {
    Arg::U32(v as u32)
}

/// Points whose name does not follow from weights and KV format alone.
struct Groups(Vec<Group>);

impl Groups {
    fn push(&mut self, point: &str, args: Vec<Arg>) {
        self.0.push(Group {
            point: point.into(),
            args,
        });
    }

    #[allow(clippy::too_many_arguments)] // the family's own list
    fn linear(
        &mut self,
        elem: Elem,
        x: SpanId,
        weight: SpanId,
        t: &Tensor,
        bias: (SpanId, bool),
        y: SpanId,
        unit: usize,
    ) {
        let args = vec![
            r(x),
            r(weight),
            r(bias.0),
            w(y),
            u(t.cols),
            u(t.rows),
            u(0),
            u(t.rows),
            u(bias.1.into()),
            u(unit),
            Arg::Step,
        ];
        self.push(&format!("linear/{elem}"), args);
    }
}

impl Chain {
    pub fn new(model: &Model, kv: Elem) -> Chain {
        use ArenaKind::{Activations, Kv, Outputs as Out, Staging, State, Weights};
        let s = &model.shape;
        let mut b = Builder::default();
        let matrices = model
            .layers
            .iter()
            .flat_map(|l| [&l.qkv, &l.o, &l.gate_up, &l.down]);
        let largest = matrices
            .chain([&model.embed, &model.head])
            .map(|t| t.values.len())
            .max();
        let staging = largest.unwrap() * 4;
        let staging = b.span("staging", Staging, Elem::U8, Unit::One, staging);
        let none = b.span("none", Weights, Elem::F32, Unit::One, 1);
        let tables = b.span(
            "tables",
            State,
            Elem::U32,
            Unit::Slot,
            LIMITS.blocks_per_slot as usize,
        );
        let inv_freq = b.span("inv_freq", Weights, Elem::F32, Unit::One, s.rot / 2);
        let (q, all) = (
            s.heads * s.head_dim,
            (s.heads + 2 * s.kv_heads) * s.head_dim,
        );
        let heads = [u(s.heads), u(s.kv_heads), u(s.head_dim)];
        let per_slot = Arg::U32(LIMITS.blocks_per_slot);

        let mut g = Groups(Vec::new());
        let entries = Arg::U32(LIMITS.slots * LIMITS.blocks_per_slot);
        g.push(
            "tables/u32",
            vec![rw(tables), Arg::U32(0), entries, Arg::Step],
        );
        let embed = b.matrix("embed", Elem::BF16, &model.embed);
        let res = b.edge("res", s.hidden);
        g.push(
            "embed/bf16",
            vec![
                r(embed),
                w(res),
                u(s.hidden),
                u(s.vocab),
                Arg::F32(1.0),
                Arg::Step,
            ],
        );
        let cs = b.edge("cs", s.rot);
        g.push(
            "rope_angles/f32",
            vec![r(inv_freq), w(cs), u(s.rot), Arg::F32(1.0), Arg::Step],
        );
        for (l, layer) in model.layers.iter().enumerate() {
            let name = |n: &str| format!("L{l}.{n}");
            let norm = b.vector(&name("attn_norm"), &layer.attn_norm);
            let n = b.edge(&name("n"), s.hidden);
            let rms = |x, w_, y, unit| {
                vec![
                    r(x),
                    r(w_),
                    w(y),
                    u(s.hidden),
                    Arg::F32(s.eps),
                    u(unit),
                    Arg::Step,
                ]
            };
            g.push("rmsnorm/f32", rms(res, norm, n, 0));
            let weight = b.matrix(&name("qkv"), Elem::BF16, &layer.qkv);
            let bias = b.vector(&name("qkv_bias"), &layer.qkv_bias);
            let qkv = b.edge(&name("qkv_out"), all);
            g.linear(Elem::BF16, n, weight, &layer.qkv, (bias, true), qkv, 0);
            let (qw, kw) = (
                b.vector(&name("q_norm"), &layer.q_norm),
                b.vector(&name("k_norm"), &layer.k_norm),
            );
            let mut args = vec![rw(qkv), r(qw), r(kw)];
            args.extend(heads);
            args.extend([Arg::F32(s.eps), Arg::Step]);
            g.push("qk_norm/f32", args);
            let mut args = vec![rw(qkv), r(cs)];
            args.extend(heads);
            args.extend([u(s.rot), Arg::Step]);
            g.push("rope/f32", args);
            let block = s.kv_heads * 16 * s.head_dim;
            let k = b.span(&name("k"), Kv, kv, Unit::KvBlock, block);
            let v = b.span(&name("v"), Kv, kv, Unit::KvBlock, block);
            let mut args = vec![r(qkv), w(k), w(v), r(tables)];
            args.extend(heads);
            args.extend([per_slot, Arg::Step]);
            g.push(&format!("kv_write/{kv}"), args);
            let a = b.edge(&name("a"), q);
            let mut args = vec![r(qkv), r(k), r(v), r(tables), w(a)];
            args.extend(heads);
            args.extend([per_slot, Arg::F32(model.scale()), Arg::Step]);
            g.push(&format!("attention/{kv}"), args);
            let weight = b.matrix(&name("o"), Elem::F16, &layer.o);
            let delta = b.edge(&name("o_out"), s.hidden);
            g.linear(Elem::F16, a, weight, &layer.o, (none, false), delta, 0);
            g.push("add/f32", vec![rw(res), r(delta), u(s.hidden), Arg::Step]);
            let norm = b.vector(&name("ffn_norm"), &layer.ffn_norm);
            let n = b.edge(&name("n2"), s.hidden);
            g.push("rmsnorm/f32", rms(res, norm, n, 0));
            let weight = b.matrix(&name("gate_up"), Elem::BF16, &layer.gate_up);
            let gu = b.edge(&name("gu"), 2 * s.ffn);
            g.linear(Elem::BF16, n, weight, &layer.gate_up, (none, false), gu, 0);
            let h = b.edge(&name("h"), s.ffn);
            g.push("swiglu/f32", vec![r(gu), w(h), u(s.ffn), Arg::Step]);
            let weight = b.matrix(&name("down"), Elem::F32, &layer.down);
            let delta = b.edge(&name("down_out"), s.hidden);
            g.linear(Elem::F32, h, weight, &layer.down, (none, false), delta, 0);
            if l + 1 < model.layers.len() {
                g.push("add/f32", vec![rw(res), r(delta), u(s.hidden), Arg::Step]);
            }
        }
        let last = b.plan.find(&format!("L{}.down_out", s.layers - 1)).unwrap();

        let mut t = Groups(Vec::new());
        let gathered = b.span(
            "gathered",
            Activations,
            Elem::F32,
            Unit::LogitsRow,
            s.hidden,
        );
        t.push(
            "gather_rows/f32",
            vec![r(res), r(last), w(gathered), u(s.hidden), u(1), Arg::Step],
        );
        let norm = b.vector("norm", &model.norm);
        let n = b.span("final_n", Activations, Elem::F32, Unit::LogitsRow, s.hidden);
        t.push(
            "rmsnorm/f32",
            vec![
                r(gathered),
                r(norm),
                w(n),
                u(s.hidden),
                Arg::F32(s.eps),
                u(1),
                Arg::Step,
            ],
        );
        let head = b.matrix("head", Elem::BF16, &model.head);
        let outputs = Outputs {
            logits: b.span("logits", Out, Elem::F32, Unit::LogitsRow, s.vocab),
            token: b.span("token", Out, Elem::U32, Unit::LogitsRow, 1),
            logprob: b.span("logprob", Out, Elem::F32, Unit::LogitsRow, 1),
            top: b.span("top", Out, Elem::U32, Unit::LogitsRow, 40),
            status: b.span("status", Out, Elem::U32, Unit::LogitsRow, 1),
        };
        t.linear(
            Elem::BF16,
            n,
            head,
            &model.head,
            (none, false),
            outputs.logits,
            1,
        );
        let o = outputs;
        let args = vec![
            rw(o.logits),
            w(o.token),
            w(o.logprob),
            w(o.top),
            w(o.status),
            u(s.vocab),
            Arg::Step,
        ];
        t.push("sample/f32", args);

        Chain {
            plan: b.plan,
            forward: g.0,
            sample: t.0,
            weights: b.weights,
            staging,
            inv_freq,
            taps: b.taps,
            outputs,
        }
    }
}

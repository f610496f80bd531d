// SPDX-License-Identifier: MIT OR Apache-2.0
//! The argument lists of the kernel families, as `kernels/circuits/FAMILIES.toml` declares them.

use metrale_core::{Access, ArgDecl};

pub(crate) const fn r(name: &'static str) -> ArgDecl {
    ArgDecl::Buf {
        name,
        access: Access::Read,
    }
}
pub(crate) const fn w(name: &'static str) -> ArgDecl {
    ArgDecl::Buf {
        name,
        access: Access::Write,
    }
}
pub(crate) const fn rw(name: &'static str) -> ArgDecl {
    ArgDecl::Buf {
        name,
        access: Access::ReadWrite,
    }
}
pub(crate) const fn u(name: &'static str) -> ArgDecl {
    ArgDecl::U32(name)
}
pub(crate) const fn f(name: &'static str) -> ArgDecl {
    ArgDecl::F32(name)
}
pub(crate) const STEP: ArgDecl = ArgDecl::Step;

pub(crate) const TABLES: &[ArgDecl] = &[rw("tables"), u("first"), u("entries"), STEP];
pub(crate) const EMBED: &[ArgDecl] = &[
    r("table"),
    w("out"),
    u("hidden"),
    u("vocab"),
    f("scale"),
    STEP,
];
pub(crate) const ROPE_ANGLES: &[ArgDecl] = &[r("inv_freq"), w("cs"), u("rot"), f("scale"), STEP];
pub(crate) const ADD: &[ArgDecl] = &[rw("res"), r("delta"), u("cols"), STEP];
pub(crate) const RMSNORM: &[ArgDecl] = &[
    r("x"),
    r("w"),
    w("y"),
    u("cols"),
    f("eps"),
    u("rows_unit"),
    STEP,
];
pub(crate) const ADD_RMSNORM: &[ArgDecl] = &[
    rw("res"),
    r("delta"),
    r("w"),
    w("y"),
    u("cols"),
    f("eps"),
    STEP,
];
pub(crate) const QUANTIZE: &[ArgDecl] = &[r("x"), w("y"), u("cols"), u("rows_unit"), STEP];
pub(crate) const SWIGLU: &[ArgDecl] = &[r("gu"), w("h"), u("ffn"), STEP];
pub(crate) const SWIGLU_QUANTIZE: &[ArgDecl] = &[r("gu"), w("y"), u("ffn"), STEP];
pub(crate) const LINEAR: &[ArgDecl] = &[
    r("x"),
    r("w"),
    r("bias"),
    w("y"),
    u("k"),
    u("n"),
    u("y_col"),
    u("y_ld"),
    u("has_bias"),
    u("rows_unit"),
    STEP,
];
pub(crate) const QK_NORM: &[ArgDecl] = &[
    rw("qkv"),
    r("qw"),
    r("kw"),
    u("heads"),
    u("kv_heads"),
    u("head_dim"),
    f("eps"),
    STEP,
];
pub(crate) const ROPE: &[ArgDecl] = &[
    rw("qkv"),
    r("cs"),
    u("heads"),
    u("kv_heads"),
    u("head_dim"),
    u("rot"),
    STEP,
];
pub(crate) const KV_WRITE: &[ArgDecl] = &[
    r("qkv"),
    w("k"),
    w("v"),
    r("tables"),
    u("heads"),
    u("kv_heads"),
    u("head_dim"),
    u("blocks_per_slot"),
    STEP,
];
pub(crate) const ATTENTION: &[ArgDecl] = &[
    r("qkv"),
    r("k"),
    r("v"),
    r("tables"),
    w("a"),
    u("heads"),
    u("kv_heads"),
    u("head_dim"),
    u("blocks_per_slot"),
    f("scale"),
    STEP,
];
pub(crate) const GATHER_ROWS: &[ArgDecl] = &[
    r("res"),
    r("delta"),
    w("r"),
    u("cols"),
    u("has_delta"),
    STEP,
];
pub(crate) const SAMPLE: &[ArgDecl] = &[
    rw("logits"),
    w("token"),
    w("logprob"),
    w("top"),
    w("status"),
    u("vocab"),
    STEP,
];
pub(crate) const PACK: &[ArgDecl] = &[
    r("src"),
    w("dst"),
    u("rows"),
    u("cols"),
    u("dst_row"),
    u("dst_rows_total"),
];
pub(crate) const FILL: &[ArgDecl] = &[
    w("dst"),
    u("count"),
    u("first"),
    u("seed"),
    f("mean"),
    f("scale"),
];
pub(crate) const READ: &[ArgDecl] = &[r("src"), w("out"), u("quads")];
pub(crate) const PEAK: &[ArgDecl] = &[w("out"), u("rounds"), u("cells")];
pub(crate) const CONV1D: &[ArgDecl] = &[
    r("x"),
    r("w"),
    r("bias"),
    rw("conv"),
    w("y"),
    u("channels"),
    u("width"),
    u("has_bias"),
    STEP,
];
pub(crate) const GATED_DELTA: &[ArgDecl] = &[
    r("qkv"),
    r("ba"),
    r("a_log"),
    r("dt_bias"),
    rw("state"),
    w("y"),
    u("key_heads"),
    u("value_heads"),
    u("key_dim"),
    u("value_dim"),
    f("eps"),
    STEP,
];
pub(crate) const SSM_SCAN: &[ArgDecl] = &[
    r("xbc"),
    r("dt"),
    r("a_log"),
    r("dt_bias"),
    r("skip"),
    rw("state"),
    w("y"),
    u("heads"),
    u("head_dim"),
    u("groups"),
    u("state_dim"),
    STEP,
];
pub(crate) const GATED_NORM: &[ArgDecl] = &[
    r("x"),
    r("z"),
    r("w"),
    w("y"),
    u("cols"),
    u("group"),
    u("w_cols"),
    u("gate_first"),
    f("eps"),
    STEP,
];
pub(crate) const SIGMOID_GATE: &[ArgDecl] = &[rw("x"), r("gate"), u("cols"), u("gates"), STEP];
pub(crate) const RELU2: &[ArgDecl] = &[r("x"), w("y"), u("cols"), STEP];

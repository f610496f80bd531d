// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why an instance cannot be realised.

use metrale_core::Elem;

use crate::instance::WeightKey;

/// Why there is no plan. Each names what, why and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// No such class.
    #[error("there is no hardware class `{name}`; known: {}", known.join(", "))]
    UnknownClass {
        /// The name asked for.
        name: String,
        /// The classes of this build.
        known: Vec<String>,
    },
    /// No such device in the class.
    #[error("class {class} has no device `{name}`; known: {}", known.join(", "))]
    UnknownDevice {
        /// The name asked for.
        name: String,
        /// The class.
        class: String,
        /// The class's devices.
        known: Vec<String>,
    },
    /// The class does not run this family.
    #[error("class {class} does not serve family {family} (it serves {}); choose another class", serves.join(", "))]
    NotServed {
        /// The class.
        class: String,
        /// The family.
        family: String,
        /// What it serves.
        serves: Vec<String>,
    },
    /// The first op whose formats no point of the class takes.
    #[error(
        "class {class} has no point of {family} for op {op} with {wanted}; it has {}; \
         choose another format or class",
        has.join(", ")
    )]
    MissingPoint {
        /// The class.
        class: String,
        /// The kernel family.
        family: String,
        /// The op.
        op: String,
        /// The formats wanted, by argument.
        wanted: String,
        /// The points of the family; there are some.
        has: Vec<String>,
    },
    /// An op whose kernel family (the middle of its name) the class lacks.
    #[error(
        "class {class} has no kernel for op {op} of the models of family {model}, whatever the format; choose a class that has one ({})",
        classes.join(", ")
    )]
    NoKernel {
        /// The class.
        class: String,
        /// The op.
        op: String,
        /// The model's family.
        model: String,
        /// The classes that have kernels of that family.
        classes: Vec<String>,
    },
    /// The request names no format for a weight.
    #[error(
        "weight {key} has no format: the checkpoint's tensor for it was not found, or not passed on"
    )]
    NoFormat {
        /// The weight.
        key: WeightKey,
    },
    /// A format that the class cannot pack.
    #[error("class {class} cannot pack weight {key} from {format}; it packs {}; convert the checkpoint", packs.join(", "))]
    NoPack {
        /// The class.
        class: String,
        /// The weight.
        key: WeightKey,
        /// Its format.
        format: Elem,
        /// The formats that can be packed.
        packs: Vec<String>,
    },
    /// A format that the class cannot quantize to another.
    #[error(
        "class {class} cannot quantize weight {key} from {stored} to {format} as it packs it; leave the quantization out, or take a checkpoint that stores {format}"
    )]
    NoQuantize {
        /// The class.
        class: String,
        /// The weight.
        key: WeightKey,
        /// Its disk format.
        stored: Elem,
        /// The format asked for.
        format: Elem,
    },
    /// A row that is no whole number of the format's blocks.
    #[error("weight {key}: rows of {cols} values cannot be stored as {format} (blocks of {}); the checkpoint is damaged", format.block_elems())]
    Blocks {
        /// The weight.
        key: WeightKey,
        /// Values per row.
        cols: u64,
        /// Its format.
        format: Elem,
    },
    /// Values of a constant weight are missing or of the wrong number.
    #[error(
        "weight {key}: {want} values belong to it, {have} were given; read the tensor and pass it in `values`"
    )]
    Values {
        /// The weight.
        key: WeightKey,
        /// Values wanted.
        want: u64,
        /// Values given.
        have: u64,
    },
    /// A size beyond 2^63 bytes or an argument beyond 2^32.
    #[error(
        "{what} is too large to address; lower the limits of the step, the KV pool or the context"
    )]
    TooLarge {
        /// What was sized.
        what: String,
    },
    /// A limit of zero.
    #[error("the plan's limit `{what}` is zero: nothing could run; raise it")]
    ZeroLimit {
        /// The limit.
        what: &'static str,
    },
    /// A pool for a window that no layer has.
    #[error("no layer of the model has a window of {tokens} tokens: leave its pool out")]
    NoWindow {
        /// The window.
        tokens: u32,
    },
    /// A KV format of a layer that has no KV.
    #[error("layer {layer} has no KV to be stored in a format of its own; layers that have are {}", has.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    NoKvLayer {
        /// The layer named.
        layer: u32,
        /// Layers that have KV.
        has: Vec<u32>,
    },
    /// The kernel tree contradicts itself.
    #[error("{what}; this is a fault of the kernel tree: report it")]
    Library {
        /// The contradiction.
        what: String,
    },
}

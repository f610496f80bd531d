// SPDX-License-Identifier: MIT OR Apache-2.0
//! The flags of `met serve`, most of which `met run` and others share.

use metrale_sampling::SamplingFields;

use super::flags::{Flag, Group, Kind};
use crate::assembly::KV_TYPES;

/// What computes.
pub(super) const DEVICE: Group = Group {
    heading: "Device",
    flags: &[Flag::new(
        "device",
        "DEVICE",
        Kind::Device,
        "auto",
        "What computes: cpu, cuda, or cuda:N (an NVIDIA GPU by the driver's number; cuda is cuda:0). auto takes the first GPU if the build has kernels for it and for the checkpoint (f32, bf16, f16, fp8 without routed experts, and MXFP4 experts), else the processor, and says why.",
    )],
};

/// Quantizing weights while they are loaded.
pub(super) const QUANTIZATION: Flag = Flag::new(
    "quantization",
    "SCHEME",
    Kind::Choice(&["fp8"]),
    "as the checkpoint is",
    "fp8 rounds the matrices of a checkpoint in f32, f16 or bf16 to e4m3 while they are loaded, a scale per output channel: half the bytes of bf16, and another numerics digest. Embedding, head, routers and routed experts stay as they are.",
);

/// Types of some layers' KV cache.
pub(super) const KV_LAYERS: Flag = Flag::new(
    "kv-cache-dtype-layers",
    "LIST",
    Kind::Text,
    "",
    "Element types of the KV cache in some layers, e.g. 0-3=f16,last=bf16: a layer counted from 0, a range, first, last, full or sliding (what the layer attends to). What stands later wins.",
);

/// Where weights come from.
pub(super) const WEIGHTS: Group = Group {
    heading: "Weights",
    flags: &[
        Flag::new(
            "load-format",
            "FORMAT",
            Kind::Choice(&["auto", "dummy"]),
            "auto",
            "auto reads the checkpoint's weights. dummy makes weights of no meaning on the device, to measure or try what needs no sense in the answers: a folder with config.json alone will do then, or one of the configurations that met brings (qwen3-8b, qwen3-0.6b, llama-3.1-8b, smollm2-135m); without a tokenizer, prompts are token ids.",
        ),
        QUANTIZATION,
    ],
};

/// Context.
pub(super) const MAX_SEQ_LEN: Flag = Flag::new(
    "max-seq-len",
    "TOKENS",
    Kind::Count {
        least: 16,
        most: 1 << 24,
    },
    "the checkpoint's context",
    "Tokens of one sequence, prompt and answer together. Sizes the block tables and bounds what one request can hold of the KV pool.",
);

/// Sequences at once.
pub(super) const MAX_NUM_SEQS: Flag = Flag::new(
    "max-num-seqs",
    "N",
    Kind::Count {
        least: 1,
        most: 1024,
    },
    "32; 256 on a GPU",
    "Sequences that run at once. More raise throughput and the time between two tokens of each.",
);

/// Chunk of a prompt.
pub(super) const MAX_PREFILL_TOKENS: Flag = Flag::new(
    "max-prefill-tokens",
    "TOKENS",
    Kind::Count {
        least: 1,
        most: 65_536,
    },
    "256; 2048 on a GPU",
    "Prompt tokens in one step. A larger chunk ends a prompt sooner and makes running answers wait longer for the step.",
);

/// Type of the KV cache.
pub(super) const KV_TYPE: Flag = Flag::new(
    "kv-cache-dtype",
    "TYPE",
    Kind::Choice(KV_TYPES),
    "the checkpoint's float type, f16 for a GGUF",
    "Element type of the KV cache. Another type is another numerics digest: answers may differ.",
);

/// Size of the KV cache.
pub(super) const KV_BYTES: Flag = Flag::new(
    "kv-cache-bytes",
    "BYTES",
    Kind::Count {
        least: 1,
        most: 1 << 50,
    },
    "every sequence at full length, at most a quarter of the free memory (on a GPU, what weights and activations leave of nine tenths)",
    "Size of the KV cache.",
);

/// A key taken as harmless.
pub(super) const ACCEPT_KEY: Flag = Flag::new(
    "accept-key",
    "KEY",
    Kind::Text,
    "",
    "Take a configuration key that met does not know as harmless. The answers are yours to judge then.",
)
.repeated();

/// What the sizes of a plan follow from: the flags of `met serve` that `met circuit` takes too.
pub(super) const SIZES: Group = Group {
    heading: "Engine",
    flags: &[
        MAX_SEQ_LEN,
        MAX_NUM_SEQS,
        MAX_PREFILL_TOKENS,
        KV_TYPE,
        KV_LAYERS,
        Flag {
            default: "every sequence at full length, on a device of known memory at most what weights and activations leave of nine tenths",
            ..KV_BYTES
        },
        ACCEPT_KEY,
    ],
};

/// Context, sequences, memory and threads of the engine.
pub(super) const ENGINE: Group = Group {
    heading: "Engine",
    flags: &[
        MAX_SEQ_LEN,
        MAX_NUM_SEQS,
        MAX_PREFILL_TOKENS,
        KV_TYPE,
        KV_LAYERS,
        KV_BYTES,
        Flag::new(
            "kv-host-gb",
            "GB",
            Kind::Number {
                least: 0.0,
                most: 65_536.0,
            },
            "0",
            "Host memory, in 10^9 bytes, for the KV of evicted prefixes and preempted answers. It is brought back where that is measured to be faster than computing it.",
        ),
        Flag::new(
            "policy",
            "NAME",
            Kind::Choice(&["fifo", "priority", "slai"]),
            "fifo",
            "Order of service. priority: by the requests' `priority`, lower first, 10 s of waiting worth one step. slai: keeps 50 ms between tokens as far as prefill chunks allow, shortest prompt first.",
        ),
        Flag::new(
            "speculate",
            "HOW",
            Kind::Text,
            "off",
            "ngram:K guesses up to K tokens (1 to 16) of each answer's next step from where its last tokens stood before, in rows that no other answer needs. Answers are the same, sooner where they repeat text. Without effect for requests with a penalty, a logit_bias or a bad word of several tokens, and for recurrent models.",
        ),
        Flag::new(
            "step-timeout",
            "SECONDS",
            Kind::Count {
                least: 1,
                most: 86_400,
            },
            "120",
            "A device step that runs longer has hung: its requests fail, and met starts again with its socket kept.",
        ),
        Flag::new(
            "queue-len",
            "N",
            Kind::Count {
                least: 1,
                most: 1 << 20,
            },
            "512",
            "Requests that wait; one more is refused with 429.",
        ),
        Flag::new(
            "threads",
            "N",
            Kind::Count {
                least: 1,
                most: 1024,
            },
            "one per core that the process may use",
            "Threads of the CPU team. Answers do not depend on it.",
        ),
        Flag::new(
            "cpu-affinity",
            "CORES",
            Kind::Text,
            "the system places them",
            "Cores to pin the threads of the CPU team to, one each, such as 0,2-4. Without --threads, as many threads.",
        ),
        ACCEPT_KEY,
    ],
};

/// The address, names and keys.
pub(super) const NETWORK: Group = Group {
    heading: "Network",
    flags: &[
        Flag::new(
            "host",
            "ADDRESS",
            Kind::Text,
            "127.0.0.1",
            "Address to listen on. 0.0.0.0 opens the server to the network: set --api-key then.",
        ),
        Flag::new(
            "port",
            "PORT",
            Kind::Count { least: 0, most: 65_535 },
            "8000",
            "Port to listen on; 0 takes a free one, which the log names.",
        ),
        Flag::new(
            "inherit-listener",
            "RESTARTS",
            Kind::Count { least: 0, most: 1000 },
            "",
            "Take standard input as the listening socket, after so many restarts. met gives it to itself when it starts again.",
        ),
        Flag::new(
            "served-model-name",
            "NAME",
            Kind::Text,
            "the recipe's name, the hub id, or the file's name",
            "Name under which requests find the model. The first one stands in answers.",
        )
        .repeated(),
        Flag::new(
            "api-key",
            "KEY",
            Kind::Text,
            "",
            "Key that requests must carry (Authorization: Bearer KEY). Other users of the machine can read a command line: prefer --api-key-file.",
        )
        .repeated(),
        Flag::new(
            "api-key-file",
            "FILE",
            Kind::Path,
            "",
            "File with one key a line, taken like --api-key.",
        ),
        Flag::new(
            "allowed-host",
            "NAME",
            Kind::Text,
            "",
            "Host name that requests may use beside the loopback ones, so that no web page reaches the server under a name of its own; `*` is any.",
        )
        .repeated(),
        Flag::new(
            "allowed-origin",
            "ORIGIN",
            Kind::Text,
            "",
            "Origin (https://app.example) whose web pages may send requests; `*` is any.",
        )
        .repeated(),
    ],
};

/// What a request gets that leaves a sampling field out.
pub(super) const SAMPLING: Group = Group {
    heading: "Sampling defaults (a request's own field wins; without a flag the checkpoint's generation settings hold, then OpenAI's defaults)",
    flags: &[
        Flag::new(
            "temperature",
            "T",
            Kind::Sampling(SamplingFields::TEMPERATURE),
            "1",
            "Softmax temperature; 0 always takes the most likely token.",
        ),
        Flag::new(
            "top-p",
            "P",
            Kind::Sampling(SamplingFields::TOP_P),
            "1",
            "Keep the most likely tokens that have this probability together; 1 is off.",
        ),
        Flag::new(
            "top-k",
            "K",
            Kind::Sampling(SamplingFields::TOP_K),
            "0",
            "Keep this many of the most likely tokens; 0 or -1 is off.",
        ),
        Flag::new(
            "min-p",
            "P",
            Kind::Sampling(SamplingFields::MIN_P),
            "0",
            "Drop tokens less likely than this share of the most likely one; 0 is off.",
        ),
        Flag::new(
            "repetition-penalty",
            "X",
            Kind::Sampling(SamplingFields::REPETITION_PENALTY),
            "1",
            "Divide the logits of tokens that have occurred (multiply negative ones); 1 is off.",
        ),
        Flag::new(
            "max-tokens",
            "TOKENS",
            Kind::Count {
                least: 1,
                most: 1 << 24,
            },
            "16 for completions, what the context leaves for chat",
            "Tokens of an answer at most.",
        ),
    ],
};

/// What the server tells of itself. Prompts and answers are never logged.
pub(super) const LOG: Group = Group {
    heading: "Log (prompts and answers are never logged)",
    flags: &[
        Flag::new(
            "log-format",
            "FORMAT",
            Kind::Choice(&["text", "json"]),
            "text",
            "Lines for people or JSON objects, on standard error.",
        ),
        Flag::new(
            "log-level",
            "LEVEL",
            Kind::Choice(&["error", "warn", "info", "debug", "trace"]),
            "info for serve, warn for the others",
            "Least important level that is written; `error` keeps progress and notes away too.",
        ),
    ],
};

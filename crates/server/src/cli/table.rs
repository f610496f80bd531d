// SPDX-License-Identifier: MIT OR Apache-2.0
//! The commands of `met`.

use super::flags::{Argument, Command, Flag, Group, Kind};
use super::serve_args::{
    DEVICE, ENGINE, KV_LAYERS, LOG, NETWORK, QUANTIZATION, SAMPLING, SIZES, WEIGHTS,
};
use crate::assembly::KV_TYPES;

const MODEL_HELP: &str = "A path (a .gguf file, or a folder with config.json), a recipe (`met list`), or a repository on the hub: ORG/NAME, ORG/NAME@REVISION, ORG/NAME:FILE.gguf. A path that exists wins.";

const MODEL: Argument = Argument {
    name: "MODEL",
    required: true,
    help: MODEL_HELP,
};

const OPTIONAL_MODEL: Argument = Argument {
    name: "MODEL",
    required: false,
    help: "As for `met show`; without it, the default recipe smollm2-135m.",
};

const CHECKPOINT: Argument = Argument {
    name: "CHECKPOINT",
    required: true,
    help: "As MODEL of `met show`. A folder that holds config.json alone will do, and so will a configuration that met brings (qwen3-8b, qwen3-0.6b, llama-3.1-8b).",
};

const HARDWARE: Flag = Flag::new(
    "hardware",
    "CLASS",
    Kind::Text,
    "the class of --device, else cpu",
    "Hardware class to plan for, or one of its devices (`h200`).",
);

const UNFUSED: Flag = Flag::switch("unfused", "Leave every operation a launch of its own.");

const PLAN_FLAGS: &[Group] = &[
    Group {
        heading: "Plan",
        flags: &[
            HARDWARE,
            Flag::new(
                "device",
                "NAME",
                Kind::Text,
                "cpu-generic for class cpu, the device that --hardware names, or the only one of its class",
                "Device of kernels/DEVICES.toml whose peaks give the roofline; the plan says which.",
            ),
            Flag::new(
                "rows",
                "N",
                Kind::Count {
                    least: 1,
                    most: 65_536,
                },
                "1",
                "Tokens in the step that is shown.",
            ),
            Flag::new(
                "context",
                "TOKENS",
                Kind::Count {
                    least: 1,
                    most: 1 << 24,
                },
                "1024",
                "Tokens that each sequence of that step has behind it.",
            ),
            QUANTIZATION,
            UNFUSED,
        ],
    },
    SIZES,
];

/// Memory has no step and no time.
const MEMORY_FLAGS: &[Group] = &[
    Group {
        heading: "Plan",
        flags: &[HARDWARE, QUANTIZATION, UNFUSED],
    },
    SIZES,
];

const REPEATS: Flag = Flag::new(
    "repeats",
    "N",
    Kind::Count {
        least: 1,
        most: 1000,
    },
    "3",
    "Times that each figure is measured; the median counts.",
);

const LADDERS: Group = Group {
    heading: "Ladders",
    flags: &[
        Flag::new(
            "only",
            "NAME",
            Kind::Text,
            "all",
            "Benchmark to run: groups (time of each kind of launch), prefill, decode.",
        )
        .repeated(),
        Flag::new(
            "concurrency",
            "LIST",
            Kind::Text,
            "1,2,4,8",
            "Sequences that decode at once, one rung each.",
        ),
        Flag::new(
            "input",
            "TOKENS",
            Kind::Count {
                least: 1,
                most: 1 << 20,
            },
            "128",
            "Prompt tokens of each sequence that decodes.",
        ),
        Flag::new(
            "output",
            "TOKENS",
            Kind::Count {
                least: 2,
                most: 1 << 20,
            },
            "128",
            "Tokens that each generates.",
        ),
        Flag::new(
            "prompts",
            "LIST",
            Kind::Text,
            "128,512",
            "Prompt lengths of the prefill ladder.",
        ),
        REPEATS,
        Flag::new(
            "seed",
            "N",
            Kind::Count {
                least: 0,
                most: i64::MAX as u64,
            },
            "0",
            "Seed of the prompts.",
        ),
        Flag::switch(
            "idle-share",
            "On a GPU, stamp the begin and end of each program, about two microseconds a program, and tell the share of time without one.",
        ),
    ],
};

const BENCH_OUTPUT: Group = Group {
    heading: "Output",
    flags: &[Flag::new(
        "format",
        "FORMAT",
        Kind::Choice(&["table", "json"]),
        "table",
        "A table for people, or one JSON object on one line.",
    )],
};

const ACCEPT: &[Group] = &[Group {
    heading: "Checkpoint",
    flags: &[Flag::new(
        "accept-key",
        "KEY",
        Kind::Text,
        "",
        "Take a configuration key that met does not know as harmless.",
    )
    .repeated()],
}];

const LICENCE: Group = Group {
    heading: "Licence",
    flags: &[Flag::switch(
        "accept-licence",
        "Accept the terms of use that the recipe states; once is enough on a machine. Without it they are shown.",
    )],
};

const CIRCUIT: &[Command] = &[
    Command {
        name: "show",
        about: "Show the model's mathematics: parameters, weights, operations",
        detail: "",
        arguments: &[CHECKPOINT],
        groups: ACCEPT,
        commands: &[],
    },
    Command {
        name: "plan",
        about: "Show the launches of a step on a hardware class, with bytes, operations and the roofline",
        detail: "",
        arguments: &[CHECKPOINT],
        groups: PLAN_FLAGS,
        commands: &[],
    },
    Command {
        name: "memory",
        about: "Show what lies where in memory",
        detail: "",
        arguments: &[CHECKPOINT],
        groups: MEMORY_FLAGS,
        commands: &[],
    },
];

/// Every command, in the order of the help.
pub const COMMANDS: &[Command] = &[
    Command {
        name: "serve",
        about: "Serve a model over HTTP, with OpenAI's API",
        detail: "Fetches the model first if it is not on this machine. The server listens at once and is ready (GET /ready) when the weights are loaded; SIGTERM lets running answers end, for 30 seconds at most; what runs then, or at a second signal, is cut, and the exit status is 1, within 2 seconds whatever the device does.",
        arguments: &[OPTIONAL_MODEL],
        groups: &[NETWORK, WEIGHTS, DEVICE, ENGINE, SAMPLING, LICENCE, LOG],
        commands: &[],
    },
    Command {
        name: "run",
        about: "Answer one prompt on the terminal",
        detail: "The prompt is a user's message to the model's chat template, or plain text with --raw. The answer goes to standard output as it is made, the rest to standard error.",
        arguments: &[
            MODEL,
            Argument {
                name: "PROMPT",
                required: true,
                help: "The text; `-` reads it from standard input, without the line break that ends it.",
            },
        ],
        groups: &[
            Group {
                heading: "Prompt",
                flags: &[
                    Flag::switch(
                        "raw",
                        "Continue the prompt as text, without the chat template.",
                    ),
                    Flag::new(
                        "system",
                        "TEXT",
                        Kind::Text,
                        "",
                        "System message before the prompt.",
                    ),
                    Flag::new(
                        "seed",
                        "N",
                        Kind::Count {
                            least: 0,
                            most: i64::MAX as u64,
                        },
                        "a random one, which is told",
                        "Seed of the sampler: the same seed and settings give the same answer.",
                    ),
                ],
            },
            SAMPLING,
            WEIGHTS,
            DEVICE,
            ENGINE,
            LICENCE,
            LOG,
        ],
        commands: &[],
    },
    Command {
        name: "pull",
        about: "Fetch a model to this machine",
        detail: "Sources are tried in the recipe's order; the last line says which one served, or what each refused. A download that was broken off goes on where it stopped. HF_TOKEN, HF_ENDPOINT, HF_HOME, HF_HUB_CACHE and HF_HUB_OFFLINE mean what they mean to huggingface_hub, whose cache is shared.",
        arguments: &[OPTIONAL_MODEL],
        groups: &[LICENCE],
        commands: &[],
    },
    Command {
        name: "list",
        about: "List recipes and the models on this machine",
        detail: "",
        arguments: &[],
        groups: &[],
        commands: &[],
    },
    Command {
        name: "show",
        about: "Show a model: configuration, tensors by type, tokenizer, chat template, licence",
        detail: "Reads headers only, and fetches nothing.",
        arguments: &[MODEL],
        groups: &[Group {
            heading: "Output",
            flags: &[Flag::switch(
                "template",
                "Print the chat template alone, whole.",
            )],
        }],
        commands: &[],
    },
    Command {
        name: "doctor",
        about: "Check this machine and say what would mend it",
        detail: "Exit status 5 if something stands in the way of serving the default recipe; warnings do not count. The network is not used.",
        arguments: &[],
        groups: &[Group {
            heading: "Checks",
            flags: &[Flag::new(
                "port",
                "PORT",
                Kind::Count {
                    least: 1,
                    most: 65_535,
                },
                "8000",
                "Port that must be free.",
            )],
        }],
        commands: &[],
    },
    Command {
        name: "verify",
        about: "Compare a checkpoint's logits with a reference, along every schedule",
        detail: "Whole prefill, chunks, single tokens and a crowd of other sequences must give the reference's logits within the bound, and equal bits among each other; then the greedy continuation must agree. KV cache and activations are f32 where the weights allow it. Exit status 1 on a mismatch.",
        arguments: &[CHECKPOINT],
        groups: &[
            Group {
                heading: "Reference",
                flags: &[
                    Flag::new(
                        "reference",
                        "FILE",
                        Kind::Path,
                        "",
                        "The file that scripts/refs/make_tiny_refs.py wrote (input_ids, logits, greedy_ids, greedy_gap). Must be given.",
                    ),
                    Flag::new(
                        "bound",
                        "X",
                        Kind::Number {
                            least: 0.0,
                            most: 1e9,
                        },
                        "8 times the reference's own difference between f32 and f64; 512 times that for quantized weights, whose activations have fifteen bits; where activations or the KV cache have 16 bits, what a random walk of their roundings gives",
                        "Largest difference of a logit.",
                    ),
                    Flag::new(
                        "kv-cache-dtype",
                        "TYPE",
                        Kind::Choice(KV_TYPES),
                        "f32",
                        "Element type of the KV cache. The kernels of a GPU may have one for bf16 alone.",
                    ),
                    KV_LAYERS,
                    Flag::new(
                        "threads",
                        "N",
                        Kind::Count {
                            least: 1,
                            most: 1024,
                        },
                        "one per core that the process may use",
                        "Threads of the CPU team.",
                    ),
                ],
            },
            DEVICE,
            ACCEPT[0],
        ],
        commands: &[],
    },
    Command {
        name: "bench",
        about: "Measure a model on this machine, and say what share of the machine that is",
        detail: "Runs in one process, without HTTP: time by kind of launch, prefill, and decoding by sequences at once, beside what the device reads and computes at best, measured in the same run. docs/bench.md says what each figure means. Unless they are given, --max-num-seqs and --max-seq-len are what the ladders need.",
        arguments: &[OPTIONAL_MODEL],
        groups: &[LADDERS, BENCH_OUTPUT, WEIGHTS, DEVICE, ENGINE, LICENCE, LOG],
        commands: &[Command {
            name: "start",
            about: "Measure a server's start: listening, ready, first token",
            detail: "Starts `met serve` on a free port as a process of its own and looks at it from outside. Figures count from the start of the process.",
            arguments: &[OPTIONAL_MODEL],
            groups: &[
                Group {
                    heading: "Ladders",
                    flags: &[REPEATS],
                },
                BENCH_OUTPUT,
                WEIGHTS,
                DEVICE,
                ENGINE,
            ],
            commands: &[],
        }],
    },
    Command {
        name: "circuit",
        about: "Show how a checkpoint is understood and planned",
        detail: "",
        arguments: &[],
        groups: &[],
        commands: CIRCUIT,
    },
    Command {
        name: "completions",
        about: "Print a completion script for a shell",
        detail: "",
        arguments: &[Argument {
            name: "SHELL",
            required: true,
            help: "bash, zsh, fish, elvish or powershell.",
        }],
        groups: &[],
        commands: &[],
    },
];

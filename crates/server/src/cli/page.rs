// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reference page `docs/cli.md`, from the table.

use std::fmt::Write;

use metrale_config::levers::{LEVERS, LeverKind, LeverType};

use super::exit::Exit;
use super::flags::{Command, Flag, Kind};
use super::table::COMMANDS;

/// The page.
pub fn reference() -> String {
    let mut out = String::from(
        "<!-- Made from the flag table by `UPDATE_DOCS=1 cargo test -p metrale-server --test cli`; a test holds it. -->\n\n\
         # Command line of `met`\n",
    );
    for c in COMMANDS {
        command(&mut out, "met", c);
    }
    exits(&mut out);
    environment(&mut out);
    out
}

// Writing to a string cannot fail.
macro_rules! put {
    ($out:expr, $($rest:tt)*) => {{ let _ = writeln!($out, $($rest)*); }};
}

fn command(out: &mut String, parent: &str, c: &Command) {
    // A command with others under it may be one of its own (`met bench`), or no more than their name (`met circuit`).
    if c.commands.is_empty() || !c.groups.is_empty() {
        section(out, parent, c);
    }
    for sub in c.commands {
        command(out, &format!("{parent} {}", c.name), sub);
    }
}

fn section(out: &mut String, parent: &str, c: &Command) {
    let mut usage = format!("{parent} {}", c.name);
    for a in c.arguments {
        let _ = if a.required {
            write!(usage, " {}", a.name)
        } else {
            write!(usage, " [{}]", a.name)
        };
    }
    if !c.groups.is_empty() {
        usage.push_str(" [FLAGS]");
    }
    put!(out, "\n## `{usage}`\n\n{}.", c.about);
    if !c.detail.is_empty() {
        put!(out, "\n{}", c.detail);
    }
    for a in c.arguments {
        put!(out, "\n`{}`: {}", a.name, a.help);
    }
    for group in c.groups {
        put!(
            out,
            "\n### {}\n\n| Flag | Default | Meaning |\n|---|---|---|",
            group.heading
        );
        for f in group.flags {
            put!(
                out,
                "| `{}` | {} | {} |",
                spelled(f),
                if f.default.is_empty() { "-" } else { f.default },
                meaning(f)
            );
        }
    }
}

fn spelled(f: &Flag) -> String {
    let value = if f.value.is_empty() {
        String::new()
    } else {
        format!(" {}", f.value)
    };
    let more = if f.repeats { " ..." } else { "" };
    format!("--{}{value}{more}", f.name)
}

fn meaning(f: &Flag) -> String {
    let range = match f.kind {
        Kind::Switch | Kind::Text | Kind::Path | Kind::Device => String::new(),
        Kind::Count { least, most } => format!(" From {least} to {most}."),
        Kind::Number { least, most } => format!(" From {least} to {most}."),
        Kind::Sampling(range) => format!(" Takes {range}."),
        Kind::Choice(words) => format!(" One of {}.", words.join(", ")),
    };
    format!("{}{range}", f.help)
}

fn exits(out: &mut String) {
    put!(out, "\n## Exit status\n\n| Status | Meaning |\n|---|---|");
    for exit in Exit::ALL {
        put!(out, "| {} | {} |", exit as u8, exit.meaning());
    }
}

fn environment(out: &mut String) {
    put!(out, "\n## Environment\n");
    put!(
        out,
        "A `METRALE_*` variable that is not in this table is refused. Those of the build and of tests have no effect on met.\n"
    );
    put!(
        out,
        "| Variable | Read | Value | Default | Meaning |\n|---|---|---|---|---|"
    );
    for lever in LEVERS {
        let read = match lever.kind {
            LeverKind::Run => "by met",
            LeverKind::Build => "by the build",
            LeverKind::Test => "by a test",
        };
        let value = match lever.ty {
            LeverType::Choice(words) => words.join(" or "),
            LeverType::Flag => "1 or 0".to_owned(),
            LeverType::Path => "a path".to_owned(),
            LeverType::Text => "text".to_owned(),
        };
        put!(
            out,
            "| `{}` | {read} | {value} | {} | {} |",
            lever.name,
            lever.default,
            lever.help
        );
    }
    put!(
        out,
        "\nThe hub client reads `HF_ENDPOINT`, `HF_TOKEN`, `HF_HOME`, `HF_HUB_CACHE`, `HF_HUB_OFFLINE` and `SSL_CERT_FILE` as\n\
         `huggingface_hub` does, and the usual proxy variables."
    );
}

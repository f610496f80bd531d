// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the table to a parser, and from a parsed line to values.

use std::path::PathBuf;

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, ArgMatches};

use super::flags::{Argument, Command, Flag, Kind};
use super::table::COMMANDS;
use crate::assembly::Wanted;
use crate::digits::whole;

/// The whole command line.
pub fn clap_command() -> clap::Command {
    let met = clap::Command::new("met")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Metrale Engine: serves language models, reproducibly, on any machine")
        .after_help("`met COMMAND --help` tells more; docs/cli.md holds everything on one page.")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true);
    COMMANDS
        .iter()
        .fold(met, |met, c| met.subcommand(command(c)))
}

fn command(c: &'static Command) -> clap::Command {
    let mut out = clap::Command::new(c.name).about(c.about);
    if !c.detail.is_empty() {
        out = out.long_about(format!("{}.\n\n{}", c.about, c.detail));
    }
    if !c.commands.is_empty() {
        let alone = c.arguments.is_empty() && c.groups.is_empty();
        out = out
            .subcommand_required(alone)
            .arg_required_else_help(alone)
            .args_conflicts_with_subcommands(!alone)
            .disable_help_subcommand(true);
    }
    for argument in c.arguments {
        out = out.arg(positional(argument));
    }
    for group in c.groups {
        out = out.next_help_heading(group.heading);
        for f in group.flags {
            out = out.arg(flag(f));
        }
    }
    c.commands
        .iter()
        .fold(out, |out, c| out.subcommand(command(c)))
}

fn positional(a: &'static Argument) -> Arg {
    Arg::new(a.name).required(a.required).help(a.help)
}

fn flag(f: &'static Flag) -> Arg {
    let help = match f.default {
        "" => f.help.to_owned(),
        default => format!("{} [default: {default}]", f.help),
    };
    let arg = Arg::new(f.name).long(f.name).help(help);
    if f.kind == Kind::Switch {
        return arg.action(ArgAction::SetTrue);
    }
    let action = if f.repeats {
        ArgAction::Append
    } else {
        ArgAction::Set
    };
    // A value may begin with a dash: a system message or a negative number does.
    arg.value_name(f.value)
        .action(action)
        .allow_hyphen_values(true)
        .value_parser(value_parser(f.kind))
}

fn value_parser(kind: Kind) -> ValueParser {
    match kind {
        Kind::Switch | Kind::Text => ValueParser::string(),
        Kind::Path => ValueParser::path_buf(),
        Kind::Device => ValueParser::new(str::parse::<Wanted>),
        Kind::Choice(words) => ValueParser::new(clap::builder::PossibleValuesParser::new(
            words.iter().copied(),
        )),
        Kind::Count { least, most } => {
            ValueParser::new(move |text: &str| match whole::<u64>(text) {
                Some(n) if (least..=most).contains(&n) => Ok(n),
                _ => Err(format!("expected a whole number from {least} to {most}")),
            })
        }
        Kind::Sampling(range) => ValueParser::new(move |text: &str| {
            let number = text.parse::<f64>().ok();
            let number = number.filter(|n| range.check(*n).is_ok());
            number.ok_or_else(|| format!("expected {range}"))
        }),
        Kind::Number { least, most } => {
            ValueParser::new(move |text: &str| match text.parse::<f64>() {
                Ok(n) if (least..=most).contains(&n) => Ok(n),
                _ => Err(format!("expected a number from {least} to {most}")),
            })
        }
    }
}

/// The values of one command, by the names of the table.
#[derive(Debug)]
pub struct Values<'a>(pub &'a ArgMatches);

impl Values<'_> {
    /// A text or choice, or a value by position.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.get_one::<String>(name).map(String::as_str)
    }

    /// Every value of a repeated flag.
    pub fn texts(&self, name: &str) -> Vec<String> {
        self.0
            .get_many::<String>(name)
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }

    /// A path.
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        self.0.get_one::<PathBuf>(name).cloned()
    }

    /// A device.
    pub fn device(&self, name: &str) -> Option<Wanted> {
        self.0.get_one(name).copied()
    }

    /// A whole number. The table bounds it.
    pub fn count<T: TryFrom<u64>>(&self, name: &str) -> Option<T> {
        self.0
            .get_one::<u64>(name)
            .and_then(|n| T::try_from(*n).ok())
    }

    /// A number.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.0.get_one::<f64>(name).copied()
    }

    /// Whether a switch is there.
    pub fn has(&self, name: &str) -> bool {
        self.0.get_flag(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use metrale_sampling::{Range, Sampling, SamplingFields};

    #[test]
    fn the_table_makes_a_sound_parser() {
        clap_command().debug_assert();
    }

    fn error(line: &str) -> String {
        clap_command()
            .try_get_matches_from(line.split(' '))
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn values_outside_their_bounds_are_refused_with_the_bounds() {
        assert!(error("met serve --port 65536").contains("from 0 to 65535"));
        assert!(error("met serve --port +80").contains("from 0 to 65535"));
        assert!(error("met serve --kv-host-gb nan").contains("from 0 to 65536"));
        assert!(error("met serve --device gpu").contains("cuda:N"));
        assert!(error("met serve --kv-cache-dtype f8").contains("f16"));
        assert!(
            error("met serve --thread 2").contains("--threads"),
            "the near name is offered"
        );
        assert!(error("met serv").contains("serve"));
        assert!(error("met run model").contains("PROMPT"));
    }

    /// A flag takes what the request's field takes, and nothing else: `Sampling::new` is asked about both.
    #[test]
    fn a_sampling_flag_has_the_range_of_its_field() {
        let with = |name: &str, value: f64| {
            let line = format!("met serve --{name} {value}");
            let parsed = clap_command().try_get_matches_from(line.split(' '));
            parsed.map_err(|e| e.to_string())
        };
        type Set = fn(&mut SamplingFields, f64);
        let fields: [(Range, Set); 5] = [
            (SamplingFields::TEMPERATURE, |f, v| f.temperature = v),
            (SamplingFields::TOP_P, |f, v| f.top_p = v),
            (SamplingFields::MIN_P, |f, v| f.min_p = v),
            (SamplingFields::TOP_K, |f, v| f.top_k = v as i64),
            (SamplingFields::REPETITION_PENALTY, |f, v| {
                f.repetition_penalty = v;
            }),
        ];
        for (range, set) in fields {
            let flag = range.field.replace('_', "-");
            let edges = [range.least, range.most];
            let beyond = [range.least - 1.0, range.most + 1.0, f64::NAN];
            for value in edges.into_iter().chain(beyond) {
                let mut fields = SamplingFields::default();
                set(&mut fields, value);
                let request = Sampling::new(&fields, 0);
                let nan = value.is_nan() && range.whole; // no request can hold one
                if !nan {
                    let (flag, request) = (with(&flag, value).is_ok(), request.is_ok());
                    assert_eq!(flag, request, "{} {value}", range.field);
                }
            }
            let said = with(&flag, range.most + 1.0).unwrap_err();
            assert!(said.contains(&range.to_string()), "{said}");
        }
        assert!(with("top-k", 1.5).is_err());
    }

    #[test]
    fn values_arrive() {
        let m = clap_command()
            .try_get_matches_from(
                "met serve m --port 0 --device cuda:1 --top-p 0.5 --api-key a --api-key -b"
                    .split(' '),
            )
            .unwrap();
        let (_, m) = m.subcommand().unwrap();
        let v = Values(m);
        assert_eq!(
            (v.text("MODEL"), v.count::<u16>("port"), v.number("top-p")),
            (Some("m"), Some(0), Some(0.5))
        );
        assert_eq!(
            v.device("device"),
            Some(Wanted::Named(crate::assembly::Device::Cuda(1)))
        );
        assert_eq!(v.texts("api-key"), ["a", "-b"]);
        assert_eq!((v.text("host"), v.number("min-p")), (None, None));
    }
}

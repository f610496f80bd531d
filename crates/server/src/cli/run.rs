// SPDX-License-Identifier: MIT OR Apache-2.0
//! `met run`: one prompt, answered on the terminal, through the same engine that serves.

use std::future::poll_fn;
use std::io::Read;
use std::sync::Arc;
use std::time::Instant;

use metrale_sampling::Sampling;
use metrale_scheduler::RequestId;

use super::exit::{Exit, Failure, OrExit};
use super::log;
use super::machine::Machine;
use super::model::Model;
use super::options;
use super::parser::Values;
use super::serve;
use crate::api::answer::{Finish, Usage};
use crate::api::error::ApiError;
use crate::completion::choice::ChoiceOptions;
use crate::completion::run::{Output, Run};
use crate::engine_face::{Request, ServedModel};
use crate::text_face::{ChatInput, ChatMessage, Specials};

/// Bytes of a prompt that is read from standard input.
const INPUT_BYTES: u64 = 64 << 20;

pub(super) fn run(values: &Values<'_>, machine: &Machine) -> Result<(), Failure> {
    log::start(values, machine, "warn")?;
    let text = match values.text("PROMPT").unwrap_or_default() {
        "-" => input()?,
        text => text.to_owned(),
    };
    let mut load = options::load(values, machine)?;
    let on = load.open_device().map_err(|e| serve::blamed(e.into()))?;
    load.path = Model::parse_for(values.text("MODEL"), load.weights)?
        .fetch(machine, values.has("accept-licence"))?
        .path;
    load.max_num_seqs = load.max_num_seqs.or(Some(1)); // one prompt, one sequence
    let loaded = serve::load(load, on, machine)?;
    let served = &loaded.served;
    let ids = prompt(values, served, &text)?;
    let request = request(values, machine, served, ids)?;
    let prompt_tokens = request.prompt.len();
    let started = Instant::now();
    let events = served.engine.generate(request).or_exit(Exit::Failed)?;
    let mut run = Run::new(Arc::clone(&served.text), 1);
    let choice = ChoiceOptions {
        skip_special: true,
        ..ChoiceOptions::default()
    };
    run.add(events, &choice, None, prompt_tokens);
    let (finish, first) = print(machine, &mut run, started)?;
    machine.console.print("\n")?;
    machine.console.note(&summary(
        run.usage(),
        finish,
        first,
        started.elapsed().as_secs_f64(),
    ));
    Ok(())
}

fn input() -> Result<String, Failure> {
    let mut bytes = Vec::new();
    std::io::stdin()
        .take(INPUT_BYTES)
        .read_to_end(&mut bytes)
        .or_exit(Exit::Machine)?;
    prompt_of(bytes).map_err(|what| Failure::text(Exit::Usage, what))
}

/// The text of an input without the line break that ends it: `echo` and editors write it, nobody means it, and a small
/// model answers a question with a line break behind it otherwise than the question.
fn prompt_of(bytes: Vec<u8>) -> Result<String, String> {
    let mut text = String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        format!("the prompt on standard input is not UTF-8: byte {at} begins no character")
    })?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}

/// Token ids of the prompt: a chat through the template, or the text as it stands.
fn prompt(values: &Values<'_>, served: &ServedModel, text: &str) -> Result<Vec<u32>, Failure> {
    let ids = match (&served.template, values.has("raw")) {
        (_, true) => {
            let ids = served
                .text
                .encode(text, Specials::Parse)
                .or_exit(Exit::Usage)?;
            served
                .text
                .prompt_prefix()
                .iter()
                .copied()
                .chain(ids)
                .collect()
        }
        (Some(template), false) => {
            let message = |role: &str, content: &str| ChatMessage {
                role: role.to_owned(),
                content: Some(content.to_owned()),
                ..ChatMessage::default()
            };
            let system = values.text("system").map(|s| message("system", s));
            let messages: Vec<ChatMessage> =
                system.into_iter().chain([message("user", text)]).collect();
            let input = ChatInput {
                messages: &messages,
                tools: &[],
                add_generation_prompt: true,
            };
            let pieces = template.render(&input).or_exit(Exit::Usage)?;
            served.text.encode_pieces(&pieces).or_exit(Exit::Usage)?
        }
        (None, false) => {
            let what =
                "the checkpoint has no chat template: use --raw to continue the prompt as text";
            return Err(Failure::text(Exit::Usage, what));
        }
    };
    if ids.is_empty() {
        return Err(Failure::text(Exit::Usage, "the prompt is empty"));
    }
    Ok(ids)
}

fn request(
    values: &Values<'_>,
    machine: &Machine,
    served: &ServedModel,
    ids: Vec<u32>,
) -> Result<Request, Failure> {
    let room = served.card.room();
    let prompt = ids.len() as u64;
    let left = room.tokens.saturating_sub(prompt);
    if left == 0 {
        let answer = 1;
        let what = ApiError::ContextLength {
            room,
            prompt,
            answer,
        };
        return Err(Failure::new(Exit::Usage, what));
    }
    let defaults = &served.card.defaults;
    let seed = values.count("seed").unwrap_or_else(fresh_seed);
    let fields = defaults.fields();
    let sampling = Sampling::new(&fields, seed).or_exit(Exit::Usage)?;
    if fields.temperature > 0.0 && values.count::<u64>("seed").is_none() {
        machine.console.note(&format!("seed {seed}"));
    }
    let left = u32::try_from(left).unwrap_or(u32::MAX);
    let most = defaults
        .max_tokens
        .value
        .map_or(left, |most| most.min(left));
    let mut request = Request::new(RequestId(0), ids, sampling, most);
    request.stop_tokens = served.text.eos().into();
    Ok(request)
}

/// The engine's counter generator takes any 64 bits; 53 of them survive every JSON reader.
fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0u8) >> 11
}

/// Prints the answer as it comes; gives why it ended, and seconds to the first token.
fn print(
    machine: &Machine,
    run: &mut Run,
    started: Instant,
) -> Result<(Option<Finish>, f64), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .or_exit(Exit::Machine)?;
    let (mut finish, mut first) = (None, None);
    while let Some(output) = runtime.block_on(poll_fn(|cx| run.poll_next(cx))) {
        let Output { delta, tokens, .. } = output.or_exit(Exit::Failed)?;
        if tokens > 0 {
            first.get_or_insert_with(|| started.elapsed().as_secs_f64());
        }
        machine.console.print(&delta.text)?;
        finish = finish.or(delta.finish);
    }
    Ok((finish, first.unwrap_or_default()))
}

fn summary(usage: Usage, finish: Option<Finish>, first: f64, seconds: f64) -> String {
    let why = match finish {
        Some(Finish::Length) => ", stopped at the length limit",
        _ => "",
    };
    let rest = usage.completion_tokens.saturating_sub(1);
    let rate = if rest > 0 && seconds > first {
        rest as f64 / (seconds - first)
    } else {
        0.0
    };
    format!(
        "{} prompt tokens, first token after {first:.2} s, {} tokens at {rate:.1} per second{why}",
        usage.prompt_tokens, usage.completion_tokens
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_break_that_ends_an_input_is_no_part_of_the_prompt() {
        let of = |text: &str| prompt_of(text.into()).unwrap_or_default();
        assert_eq!(of("a\nb\n"), "a\nb");
        assert_eq!(of("a\r\n"), "a");
        assert_eq!(of("a\n\n"), "a\n");
        assert_eq!(of("a\r"), "a\r");
        assert_eq!(of("a "), "a ");
        assert_eq!(of("\n"), "");
    }

    #[test]
    fn an_input_that_is_no_text_is_refused_with_the_place() {
        let said = prompt_of(b"ab\xff".to_vec()).unwrap_err();
        assert!(
            said.contains("standard input") && said.contains("byte 2"),
            "{said}"
        );
    }
}

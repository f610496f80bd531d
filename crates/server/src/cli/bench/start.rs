// SPDX-License-Identifier: MIT OR Apache-2.0
//! `met bench start`: how long a server takes from the start of its process to its first token.
//!
//! The program starts itself as `met serve --port 0` and looks at it from outside, as a user would: its log says where it
//! listens, GET /ready when it can answer, and a streamed completion of token ids brings the first token.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use metrale_bench::{SCHEMA, StartRow};

use super::super::exit::{Exit, Failure, OrExit};
use super::super::flags::{Flag, Kind};
use super::super::machine::Machine;
use super::super::parser::Values;
use super::super::serve_args::{DEVICE, ENGINE, WEIGHTS};
use crate::recipe;

/// A server that is not ready by then is given up.
const LONGEST: Duration = Duration::from_secs(600);
/// Between two questions whether it is ready.
const PAUSE: Duration = Duration::from_millis(1);
/// Ids of the prompt: every vocabulary has them.
const PROMPT: &str = "[11,12,13,14,15,16,17,18]";

pub(in super::super) fn start(values: &Values<'_>, machine: &Machine) -> Result<(), Failure> {
    let model = values.text("MODEL").unwrap_or(recipe::DEFAULT);
    let repeats = values.count("repeats").unwrap_or(3);
    let mut times = Vec::new();
    for run in 1..=repeats {
        machine.console.note(&format!("start {run} of {repeats}"));
        times.push(once(values, model)?);
    }
    let median = |of: fn(&Times) -> f64| {
        let mut all: Vec<f64> = times.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2] * 1e3
    };
    let row = StartRow {
        schema: SCHEMA,
        model: model.to_owned(),
        listening_ms: median(|t| t.listening),
        ready_ms: median(|t| t.ready),
        first_token_ms: median(|t| t.first_token),
        repeats,
    };
    let json = values.text("format") == Some("json");
    machine
        .console
        .print(&if json { row.json() } else { row.text() })?;
    Ok(())
}

/// Seconds from the start of the process.
struct Times {
    listening: f64,
    ready: f64,
    first_token: f64,
}

/// The server's process, ended with this value.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It has ended already, or ends now; nothing of it is wanted any more.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn once(values: &Values<'_>, model: &str) -> Result<Times, Failure> {
    let program = std::env::current_exe().or_exit(Exit::Machine)?;
    let started = Instant::now();
    let mut child = Command::new(program)
        .args(["serve", model, "--port", "0", "--log-format", "json"])
        .args(["--served-model-name", "bench"])
        .args(passed(values))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .or_exit(Exit::Machine)?;
    let log = child.stderr.take();
    let mut server = Server(child);
    let lines = log.map(follow);
    let (address, listening) = listening(&mut server, lines, started)?;
    let ready = wait_ready(&mut server, address, started)?;
    let first_token = first_token(address, started)?;
    Ok(Times {
        listening,
        ready,
        first_token,
    })
}

/// The lines of the log, from a thread that reads it to its end, so that the server never waits for its reader.
fn follow(log: impl Read + Send + 'static) -> Receiver<(Instant, String)> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(log).lines().map_while(Result::ok) {
            // Nobody listens any more once the address is known: the rest is read and dropped.
            let _ = sender.send((Instant::now(), line));
        }
    });
    receiver
}

/// Where the server listens, and since when.
fn listening(
    server: &mut Server,
    lines: Option<Receiver<(Instant, String)>>,
    started: Instant,
) -> Result<(SocketAddr, f64), Failure> {
    let mut last = String::new();
    for (at, line) in lines.iter().flatten() {
        if let Some(address) = address(&line) {
            return Ok((address, (at - started).as_secs_f64()));
        }
        last = line;
    }
    // The log has ended, and so has the server.
    let status = server.0.wait().or_exit(Exit::Machine)?;
    Err(Failure::text(
        ended_as(status),
        format!(
            "met serve ended before it listened ({status}): {}",
            message(&last)
        ),
    ))
}

/// Its status is this command's.
fn ended_as(status: ExitStatus) -> Exit {
    let same = |exit: &Exit| *exit != Exit::Done && status.code() == Some(*exit as i32);
    Exit::ALL.into_iter().find(same).unwrap_or(Exit::Failed)
}

/// What a line of the log says.
fn message(line: &str) -> String {
    let fields = serde_json::from_str::<serde_json::Value>(line).ok();
    let message = fields.and_then(|line| Some(line["fields"]["message"].as_str()?.to_owned()));
    let message = message.as_deref().unwrap_or(line);
    message.strip_prefix("met: ").unwrap_or(message).to_owned()
}

/// The address in the log's line `listening`.
fn address(line: &str) -> Option<SocketAddr> {
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    let fields = &line["fields"];
    if fields["message"] != "listening" {
        return None;
    }
    fields["address"].as_str()?.parse().ok()
}

fn wait_ready(server: &mut Server, at: SocketAddr, started: Instant) -> Result<f64, Failure> {
    while started.elapsed() < LONGEST {
        let ask = "GET /ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        if exchange(at, ask, b"\r\n").is_ok_and(|head| head.starts_with(b"HTTP/1.1 200")) {
            return Ok(started.elapsed().as_secs_f64());
        }
        if let Some(status) = server.0.try_wait().or_exit(Exit::Machine)? {
            let what =
                format!("met serve ended before it was ready ({status}); start it to see why");
            return Err(Failure::text(ended_as(status), what));
        }
        std::thread::sleep(PAUSE);
    }
    Err(Failure::text(
        Exit::Failed,
        format!("the server was not ready within {LONGEST:?}"),
    ))
}

fn first_token(at: SocketAddr, started: Instant) -> Result<f64, Failure> {
    let body = format!(
        r#"{{"model":"bench","prompt":{PROMPT},"max_tokens":1,"temperature":0,"stream":true}}"#
    );
    let ask = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = exchange(at, &ask, b"data: {").or_exit(Exit::Failed)?;
    let seconds = started.elapsed().as_secs_f64();
    if answer.starts_with(b"HTTP/1.1 200") {
        return Ok(seconds);
    }
    let text = String::from_utf8_lossy(&answer);
    let what = text.split("\r\n\r\n").nth(1).unwrap_or(&text);
    Err(Failure::text(
        Exit::Failed,
        format!("the server answered: {}", what.trim()),
    ))
}

/// Sends a request; gives what has come of the answer when `until` is in it, or all of it.
fn exchange(at: SocketAddr, ask: &str, until: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(at)?;
    stream.set_read_timeout(Some(LONGEST))?;
    stream.write_all(ask.as_bytes())?;
    let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let n = stream.read(&mut piece)?;
        answer.extend_from_slice(&piece[..n]);
        if n == 0 || answer.windows(until.len()).any(|w| w == until) {
            return Ok(answer);
        }
    }
}

/// The flags of weights, device and engine that this command line has, for the server's.
fn passed(values: &Values<'_>) -> Vec<String> {
    let flags = [WEIGHTS, DEVICE, ENGINE].map(|g| g.flags);
    let mut out = Vec::new();
    for flag in flags.into_iter().flatten() {
        for value in given(values, flag) {
            out.push(format!("--{}={value}", flag.name));
        }
    }
    out
}

fn given(values: &Values<'_>, flag: &Flag) -> Vec<String> {
    match flag.kind {
        Kind::Count { .. } => values.count::<u64>(flag.name).map(|n| n.to_string()),
        Kind::Device => values.device(flag.name).map(|d| d.to_string()),
        Kind::Text if flag.repeats => return values.texts(flag.name),
        Kind::Text | Kind::Choice(_) => values.text(flag.name).map(str::to_owned),
        Kind::Number { .. } => values.number(flag.name).map(|n| n.to_string()),
        // The three groups have none of these.
        Kind::Switch | Kind::Path | Kind::Sampling(_) => None,
    }
    .into_iter()
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_read_from_the_log() {
        let line = r#"{"level":"INFO","fields":{"message":"listening","address":"127.0.0.1:4711","model":"m"}}"#;
        assert_eq!(address(line), "127.0.0.1:4711".parse().ok());
        assert_eq!(address(&line.replace("listening", "ready")), None);
        assert_eq!(address("met: no"), None);
    }

    #[test]
    fn flags_of_the_server_are_passed_on() {
        let line = "met bench start m --device cuda:1 --load-format dummy --max-num-seqs 4 --kv-host-gb 0.5 --accept-key a --accept-key b --repeats 2";
        let matches = crate::cli::clap_command()
            .try_get_matches_from(line.split(' '))
            .unwrap();
        let (_, bench) = matches.subcommand().unwrap();
        let (name, start) = bench.subcommand().unwrap();
        assert_eq!(name, "start");
        assert_eq!(
            passed(&Values(start)),
            [
                "--load-format=dummy",
                "--device=cuda:1",
                "--max-num-seqs=4",
                "--kv-host-gb=0.5",
                "--accept-key=a",
                "--accept-key=b"
            ]
        );
    }
}

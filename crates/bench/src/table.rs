// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports as text for people.

use std::fmt::Write;

use crate::report::{Report, StartRow, Value};

pub(crate) fn report(r: &Report) -> String {
    let mut out = String::new();
    let a = &r.about;
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "{} ({} weights, {}) on {}, class {}, digest {}",
        a.model,
        a.weights,
        bytes(a.weight_bytes as f64),
        a.device,
        a.class,
        a.digest
    );
    if let Some(g) = &r.gauges {
        let operations = match g.operations {
            Some(o) => format!("{} operations/s ({})", big(o), g.operations_source),
            None => g.operations_source.clone(),
        };
        let _ = writeln!(
            out,
            "device: reads {}/s ({} a pass); {operations}",
            bytes(g.read),
            bytes(g.read_bytes as f64)
        );
    }
    groups(&mut out, r);
    if !r.prefill.is_empty() {
        let mut rows = vec![row([
            "prompt",
            "TTFT ms",
            "range",
            "tok/s",
            "of read",
            "of operations",
        ])];
        rows.extend(r.prefill.iter().map(|p| {
            row([
                &p.input.to_string(),
                &ms(p.ttft_ms),
                &format!("{}..{}", ms(p.ttft_ms_range[0]), ms(p.ttft_ms_range[1])),
                &rate(p.tokens_per_second),
                &share(Some(p.share_of_read)),
                &share(p.share_of_operations),
            ])
        }));
        let _ = writeln!(out, "\nprefill, one prompt\n{}", lines(&rows));
    }
    if let Some(first) = r.decode.first() {
        let mut rows = vec![row([
            "at once",
            "tok/s",
            "range",
            "TPOT ms",
            "TTFT ms",
            "step ms",
            "of read",
            "of operations",
            "end to end",
            "J/token",
            "idle",
        ])];
        rows.extend(r.decode.iter().map(|d| {
            row([
                &d.concurrency.to_string(),
                &rate(d.tokens_per_second),
                &format!(
                    "{}..{}",
                    rate(d.tokens_per_second_range[0]),
                    rate(d.tokens_per_second_range[1])
                ),
                &ms(d.tpot_ms),
                &ms(d.ttft_ms),
                &ms(d.step_ms),
                &share(Some(d.share_of_read)),
                &share(d.share_of_operations),
                &rate(d.end_to_end_tokens_per_second),
                &optional(&d.joules_per_token),
                &percent(&d.idle_share),
            ])
        }));
        let _ = writeln!(
            out,
            "\ndecode, {} tokens after {}, {} repeats\n{}",
            first.output,
            first.input,
            r.options.repeats,
            lines(&rows)
        );
        if let Some(why) = &first.joules_per_token.reason {
            let _ = writeln!(out, "no energy: {why}");
        }
    }
    out
}

fn groups(out: &mut String, r: &Report) {
    let mut at = 0;
    while let Some(first) = r.groups.get(at) {
        let same = |g: &&crate::report::GroupRow| {
            (g.sequences, g.rows_each, g.context)
                == (first.sequences, first.rows_each, first.context)
        };
        let part: Vec<_> = r.groups[at..].iter().take_while(same).collect();
        at += part.len();
        let mut rows = vec![row([
            "launches",
            "count",
            "ms",
            "share",
            "read/s",
            "of read",
            "of operations",
        ])];
        rows.extend(part.iter().map(|g| {
            row([
                &g.name,
                &g.launches.to_string(),
                &ms(g.ms),
                &share(Some(g.share_of_step)),
                &bytes(g.bytes_per_second),
                &share(Some(g.share_of_read)),
                &share(g.share_of_operations),
            ])
        }));
        let _ = writeln!(
            out,
            "\nstep of {} sequences, {} rows each after {} tokens\n{}",
            first.sequences,
            first.rows_each,
            first.context,
            lines(&rows)
        );
    }
}

pub(crate) fn start(s: &StartRow) -> String {
    format!(
        "{}: listening after {} ms, ready after {} ms, first token after {} ms (median of {} starts)\n",
        s.model,
        ms(s.listening_ms),
        ms(s.ready_ms),
        ms(s.first_token_ms),
        s.repeats
    )
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.iter().map(|c| (*c).to_owned()).collect()
}

/// Columns as wide as their widest cell, the first to the left and the others to the right.
fn lines(rows: &[Vec<String>]) -> String {
    let width = |i: usize| rows.iter().map(|r| r[i].chars().count()).max().unwrap_or(0);
    let mut out = String::new();
    for r in rows {
        let cells = r.iter().enumerate().map(|(i, cell)| match i {
            0 => format!("{cell:<w$}", w = width(0)),
            _ => format!("{cell:>w$}", w = width(i)),
        });
        out += cells.collect::<Vec<_>>().join("  ").trim_end();
        out.push('\n');
    }
    out.trim_end().to_owned()
}

fn ms(v: f64) -> String {
    match v {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.3}"),
    }
}

fn rate(v: f64) -> String {
    if v >= 1000.0 {
        format!("{v:.0}")
    } else {
        format!("{v:.1}")
    }
}

fn share(v: Option<f64>) -> String {
    v.map_or("-".to_owned(), |v| format!("{:.0}%", v * 100.0))
}

fn optional(v: &Value) -> String {
    v.value.map_or("-".to_owned(), |v| format!("{v:.3}"))
}

fn percent(v: &Value) -> String {
    v.value
        .map_or("-".to_owned(), |v| format!("{:.2}%", v * 100.0))
}

fn bytes(v: f64) -> String {
    format!("{}B", big(v))
}

/// Three digits and a decimal prefix.
fn big(v: f64) -> String {
    for (unit, name) in [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")] {
        if v >= unit {
            return format!("{:.2} {name}", v / unit);
        }
    }
    format!("{v:.0} ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [row(["a", "b"]), row(["long", "1234"]), row(["x", "5"])];
        assert_eq!(lines(&rows), "a        b\nlong  1234\nx        5");
        assert_eq!((big(4.677e12), big(12.0)), ("4.68 T".into(), "12 ".into()));
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Figures and tables for people.

/// Bytes in decimal units, as devices and files are sold.
pub(crate) fn bytes(n: u64) -> String {
    scaled(n, "B")
}

/// A count with a decimal unit prefix.
pub(crate) fn number(n: u64) -> String {
    scaled(n, "").trim_end().to_owned()
}

fn scaled(n: u64, unit: &str) -> String {
    const STEPS: [(u64, &str); 4] = [
        (1_000_000_000_000, "T"),
        (1_000_000_000, "G"),
        (1_000_000, "M"),
        (1_000, "k"),
    ];
    match STEPS.iter().find(|(step, _)| n >= *step) {
        Some((step, prefix)) => format!("{:.2} {prefix}{unit}", n as f64 / *step as f64),
        None => format!("{n} {unit}"),
    }
}

/// A duration with three digits.
pub(crate) fn seconds(s: f64) -> String {
    if s >= 1.0 {
        format!("{s:.2} s")
    } else if s >= 1e-3 {
        format!("{:.2} ms", s * 1e3)
    } else {
        format!("{:.2} us", s * 1e6)
    }
}

/// Columns as wide as their widest cell, two spaces between; the first line is the head.
pub(crate) fn table<const N: usize>(lines: &[[String; N]]) -> String {
    let mut widths = [0; N];
    for line in lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    for line in lines {
        let cells: Vec<String> = line
            .iter()
            .zip(widths)
            .map(|(c, w)| format!("{c:w$}"))
            .collect();
        out.push_str(cells.join("  ").trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(98_362_432), "98.36 MB");
        assert_eq!(number(1_250), "1.25 k");
        assert_eq!(seconds(0.013), "13.00 ms");
        let line = |a: &str, b: &str| [a.to_owned(), b.to_owned()];
        assert_eq!(table(&[line("a", "bb"), line("ccc", "")]), "a    bb\nccc\n");
    }
}

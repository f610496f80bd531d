// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds stop texts in bytes that arrive piece by piece, and holds back what may yet become one.
//!
//! The answer ends with the stop text that is complete first; of several complete at the same byte, the longest. So the
//! result depends on the bytes alone and not on how they were cut into tokens. It works on bytes: a stop text is valid
//! UTF-8, and so can only stand at the border of characters.

/// Searches for stop texts. Once one was found the scanner is spent.
#[derive(Clone, Debug, Default)]
pub struct StopScanner {
    stops: Vec<Vec<u8>>,
    include: bool,
    /// The longest end of what came that is a proper beginning of a stop text.
    held: Vec<u8>,
}

impl StopScanner {
    /// For these texts, none of them empty. `include` keeps the stop text in the output.
    #[must_use]
    pub fn new(stops: &[String], include: bool) -> StopScanner {
        StopScanner {
            stops: stops.iter().map(|s| s.as_bytes().to_vec()).collect(),
            include,
            held: Vec::new(),
        }
    }

    /// Takes `bytes`, appends to `out` what is certainly part of the answer, and says whether a stop text was found.
    pub fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> bool {
        if self.stops.is_empty() {
            out.extend_from_slice(bytes);
            return false;
        }
        self.held.extend_from_slice(bytes);
        if let Some((start, end)) = self.first_match() {
            let kept = if self.include { end } else { start };
            out.extend_from_slice(&self.held[..kept]);
            self.held.clear();
            return true;
        }
        let safe = self.held.len() - self.possible();
        out.extend(self.held.drain(..safe));
        false
    }

    /// Bytes that are held back.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// At the end of the answer: what was held back is part of it.
    pub fn flush(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.held);
    }

    /// The match that ends first, the longest of those: where it starts and ends.
    fn first_match(&self) -> Option<(usize, usize)> {
        self.stops
            .iter()
            .filter_map(|stop| {
                let start = find(&self.held, stop)?;
                Some((start + stop.len(), start))
            })
            .min()
            .map(|(end, start)| (start, end))
    }

    /// Length of the longest end of `held` that is a proper beginning of a stop text.
    fn possible(&self) -> usize {
        let longest = |stop: &Vec<u8>| {
            let most = (stop.len() - 1).min(self.held.len());
            (1..=most)
                .rev()
                .find(|n| self.held.ends_with(&stop[..*n]))
                .unwrap_or(0)
        };
        self.stops.iter().map(longest).max().unwrap_or(0)
    }
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(stops: &[&str], pieces: &[&[u8]]) -> (String, bool) {
        let stops: Vec<String> = stops.iter().map(|s| (*s).to_owned()).collect();
        let mut scanner = StopScanner::new(&stops, false);
        let mut out = Vec::new();
        for piece in pieces {
            if scanner.push(piece, &mut out) {
                return (String::from_utf8(out).expect("utf-8"), true);
            }
        }
        scanner.flush(&mut out);
        (String::from_utf8(out).expect("utf-8"), false)
    }

    #[test]
    fn any_cutting_gives_the_same_answer() {
        let cases: [(&[&str], &str); 6] = [
            (&["abcd", "bc"], "xabcdy"),
            (&["aab"], "aaaab!"),
            (&["ENDE", "END"], "the ENDE"),
            (&["é", "\n\n"], "caf\né\n\n"),
            (&["zz"], "z z z"),
            (&["aXa", "Xab"], "aaXab"),
        ];
        for (stops, text) in cases {
            let whole = scan(stops, &[text.as_bytes()]);
            for cuts in 0..1_u32 << (text.len() - 1) {
                let mut pieces: Vec<&[u8]> = Vec::new();
                let mut start = 0;
                for end in 1..=text.len() {
                    if end == text.len() || cuts >> (end - 1) & 1 == 1 {
                        pieces.push(&text.as_bytes()[start..end]);
                        start = end;
                    }
                }
                assert_eq!(
                    scan(stops, &pieces),
                    whole,
                    "{stops:?} in {text:?} cut at {cuts:b}"
                );
            }
        }
    }

    #[test]
    fn the_first_complete_stop_text_ends_the_answer() {
        assert_eq!(scan(&["abcd", "bc"], &[b"xabcdy"]), ("xa".into(), true));
        assert_eq!(scan(&["bc", "abc"], &[b"xabc"]), ("x".into(), true));
        assert_eq!(scan(&["aab"], &[b"aaaab!"]), ("aa".into(), true));
    }

    #[test]
    fn nothing_of_a_stop_text_leaves_early() {
        let mut scanner = StopScanner::new(&["STOP".to_owned()], false);
        let mut out = Vec::new();
        assert!(!scanner.push(b"ab ST", &mut out));
        assert_eq!((out.as_slice(), scanner.held()), (&b"ab "[..], 2));
        assert!(!scanner.push(b"ART", &mut out));
        assert_eq!((out.as_slice(), scanner.held()), (&b"ab START"[..], 0));
    }

    #[test]
    fn the_stop_text_is_kept_on_request() {
        let mut scanner = StopScanner::new(&["</s>".to_owned()], true);
        let mut out = Vec::new();
        assert!(scanner.push(b"x</s>y", &mut out));
        assert_eq!(out, b"x</s>");
    }
}

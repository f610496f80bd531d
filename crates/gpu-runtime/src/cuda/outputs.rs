// SPDX-License-Identifier: MIT OR Apache-2.0
//! The small outputs of a step (tokens, log-probabilities, alternatives, status), copied to the host behind each program.
//!
//! The engine reads them a few bytes at a time, row by row. Each such read would cost a trip over the bus, about 10 us, and
//! with a second step on its way the device's copy is the second's. So every submit is followed by one copy into its slot of
//! the step ring, and reads by fence find it there.

use metrale_core::{ArenaKind, MemoryPlan, SpanId};

/// Spans above this are read as they are asked for (rows of logits).
const SMALL: u64 = 64 * 1024;

/// Where the small outputs lie, on the device and in a slot's copy.
#[derive(Clone, Debug, Default)]
pub(super) struct Outputs {
    /// First span, and bytes from its begin to the end of the last.
    pub(super) copied: Option<(SpanId, u64)>,
    /// Span, its first byte in the copy, its bytes.
    spans: Vec<(SpanId, u64, u64)>,
}

impl Outputs {
    /// The small outputs of a plan that lie side by side. (A plan puts large ones before or behind.)
    pub(super) fn new(plan: &MemoryPlan) -> Outputs {
        let small = plan.spans.iter().enumerate().filter(|(_, span)| {
            span.arena == ArenaKind::Outputs && (1..=SMALL).contains(&span.bytes)
        });
        let mut all: Vec<(u64, u64, SpanId)> = small
            .map(|(i, span)| (span.offset, span.bytes, SpanId(i as u32)))
            .collect();
        all.sort_unstable_by_key(|(offset, ..)| *offset);
        let (Some(first), Some(last)) = (all.first(), all.last()) else {
            return Outputs::default();
        };
        let (begin, end) = (first.0, last.0 + last.1);
        let within = |offset: u64| begin < offset && offset < end;
        let between = plan
            .spans
            .iter()
            .any(|s| s.arena == ArenaKind::Outputs && s.bytes > SMALL && within(s.offset));
        if between {
            return Outputs::default();
        }
        Outputs {
            copied: Some((first.2, end - begin)),
            spans: all
                .iter()
                .map(|(offset, bytes, span)| (*span, offset - begin, *bytes))
                .collect(),
        }
    }

    /// Words of a copy.
    pub(super) fn words(&self) -> usize {
        self.copied
            .map_or(0, |(_, bytes)| bytes.div_ceil(4) as usize)
    }

    /// First byte in a copy of a range of a small output; `None` if it is none, or the range leaves it.
    pub(super) fn find(&self, span: SpanId, offset: u64, bytes: u64) -> Option<usize> {
        let (_, at, has) = self.spans.iter().find(|(s, ..)| *s == span)?;
        let end = offset.checked_add(bytes)?;
        (end <= *has).then_some((at + offset) as usize)
    }
}

#[cfg(test)]
mod tests {
    use metrale_core::{Elem, Extent, Span, Unit};

    use super::*;

    fn span(offset: u64, bytes: u64) -> Span {
        Span {
            name: "s".into(),
            arena: ArenaKind::Outputs,
            offset,
            bytes,
            elem: Elem::U32,
            extent: Extent {
                unit: Unit::One,
                elems: bytes / 4,
            },
            live: None,
        }
    }

    #[test]
    fn small_spans_side_by_side_are_one_copy() {
        let spans = vec![
            span(0, 1 << 20),
            span(1 << 20, 40),
            span((1 << 20) + 256, 100),
        ];
        let outputs = Outputs::new(&MemoryPlan { spans });
        assert_eq!(outputs.copied, Some((SpanId(1), 356)));
        assert_eq!(outputs.words(), 89);
        assert_eq!(outputs.find(SpanId(2), 4, 8), Some(260));
        assert_eq!(outputs.find(SpanId(2), 96, 8), None, "past its end");
        assert_eq!(outputs.find(SpanId(0), 0, 4), None, "large");
    }

    #[test]
    fn a_large_span_between_them_is_not_dragged_along() {
        let spans = vec![span(0, 40), span(256, 1 << 20), span(2 << 20, 40)];
        assert_eq!(Outputs::new(&MemoryPlan { spans }).copied, None);
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Offsets of spans, and the proof that none overwrites another.
//!
//! Activations live from the first group that touches them to the last; two that never live at once may share bytes. All
//! other spans have bytes of their own. The proof does not trust the layout: it looks at the finished plan.

use metrale_core::{Access, ArenaKind, Arg, MemoryPlan, SpanId};

use super::{Group, PlanError};

/// Largest arena: offsets stay in i64, far beyond any machine.
pub(super) const MAX_BYTES: u64 = 1 << 56;

/// Two spans in one place at one time, or a launch that contradicts itself: never seen outside tests of the check.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("memory plan: {what}")]
pub struct MemoryFault {
    /// The contradiction, with the names of the spans.
    pub what: String,
}

fn buffers(group: &Group) -> impl Iterator<Item = (SpanId, Access)> + '_ {
    group.args.iter().filter_map(|a| match a {
        Arg::Buf { span, access } => Some((*span, *access)),
        _ => None,
    })
}

/// Sets lifetimes and offsets.
pub(super) fn lay_out(memory: &mut MemoryPlan, groups: &[Group]) -> Result<(), PlanError> {
    for (i, group) in groups.iter().enumerate() {
        for (id, _) in buffers(group) {
            let Some(span) = memory.spans.get_mut(id.0 as usize) else {
                continue;
            };
            if span.arena == ArenaKind::Activations {
                let first = span.live.map_or(i as u32, |(first, _)| first);
                span.live = Some((first, i as u32));
            }
        }
    }
    for kind in ArenaKind::ALL {
        let ids = (0..memory.spans.len()).filter(|i| memory.spans[*i].arena == kind);
        let ids: Vec<usize> = ids.collect();
        let end = match kind {
            ArenaKind::Activations => first_fit(memory, ids),
            _ => one_after_another(memory, &ids),
        };
        if end > MAX_BYTES {
            return Err(PlanError::TooLarge {
                what: format!("the {} arena", kind.name()),
            });
        }
    }
    Ok(())
}

fn aligned(bytes: u64) -> u64 {
    bytes.next_multiple_of(MemoryPlan::ALIGN)
}

fn one_after_another(memory: &mut MemoryPlan, ids: &[usize]) -> u64 {
    let mut at = 0u64;
    for i in ids {
        memory.spans[*i].offset = at;
        at = at.saturating_add(aligned(memory.spans[*i].bytes));
    }
    at
}

/// In order of birth, each at the lowest offset that is free for its whole life.
fn first_fit(memory: &mut MemoryPlan, mut ids: Vec<usize>) -> u64 {
    ids.sort_by_key(|i| (memory.spans[*i].live, *i));
    // (offset, end, last group), ascending by offset.
    let mut taken: Vec<(u64, u64, u32)> = Vec::new();
    let mut top = 0;
    for i in ids {
        let (first, last) = memory.spans[i].live.unwrap_or((0, u32::MAX));
        taken.retain(|(_, _, dies)| *dies >= first);
        let size = aligned(memory.spans[i].bytes);
        let mut offset = 0u64;
        let mut place = taken.len();
        for (n, (begin, end, _)) in taken.iter().enumerate() {
            if offset.saturating_add(size) <= *begin {
                place = n;
                break;
            }
            offset = *end;
        }
        let end = offset.saturating_add(size);
        taken.insert(place, (offset, end, last));
        memory.spans[i].offset = offset;
        top = top.max(end);
    }
    top
}

/// Proves that spans which live at the same time are disjoint, that no launch uses one span twice unless it only reads it,
/// that it stays inside lifetimes, and that no activation is read before it is written.
///
/// # Errors
/// [`MemoryFault`] names the first contradiction.
pub fn check_memory(memory: &MemoryPlan, groups: &[Group]) -> Result<(), MemoryFault> {
    let fault = |what: String| Err(MemoryFault { what });
    for kind in ArenaKind::ALL {
        let mut spans: Vec<_> = memory.spans.iter().filter(|s| s.arena == kind).collect();
        spans.sort_by_key(|s| s.offset);
        if let Some(s) = spans
            .iter()
            .find(|s| !s.offset.is_multiple_of(MemoryPlan::ALIGN))
        {
            return fault(format!("span {} is not aligned", s.name));
        }
        // Sweep by offset; `open` holds the spans that may still reach over the next offset.
        let mut open: Vec<&metrale_core::Span> = Vec::new();
        for s in spans {
            open.retain(|o| o.offset.saturating_add(o.bytes) > s.offset);
            let clash = open.iter().find(|o| match (o.live, s.live) {
                (Some((a, b)), Some((c, d))) => a <= d && c <= b,
                _ => true,
            });
            if let Some(o) = clash.filter(|_| s.bytes > 0) {
                return fault(format!("spans {} and {} overlap", o.name, s.name));
            }
            open.push(s);
        }
    }
    let mut written = vec![false; memory.spans.len()];
    for (i, group) in groups.iter().enumerate() {
        let mut seen: Vec<(SpanId, Access)> = Vec::new();
        for (id, access) in buffers(group) {
            let Some(span) = memory.spans.get(id.0 as usize) else {
                return fault(format!("group {} names a span of another plan", group.name));
            };
            let alias = seen
                .iter()
                .any(|(s, a)| *s == id && (*a, access) != (Access::Read, Access::Read));
            if alias {
                return fault(format!(
                    "group {} uses span {} twice",
                    group.name, span.name
                ));
            }
            seen.push((id, access));
            if span.arena == ArenaKind::Activations {
                let inside = span
                    .live
                    .is_some_and(|(a, b)| a <= i as u32 && i as u32 <= b);
                if !inside {
                    return fault(format!(
                        "group {} uses span {} outside its life",
                        group.name, span.name
                    ));
                }
                if access != Access::Write && !written[id.0 as usize] {
                    return fault(format!(
                        "group {} reads span {} unwritten",
                        group.name, span.name
                    ));
                }
            }
        }
        for (id, access) in seen {
            written[id.0 as usize] |= access != Access::Read;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use metrale_core::{Elem, Extent, PointId, RowRange, Span, Unit};
    use proptest::prelude::*;

    use super::*;
    use crate::instance::Phase;
    use crate::plan::Cost;

    fn span(i: usize, bytes: u64) -> Span {
        Span {
            name: format!("s{i}"),
            arena: ArenaKind::Activations,
            offset: 0,
            bytes,
            elem: Elem::U8,
            extent: Extent {
                unit: Unit::One,
                elems: bytes,
            },
            live: None,
        }
    }

    fn group(i: usize, args: Vec<Arg>) -> Group {
        Group {
            name: format!("g{i}"),
            phase: Phase::Forward,
            layer: None,
            points: vec![(RowRange::ALL, PointId::new("f", "p"))],
            args,
            ops: Vec::new(),
            cost: Cost::default(),
            peak: "f32".into(),
            shape: String::new(),
        }
    }

    fn buf(span: usize, access: Access) -> Arg {
        Arg::Buf {
            span: SpanId(span as u32),
            access,
        }
    }

    /// A program over spans with given sizes, births and lives: born written, then read until death.
    fn program(spans: &[(u64, usize, usize)]) -> (MemoryPlan, Vec<Group>) {
        let end = spans
            .iter()
            .map(|(_, birth, life)| birth + life)
            .max()
            .unwrap_or(0);
        let groups = (0..=end).map(|i| {
            let used = spans
                .iter()
                .enumerate()
                .filter(|(_, (_, b, l))| *b <= i && i <= b + l);
            let arg = |(s, (_, birth, _)): (usize, &(u64, usize, usize))| {
                buf(
                    s,
                    if *birth == i {
                        Access::Write
                    } else {
                        Access::Read
                    },
                )
            };
            group(i, used.map(arg).collect())
        });
        let memory = MemoryPlan {
            spans: spans
                .iter()
                .enumerate()
                .map(|(i, (bytes, ..))| span(i, *bytes))
                .collect(),
        };
        (memory, groups.collect())
    }

    proptest! {
        #[test]
        fn layouts_are_sound_and_no_larger_than_the_sum(
            spans in proptest::collection::vec((0..5000u64, 0..40usize, 0..12usize), 1..60)
        ) {
            let (mut memory, groups) = program(&spans);
            lay_out(&mut memory, &groups).unwrap();
            prop_assert_eq!(check_memory(&memory, &groups), Ok(()));
            let sum: u64 = spans.iter().map(|(b, ..)| aligned(*b)).sum();
            prop_assert!(memory.arena_bytes(ArenaKind::Activations) <= sum);
            // No less than the fullest moment.
            let live = |i: usize| spans.iter().filter(move |(_, b, l)| *b <= i && i <= b + l);
            let fullest = (0..groups.len()).map(|i| live(i).map(|(b, ..)| *b).sum::<u64>()).max();
            prop_assert!(memory.arena_bytes(ArenaKind::Activations) >= fullest.unwrap_or(0));
        }

        #[test]
        fn the_check_finds_two_live_spans_in_one_place(
            spans in proptest::collection::vec((1..5000u64, 0..10usize, 5..12usize), 2..20),
            a in any::<prop::sample::Index>(),
            b in any::<prop::sample::Index>(),
        ) {
            let (mut memory, groups) = program(&spans);
            lay_out(&mut memory, &groups).unwrap();
            let (a, b) = (a.index(spans.len()), b.index(spans.len()));
            let meet = |(_, b, l): (u64, usize, usize), (_, c, m): (u64, usize, usize)| {
                b <= c + m && c <= b + l
            };
            prop_assume!(a != b && meet(spans[a], spans[b]));
            memory.spans[a].offset = memory.spans[b].offset;
            prop_assert!(check_memory(&memory, &groups).is_err());
        }
    }

    #[test]
    fn lives_that_do_not_meet_share_bytes() {
        let (mut memory, groups) = program(&[(1000, 0, 1), (1000, 2, 1), (1000, 1, 1)]);
        lay_out(&mut memory, &groups).unwrap();
        let offsets: Vec<_> = memory.spans.iter().map(|s| s.offset).collect();
        assert_eq!(offsets, [0, 0, 1024]);
    }

    #[test]
    fn what_the_check_refuses() {
        let says = |args: Vec<Vec<Arg>>, word: &str| {
            let (mut memory, _) = program(&[(64, 0, 0), (64, 0, 0)]);
            let groups: Vec<_> = args
                .into_iter()
                .enumerate()
                .map(|(i, a)| group(i, a))
                .collect();
            lay_out(&mut memory, &groups).unwrap();
            let e = check_memory(&memory, &groups).unwrap_err().to_string();
            assert!(e.contains(word), "{e}");
        };
        says(vec![vec![buf(0, Access::Read)]], "reads span s0 unwritten");
        says(
            vec![vec![buf(0, Access::ReadWrite)]],
            "reads span s0 unwritten",
        );
        says(
            vec![
                vec![buf(0, Access::Write)],
                vec![buf(0, Access::Read), buf(0, Access::Write)],
            ],
            "uses span s0 twice",
        );
        says(vec![vec![buf(7, Access::Write)]], "another plan");
    }
}

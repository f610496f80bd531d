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
            let span = &mut memory.spans[id.0 as usize];
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

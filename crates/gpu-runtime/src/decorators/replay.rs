// SPDX-License-Identifier: MIT OR Apache-2.0
//! A recorded log again, on another backend.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use super::recording::Call;
use crate::backend::GpuBackend;

/// Where a replay went another way than the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("call {index} ({call}) of the log: {what}")]
pub struct Divergence {
    /// Index in the log.
    pub index: usize,
    /// The method.
    pub call: &'static str,
    /// What differs.
    pub what: String,
}

/// Handles of the log, and what they are on the backend of the replay.
struct Map<T>(HashMap<T, T>);

impl<T: Copy + Eq + Hash> Map<T> {
    fn of(&self, recorded: T) -> T {
        // A handle that the log never gave is as unknown to the other backend as to the first.
        self.0.get(&recorded).copied().unwrap_or(recorded)
    }

    /// Notes the pair if both calls went well; differs if only one did.
    fn note<E: std::fmt::Display, F: std::fmt::Display>(
        &mut self,
        recorded: &Result<T, E>,
        got: Result<T, F>,
    ) -> Result<(), String> {
        if let (Ok(a), Ok(b)) = (recorded, &got) {
            self.0.insert(*a, *b);
        }
        same(recorded, &got)
    }
}

/// Both went well, or neither.
fn same<T, U, E: std::fmt::Display, F: std::fmt::Display>(
    recorded: &Result<T, E>,
    got: &Result<U, F>,
) -> Result<(), String> {
    match (recorded, got) {
        (Ok(_), Ok(_)) | (Err(_), Err(_)) => Ok(()),
        (Ok(_), Err(e)) => Err(format!("went well, and now fails: {e}")),
        (Err(e), Ok(_)) => Err(format!("failed ({e}), and now goes well")),
    }
}

/// Makes the calls of a log on another backend. Every call must succeed or fail as it did, and every read must give the
/// same bytes; waits have no timeout.
///
/// # Errors
/// [`Divergence`], the first.
pub fn replay(log: &[Call], on: &dyn GpuBackend) -> Result<(), Divergence> {
    let mut arenas_of = Map(HashMap::new());
    let mut kernels = Map(HashMap::new());
    let mut launches_of = Map(HashMap::new());
    let mut programs = Map(HashMap::new());
    let mut fences = Map(HashMap::new());
    for (index, call) in log.iter().enumerate() {
        let outcome = match call {
            Call::Reserve {
                plan,
                limits,
                result,
            } => arenas_of.note(result, on.reserve(plan, limits)),
            Call::Release { arenas } => {
                on.release(arenas_of.of(*arenas));
                Ok(())
            }
            Call::Resolve { point, result } => kernels.note(result, on.resolve(point)),
            Call::Bind {
                arenas,
                points,
                args,
                result,
            } => {
                let points: Vec<_> = points.iter().map(|(r, k)| (*r, kernels.of(*k))).collect();
                launches_of.note(result, on.bind(arenas_of.of(*arenas), &points, args))
            }
            Call::Record {
                launches,
                bucket,
                result,
            } => {
                let launches: Vec<_> = launches.iter().map(|l| launches_of.of(*l)).collect();
                programs.note(result, on.record(&launches, *bucket))
            }
            Call::Submit {
                queue,
                program,
                step,
                after,
                result,
            } => {
                let after: Vec<_> = after.iter().map(|f| fences.of(*f)).collect();
                fences.note(
                    result,
                    on.submit(*queue, programs.of(*program), step, &after),
                )
            }
            Call::RunOnce {
                launch,
                step,
                result,
            } => same(result, &on.run_once(launches_of.of(*launch), step)),
            Call::Copy {
                queue,
                arenas,
                dst,
                src,
                bytes,
                after,
                result,
            } => {
                let after: Vec<_> = after.iter().map(|f| fences.of(*f)).collect();
                let arenas = arenas_of.of(*arenas);
                fences.note(result, on.copy(*queue, arenas, *dst, *src, *bytes, &after))
            }
            Call::Read {
                arenas,
                src,
                result,
                bytes,
            } => {
                let mut out = vec![0; *bytes];
                let got = on.read(arenas_of.of(*arenas), *src, &mut out);
                same(result, &got).and_then(|()| match result {
                    Ok(want) if *want != out => Err(first_difference(want, &out)),
                    _ => Ok(()),
                })
            }
            Call::Write {
                arenas,
                dst,
                data,
                result,
            } => same(result, &on.write(arenas_of.of(*arenas), *dst, data)),
            Call::Wait { fence, result } => {
                same(result, &on.wait(fences.of(*fence), Duration::MAX))
            }
        };
        outcome.map_err(|what| Divergence {
            index,
            call: call.name(),
            what,
        })?;
    }
    Ok(())
}

fn first_difference(want: &[u8], got: &[u8]) -> String {
    let at = want.iter().zip(got).position(|(a, b)| a != b).unwrap_or(0);
    format!(
        "byte {at} of {} was {:#04x} and is {:#04x}",
        want.len(),
        want[at],
        got[at]
    )
}

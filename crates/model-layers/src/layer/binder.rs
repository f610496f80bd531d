// SPDX-License-Identifier: MIT OR Apache-2.0
//! Binds plan groups through a backend, resolving each point once.

use std::collections::BTreeMap;

use metrale_circuit::Plan;
use metrale_core::{PointId, RowRange};
use metrale_gpu_runtime::{ArenasId, BindError, GpuBackend, Kernel, Launch, Unresolved};

/// Binds groups of one plan in one set of arenas.
pub struct Binder<'a> {
    backend: &'a dyn GpuBackend,
    arenas: ArenasId,
    plan: &'a Plan,
    kernels: BTreeMap<PointId, Kernel>,
}

/// A group could not be bound.
#[derive(Debug, thiserror::Error)]
pub enum BindFailure {
    /// The backend has no such point.
    #[error("group {group}: {source}")]
    Unresolved {
        /// The plan group.
        group: String,
        /// The point that is missing.
        source: Unresolved,
    },
    /// An argument does not fit.
    #[error("group {group}: {source}")]
    Bind {
        /// The plan group.
        group: String,
        /// Which argument, and why.
        source: BindError,
    },
}

impl<'a> Binder<'a> {
    /// A binder for `plan`, whose memory is reserved as `arenas`.
    #[must_use]
    pub fn new(backend: &'a dyn GpuBackend, arenas: ArenasId, plan: &'a Plan) -> Binder<'a> {
        Binder {
            backend,
            arenas,
            plan,
            kernels: BTreeMap::new(),
        }
    }

    /// The launch of group `index` of the plan.
    ///
    /// # Errors
    /// [`BindFailure`], naming the group.
    pub fn group(&mut self, index: usize) -> Result<Launch, BindFailure> {
        let group = &self.plan.groups[index];
        let mut points: Vec<(RowRange, Kernel)> = Vec::with_capacity(group.points.len());
        for (rows, point) in &group.points {
            points.push((*rows, self.kernel(&group.name, point)?));
        }
        self.backend
            .bind(self.arenas, &points, &group.args)
            .map_err(|source| BindFailure::Bind {
                group: group.name.clone(),
                source,
            })
    }

    fn kernel(&mut self, group: &str, point: &PointId) -> Result<Kernel, BindFailure> {
        if let Some(kernel) = self.kernels.get(point) {
            return Ok(*kernel);
        }
        let kernel = self
            .backend
            .resolve(point)
            .map_err(|source| BindFailure::Unresolved {
                group: group.to_owned(),
                source,
            })?;
        self.kernels.insert(point.clone(), kernel);
        Ok(kernel)
    }
}

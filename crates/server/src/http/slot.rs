// SPDX-License-Identifier: MIT OR Apache-2.0
//! The place that the model comes into: the server listens before it is loaded.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::api::error::ApiError;
use crate::engine_face::{EngineState, ServedModel};

/// Holds the model once there is one, and knows why there is none.
#[derive(Default)]
pub struct ModelSlot {
    content: RwLock<Content>,
    draining: AtomicBool,
}

#[derive(Clone, Default)]
enum Content {
    #[default]
    Loading,
    Loaded(Arc<ServedModel>),
    Failed(String),
}

impl ModelSlot {
    /// The model is loaded and recorded: requests are taken from now on.
    pub fn ready(&self, model: ServedModel) {
        self.set(Content::Loaded(Arc::new(model)));
    }

    /// Loading failed, for this reason. Health is red from now on.
    pub fn failed(&self, why: impl Into<String>) {
        self.set(Content::Failed(why.into()));
    }

    /// Takes no new requests from now on.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Whether [`ModelSlot::drain`] was called.
    #[must_use]
    pub fn draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Whether requests are taken, and if not, why.
    #[must_use]
    pub fn state(&self) -> EngineState {
        let state = match self.content() {
            Content::Loading => EngineState::Loading,
            Content::Failed(why) => EngineState::Failed(why),
            Content::Loaded(model) => model.engine.state(),
        };
        match state {
            EngineState::Failed(_) => state,
            _ if self.draining() => EngineState::Draining,
            _ => state,
        }
    }

    /// The model, if it takes requests.
    ///
    /// # Errors
    /// [`ApiError::Loading`], [`ApiError::Draining`], [`ApiError::EngineFailed`].
    pub fn serving(&self) -> Result<Arc<ServedModel>, ApiError> {
        match self.state() {
            EngineState::Loading => Err(ApiError::Loading),
            EngineState::Draining => Err(ApiError::Draining),
            EngineState::Failed(why) => Err(ApiError::EngineFailed(why)),
            EngineState::Ready | EngineState::Recovering(_) => {
                self.loaded().ok_or(ApiError::Loading)
            }
        }
    }

    /// The model, if it is loaded, whether it takes requests or not.
    #[must_use]
    pub fn loaded(&self) -> Option<Arc<ServedModel>> {
        match self.content() {
            Content::Loaded(model) => Some(model),
            _ => None,
        }
    }

    fn content(&self) -> Content {
        // Nothing under the lock can panic, so a poisoned one holds whole data.
        let content = self.content.read().unwrap_or_else(PoisonError::into_inner);
        content.clone()
    }

    fn set(&self, content: Content) {
        *self.content.write().unwrap_or_else(PoisonError::into_inner) = content;
    }
}

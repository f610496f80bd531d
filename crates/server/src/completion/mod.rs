// SPDX-License-Identifier: MIT OR Apache-2.0
//! The stage of one request between the engine's events and the answer: detokenize, stop texts, logprobs, token counts.
//!
//! [`run::Run`] joins the choices of a request; each is a [`choice::Choice`], a pure machine from token ids to text. A
//! streamed answer is its deltas, an unstreamed one their sum.

pub mod choice;
pub mod echo;
pub mod logprobs;
pub mod run;
pub mod stop;
pub mod utf8;

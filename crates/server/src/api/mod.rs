// SPDX-License-Identifier: MIT OR Apache-2.0
//! What stands in requests and answers.
//!
//! A body goes through [`json::parse`] (bounded), [`fields::Fields`] (every name checked against [`table`]) and one of
//! the request types (every value checked). What comes out is never checked again. Answers are plain serializable
//! types in [`answer`].

pub mod answer;
pub mod chat;
pub mod completions;
pub mod error;
pub mod fields;
pub mod json;
pub mod limits;
mod lists;
mod near;
pub mod page;
pub mod sampling;
pub mod table;
pub mod tokenize;

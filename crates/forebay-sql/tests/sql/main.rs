//! Relational steps as a user meets them: what they give, how they fail, and what is pruned.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

mod corpus;
mod errors;
mod explode;
mod pruning;
mod semantics;
mod support;

//! Plans from outside: job files, JSON, loader arguments, the builder.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "plans/bad.rs"]
mod bad;
#[path = "plans/good.rs"]
mod good;
#[path = "plans/properties.rs"]
mod properties;

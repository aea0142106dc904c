//! Tests of the crate's surface. One binary, because linking costs more than running.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

mod bad_input;
mod commit;
mod corpus;
mod faults;
mod files;
mod listing;
mod read;
mod s3;
mod s3_server;
mod scan_speed;
mod write;

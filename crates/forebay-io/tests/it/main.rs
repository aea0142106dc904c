//! Tests of the crate's surface. One binary, because linking costs more than running.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]
// What `tokio::test` and the measurement do: a test is an outermost door.
#![allow(clippy::disallowed_methods)]

mod bad_input;
mod commit;
mod corpus;
mod faults;
mod files;
mod listing;
mod read;
mod rows;
mod s3;
mod s3_server;
mod scan_speed;
mod write;

//! Test tools for stores.
//!
//! A store is correct when it behaves like [`semel_core::transition`], also under concurrency.
//! [`conformance`] is the suite that every store runs; [`histories`] compares a store with the state
//! machine over random histories; [`ManualClock`] controls the time of both; [`Faulty`] injects
//! faults into any store. [`pg_proxy`] cuts connections to PostgreSQL at exact points, such as
//! between a commit and its reply, [`dynamodb_proxy`] those to DynamoDB, [`postgres_server`] is a server that a test can crash, and
//! [`cluster`] three of them with failover, whose network, disks and clocks can fail as well.
//!
//! A store's author writes one [`Harness`](conformance::Harness) and two lines:
//!
//! ```
//! use std::sync::Arc;
//! use semel_core::Memory;
//! use semel_testkit::ManualClock;
//! use semel_testkit::conformance::{Fixture, Harness};
//!
//! struct InMemory;
//!
//! impl Harness for InMemory {
//!     type Store = Memory;
//!
//!     async fn fresh(&self) -> Fixture<Memory> {
//!         let clock = ManualClock::default();
//!         Fixture::new(Memory::new(Arc::new(clock.clone())), clock)
//!     }
//! }
//!
//! semel_testkit::conformance_suite!(InMemory);
//!
//! #[test]
//! fn agrees_with_the_state_machine() {
//!     semel_testkit::histories::assert_agrees_with_model(&InMemory, 64);
//! }
//! ```
#![allow(
    clippy::test_attr_in_doctest,
    reason = "the example shows the tests that a store's author writes"
)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::wildcard_enum_match_arm,
    clippy::unchecked_time_subtraction,
    reason = "test code panics on any reply but the right one, and prints when it is skipped"
)]

pub mod clock;
pub mod cluster;
pub mod conformance;
pub mod database;
pub mod dynamodb_proxy;
pub mod faulty;
pub mod guards;
pub mod histories;
pub mod model;
pub mod pg_proxy;
pub mod postgres_server;
pub mod shifted_clock;
pub mod small_disk;

pub use clock::ManualClock;
pub use faulty::Faulty;

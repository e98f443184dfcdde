//! What proves a store.
//!
//! A store is right when it does what [`semel_core::transition`] says, whoever else is at
//! work. [`conformance`] holds the rules as one suite that every store runs, [`histories`]
//! compares a store with the pure function over random histories, [`ManualClock`] is the
//! time that both move, and [`Faulty`] makes any store fail where failing hurts. [`pg_proxy`]
//! does that to the connections of a store in PostgreSQL, between a commit and its answer, and
//! [`postgres_server`] is a server that a test may crash.
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
//!     semel_testkit::histories::agree(&InMemory, 64);
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
    reason = "test code says what is wrong by panicking, at any answer but the right one, and says when it skips"
)]

pub mod clock;
pub mod conformance;
pub mod database;
pub mod faulty;
pub mod guards;
pub mod histories;
pub mod pg_proxy;
pub mod postgres_server;
pub mod twin;

pub use clock::ManualClock;
pub use faulty::Faulty;

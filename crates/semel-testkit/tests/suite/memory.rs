//! The reference store keeps its own rules.

use std::sync::Arc;

use semel_core::Memory;
use semel_core::outbox::Event;
use semel_testkit::ManualClock;
use semel_testkit::conformance::outbox::Publisher;
use semel_testkit::conformance::{Fixture, Harness};

struct InMemory;

impl Harness for InMemory {
    type Store = Memory;

    async fn fresh(&self) -> Fixture<Memory> {
        let clock = ManualClock::default();
        Fixture::new(Memory::new(Arc::new(clock.clone())), clock)
    }
}

impl Publisher for InMemory {
    async fn publish(&self, store: &Memory, event: Event) {
        store.publish(event);
    }
}

semel_testkit::conformance_suite!(InMemory);
semel_testkit::outbox_suite!(InMemory);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_fails() {
    let failures = semel_testkit::conformance::failures(InMemory).await;
    assert_eq!(failures, []);
    assert_eq!(
        semel_testkit::conformance::outbox::failures(InMemory).await,
        []
    );
}

#[test]
fn agrees_with_the_state_machine() {
    semel_testkit::histories::assert_agrees_with_model(&InMemory, 256);
}

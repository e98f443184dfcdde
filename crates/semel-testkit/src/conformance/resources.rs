//! Resources that a record created or may have created, and lookup by them.

use semel_core::{Completion, Held, Reserve, Resource, Status, Verdict};

use super::fixture::{TICK, WINDOWS, again, completion, not_executed, request, verdict};
use super::{Fixture, Subject};

fn resource(id: &str) -> Resource {
    Resource {
        kind: "payment".into(),
        id: id.into(),
    }
}

/// A completion that created this resource, or none.
fn created(id: Option<&str>) -> Completion {
    Completion {
        resource: id.map(resource),
        ..completion("paid")
    }
}

impl<S: Subject> Fixture<S> {
    /// An unknown record that may have created this resource.
    async fn lost_with(&self, request: Reserve, id: Option<&str>) -> semel_core::Fence {
        let grant = self.execute(request).await;
        let resource = id.map(resource);
        let held = self
            .store
            .mark_unknown(grant.fence, "timeout".into(), resource);
        assert_eq!(held.await.expect("mark_unknown"), Held::Applied);
        grant.fence
    }

    /// The name of the operation that created this.
    async fn creator(&self, id: &str) -> Option<semel_core::OperationId> {
        let found = self.store.find_resource(id).await.expect("find_resource")?;
        assert_eq!(self.record(found.id).await, found, "found as it is stored");
        Some(found.id)
    }
}

/// A completed record is found by its resource, byte for byte.
pub async fn a_completed_record_is_found_by_its_resource<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.execute(first.clone()).await;
    assert_eq!(f.creator("pay_1").await, None);
    f.complete(grant.fence, created(Some("pay_1"))).await;
    f.completed(request("other"), "paid").await;
    let nameless = f.execute(request("nameless")).await;
    f.complete(nameless.fence, created(None)).await;
    assert_eq!(f.creator("pay_1").await, Some(first.id));
    for other in ["pay_2", "PAY_1", "pay_1 ", "pay_", ""] {
        assert_eq!(f.creator(other).await, None, "{other:?}");
    }
}

/// An unknown record is found by the resource that it may have created, also after it is resolved.
pub async fn an_unknown_record_is_found_by_its_resource<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let fence = f.lost_with(first.clone(), Some("pay_1")).await;
    assert_eq!(f.creator("pay_1").await, Some(first.id));
    f.dead_letter(fence, "person".into()).await;
    assert_eq!(f.creator("pay_1").await, Some(first.id));
    f.resolve(not_executed(fence)).await;
    assert_eq!(f.creator("pay_1").await, Some(first.id));
}

/// Where two records name one resource, the newer one is found, whatever their states.
pub async fn the_newest_creator_of_a_resource_is_found<S: Subject>(f: Fixture<S>) {
    let older = request("older");
    let newer = request("newer");
    // Written in the other order, so that neither the row nor the time of writing decides.
    f.lost_with(newer.clone(), Some("pay_1")).await;
    f.clock.advance(TICK);
    let grant = f.execute(older.clone()).await;
    f.complete(grant.fence, created(Some("pay_1"))).await;
    assert_eq!(f.creator("pay_1").await, Some(newer.id));
    let newest = request("newest");
    let grant = f.execute(newest.clone()).await;
    f.complete(grant.fence, created(Some("pay_1"))).await;
    assert_eq!(f.creator("pay_1").await, Some(newest.id));
}

/// A tombstone is found by its resource; a purged record is not.
pub async fn a_resource_is_found_until_its_record_is_purged<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.execute(first.clone()).await;
    f.complete(grant.fence, created(Some("pay_1"))).await;
    f.clock.advance(WINDOWS.replay);
    assert_eq!(f.expire(10).await, 1);
    assert_eq!(f.creator("pay_1").await, Some(first.id));
    assert_eq!(f.status(first.id).await, Some(Status::Expired));
    f.clock.advance(WINDOWS.tombstone.expect("a tombstone"));
    assert_eq!(f.purge(10).await, 1);
    assert_eq!(f.creator("pay_1").await, None);
}

/// A verdict without a resource keeps the one that the holder named; one with a resource replaces
/// it.
pub async fn a_named_resource_survives_a_verdict_without_one<S: Subject>(f: Fixture<S>) {
    for (name, found, expected) in [
        ("kept", None, "pay_kept"),
        ("replaced", Some("pay_other"), "pay_other"),
    ] {
        let first = request(name);
        let fence = f
            .lost_with(first.clone(), Some(&format!("pay_{name}")))
            .await;
        f.resolve(verdict(fence, Verdict::Completed(created(found))))
            .await;
        let replay = f.replay(again(&first)).await;
        assert_eq!(replay.resource, Some(resource(expected)), "{name}");
        assert_eq!(f.creator(expected).await, Some(first.id), "{name}");
    }
    assert_eq!(f.creator("pay_replaced").await, None);
}

/// A later attempt that names no resource keeps the earlier one.
pub async fn a_named_resource_survives_a_later_loss_without_one<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let one = f.lost_with(first.clone(), Some("pay_1")).await;
    f.resolve(not_executed(one)).await;
    f.lost_with(again(&first), None).await;
    assert_eq!(f.record(first.id).await.resource, Some(resource("pay_1")));
    let replaced = request("replaced");
    let one = f.lost_with(replaced.clone(), Some("pay_2")).await;
    f.resolve(not_executed(one)).await;
    f.lost_with(again(&replaced), Some("pay_3")).await;
    assert_eq!(
        f.record(replaced.id).await.resource,
        Some(resource("pay_3"))
    );
    assert_eq!(f.creator("pay_2").await, None);
}

/// The holder's completion sets the resource, also to none.
pub async fn a_late_completion_sets_its_resource<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let fence = f.lost_with(first.clone(), Some("pay_1")).await;
    assert_eq!(f.complete(fence, created(None)).await, Held::Applied);
    assert_eq!(f.record(first.id).await.resource, None);
    assert_eq!(f.complete(fence, created(None)).await, Held::Repeated);
}

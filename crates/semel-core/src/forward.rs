//! How a store in front of another passes on what it has nothing to say about.

/// Writes verbs of [`Store`](crate::Store), [`Maintain`](crate::Maintain),
/// [`Inspect`](crate::Inspect), [`Inbox`](crate::Inbox), [`Outbox`](crate::Outbox) and
/// [`Figures`](crate::Figures) that ask the store inside, which is the field in brackets, and add nothing.
///
/// A wrapper names what passes as it is, and writes the rest. Some verbs may be left out of an
/// implementation, and then do nothing: a wrapper names these too, or what is inside is cut off.
///
/// ```
/// use semel_core::{Inbox, Outbox};
///
/// struct Wrapped<S> {
///     inner: S,
/// }
///
/// impl<S: Inbox> Inbox for Wrapped<S> {
///     semel_core::forward!([inner] receive settle claim_parked forget);
/// }
///
/// impl<S: Outbox> Outbox for Wrapped<S> {
///     semel_core::forward!([inner] claim_events mark_sent hold_back set_aside);
///     semel_core::forward!([inner] dead_events revive backlog stand_down);
/// }
/// ```
#[macro_export]
macro_rules! forward {
    ($inner:tt $($verb:ident)+) => {
        $($crate::__forward_verb! { $verb $inner })+
    };
}

/// Not part of the API: one verb, by its name.
#[doc(hidden)]
#[macro_export]
macro_rules! __forward_verb {
    // Store.
    (reserve $s:tt) => { $crate::__forward! { $s reserve(request: $crate::Reserve) -> $crate::Decision } };
    (glance $s:tt) => {
        $crate::__forward_now! { $s glance(request: &$crate::Reserve) -> Option<$crate::Decision> }
    };
    (clock $s:tt) => {
        $crate::__forward_now! { $s clock() -> std::sync::Arc<dyn $crate::Clock> }
    };
    (epoch $s:tt) => { $crate::__forward_now! { $s epoch() -> Option<$crate::store::Epoch> } };
    (watch [$($inner:tt)+]) => {
        async fn watch(&self, fence: $crate::Fence) -> Option<$crate::store::Hearing> {
            self.$($inner)+.watch(fence).await
        }
    };
    (complete $s:tt) => {
        $crate::__forward! { $s complete(fence: $crate::Fence, end: $crate::Completion) -> $crate::Held }
    };
    (release $s:tt) => {
        $crate::__forward! { $s release(fence: $crate::Fence, code: $crate::Code) -> $crate::Held }
    };
    (evict $s:tt) => {
        $crate::__forward! { $s evict(fence: $crate::Fence, code: $crate::Code) -> $crate::Held }
    };
    (mark_unknown $s:tt) => {
        $crate::__forward! {
            $s mark_unknown(
                fence: $crate::Fence,
                code: $crate::Code,
                resource: Option<$crate::Resource>
            ) -> $crate::Held
        }
    };
    (prepare $s:tt) => {
        $crate::__forward_now! {
            $s prepare(
                id: $crate::OperationId,
                completion: $crate::Completion
            ) -> $crate::store::Result<$crate::Completion>
        }
    };
    (prepare_point $s:tt) => {
        $crate::__forward_now! {
            $s prepare_point(
                id: $crate::OperationId,
                point: $crate::RecoveryPoint
            ) -> $crate::store::Result<$crate::RecoveryPoint>
        }
    };
    (heartbeat $s:tt) => {
        $crate::__forward! {
            $s heartbeat(fence: $crate::Fence, lease: std::time::Duration) -> $crate::Held
        }
    };
    (advance $s:tt) => {
        $crate::__forward! {
            $s advance(fence: $crate::Fence, point: $crate::RecoveryPoint) -> $crate::Held
        }
    };
    // Maintain.
    (sweep $s:tt) => { $crate::__forward! { $s sweep(limit: usize) -> Vec<$crate::Fence> } };
    (claim_abandoned $s:tt) => {
        $crate::__forward! {
            $s claim_abandoned(
                operation: &str,
                owner: $crate::Owner,
                lease: std::time::Duration,
                limit: usize
            ) -> Vec<$crate::Record>
        }
    };
    (claim_due $s:tt) => {
        $crate::__forward! {
            $s claim_due(
                which: $crate::store::Which,
                backoff: $crate::Backoff,
                limit: usize
            ) -> Vec<$crate::Record>
        }
    };
    (resolve $s:tt) => {
        $crate::__forward! { $s resolve(verdict: $crate::Resolve) -> $crate::Resolution }
    };
    (dead_letter $s:tt) => {
        $crate::__forward! {
            $s dead_letter(fence: $crate::Fence, code: $crate::Code) -> $crate::Resolution
        }
    };
    (expire $s:tt) => { $crate::__forward! { $s expire(limit: usize) -> usize } };
    (drop_bodies $s:tt) => { $crate::__forward! { $s drop_bodies(limit: usize) -> usize } };
    (purge $s:tt) => { $crate::__forward! { $s purge(limit: usize) -> usize } };
    (erase $s:tt) => {
        $crate::__forward! { $s erase(id: $crate::OperationId, by: $crate::By) -> bool }
    };
    (revealed $s:tt) => {
        $crate::__forward! { $s revealed(id: $crate::OperationId, by: $crate::By) -> bool }
    };
    // Inspect.
    (find $s:tt) => {
        $crate::__forward! { $s find(id: $crate::OperationId) -> Option<$crate::Record> }
    };
    (find_identity $s:tt) => {
        $crate::__forward! { $s find_identity(identity: &$crate::Identity) -> Option<$crate::Record> }
    };
    (find_resource $s:tt) => {
        $crate::__forward! { $s find_resource(resource_id: &str) -> Option<$crate::Record> }
    };
    (history $s:tt) => {
        $crate::__forward! { $s history(id: $crate::OperationId) -> Vec<$crate::history::Entry> }
    };
    (reveal $s:tt) => {
        $crate::__forward_now! {
            $s reveal(id: $crate::OperationId, evidence: $crate::__bytes::Bytes) -> $crate::store::Result<$crate::__bytes::Bytes>
        }
    };
    (standing $s:tt) => {
        $crate::__forward! { $s standing() -> Vec<$crate::store::Standing> }
    };
    (list $s:tt) => {
        $crate::__forward! { $s list(query: $crate::store::Query) -> $crate::store::Page }
    };
    // Inbox.
    (receive $s:tt) => {
        $crate::__forward! {
            $s receive(
                message: $crate::inbox::Message,
                handling: $crate::inbox::Handling
            ) -> $crate::inbox::Receipt
        }
    };
    (settle $s:tt) => { $crate::__forward! { $s settle(source: &str, id: &str) -> () } };
    (claim_parked $s:tt) => {
        $crate::__forward! {
            $s claim_parked(backoff: $crate::Backoff, limit: usize) -> Vec<$crate::inbox::Parked>
        }
    };
    (forget $s:tt) => { $crate::__forward! { $s forget(limit: usize) -> usize } };
    // Figures.
    (count $s:tt) => {
        $crate::__forward! {
            $s count(
                activity: Vec<$crate::figures::Activity>,
                misuses: Vec<$crate::figures::Misuse>
            ) -> ()
        }
    };
    (activity $s:tt) => {
        $crate::__forward! { $s activity(since: $crate::Timestamp) -> Vec<$crate::figures::Activity> }
    };
    (misuses $s:tt) => {
        $crate::__forward! { $s misuses(limit: usize) -> Vec<$crate::figures::Misuse> }
    };
    (survey $s:tt) => {
        $crate::__forward! {
            $s survey(after: Option<$crate::OperationId>, limit: usize) -> $crate::figures::Survey
        }
    };
    (meet $s:tt) => {
        $crate::__forward! { $s meet(callers: Vec<$crate::figures::Caller>) -> bool }
    };
    (count_alone $s:tt) => {
        $crate::__forward! {
            $s count_alone(owner: $crate::Owner, lease: std::time::Duration) -> bool
        }
    };
    (publish_census $s:tt) => {
        $crate::__forward! { $s publish_census(census: $crate::figures::Census) -> () }
    };
    (census $s:tt) => { $crate::__forward! { $s census() -> Option<$crate::figures::Census> } };
    (find_key $s:tt) => {
        $crate::__forward! { $s find_key(key: &$crate::Key) -> Vec<$crate::store::Summary> }
    };
    (forget_activity $s:tt) => {
        $crate::__forward! { $s forget_activity(before: $crate::Timestamp, limit: usize) -> usize }
    };
    (forget_misuses $s:tt) => {
        $crate::__forward! { $s forget_misuses(before: $crate::Timestamp, limit: usize) -> usize }
    };
    // Outbox.
    (claim_events $s:tt) => {
        $crate::__forward! {
            $s claim_events(
                relay: $crate::Owner,
                lease: std::time::Duration,
                limit: usize
            ) -> Vec<$crate::outbox::Waiting>
        }
    };
    (mark_sent $s:tt) => {
        $crate::__forward! { $s mark_sent(events: Vec<$crate::outbox::EventId>) -> () }
    };
    (hold_back $s:tt) => {
        $crate::__forward! {
            $s hold_back(
                event: $crate::outbox::EventId,
                reason: &str,
                backoff: $crate::Backoff
            ) -> ()
        }
    };
    (set_aside $s:tt) => {
        $crate::__forward! { $s set_aside(event: $crate::outbox::EventId, reason: &str) -> () }
    };
    (dead_events $s:tt) => {
        $crate::__forward! { $s dead_events(limit: usize) -> Vec<$crate::outbox::DeadEvent> }
    };
    (revive $s:tt) => { $crate::__forward! { $s revive(event: $crate::outbox::EventId) -> bool } };
    (backlog $s:tt) => { $crate::__forward! { $s backlog() -> $crate::outbox::Backlog } };
    (stand_down $s:tt) => { $crate::__forward! { $s stand_down(relay: $crate::Owner) -> () } };
}

/// Not part of the API: a call that is waited for.
#[doc(hidden)]
#[macro_export]
macro_rules! __forward {
    ([$($inner:tt)+] $verb:ident($($arg:ident: $kind:ty),*) -> $answer:ty) => {
        async fn $verb(&self, $($arg: $kind),*) -> $crate::store::Result<$answer> {
            self.$($inner)+.$verb($($arg),*).await
        }
    };
}

/// Not part of the API: a call that is answered at once.
#[doc(hidden)]
#[macro_export]
macro_rules! __forward_now {
    ([$($inner:tt)+] $verb:ident($($arg:ident: $kind:ty),*) -> $answer:ty) => {
        fn $verb(&self, $($arg: $kind),*) -> $answer {
            self.$($inner)+.$verb($($arg),*)
        }
    };
}

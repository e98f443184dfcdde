//! Renewing the lease of an attempt while it executes or commits.

use semel_core::{Fence, Held, Store};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::record::AttemptRecord;
use crate::route::Guard;
use crate::state::State;

/// How many heartbeats fit into a lease: two may be lost before it runs out.
const BEATS_PER_LEASE: u32 = 3;

/// Renews the lease until [`Route::execute_max`](crate::route::Route::execute_max) is over. A
/// handler that hangs must not keep its lease for ever.
pub(crate) async fn run_heartbeat<S: Store>(state: &State<S>, guard: &Guard, fence: Fence) {
    let lease = guard.route.policy.lease;
    let over = Instant::now() + guard.route.execute_max;
    let record = AttemptRecord::new(state, guard, fence);
    loop {
        let next = Instant::now() + lease / BEATS_PER_LEASE;
        if next >= over {
            return sleep_until(over).await;
        }
        sleep_until(next).await;
        let beat = timeout_at(over, state.store.heartbeat(fence, lease)).await;
        match beat {
            Ok(Ok(Held::Applied | Held::Repeated)) | Err(_) => {}
            // The application completed its own record, and may still be busy.
            Ok(Ok(Held::Fenced(fenced))) if record.is_completed(fenced) => {
                return sleep_until(over).await;
            }
            Ok(Ok(Held::Fenced(fenced))) => {
                // Its outcome is counted as fenced when it comes.
                tracing::warn!(id = %fence.id, found = ?fenced.found, "the lease was lost while executing");
                return sleep_until(over).await;
            }
            Ok(Err(error)) => {
                guard.metrics.store_error.increment(1);
                tracing::warn!(id = %fence.id, %error, "a heartbeat failed");
            }
        }
    }
}

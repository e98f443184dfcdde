//! Reorders tasks that are ready, as the seed decides.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::scenario::Scenario;

/// The most polls that a ready task may skip at a time.
const MAX_TURNS: u64 = 3;

/// A future that now and then skips polls. Tokio always polls in the order in which tasks became
/// ready; with this, tasks overtake each other.
pub(crate) struct Reordered<F> {
    scenario: Arc<Scenario>,
    inner: Pin<Box<F>>,
    /// Polls left to skip; `None` before the number is drawn.
    turns: Option<u64>,
}

/// Lets tasks overtake `inner`, as the seed decides.
pub(crate) fn reorder<F: Future>(scenario: &Arc<Scenario>, inner: F) -> Reordered<F> {
    Reordered {
        scenario: Arc::clone(scenario),
        inner: Box::pin(inner),
        turns: None,
    }
}

impl<F: Future> Future for Reordered<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let turns = match self.turns {
            Some(turns) => turns,
            None => self.scenario.draw_turns(MAX_TURNS),
        };
        if let Some(left) = turns.checked_sub(1) {
            self.turns = Some(left);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.turns = None;
        self.inner.as_mut().poll(cx)
    }
}

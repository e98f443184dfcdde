//! Who goes first among those who could: the seed decides that, too.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::world::World;

/// How many turns something may let pass each time that it could go on.
const MOST: u64 = 3;

/// Tokio wakes in the order in which things came to be ready, always. This lets a turn or more
/// pass now and then, so that whoever is behind overtakes.
pub(crate) struct Jostled<F> {
    world: Arc<World>,
    inner: Pin<Box<F>>,
    /// Turns to let pass; `None` where it has not been drawn yet.
    waits: Option<u64>,
}

pub(crate) fn jostled<F: Future>(world: &Arc<World>, inner: F) -> Jostled<F> {
    Jostled {
        world: Arc::clone(world),
        inner: Box::pin(inner),
        waits: None,
    }
}

impl<F: Future> Future for Jostled<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let waits = match self.waits {
            Some(waits) => waits,
            None => self.world.turns(MOST),
        };
        if let Some(left) = waits.checked_sub(1) {
            self.waits = Some(left);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.waits = None;
        self.inner.as_mut().poll(cx)
    }
}

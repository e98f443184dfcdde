//! Work that a worker repeats and that is not its own.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::store::Result;

/// Something that is done again and again, in bounded rounds, by as many processes as like to.
/// A worker gives it a loop, and asks again after growing pauses while it fails.
pub trait BackgroundJob: Send + Sync + 'static {
    /// What it is called in metrics and logs.
    fn name(&self) -> &'static str;

    /// How long after a round that found little the next one begins.
    fn every(&self) -> Duration;

    /// One round; says whether there is more to be done at once.
    ///
    /// # Cancellation
    /// A round that is dropped is given up as if the process had died.
    fn round(&self) -> Round<'_>;

    /// The last thing that is done, when the worker stops.
    fn stop(&self) -> Stop<'_> {
        Box::pin(std::future::ready(()))
    }
}

/// A round that is under way.
pub type Round<'a> = Pin<Box<dyn Future<Output = Result<bool>> + Send + 'a>>;

/// The end of a chore.
pub type Stop<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

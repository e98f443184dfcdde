//! The application's own writes and the completion, in one commit.
//!
//! A handler that keeps its rows in the database that holds the records need not choose which
//! of the two is written first. It leaves its transaction to the layer, and the completion
//! becomes part of it: both are there, or neither.

use std::future::Future;
use std::pin::Pin;

use crate::store::Result;
use crate::{Completion, Fence, Held, Response};

/// A transaction of the application's, open or about to be, that the completion joins.
///
/// Dropping it rolls it back.
pub trait Transaction: Send + 'static {
    /// Does what is left to be done in the transaction, completes `fence` in it with what
    /// `conclude` makes of the answer, and commits. It rolls back, and nothing is written,
    /// where there is nothing to complete with or where the attempt no longer owns the record.
    fn finish(self: Box<Self>, fence: Fence, conclude: Conclude) -> Finishing;
}

/// What the layer makes of an application's answer: `Some` of it where the transaction found it,
/// `None` where the layer has it. Without a completion there is nothing to commit.
pub type Conclude = Box<dyn FnOnce(Option<Response>) -> Option<Completion> + Send>;

/// The end of a transaction.
///
/// After [`Error::Ambiguous`](crate::Error::Ambiguous) it may be committed, or may yet be. The
/// completion must not be written again *outside* of it: the rows would be missing. Whoever
/// needs to know writes a [`release`](crate::Store::release): it applies if the transaction is
/// rolled back, and is fenced by a completed record if it is committed.
///
/// After any other error it is rolled back.
pub type Finishing = Pin<Box<dyn Future<Output = Result<Finished>> + Send>>;

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finished {
    /// [`Held::Applied`]: it is committed, with the completion. Otherwise it is rolled back.
    Held(Held),
    /// There was nothing to complete with, and it is rolled back.
    RolledBack,
}

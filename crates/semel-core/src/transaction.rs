//! The application's own writes and the state of its record, in one commit.
//!
//! A handler that keeps its rows in the database that holds the records need not choose which
//! of the two is written first. It leaves its transaction to the layer, and the completion, or
//! the next recovery point, becomes part of it: both are there, or neither.

use std::convert::Infallible;
use std::fmt;
use std::future::{Future, IntoFuture, Ready, ready};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use crate::store::Result;
use crate::{Completion, Fence, Held, RecoveryPoint, Response};

/// A transaction of the application, open or about to be opened, that also writes its record.
///
/// Dropping it rolls it back.
pub trait Transaction: Send + 'static {
    /// Does what is left to be done in the transaction, writes in it what `conclude` makes of the
    /// answer, as attempt `fence`, and commits. It rolls back, and nothing is written, where there
    /// is nothing to say or where the attempt no longer owns the record.
    fn finish(self: Box<Self>, fence: Fence, conclude: Conclude) -> Finishing;
}

/// Makes the write of the response: `Some` where the transaction produced it, `None` where the caller
/// has it. Without a write there is nothing to commit.
pub type Conclude = Box<dyn FnOnce(Option<Response>) -> Option<TransactionWrite> + Send>;

/// The write of a transaction to its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransactionWrite {
    /// It is over: as [`Store::complete`](crate::Store::complete).
    Complete(Completion),
    /// A phase of it is over: as [`Store::advance`](crate::Store::advance).
    Advance(RecoveryPoint),
}

/// The end of a transaction.
///
/// After [`Error::Ambiguous`](crate::Error::Ambiguous) it may be committed, or may yet be. The
/// write must not be repeated *outside* of it: the rows would be missing. A caller that
/// needs to know whether a completion is there writes a [`release`](crate::Store::release): it
/// applies if the transaction is rolled back, and is fenced by a completed record if it is
/// committed. A caller that goes on after a phase reserves again: the next attempt is granted after
/// the transaction has ended, since it holds the row.
///
/// After any other error it is rolled back.
pub type Finishing = Pin<Box<dyn Future<Output = Result<Finished>> + Send>>;

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finished {
    /// [`Held::Applied`]: it is committed, with its word. Otherwise it is rolled back.
    Held(Held),
    /// There was nothing to say, and it is rolled back.
    RolledBack,
}

/// A local transaction and what it found: one phase of an operation.
///
/// With PostgreSQL it is made of a pair, `(transaction, found)`. With SQLite the store makes it,
/// and what it found is there once it ran.
#[must_use = "a transaction that is dropped is rolled back"]
pub struct LocalPhase<T> {
    transaction: Box<dyn Transaction>,
    found: Found<T>,
}

/// Where a transaction that runs later leaves what it found.
pub type Slot<T> = Arc<Mutex<Option<T>>>;

enum Found<T> {
    Already(T),
    Inside(Slot<T>),
}

impl<T> LocalPhase<T> {
    /// A transaction that fills `slot` while it is finished, before it concludes.
    pub fn inside(transaction: impl Transaction, slot: Slot<T>) -> Self {
        Self {
            transaction: Box::new(transaction),
            found: Found::Inside(slot),
        }
    }

    /// The transaction, and what it found: to be asked for once, and where it runs later not
    /// before it concludes.
    pub fn into_parts(self) -> (Box<dyn Transaction>, impl FnOnce() -> Option<T> + Send)
    where
        T: Send,
    {
        let Self { transaction, found } = self;
        let found = move || match found {
            Found::Already(found) => Some(found),
            Found::Inside(slot) => slot.lock().unwrap_or_else(PoisonError::into_inner).take(),
        };
        (transaction, found)
    }
}

impl<T, X: Transaction> From<(X, T)> for LocalPhase<T> {
    fn from((transaction, found): (X, T)) -> Self {
        Self {
            transaction: Box::new(transaction),
            found: Found::Already(found),
        }
    }
}

/// A phase takes a future, since a phase that is over is not to be begun. One that waits for its
/// store anyway is as good.
impl<T: Send> IntoFuture for LocalPhase<T> {
    type Output = std::result::Result<Self, Infallible>;
    type IntoFuture = Ready<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        ready(Ok(self))
    }
}

impl<T> fmt::Debug for LocalPhase<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalPhase").finish_non_exhaustive()
    }
}

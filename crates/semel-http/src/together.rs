//! A handler's own transaction, left to the layer: its writes and the completion commit
//! together, or not at all.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use http::{Extensions, Response, StatusCode};
use semel_core::{Fence, Transaction};

use crate::operation::Operation;

/// An answer, and the transaction that it is part of.
///
/// The handler writes its rows, leaves the transaction open, and returns this. The layer judges
/// the answer as it judges any other. If it completes the operation, the completion becomes part
/// of the transaction, and both are committed at once. If it does not (a 503, an
/// [`Outcome`](crate::Outcome) that says otherwise), the transaction is rolled back first.
///
/// Whatever is in the response's extensions counts as it always does. They are also how this
/// reaches the layer, so a middleware between the two must keep them. Where it does not, the
/// operation ends as unknown.
///
/// ```
/// use semel_core::Transaction;
/// use semel_http::{Operation, Together};
///
/// /// The rows are written, and not committed.
/// fn answer(operation: Operation, transaction: impl Transaction) -> http::Response<String> {
///     let created = http::Response::builder().status(201).body("{}".to_owned()).unwrap();
///     Together::new(operation, transaction, created).into_response()
/// }
/// ```
///
/// # How it may end
/// | the transaction | the record | the client gets |
/// |---|---|---|
/// | is committed | `completed` | the answer |
/// | is rolled back | `failed_retryable` | 503 `operation_not_executed` |
/// | was not heard of again | is asked, by writing: `completed` if it is committed, else `failed_retryable` | the stored answer, or the same 503 |
/// | found that the attempt no longer owned the record, and is rolled back | as it was | what a retry gets, or 409 `idempotency_outcome_unknown` |
#[must_use = "a transaction that is dropped is rolled back"]
pub struct Together<B> {
    response: Response<B>,
    leaving: Leaving,
}

impl<B> Together<B> {
    /// The answer of a handler whose writes are in `transaction`.
    ///
    /// There is an [`Operation`] only where a request is guarded: elsewhere there is nothing to
    /// complete, and the handler commits by itself.
    #[allow(
        clippy::needless_pass_by_value,
        reason = "an operation ends here: whoever had it has no more use for it"
    )]
    pub fn new(operation: Operation, transaction: impl Transaction, response: Response<B>) -> Self {
        Self {
            response,
            leaving: Leaving {
                transaction: Box::new(transaction),
                fence: operation.fence(),
                undone: Undone::Released,
                inside: None,
            },
        }
    }

    /// Says that the handler also did something that no rollback undoes: it called a provider,
    /// sent a message. Then a transaction that is rolled back leaves the operation unknown, and
    /// not free to be executed again.
    pub fn with_foreign_effects(mut self) -> Self {
        self.leaving.undone = Undone::Unknown;
        self
    }

    #[cfg(feature = "axum")]
    pub(crate) fn undone(mut self, undone: Undone) -> Self {
        self.leaving.undone = undone;
        self
    }

    /// The response that carries the transaction to the layer.
    pub fn into_response(self) -> Response<B> {
        let Self {
            mut response,
            leaving,
        } = self;
        // Outside of an execution there is nobody to be told.
        let _ = LEFT.try_with(|left| left.store(true, Ordering::Relaxed));
        let left = Left(Arc::new(Mutex::new(Some(leaving))));
        response.extensions_mut().insert(left);
        response
    }
}

impl<B: Default> Together<B> {
    /// For a transaction that finds the answer itself, while it runs: see
    /// [`Conclude`](semel_core::transaction::Conclude).
    pub fn answered_inside(operation: Operation, transaction: impl Transaction) -> Self {
        Self::with_aside(operation, transaction, Aside::default())
    }

    pub(crate) fn with_aside(
        operation: Operation,
        transaction: impl Transaction,
        aside: Aside,
    ) -> Self {
        let mut response = Response::new(B::default());
        // Seen by a client only where there is no layer, and then nothing is committed.
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        let mut together = Self::new(operation, transaction, response);
        together.leaving.inside = Some(aside);
        together
    }
}

impl<B> fmt::Debug for Together<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Together")
            .field("status", &self.response.status())
            .field("fence", &self.leaving.fence)
            .finish_non_exhaustive()
    }
}

/// What is beside the head and body of an answer that was found inside: its extensions, which
/// no store could carry.
pub(crate) type Aside = Arc<Mutex<Extensions>>;

/// A transaction on its way to the layer.
pub(crate) struct Leaving {
    pub(crate) transaction: Box<dyn Transaction>,
    pub(crate) fence: Fence,
    pub(crate) undone: Undone,
    /// There where the transaction finds the answer itself.
    pub(crate) inside: Option<Aside>,
}

/// What becomes of an operation whose transaction is rolled back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undone {
    /// Nothing happened, and it is free to be executed again.
    Released,
    /// Something happened elsewhere that no rollback undoes.
    Unknown,
    /// The same, and whoever resumes it makes up for it.
    #[cfg_attr(
        not(feature = "axum"),
        expect(dead_code, reason = "phases end in axum")
    )]
    Suspended,
}

/// In a response's extensions, which want to be cloned. Whoever takes it first has it.
#[derive(Clone)]
struct Left(Arc<Mutex<Option<Leaving>>>);

/// Takes the transaction out of a response.
pub(crate) fn take<B>(response: &mut Response<B>) -> Option<Leaving> {
    let Left(left) = response.extensions_mut().remove()?;
    left.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Whose transaction a response carries, if it carries one.
pub(crate) fn carried<B>(response: &Response<B>) -> Option<Fence> {
    let Left(left) = response.extensions().get()?;
    let left = left.lock().unwrap_or_else(PoisonError::into_inner);
    left.as_ref().map(|leaving| leaving.fence)
}

tokio::task_local! {
    /// Whether this execution left a transaction. A response that comes without it then has
    /// lost it on the way, and speaks of rows that are not there.
    static LEFT: Arc<AtomicBool>;
}

/// Runs an execution, and says whether it left a transaction.
pub(crate) async fn noted<T>(execution: impl Future<Output = T>) -> (T, bool) {
    let left = Arc::new(AtomicBool::new(false));
    let ended = LEFT.scope(Arc::clone(&left), execution).await;
    (ended, left.load(Ordering::Relaxed))
}

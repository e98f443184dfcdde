//! A handler's own transaction, which the layer commits with the completion: both, or neither.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use http::{Extensions, Response, StatusCode};
use semel_core::{Fence, Transaction};

use crate::operation::Operation;

/// A response, and the open transaction that it belongs to.
///
/// The handler writes its rows, leaves the transaction open, and returns this. If the response
/// completes the operation, the layer adds the completion to the transaction and commits it. If
/// it does not (a 503, an [`Outcome`](crate::Outcome) that says otherwise), the layer rolls the
/// transaction back first.
///
/// The transaction reaches the layer in the response's extensions, so a middleware between the two
/// must keep them. Where it does not, the outcome is unknown.
///
/// ```
/// use semel_core::Transaction;
/// use semel_http::{Operation, CommitWith};
///
/// /// The rows are written, and not committed.
/// fn respond(operation: Operation, transaction: impl Transaction) -> http::Response<String> {
///     let created = http::Response::builder().status(201).body("{}".to_owned()).unwrap();
///     CommitWith::new(operation, transaction, created).into_response()
/// }
/// ```
///
/// # How it may end
/// | the transaction | the record | the response |
/// |---|---|---|
/// | is committed | `completed` | the handler's |
/// | is rolled back | `failed_retryable` | 503 `operation_not_executed` |
/// | did not answer its commit | the layer finds out by writing: `completed` if it is committed, else `failed_retryable` | the stored one, or the same 503 |
/// | is rolled back because the attempt no longer owned the record | unchanged | what a retry gets, or 409 `idempotency_outcome_unknown` |
#[must_use = "a transaction that is dropped is rolled back"]
pub struct CommitWith<B> {
    response: Response<B>,
    pending: PendingCommit,
}

impl<B> CommitWith<B> {
    /// The response of a handler whose writes are in `transaction`.
    ///
    /// There is an [`Operation`] only where a request is guarded. Elsewhere there is nothing to
    /// complete, and the handler commits itself.
    #[allow(
        clippy::needless_pass_by_value,
        reason = "the operation ends here, and the handler should not use it again"
    )]
    pub fn new(operation: Operation, transaction: impl Transaction, response: Response<B>) -> Self {
        Self {
            response,
            pending: PendingCommit {
                transaction: Box::new(transaction),
                fence: operation.fence(),
                on_rollback: OnRollback::Release,
                captured: None,
            },
        }
    }

    /// The handler also did something that no rollback undoes: it called a provider, sent a message.
    /// Then a rollback leaves the outcome unknown instead of releasing the key.
    pub fn with_foreign_effects(mut self) -> Self {
        self.pending.on_rollback = OnRollback::MarkUnknown;
        self
    }

    #[cfg(feature = "axum")]
    pub(crate) fn on_rollback(mut self, on_rollback: OnRollback) -> Self {
        self.pending.on_rollback = on_rollback;
        self
    }

    /// The response that carries the transaction to the layer.
    pub fn into_response(self) -> Response<B> {
        let Self {
            mut response,
            pending,
        } = self;
        // Outside of an execution there is no promise to track.
        let _ = PROMISED.try_with(|promised| promised.store(true, Ordering::Relaxed));
        let carrier = Carrier(Arc::new(Mutex::new(Some(pending))));
        response.extensions_mut().insert(carrier);
        response
    }
}

impl<B: Default> CommitWith<B> {
    /// For a transaction that produces the response itself, while it runs: see
    /// [`Conclude`](semel_core::transaction::Conclude).
    pub fn response_from_transaction(operation: Operation, transaction: impl Transaction) -> Self {
        Self::with_captured(operation, transaction, CapturedExtensions::default())
    }

    pub(crate) fn with_captured(
        operation: Operation,
        transaction: impl Transaction,
        captured: CapturedExtensions,
    ) -> Self {
        let mut response = Response::new(B::default());
        // Seen by a client only where there is no layer, and then nothing is committed.
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        let mut commit = Self::new(operation, transaction, response);
        commit.pending.captured = Some(captured);
        commit
    }
}

impl<B> fmt::Debug for CommitWith<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommitWith")
            .field("status", &self.response.status())
            .field("fence", &self.pending.fence)
            .finish_non_exhaustive()
    }
}

/// The extensions of a response that a transaction produced. A store carries only head and body.
pub(crate) type CapturedExtensions = Arc<Mutex<Extensions>>;

/// A transaction that the layer is to commit.
pub(crate) struct PendingCommit {
    pub(crate) transaction: Box<dyn Transaction>,
    pub(crate) fence: Fence,
    pub(crate) on_rollback: OnRollback,
    /// Set where the transaction produces the response itself.
    pub(crate) captured: Option<CapturedExtensions>,
}

/// What becomes of the record where the transaction is rolled back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnRollback {
    /// Nothing happened: the key is released.
    Release,
    /// Something happened elsewhere that no rollback undoes.
    MarkUnknown,
    /// The same, and the attempt that resumes continues from there.
    #[cfg_attr(
        not(feature = "axum"),
        expect(dead_code, reason = "phases end in axum")
    )]
    Suspend,
}

/// In a response's extensions, which have to be `Clone`.
#[derive(Clone)]
struct Carrier(Arc<Mutex<Option<PendingCommit>>>);

/// Takes the transaction out of a response.
pub(crate) fn take_pending<B>(response: &mut Response<B>) -> Option<PendingCommit> {
    let Carrier(pending) = response.extensions_mut().remove()?;
    pending
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take()
}

/// The attempt of the transaction that a response carries, if it carries one.
pub(crate) fn carried_fence<B>(response: &Response<B>) -> Option<Fence> {
    let Carrier(pending) = response.extensions().get()?;
    let pending = pending.lock().unwrap_or_else(PoisonError::into_inner);
    pending.as_ref().map(|pending| pending.fence)
}

tokio::task_local! {
    /// Whether the handler returned a transaction. If the response arrives without it, a middleware
    /// dropped it, and the response describes rows that are rolled back.
    static PROMISED: Arc<AtomicBool>;
}

/// Runs an execution, and returns whether it promised a transaction.
pub(crate) async fn track_promise<T>(execution: impl Future<Output = T>) -> (T, bool) {
    let promised = Arc::new(AtomicBool::new(false));
    let ended = PROMISED.scope(Arc::clone(&promised), execution).await;
    (ended, promised.load(Ordering::Relaxed))
}

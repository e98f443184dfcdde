//! Ending a handler's transaction, with the completion in it or not at all.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt as _;
use http::Response;
use semel_core::transaction::{Conclude, Finished, TransactionWrite};
use semel_core::{Code, Completion, Held, OperationId, Store, Transaction, store};
use tokio::time::Instant;
use tracing::Span;

use crate::body::{Collected, ResponseBody};
use crate::bounds::ByteBody;
use crate::commit_with::{OnRollback, PendingCommit};
use crate::context::{AttemptContext, AttemptGrant};
use crate::heartbeat::run_heartbeat;
use crate::judge::{FinalWrite, JudgedResponse, is_resumable, judge, response_from_transaction};
use crate::outcome::OutcomeKind;
use crate::reason;
use crate::record::WriteResult;
use crate::refusal::refuse;
use crate::replay::disclose_expiry;
use crate::spans;
use crate::state::State;

/// What became of a handler's transaction.
pub(crate) enum Committed<R> {
    /// It is committed, and the record completed with this response.
    Done(Response<ResponseBody<R>>),
    /// The record was completed under this attempt by another writer.
    InRecord,
    /// The attempt no longer owned the record, and the transaction is rolled back.
    Fenced,
    /// It is rolled back, or its commit was not answered. The write finds out which: it does not
    /// apply to a record that was completed.
    RolledBack(JudgedResponse<R>),
    /// As `RolledBack`, and the next attempt resumes.
    Suspended(Code),
}

/// The response that was judged inside of the transaction, once it was.
type Judged<R> = Arc<Mutex<Option<JudgedResponse<R>>>>;

/// Commits a handler's transaction with the completion in it.
pub(crate) async fn commit<S: Store, R: ByteBody>(
    context: &AttemptContext<S>,
    grant: &AttemptGrant,
    pending: PendingCommit,
    response: Response<Collected<R>>,
    span: &Span,
) -> Committed<R> {
    let id = grant.id();
    let PendingCommit {
        transaction,
        on_rollback,
        captured,
        ..
    } = pending;
    let judged: Judged<R> = Arc::new(Mutex::new(None));
    let take_judged = || {
        let mut judged = judged.lock().unwrap_or_else(PoisonError::into_inner);
        judged.take()
    };
    let conclude: Conclude = if let Some(captured) = captured {
        let (guard, rules) = (Arc::clone(&context.guard), Arc::clone(&context.rules));
        let (state, slot) = (Arc::clone(&context.state), Arc::clone(&judged));
        Box::new(move |found| {
            let extensions =
                std::mem::take(&mut *captured.lock().unwrap_or_else(PoisonError::into_inner));
            let response = response_from_transaction(found?, extensions, guard.route.max_response)?;
            let judged = judge(&guard.route, &rules, id, response);
            let completion = judged.write.completion().cloned();
            let completion = completion.and_then(|completion| prepare(&state, id, completion));
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(judged);
            completion.map(TransactionWrite::Complete)
        })
    } else {
        let response = judge(&context.guard.route, &context.rules, id, response);
        let Some(completion) = response.write.completion().cloned() else {
            // Rolled back before the key is released.
            drop(transaction);
            return Committed::RolledBack(response);
        };
        *judged.lock().unwrap_or_else(PoisonError::into_inner) = Some(response);
        let completion = prepare(&context.state, id, completion);
        Box::new(move |_| completion.map(TransactionWrite::Complete))
    };
    let expires_at = context.expires_at(grant);
    match finish(context, grant, transaction, conclude).await {
        Ok(Finished::Held(Held::Applied | Held::Repeated)) => {
            let Some(JudgedResponse {
                write,
                mut response,
                ..
            }) = take_judged()
            else {
                return Committed::InRecord;
            };
            spans::ended(span, OutcomeKind::Completed.as_str());
            if let Some(completion) = write.completion() {
                disclose_expiry(&mut response, &context.guard, completion, expires_at);
            }
            Committed::Done(response)
        }
        // The rows are rolled back: only an effect elsewhere may have happened twice.
        Ok(Finished::Held(Held::Fenced(fenced))) => {
            let incident = on_rollback != OnRollback::Release;
            match context.record(grant).fenced(fenced, incident) {
                WriteResult::CompletedElsewhere => Committed::InRecord,
                WriteResult::Written | WriteResult::Fenced | WriteResult::GaveUp => {
                    Committed::Fenced
                }
            }
        }
        Ok(Finished::RolledBack) => match take_judged() {
            Some(judged) if judged.write.completion().is_none() => Committed::RolledBack(judged),
            Some(_) | None => roll_back(context, grant, "transaction_rolled_back", on_rollback),
        },
        Err(error) => {
            context.guard.metrics.store_error.increment(1);
            let code = if error.may_have_written() {
                tracing::error!(%id, %error, "it is not known whether the transaction is committed; finding out");
                "commit_unanswered"
            } else {
                tracing::warn!(%id, %error, "the transaction was rolled back");
                "transaction_rolled_back"
            };
            roll_back(context, grant, code, on_rollback)
        }
    }
}

/// Waits for the end of a transaction, and renews the lease meanwhile. A commit that does not end
/// in time is ambiguous: it may still be applied.
async fn finish<S: Store>(
    context: &AttemptContext<S>,
    grant: &AttemptGrant,
    transaction: Box<dyn Transaction>,
    conclude: Conclude,
) -> store::Result<Finished> {
    let (state, fence) = (&context.state, grant.fence());
    let began = Instant::now();
    let finishing = async move { transaction.finish(fence, conclude).await };
    let finished = tokio::select! {
        biased;
        ended = AssertUnwindSafe(finishing).catch_unwind() => {
            ended.unwrap_or_else(|_| ambiguous("it panicked while it was committed"))
        }
        () = run_heartbeat(state, &context.guard, fence) => {
            ambiguous("it took too long to commit")
        }
        () = state.abandon.cancelled() => ambiguous("the process is shutting down"),
    };
    context.record(grant).ended(began);
    finished
}

/// What is written, and sent, where a transaction is not committed.
fn roll_back<S: Store, R>(
    context: &AttemptContext<S>,
    grant: &AttemptGrant,
    code: &'static str,
    on_rollback: OnRollback,
) -> Committed<R> {
    let code = Code::new(code);
    let (write, reason) = match on_rollback {
        OnRollback::Release => (FinalWrite::Release(code), &reason::NOT_EXECUTED),
        // If it is committed after all, the attempt that resumes finds the record completed.
        OnRollback::Suspend if is_resumable(&context.guard.route, grant) => {
            return Committed::Suspended(code);
        }
        OnRollback::Suspend | OnRollback::MarkUnknown => {
            (FinalWrite::MarkUnknown(code, None), &reason::OUTCOME_BROKEN)
        }
    };
    Committed::RolledBack(JudgedResponse {
        write,
        response: refuse(&context.rules, reason, grant.id()),
        right_if_fenced: false,
    })
}

/// A completion as the store keeps it. Where the store cannot prepare it, the transaction is rolled
/// back.
fn prepare<S: Store>(
    state: &State<S>,
    id: OperationId,
    completion: Completion,
) -> Option<Completion> {
    let prepared = state.store.prepare(id, completion);
    prepared
        .inspect_err(|error| tracing::error!(%id, %error, "an answer cannot be stored"))
        .ok()
}

fn ambiguous(reason: &str) -> store::Result<Finished> {
    Err(store::Error::Ambiguous {
        reason: reason.into(),
        source: None,
    })
}

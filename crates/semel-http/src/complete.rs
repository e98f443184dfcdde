//! Step 5: writing the outcome to the record, until it is written.

use http::Response;
use semel_core::{Code, Held, Status, Store};
use tracing::{Instrument as _, Span};

use crate::body::ResponseBody;
use crate::bounds::ByteBody;
use crate::commit::{Committed, commit};
use crate::context::{AttemptContext, AttemptGrant};
use crate::judge::{AttemptOutcome, FinalWrite, JudgedResponse};
use crate::reason::{self, Reason};
use crate::record::{StoreAnswer, WriteResult};
use crate::replay::disclose_expiry;
use crate::spans;

/// What the client is sent, now that the record is written.
#[expect(
    clippy::large_enum_variant,
    reason = "the large variant is the usual one, and a box would cost an allocation"
)]
pub(crate) enum Completed<R> {
    /// This response: it agrees with the record.
    Response(Response<ResponseBody<R>>),
    /// A refusal.
    Refused(&'static Reason),
    /// The response that the record was completed with by another writer.
    InRecord,
}

/// Writes how an attempt ended.
pub(crate) async fn complete<S: Store, R: ByteBody>(
    context: &AttemptContext<S>,
    grant: &AttemptGrant,
    outcome: AttemptOutcome<R>,
) -> Completed<R> {
    let fence = grant.fence();
    let span = spans::complete(fence);
    let writing = async {
        let JudgedResponse {
            write,
            mut response,
            right_if_fenced,
        } = match outcome {
            AttemptOutcome::Write(judged) => judged,
            AttemptOutcome::Suspend(code) => return suspend(grant, &code, &span),
            AttemptOutcome::Commit(pending, response) => {
                match commit(context, grant, pending, response, &span).await {
                    Committed::Done(response) => return Completed::Response(response),
                    Committed::InRecord => return Completed::InRecord,
                    Committed::Fenced => return Completed::Refused(&reason::OUTCOME_UNKNOWN),
                    Committed::Suspended(code) => return suspend(grant, &code, &span),
                    Committed::RolledBack(judged) => judged,
                }
            }
        };
        if let Some(completion) = write.completion() {
            disclose_expiry(
                &mut response,
                &context.guard,
                completion,
                context.expires_at(grant),
            );
        }
        spans::ended(&span, write.kind().as_str());
        let (store, record) = (&context.state.store, context.record(grant));
        let answer = record.write_until_answered(|| async {
            match &write {
                FinalWrite::Complete(completion) => store.complete(fence, completion.clone()).await,
                FinalWrite::Release(code) => store.release(fence, code.clone()).await,
                FinalWrite::Evict(code) => store.evict(fence, code.clone()).await,
                FinalWrite::MarkUnknown(code, resource) => {
                    store
                        .mark_unknown(fence, code.clone(), resource.clone())
                        .await
                }
            }
        });
        match result(context, grant, &write, &answer.await) {
            WriteResult::Written => {
                if let FinalWrite::MarkUnknown(code, _) = &write {
                    context.guard.metrics.became_unknown(code);
                }
                Completed::Response(response)
            }
            WriteResult::Fenced if right_if_fenced => Completed::Response(response),
            // A retry would not get this response.
            WriteResult::Fenced => Completed::Refused(&reason::OUTCOME_UNKNOWN),
            WriteResult::CompletedElsewhere => Completed::InRecord,
            WriteResult::GaveUp => Completed::Refused(&reason::OUTCOME_PENDING),
        }
    };
    writing.instrument(span.clone()).await
}

/// Leaves the record as it is: its lease runs out, and the next attempt resumes.
fn suspend<R>(grant: &AttemptGrant, code: &Code, span: &Span) -> Completed<R> {
    let fence = grant.fence();
    spans::ended(span, "suspended");
    tracing::warn!(id = %fence.id, attempt = fence.attempt, %code, "the operation stops here, and will be resumed");
    Completed::Refused(&reason::IN_PROGRESS)
}

/// What the store's answer to a final write means.
fn result<S: Store>(
    context: &AttemptContext<S>,
    grant: &AttemptGrant,
    write: &FinalWrite,
    answer: &StoreAnswer,
) -> WriteResult {
    let record = context.record(grant);
    let fenced = match answer.held {
        None => return WriteResult::GaveUp,
        Some(Held::Applied | Held::Repeated) => return WriteResult::Written,
        Some(Held::Fenced(fenced)) => fenced,
    };
    // Of the four, only `complete` answers that it is a repetition. The others find the record
    // where a lost write of theirs left it.
    let left_by_this_write = match write {
        FinalWrite::Complete(_) => false,
        FinalWrite::Evict(_) => record.is_evicted(fenced),
        FinalWrite::Release(_) => record.is_at(fenced, Status::FailedRetryable),
        FinalWrite::MarkUnknown(..) => record.is_at(fenced, Status::Unknown),
    };
    if answer.may_be_written && left_by_this_write {
        return WriteResult::Written;
    }
    match write {
        FinalWrite::Release(_) | FinalWrite::Evict(_) => record.not_returned(fenced),
        FinalWrite::Complete(_) | FinalWrite::MarkUnknown(..) => {
            record.fenced(fenced, write.completion().is_some())
        }
    }
}

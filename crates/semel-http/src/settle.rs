//! From the end of an execution to a record that says so, and to the client's answer.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt as _;
use http::Response;
use semel_core::transaction::{Conclude, Finished, Word as Say};
use semel_core::transition::Grant;
use semel_core::{
    Code, Completion, Decision, Held, OperationId, Reserve, Store, Timestamp, Transaction, store,
};
use tokio::time::Instant;
use tracing::Span;

use crate::body::{Collected, ResponseBody};
use crate::complete::{Record, Word, Written};
use crate::conclude::{Broken, Conclusion, Ended, broken, conclude, found_inside, refuse};
use crate::execute::heart;
use crate::layer::{Layer, State};
use crate::outcome::Ending;
use crate::phases::Suspended;
use crate::reason::{self, Reason};
use crate::replay::{self, disclose_expiry};
use crate::reserve::give_back;
use crate::route::Guard;
use crate::service::{Flow, settled};
use crate::spans;
use crate::together::{self, Leaving, Undone};

/// After so many attempts an operation is not resumed any more but unknown: somebody should look.
const MAX_ATTEMPTS: u32 = 20;

/// A granted attempt whose execution is over.
pub(crate) struct Attempt<'a, S> {
    pub(crate) layer: &'a Layer<S>,
    pub(crate) guard: &'a Arc<Guard>,
    pub(crate) grant: Grant,
    /// By the store's clock, when the grant came here.
    pub(crate) granted_at: Timestamp,
    /// What the store was asked, and is asked again to read the record.
    pub(crate) asked: Reserve,
    /// Around all this.
    pub(crate) span: Span,
}

impl<S: Store> Attempt<'_, S> {
    /// Writes down how it ended, until it is written, and says what the client is told.
    pub(crate) async fn settle<R: Flow>(&self, ended: Ended<R>) -> Response<ResponseBody<R>> {
        let mut response = match ended {
            Ok(response) => response,
            Err(Broken::Stopped(code)) if self.resumes() => return self.suspend(&code),
            Err(Broken::Stopped(code) | Broken::Unknown(code)) => {
                return self.say(broken(&self.layer.rules, self.id(), code)).await;
            }
        };
        if let Some(Suspended(code)) = response.extensions_mut().remove()
            && self.resumes()
        {
            return self.suspend(&code);
        }
        match together::take(&mut response) {
            Some(leaving) => self.finish(leaving, response).await,
            None => self.say(self.conclude(response)).await,
        }
    }

    /// The answer while all this still goes on.
    pub(crate) fn pending<R>(&self) -> Response<ResponseBody<R>> {
        self.refuse(&reason::OUTCOME_PENDING)
    }

    /// Leaves the record as it is: its lease runs out, and whoever resumes it goes on.
    fn suspend<R>(&self, code: &Code) -> Response<ResponseBody<R>> {
        let fence = self.grant.fence;
        spans::ended(&self.span, "suspended");
        tracing::warn!(id = %fence.id, attempt = fence.attempt, %code, "the operation stops here, and will be resumed");
        self.refuse(&reason::IN_PROGRESS)
    }

    /// Whether somebody goes on with what is left in progress, and not for ever.
    fn resumes(&self) -> bool {
        self.guard.route.policy.resumes_within().is_some()
            && self.grant.fence.attempt < MAX_ATTEMPTS
    }

    /// Writes the word, and gives the answer that belongs to what the record then says.
    async fn say<R>(&self, conclusion: Conclusion<R>) -> Response<ResponseBody<R>> {
        let Conclusion { word, mut answer } = conclusion;
        if let Word::Complete(_) = word {
            disclose_expiry(answer.headers_mut(), self.expires_at());
        }
        spans::ended(&self.span, word.as_str());
        match (self.record().write(&word).await, word) {
            // What a retry would be given is not this answer.
            (Written::Fenced, Word::Complete(_)) => self.refuse(&reason::OUTCOME_UNKNOWN),
            (Written::Said | Written::Fenced, _) => answer,
            (Written::Completed, _) => self.answer_from_record().await,
            (Written::GivenUp, _) => self.pending(),
        }
    }

    /// Ends the handler's transaction, with the completion in it or not at all.
    async fn finish<R: Flow>(
        &self,
        leaving: Leaving,
        response: Response<Collected<R>>,
    ) -> Response<ResponseBody<R>> {
        let Leaving {
            transaction,
            undone,
            inside,
            ..
        } = leaving;
        let concluded = Arc::new(Mutex::new(None));
        let take = || {
            let mut concluded = concluded.lock().unwrap_or_else(PoisonError::into_inner);
            concluded.take()
        };
        let conclude: Conclude = if let Some(aside) = inside {
            let (guard, rules) = (Arc::clone(self.guard), Arc::clone(&self.layer.rules));
            let (id, slot) = (self.id(), Arc::clone(&concluded));
            let state = Arc::clone(&self.layer.state);
            Box::new(move |found| {
                let aside =
                    std::mem::take(&mut *aside.lock().unwrap_or_else(PoisonError::into_inner));
                let response = found_inside(found?, aside, guard.route.max_response)?;
                let conclusion = conclude(&guard.route, &rules, id, response);
                let completion = conclusion.word.completion().cloned();
                let completion = completion.and_then(|completion| prepared(&state, id, completion));
                *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(conclusion);
                completion.map(Say::Complete)
            })
        } else {
            let conclusion = self.conclude(response);
            let Some(completion) = conclusion.word.completion().cloned() else {
                // Rolled back before anybody is told that it did not happen.
                drop(transaction);
                return self.say(conclusion).await;
            };
            *concluded.lock().unwrap_or_else(PoisonError::into_inner) = Some(conclusion);
            let completion = prepared(&self.layer.state, self.id(), completion);
            Box::new(move |_| completion.map(Say::Complete))
        };
        let expires_at = self.expires_at();
        match self.end(transaction, conclude).await {
            Ok(Finished::Held(Held::Applied | Held::Repeated)) => {
                let Some(Conclusion { mut answer, .. }) = take() else {
                    return self.answer_from_record().await;
                };
                spans::ended(&self.span, Ending::Completed.as_str());
                disclose_expiry(answer.headers_mut(), expires_at);
                answer
            }
            // The rows are gone with the transaction: only what was done elsewhere may have
            // happened twice.
            Ok(Finished::Held(Held::Fenced(fenced))) => {
                match self.record().fenced(fenced, undone != Undone::Released) {
                    Written::Completed => self.answer_from_record().await,
                    Written::Said | Written::Fenced | Written::GivenUp => {
                        self.refuse(&reason::OUTCOME_UNKNOWN)
                    }
                }
            }
            Ok(Finished::RolledBack) => match take() {
                Some(conclusion) if conclusion.word.completion().is_none() => {
                    self.say(conclusion).await
                }
                Some(_) | None => self.undo("transaction_rolled_back", undone).await,
            },
            Err(error) => {
                self.guard.meters.store_error.increment(1);
                let id = self.id();
                let code = if error.may_have_written() {
                    tracing::error!(%id, %error, "it is not known whether the transaction is committed; finding out");
                    "commit_unanswered"
                } else {
                    tracing::warn!(%id, %error, "the transaction was rolled back");
                    "transaction_rolled_back"
                };
                self.undo(code, undone).await
            }
        }
    }

    /// Waits for the end of a transaction, and keeps the lease meanwhile. What does not end in
    /// time may still end: nobody knows how.
    async fn end(
        &self,
        transaction: Box<dyn Transaction>,
        conclude: Conclude,
    ) -> store::Result<Finished> {
        let fence = self.grant.fence;
        let state = &self.layer.state;
        let began = Instant::now();
        let ending = async move { transaction.finish(fence, conclude).await };
        let finished = tokio::select! {
            biased;
            ended = AssertUnwindSafe(ending).catch_unwind() => {
                ended.unwrap_or_else(|_| unanswered("it panicked while it was committed"))
            }
            () = heart(state, self.guard, fence) => unanswered("it took too long to commit"),
            () = state.abandon.cancelled() => unanswered("the process is shutting down"),
        };
        self.record().ended(began);
        finished
    }

    /// Writes that nothing of a transaction is there, which also finds out whether that is so:
    /// the word does not apply to a record that was completed.
    async fn undo<R>(&self, code: &'static str, undone: Undone) -> Response<ResponseBody<R>> {
        let code = Code::new(code);
        let (word, reason) = match undone {
            Undone::Released => (Word::Release(code), &reason::NOT_EXECUTED),
            // If it is committed after all, whoever would resume it finds it completed.
            Undone::Suspended if self.resumes() => return self.suspend(&code),
            Undone::Suspended | Undone::Unknown => {
                (Word::MarkUnknown(code, None), &reason::OUTCOME_BROKEN)
            }
        };
        spans::ended(&self.span, word.as_str());
        match self.record().write(&word).await {
            Written::Said => self.refuse(reason),
            Written::Completed => self.answer_from_record().await,
            Written::Fenced => self.refuse(&reason::OUTCOME_UNKNOWN),
            Written::GivenUp => self.pending(),
        }
    }

    /// The first client's answer where the record was completed by other hands: what every retry
    /// is given, without the mark of one.
    async fn answer_from_record<R>(&self) -> Response<ResponseBody<R>> {
        let id = OperationId::generate();
        let asked = Reserve {
            id,
            ..self.asked.clone()
        };
        let state = &self.layer.state;
        let read = match state.store.reserve(asked).await {
            Ok(Decision::Replay(found)) if found.id == self.id() => {
                let answer = replay::from_store(found, state.clock.now()).map(replay::first);
                let dialect = self.layer.rules.dialect;
                return settled(answer.unwrap_or_else(|refusal| refusal.render(dialect)));
            }
            other => other,
        };
        if let Err(error) = &read {
            self.guard.meters.store_error.increment(1);
            tracing::warn!(id = %self.id(), %error, "a completed operation could not be read");
        }
        // Its window may have ended just now, and then this was a request like any other.
        give_back(state, self.guard, id, read).await;
        self.pending()
    }

    /// By the store's clock: what it said at the grant, and the time since then.
    fn expires_at(&self) -> Timestamp {
        let policy = &self.guard.route.policy;
        let since = self.layer.state.clock.now().as_micros() - self.granted_at.as_micros();
        let at_grant = self.grant.locked_until.as_micros() - semel_core::time::micros(policy.lease);
        Timestamp::from_micros(at_grant.saturating_add(since)).saturating_add(policy.windows.replay)
    }

    fn conclude<R>(&self, response: Response<Collected<R>>) -> Conclusion<R> {
        conclude(&self.guard.route, &self.layer.rules, self.id(), response)
    }

    fn refuse<R>(&self, reason: &'static Reason) -> Response<ResponseBody<R>> {
        refuse(&self.layer.rules, reason, self.id())
    }

    fn record(&self) -> Record<'_, S> {
        Record::new(&self.layer.state, self.guard, self.grant.fence)
    }

    fn id(&self) -> OperationId {
        self.grant.fence.id
    }
}

/// A completion as the store keeps it. Where it cannot be made so, the transaction is rolled back.
fn prepared<S: Store>(
    state: &State<S>,
    id: OperationId,
    completion: Completion,
) -> Option<Completion> {
    let prepared = state.store.prepare(id, completion);
    prepared
        .inspect_err(|error| tracing::error!(%id, %error, "an answer cannot be stored"))
        .ok()
}

fn unanswered(reason: &str) -> store::Result<Finished> {
    Err(store::Error::Ambiguous {
        reason: reason.into(),
        source: None,
    })
}

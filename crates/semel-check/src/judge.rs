//! Judges the responses to retries.

use crate::client::{FinalResponse, ProbeClient};
use crate::operation::{Operation, RequestVariant};
use crate::probe_log::ProbeLog;
use crate::response::{describe, difference};
use crate::response_kind::{ResponseKind, is_accepted, is_own};
use crate::wire::Response;

impl ProbeClient<'_> {
    /// Whether the response alone distinguishes a replay from another execution.
    pub(crate) fn identifies_replay(&self, answer: &Response) -> bool {
        self.profile.responses_are_unique || answer.is_marked()
    }

    /// Two successes under one key must be the same response. Logs a difference and returns true.
    pub(crate) fn judge_difference(
        &self,
        log: &mut ProbeLog,
        operation: &Operation,
        first: &Response,
        other: &Response,
        what: &str,
    ) -> bool {
        let Some(difference) = difference(first, other) else {
            return false;
        };
        if !is_accepted(first) && !is_accepted(other) {
            log.fail(format!("{what}: {difference}"));
            return true;
        }
        // Responses to an accepted operation may report its progress and differ.
        match (first.header("location"), other.header("location")) {
            (Some(one), Some(two)) if one == two => return false,
            (Some(_), Some(_)) => log.fail(format!("{what}: a different Location")),
            (Some(_), None) | (None, Some(_) | None) if self.counts(operation) => {}
            (Some(_), None) | (None, Some(_) | None) => log.inconclusive(
                "an accepted operation got a different response later, and nothing shows whether \
                 it was executed again: add --count-url or --count-command",
            ),
        }
        true
    }

    /// Judges the response to a retry of a request that had succeeded.
    pub(crate) async fn judge_retry(
        &self,
        log: &mut ProbeLog,
        operation: &Operation,
        first: &Response,
        retry: &FinalResponse,
    ) {
        match (retry.kind, &retry.answer) {
            (ResponseKind::Success, Ok(answer)) => {
                let what = "a retry got a different response";
                if self.judge_difference(log, operation, first, answer, what)
                    || self.counts(operation)
                {
                    return;
                }
                if !self.identifies_replay(answer) {
                    log.inconclusive(
                        "the retry got the same response, but nothing in it shows that the \
                         request was not executed again: add --count-url or --count-command",
                    );
                } else if retry.doubtful {
                    log.inconclusive(
                        "an earlier try got no response that shows whether it was executed: \
                         add --count-url or --count-command",
                    );
                }
            }
            (ResponseKind::Pending | ResponseKind::Refusal, _) => log.fail(format!(
                "a retry did not get the first response, but {}",
                describe(&retry.answer)
            )),
            (ResponseKind::Success | ResponseKind::Inconclusive, _) => {
                // A response that every request gets says nothing about the key.
                if is_own(&retry.answer) && self.accepts_new_operation().await {
                    log.fail(format!(
                        "retries get {}, while new operations succeed",
                        describe(&retry.answer)
                    ));
                } else {
                    mark_unjudged(log, "the retry", &retry.answer);
                }
            }
        }
    }

    /// Whether a new operation succeeds: if so, an error for a key is about that key. Not tried
    /// where the counter would count the new operation as well.
    pub(crate) async fn accepts_new_operation(&self) -> bool {
        if self.target.counter.is_some() && !self.counts_each() {
            return false;
        }
        let answer = self
            .send(&self.operation(), RequestVariant::default())
            .await;
        self.kind(&answer) == ResponseKind::Success
    }
}

/// Logs that any request could have got this response.
pub(crate) fn mark_unjudged(log: &mut ProbeLog, what: &str, answer: &Result<Response, String>) {
    log.inconclusive(format!("{what} could not be judged: {}", describe(answer)));
}

//! What answers mean for a client that retries.

use crate::answers::{difference, tell};
use crate::caller::{Caller, Settled};
use crate::kind::{Kind, is_accepted, is_own};
use crate::operation::{Operation, Shape};
use crate::record::Record;
use crate::wire::Answer;

impl Caller<'_> {
    /// Whether answers alone tell a replay of `answer` from another execution.
    pub(crate) fn tells(&self, answer: &Answer) -> bool {
        self.learned.telling || answer.is_marked()
    }

    /// Two successes under one key are one answer. Where they are not, says so and gives true.
    pub(crate) fn differs(
        &self,
        record: &mut Record,
        operation: &Operation,
        first: &Answer,
        other: &Answer,
        what: &str,
    ) -> bool {
        let Some(difference) = difference(first, other) else {
            return false;
        };
        if !is_accepted(first) && !is_accepted(other) {
            record.fail(format!("{what}: {difference}"));
            return true;
        }
        // Whoever is told to come back may be told each time how far it is.
        match (first.header("location"), other.header("location")) {
            (Some(one), Some(two)) if one == two => return false,
            (Some(_), Some(_)) => record.fail(format!("{what}: another Location")),
            (Some(_), None) | (None, Some(_) | None) if self.counts(operation) => {}
            (Some(_), None) | (None, Some(_) | None) => record.blind(
                "what was accepted was answered differently later, and nothing says whether as \
                 another operation: give --count-url or --count-command",
            ),
        }
        true
    }

    /// Judges the answer to a retry of what had succeeded.
    pub(crate) async fn judge_retry(
        &self,
        record: &mut Record,
        operation: &Operation,
        first: &Answer,
        retry: &Settled,
    ) {
        match (retry.kind, &retry.answer) {
            (Kind::Success, Ok(answer)) => {
                let what = "a retry was given another answer";
                if self.differs(record, operation, first, answer, what) || self.counts(operation) {
                    return;
                }
                if !self.tells(answer) {
                    record.blind(
                        "the retry was answered alike, but nothing in the answer says that it was \
                         not executed again: give --count-url or --count-command",
                    );
                } else if retry.doubtful {
                    record.blind(
                        "a try before the one that was answered alike got no answer that says \
                         whether it was executed: give --count-url or --count-command",
                    );
                }
            }
            (Kind::Pending | Kind::Refusal, _) => record.fail(format!(
                "a retry was not given the first answer, but {}",
                tell(&retry.answer)
            )),
            (Kind::Success | Kind::Silent, _) => {
                // The same for everybody is no fault of the key's.
                if is_own(&retry.answer) && self.takes_new().await {
                    record.fail(format!(
                        "retries are answered with {}, where new operations succeed",
                        tell(&retry.answer)
                    ));
                } else {
                    unjudged(record, "the retry", &retry.answer);
                }
            }
        }
    }

    /// Whether a new operation succeeds: what a key is told then, it is told for itself. Not
    /// where a counter of everything would count it along.
    pub(crate) async fn takes_new(&self) -> bool {
        if self.target.counter.is_some() && !self.counts_each() {
            return false;
        }
        let answer = self.ask(&self.operation(), Shape::default()).await;
        self.kind(&answer) == Kind::Success
    }
}

/// Says that an answer could have been given to any request.
pub(crate) fn unjudged(record: &mut Record, what: &str, answer: &Result<Answer, String>) {
    record.blind(format!("{what} could not be judged: {}", tell(answer)));
}

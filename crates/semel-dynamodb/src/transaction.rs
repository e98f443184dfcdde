//! The outcome of an attempt together with the application's own items, in one transaction.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::types::{
    CancellationReason, Put, ReturnValuesOnConditionCheckFailure, TransactWriteItem,
};
use semel_core::transition::{self, Answer, Completion, Held};
use semel_core::{Event, Fence, history};
use uuid::Uuid;

use crate::attributes::{Item, VERSION};
use crate::call::{Fault, unavailable};
use crate::conditions::Condition;
use crate::item::{self, Row};
use crate::parts::MAX_INLINE;
use crate::records::Seen;
use crate::step::{Step, step};
use crate::store::{Inner, seen};
use crate::{Dynamo, TransactionError};

/// How often the transaction is made again because the record had changed, or another transaction
/// held one of its items.
const MAX_TRIES: usize = 8;
/// The code of a reason: the condition of that item does not hold.
const CONDITION: &str = "ConditionalCheckFailed";
/// The codes of reasons that another try may not meet.
const PASSING: [&str; 3] = [
    "TransactionConflict",
    "ThrottlingError",
    "ProvisionedThroughputExceeded",
];

/// The result of one transaction.
enum Transacted {
    Applied,
    /// The record has changed. Nothing was written.
    Conflict(Option<Item>),
    /// Another transaction holds one of the items. Nothing was written.
    Busy,
}

impl Dynamo {
    /// Completes an attempt and writes the application's items in one `TransactWriteItems`: both
    /// happen, or neither. The application's items are in DynamoDB tables of the same account and
    /// region, at most 99, and may have conditions.
    ///
    /// After it, the layer's own completion of the same response is a repetition. Where the store is
    /// encrypted, pass the completion through [`Backend::prepare`](semel_core::Backend::prepare)
    /// first. Tables with multi-region strong consistency have no transactions.
    ///
    /// # Errors
    /// [`TransactionError::Refused`] if a condition of the application's items does not hold: then
    /// nothing was written, and the attempt goes on. After an ambiguous error of the store the
    /// caller repeats the same call until it is answered.
    ///
    /// # Cancellation
    /// Dropping the future may leave the transaction committed.
    pub async fn complete_with(
        &self,
        fence: Fence,
        completion: Completion,
        writes: Vec<TransactWriteItem>,
    ) -> Result<Held, TransactionError> {
        // It holds whole records and the requests that carry them.
        Box::pin(self.inner.complete_with(fence, completion, writes)).await
    }
}

impl Inner {
    async fn complete_with(
        &self,
        fence: Fence,
        completion: Completion,
        writes: Vec<TransactWriteItem>,
    ) -> Result<Held, TransactionError> {
        let event = Event::Complete(fence, completion);
        let Some(partition) = self.partition_of(fence.id, self.index_lag).await? else {
            return Ok(self.refuse(fence, event).await?);
        };
        let mut known = Seen::Unread;
        for _ in 0..MAX_TRIES {
            let row = match known {
                Seen::Read(row) => self.with_body(&partition, row).await?.flatten(),
                Seen::Held(row) => Some(row),
                Seen::Unread | Seen::Assumed => self.read_whole(&partition).await?,
            };
            let before = row.as_ref().filter(|row| row.record.id == fence.id);
            let now = self.now();
            let record = before.map(|row| row.record.clone());
            let after = transition::apply(record, event.clone(), now);
            let note = history::note(before.map(|row| &row.record), &event, &after, now);
            let (Answer::Held(Held::Applied), Some(before)) = (&after.answer, before) else {
                return Ok(self.refuse(fence, event).await?);
            };
            let Step::Replace(mut next, entry) = step(Some(before), &after, note) else {
                return Ok(self.refuse(fence, event).await?);
            };
            if let Some(body) = item::body(&next.record)
                && body.len() > MAX_INLINE
            {
                next.parts = Some(self.write_parts(&partition, body).await?);
            }
            if let Some(entry) = &entry {
                self.write_entry(&partition, fence.id, before.head, entry)
                    .await?;
            }
            let outcome = next.to_item(&partition, self.shards);
            known = match self.transact(outcome, before, &writes).await? {
                Transacted::Applied => {
                    self.remember(&partition, next);
                    return Ok(Held::Applied);
                }
                Transacted::Conflict(found) => Seen::Read(found.map(Row::from_item).transpose()?),
                Transacted::Busy => Seen::Unread,
            };
        }
        let reason = "other transactions were faster again and again";
        Err(unavailable(reason, None).into())
    }

    /// What the store answers to a completion that does not apply. It notes a fenced one.
    async fn refuse(&self, fence: Fence, event: Event) -> semel_core::store::Result<Held> {
        match self.write_held(fence, event).await? {
            // Another completion of this attempt was written between the two.
            Answer::Held(held) => Ok(held),
            Answer::Decision(_) | Answer::Resolution(_) | Answer::Applied(_) => {
                Err(unavailable("a completion was not answered as one", None))
            }
        }
    }

    async fn transact(
        &self,
        outcome: Item,
        before: &Row,
        writes: &[TransactWriteItem],
    ) -> Result<Transacted, TransactionError> {
        let put = Put::builder()
            .table_name(&self.table)
            .set_item(Some(outcome.clone()))
            .condition_expression(self.conditions.text(Condition::Replace))
            .set_expression_attribute_values(Some(seen(before.version)))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .build()
            .map_err(|invalid| unavailable(invalid.to_string(), None))?;
        let ours = TransactWriteItem::builder().put(put).build();
        let items: Vec<_> = std::iter::once(ours)
            .chain(writes.iter().cloned())
            .collect();
        // DynamoDB performs transactions of one token once.
        let token = Uuid::new_v4().to_string();
        let reasons: Arc<Mutex<Vec<CancellationReason>>> = Arc::default();
        let tried = self.limit.send(|| {
            let (reasons, token) = (Arc::clone(&reasons), token.clone());
            let request = self.client.transact_write_items();
            let request = request
                .set_transact_items(Some(items.clone()))
                .client_request_token(token);
            async move {
                request.send().await.inspect_err(|error| {
                    if let Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) =
                        error.as_service_error()
                    {
                        *reasons.lock().unwrap_or_else(PoisonError::into_inner) =
                            cancelled.cancellation_reasons().to_vec();
                    }
                })
            }
        });
        let tried = tried.await;
        let reasons = std::mem::take(&mut *reasons.lock().unwrap_or_else(PoisonError::into_inner));
        let Err(fault) = tried.outcome else {
            return Ok(Transacted::Applied);
        };
        let codes: Vec<&str> = reasons
            .iter()
            .filter_map(CancellationReason::code)
            .collect();
        match (reasons.first(), fault) {
            (Some(record), _) if record.code() == Some(CONDITION) => {
                let found: Option<HashMap<_, _>> = record.item().cloned();
                let is_ours = found
                    .as_ref()
                    .is_some_and(|item| item.get(VERSION) == outcome.get(VERSION));
                Ok(if tried.unanswered && is_ours {
                    Transacted::Applied
                } else {
                    Transacted::Conflict(found.filter(|item| !item.is_empty()))
                })
            }
            (Some(_), _) if codes.iter().any(|code| PASSING.contains(code)) => Ok(Transacted::Busy),
            (Some(_), Fault::Refused(source)) => Err(TransactionError::Refused {
                reasons: codes.join(", ").into(),
                source,
            }),
            (_, fault) => Err(fault.of_write(tried.unanswered).into()),
        }
    }
}

//! The outcome of an attempt together with the application's own items, in one transaction.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::types::{
    CancellationReason, Put, ReturnValuesOnConditionCheckFailure, TransactWriteItem,
};
use semel_core::transition::{Answer, Completion, Fenced, Held};
use semel_core::{Event, Fence};
use tokio::time::sleep;
use uuid::Uuid;

use crate::attributes::{Item, VERSION};
use crate::call::{Fault, backoff, unavailable};
use crate::conditions::Condition;
use crate::item::{Row, Version};
use crate::records::KnownRecord;
use crate::step::Step;
use crate::store::{Inner, WriteResult, seen};
use crate::{Dynamo, TransactionError};

/// How often the transaction is made again because the record had changed, or another transaction
/// held one of its items.
const MAX_TRIES: u32 = 8;
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
    /// After it, the layer's own completion of the same response is a repetition. Call it before the
    /// layer completes the attempt: where the same response is stored without the items, the answer
    /// is `Held::Repeated` as well. Where the store is encrypted, pass the completion through
    /// [`Backend::prepare`](semel_core::Backend::prepare) first. Tables with multi-region strong
    /// consistency have no transactions.
    ///
    /// ```no_run
    /// use semel_core::transition::Held;
    /// use semel_core::{Completion, Fence};
    /// use semel_dynamodb::sdk::types::{AttributeValue, Put, TransactWriteItem};
    /// use semel_dynamodb::{Dynamo, TransactionError};
    ///
    /// /// Stores a payment and the response about it.
    /// async fn pay(store: &Dynamo, fence: Fence) -> Result<Completion, Box<dyn std::error::Error>> {
    ///     let payment = Put::builder()
    ///         .table_name("payments")
    ///         .item("id", AttributeValue::S("pay_789".into()))
    ///         .item("cents", AttributeValue::N("1000".into()))
    ///         .condition_expression("attribute_not_exists(id)")
    ///         .build()?;
    ///     let writes = vec![TransactWriteItem::builder().put(payment).build()];
    ///     let completion = Completion::new(201, vec![], r#"{"id":"pay_789"}"#);
    ///     loop {
    ///         let stored = store.complete_with(fence, completion.clone(), writes.clone());
    ///         match stored.await {
    ///             Ok(Held::Applied | Held::Repeated) => return Ok(completion),
    ///             // Another attempt owns the key: this one has written nothing.
    ///             Ok(Held::Fenced(_)) => return Err("the lease was lost".into()),
    ///             // It may have been committed: only the same call again can tell.
    ///             Err(TransactionError::Store(semel_core::Error::Ambiguous { .. })) => {}
    ///             Err(error) => return Err(error.into()),
    ///         }
    ///     }
    /// }
    /// ```
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
        let Some(partition) = self.partition_of_record(fence.id).await? else {
            return Ok(Held::Fenced(Fenced { found: None }));
        };
        let mut seen = KnownRecord::Unread;
        for tries in 1..=MAX_TRIES {
            let row = match seen {
                KnownRecord::Read(row) => self.with_body(&partition, row).await?,
                KnownRecord::Held(_) | KnownRecord::Unread | KnownRecord::Assumed => {
                    Some(self.read_whole(&partition).await?)
                }
            };
            seen = KnownRecord::Unread;
            let Some(row) = row else {
                // The record changed between two reads.
                continue;
            };
            let before = row.as_ref().filter(|row| row.record.id == fence.id);
            let (after, step) = self.judge(before, &event);
            let written = match (after.answer, step, before) {
                (Answer::Held(Held::Applied), Step::Replace(mut next, entry), Some(before)) => {
                    let outcome = self.prepare_item(&partition, &mut next).await?;
                    if let Some(entry) = &entry {
                        self.write_entry(&partition, fence.id, before.head, entry)
                            .await?;
                    }
                    let transacted = self.transact(outcome, before.version, &writes).await?;
                    if let Transacted::Applied = transacted {
                        self.remember(&partition, next);
                        return Ok(Held::Applied);
                    }
                    transacted
                }
                // The outcome is not written without the application's items: only the note of a
                // fenced completion is.
                (Answer::Held(held @ (Held::Fenced(_) | Held::Repeated)), step, before) => {
                    match self.perform(&partition, &event, before, step).await? {
                        WriteResult::Applied => return Ok(held),
                        WriteResult::Conflict(found) => Transacted::Conflict(found),
                    }
                }
                _ => return Err(unavailable("a completion was not judged as one", None).into()),
            };
            match written {
                Transacted::Conflict(found) => {
                    seen = KnownRecord::Read(found.map(Row::from_item).transpose()?);
                }
                Transacted::Applied | Transacted::Busy => sleep(backoff(tries)).await,
            }
        }
        let reason = "other transactions were faster again and again";
        Err(unavailable(reason, None).into())
    }

    async fn transact(
        &self,
        outcome: Item,
        before: Version,
        writes: &[TransactWriteItem],
    ) -> Result<Transacted, TransactionError> {
        let put = Put::builder()
            .table_name(&self.table)
            .set_item(Some(outcome.clone()))
            .condition_expression(self.conditions.text(Condition::Replace))
            .set_expression_attribute_values(Some(seen(before)))
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
            // A try without an answer may have been performed, or may be still.
            (Some(_), Fault::Refused(source)) if !tried.unanswered => {
                Err(TransactionError::Refused {
                    reasons: codes.join(", ").into(),
                    source,
                })
            }
            (_, fault) => Err(fault.of_write(tried.unanswered).into()),
        }
    }
}

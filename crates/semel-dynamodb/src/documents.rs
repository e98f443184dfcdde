//! Documents that are replaced as a whole: the published contracts and record counts.

use aws_sdk_dynamodb::types::ReturnValue;
use bytes::Bytes;
use semel_core::Status;
use semel_core::Timestamp;
use semel_core::contract::{Contracts, Published};
use semel_core::statistics::{RecordCount, RecordCounts};
use semel_core::store::Result;
use serde::{Deserialize, Serialize};

use crate::attributes::{Attributes, Item, VERSION, binary, corrupt, key, number, time};
use crate::conditions::Condition;
use crate::item::Version;
use crate::keys::{CONTRACTS, COUNTS, HEAD};
use crate::parts::Parts;
use crate::store::{Inner, WriteResult, values};

/// How often a document is read again because it was replaced meanwhile.
const MAX_READS: usize = 16;

/// [`RecordCounts`] as they are stored.
#[derive(Serialize, Deserialize)]
struct StoredCounts {
    began_at: i64,
    ended_at: i64,
    all_callers: bool,
    counts: Vec<(Box<str>, Box<str>, u64)>,
}

impl Inner {
    pub(crate) async fn contracts(&self) -> Result<Published> {
        let Some((mut item, text)) = self.read_document(CONTRACTS).await? else {
            return Ok(Published::default());
        };
        let text = String::from_utf8(text.to_vec()).map_err(|_| item.corrupt("b"))?;
        let contracts = Contracts::from_text(&text);
        Ok(Published {
            revision: item.need("n")?,
            contracts: contracts.map_err(|reason| corrupt(format!("contracts: {reason}")))?,
        })
    }

    pub(crate) async fn publish_contracts(
        &self,
        revision: u64,
        contracts: &Contracts,
    ) -> Result<bool> {
        let mut item = key(CONTRACTS, HEAD);
        item.insert("n".to_owned(), number(revision + 1));
        let (condition, values) = if revision == 0 {
            (Condition::PublishFirst, None)
        } else {
            (
                Condition::Publish,
                Some(values([(":seen", number(revision))])),
            )
        };
        self.write_document(item, contracts.to_text().into(), condition, values)
            .await
    }

    pub(crate) async fn record_counts(&self) -> Result<Option<RecordCounts>> {
        let Some((_, text)) = self.read_document(COUNTS).await? else {
            return Ok(None);
        };
        let stored: StoredCounts =
            serde_json::from_slice(&text).map_err(|error| corrupt(format!("counts: {error}")))?;
        let counts = stored.counts.into_iter().map(|(operation, status, count)| {
            let status = Status::from_word(&status).ok_or_else(|| corrupt("counts: a status"))?;
            Ok(RecordCount {
                operation,
                status,
                count,
            })
        });
        Ok(Some(RecordCounts {
            began_at: Timestamp::from_micros(stored.began_at),
            ended_at: Timestamp::from_micros(stored.ended_at),
            counts: counts.collect::<Result<_>>()?,
            all_callers: stored.all_callers,
        }))
    }

    pub(crate) async fn publish_record_counts(&self, counts: RecordCounts) -> Result<()> {
        let ended = time(counts.ended_at);
        let rows = counts.counts.into_iter();
        let stored = StoredCounts {
            began_at: counts.began_at.as_micros(),
            ended_at: counts.ended_at.as_micros(),
            all_callers: counts.all_callers,
            counts: rows
                .map(|row| (row.operation, row.status.as_str().into(), row.count))
                .collect(),
        };
        let text = serde_json::to_vec(&stored).map_err(|error| corrupt(error.to_string()))?;
        let mut item = key(COUNTS, HEAD);
        item.insert("ea".to_owned(), ended.clone());
        let values = Some(values([(":ended", ended)]));
        self.write_document(item, text.into(), Condition::PublishCounts, values)
            .await?;
        Ok(())
    }

    /// Replaces a document if the condition holds; returns whether it does.
    async fn write_document(
        &self,
        mut item: Item,
        text: Bytes,
        condition: Condition,
        values: Option<Item>,
    ) -> Result<bool> {
        let partition: String = Attributes(item.clone()).need("p")?;
        item.insert(VERSION.to_owned(), binary(Version::generate().0));
        let parts = self.put_value(&partition, &mut item, &text).await?;
        let old = ReturnValue::AllOld;
        let (written, replaced) = self.put_and_read(item, condition, values, old).await?;
        let is_applied = matches!(written, WriteResult::Applied);
        let unused = if is_applied {
            Attributes(replaced.unwrap_or_default()).take::<Parts>("rc")?
        } else {
            parts
        };
        if let Some(parts) = unused {
            self.remove_parts(&partition, &parts).await;
        }
        Ok(is_applied)
    }

    async fn read_document(&self, partition: &str) -> Result<Option<(Attributes, Bytes)>> {
        for _ in 0..MAX_READS {
            let Some(item) = self.read(partition, HEAD).await? else {
                return Ok(None);
            };
            let mut item = Attributes(item);
            let Some(parts) = item.take::<Parts>("rc")? else {
                let text = item.need("rb")?;
                return Ok(Some((item, text)));
            };
            if let Some(text) = self.read_parts(partition, &parts).await? {
                return Ok(Some((item, text)));
            }
        }
        Err(corrupt("the parts of a document are missing"))
    }
}

//! Reading a record, and its body if that is in parts.

use semel_core::Event;
use semel_core::store::Result;

use crate::attributes::corrupt;
use crate::item::{self, Row};
use crate::keys;
use crate::store::Inner;

/// How often a record is read again because its body was removed between two reads.
const MAX_READS: usize = 16;

impl Inner {
    /// The record in a partition.
    pub(crate) async fn read_row(&self, partition: &str) -> Result<Option<Row>> {
        let item = self.read(partition, keys::RECORD).await?;
        item.map(Row::from_item).transpose()
    }

    /// The record in a partition with its body.
    pub(crate) async fn read_whole(&self, partition: &str) -> Result<Option<Row>> {
        for _ in 0..MAX_READS {
            let row = self.read_row(partition).await?;
            if let Some(row) = self.with_body(partition, row).await? {
                return Ok(row);
            }
        }
        Err(corrupt("the parts of a response are missing"))
    }

    /// The row with its body, if it is in parts; `None` if they are gone.
    #[allow(
        clippy::option_option,
        reason = "a record may be absent, and so may its body"
    )]
    pub(crate) async fn with_body(
        &self,
        partition: &str,
        row: Option<Row>,
    ) -> Result<Option<Option<Row>>> {
        let Some(mut row) = row else {
            return Ok(Some(None));
        };
        if let Some(parts) = &row.parts {
            let Some(body) = self.read_parts(partition, parts).await? else {
                return Ok(None);
            };
            item::set_body(&mut row.record, body);
        }
        Ok(Some(Some(row)))
    }

    /// As [`with_body`](Self::with_body), for the events that compare or return it.
    #[allow(clippy::option_option, reason = "as for `with_body`")]
    pub(crate) async fn with_needed_body(
        &self,
        partition: &str,
        event: &Event,
        row: Option<Row>,
    ) -> Result<Option<Option<Row>>> {
        if matches!(event, Event::Reserve(_) | Event::Complete(..)) {
            self.with_body(partition, row).await
        } else {
            Ok(Some(row))
        }
    }
}

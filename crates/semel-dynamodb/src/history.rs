//! Histories: an item for each entry, written before the record that names it as its head.
//!
//! An entry names the one before by its hash. Readers follow the hashes from the record's head, so
//! the entries of writers that lost a race are not in the history.

use std::collections::HashMap;

use semel_core::history::{Entry, EntryKind, GENESIS, Note};
use semel_core::store::Result;
use semel_core::{Code, OperationId};

use crate::attributes::{Attributes, Item, binary, corrupt, key, number, put, text, time};
use crate::conditions::Condition;
use crate::item::{Head, key_of};
use crate::keys;
use crate::store::{Inner, all};

impl Inner {
    /// The history of a record, oldest entry first.
    pub(crate) async fn history(&self, id: OperationId) -> Result<Vec<Entry>> {
        let Some(partition) = self.partition_of(id, self.lookup_lag()).await? else {
            return Ok(Vec::new());
        };
        let row = self
            .read_row(&partition)
            .await?
            .filter(|row| row.record.id == id);
        let Some(head) = row.and_then(|row| row.head) else {
            return Ok(Vec::new());
        };
        let items = self.query_parts(&partition, &keys::history(id)).await?;
        let mut entries = HashMap::new();
        for item in items {
            let (entry, previous) = entry_of(item)?;
            entries.insert((entry.seq, entry.hash), (entry, previous));
        }
        let mut chain = Vec::new();
        let (mut seq, mut hash) = (head.seq, head.hash);
        while seq > 0 {
            let found = entries.remove(&(seq, hash));
            let (entry, previous) = found
                .ok_or_else(|| corrupt(format!("entry {seq} of the history of {id} is missing")))?;
            chain.push(entry);
            (seq, hash) = (seq - 1, previous);
        }
        chain.reverse();
        Ok(chain)
    }

    /// Writes an entry that follows `head`.
    pub(crate) async fn write_entry(
        &self,
        partition: &str,
        id: OperationId,
        head: Option<Head>,
        entry: &Entry,
    ) -> Result<()> {
        let mut item = key(partition, &keys::entry(id, entry.seq, &entry.hash));
        let note = &entry.note;
        let mut set = |name, value| put(&mut item, name, value);
        set("n", Some(number(entry.seq)));
        set("h", Some(binary(entry.hash)));
        set("pv", Some(binary(head.map_or(GENESIS, |head| head.hash))));
        set("at", Some(time(note.at)));
        set("a", Some(number(note.attempt)));
        set("w", Some(text(note.what.as_str())));
        set("wh", Some(text(&*note.actor)));
        set("c", note.code.as_ref().map(|code| text(code.as_str())));
        set("re", note.reason.as_deref().map(text));
        set(
            "ev",
            note.evidence.as_ref().map(|seen| binary(seen.to_vec())),
        );
        set("eh", entry.evidence_hash.map(binary));
        // One that is there already says the same, and its evidence may have been erased.
        self.put(item, Condition::Append, None).await?;
        Ok(())
    }

    /// Removes the evidence of all entries. Its hashes stay.
    pub(crate) async fn erase_evidence(&self, partition: &str, id: OperationId) -> Result<()> {
        let items = self.query_parts(partition, &keys::history(id)).await?;
        let mut erasures = Vec::new();
        for item in items.iter().filter(|item| item.contains_key("ev")) {
            if let Some((partition, sort)) = key_of(item) {
                let key = key(&partition, &sort);
                let exists = Some(Condition::Exists);
                erasures.push(self.update(key, "REMOVE ev", exists, Item::new()));
            }
        }
        all(erasures).await?;
        Ok(())
    }
}

/// An entry, and the hash of the one before.
fn entry_of(item: Item) -> Result<(Entry, [u8; 32])> {
    let mut item = Attributes(item);
    let what = EntryKind::from_word(&item.need::<String>("w")?);
    let what = what.ok_or_else(|| item.corrupt("w"))?;
    let note = Note {
        at: item.need("at")?,
        attempt: item.need("a")?,
        what,
        actor: item.need("wh")?,
        code: item.take::<String>("c")?.map(Code::new),
        reason: item.take("re")?,
        evidence: item.take("ev")?,
    };
    let entry = Entry {
        seq: item.need("n")?,
        note,
        evidence_hash: item.take("eh")?,
        hash: item.need("h")?,
    };
    Ok((entry, item.need("pv")?))
}

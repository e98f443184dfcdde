//! Every charge and every refund ever made, in order. Entries are added and never changed.

mod file;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use super::refunds::{Refund, RefundRequest, RefundResult};
use crate::Error;
use file::LedgerFile;
pub(super) use file::Sync;

/// The ledger is kept in memory. More than any demonstration needs.
const MAX_ENTRIES: usize = 1_000_000;
/// Sums of a full ledger stay within 64 bits.
pub(crate) const MAX_AMOUNT: i64 = 1_000_000_000_000;
/// As long as the longest idempotency key: the service may use one as the reference.
const MAX_TEXT_BYTES: usize = 255;
/// As many as providers commonly allow.
const MAX_METADATA: usize = 20;

/// The metadata by which a charge can be looked up.
pub(super) const OPERATION_ID: &str = "operation_id";

/// The body of `POST /charges`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
// A field that is not understood could make two different requests look the same.
#[serde(deny_unknown_fields)]
pub struct ChargeRequest {
    /// In minor units: cents, yen.
    pub amount: i64,
    /// Three capital letters.
    pub currency: String,
    /// The merchant's reference.
    pub reference: String,
    /// A token for the card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<String>,
    /// The merchant's metadata, which events contain.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}

impl ChargeRequest {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        let text = |text: &str| !text.is_empty() && text.len() <= MAX_TEXT_BYTES;
        if !(1..=MAX_AMOUNT).contains(&self.amount) {
            return Err("amount is from 1 to 1000000000000 minor units");
        }
        if !is_currency(&self.currency) {
            return Err("currency is three capital letters");
        }
        if !text(&self.reference) || !self.card.as_deref().is_none_or(text) {
            return Err("reference and card are from 1 to 255 bytes");
        }
        let metadata = || self.metadata.iter().flat_map(|(name, value)| [name, value]);
        if self.metadata.len() > MAX_METADATA || !metadata().all(|part| text(part)) {
            return Err("metadata is at most 20 names and values of 1 to 255 bytes");
        }
        Ok(())
    }
}

/// Three capital letters, as in ISO 4217. Which of them are money is not checked.
pub(crate) fn is_currency(text: &str) -> bool {
    text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_uppercase())
}

/// Whether money moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChargeStatus {
    /// It did.
    Succeeded,
    /// It did not, and that is final.
    Declined,
}

/// An entry of the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charge {
    /// The id at the provider.
    pub id: String,
    /// The idempotency key of the request, if any.
    pub idempotency_key: Option<String>,
    /// In minor units.
    pub amount: i64,
    /// Three capital letters.
    pub currency: String,
    /// The merchant's reference.
    pub reference: String,
    /// A token for the card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<String>,
    /// The merchant's metadata.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// Whether money moved.
    pub status: ChargeStatus,
}

impl Charge {
    fn answers(&self, request: &ChargeRequest) -> bool {
        self.amount == request.amount
            && self.currency == request.currency
            && self.reference == request.reference
            && self.card == request.card
            && self.metadata == request.metadata
    }
}

/// A summary of the ledger: the answer of `GET /ledger/summary`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// All entries.
    pub count: usize,
    /// Entries by which money moved.
    pub succeeded: usize,
    /// Entries by which it did not.
    pub declined: usize,
    /// Keys with more than one entry. Always empty, or the provider itself is broken.
    pub duplicate_keys: BTreeMap<String, usize>,
    /// References with more than one entry: a customer was charged twice.
    pub duplicate_references: BTreeMap<String, usize>,
    /// Refunds by which money moved back.
    #[serde(default)]
    pub refunds: usize,
    /// Keys with more than one refund. Always empty, or the provider itself is broken.
    #[serde(default)]
    pub duplicate_refund_keys: BTreeMap<String, usize>,
    /// Charges with more than one refund. May be meant: a charge can be refunded in parts.
    #[serde(default)]
    pub refunded_more_than_once: BTreeMap<String, usize>,
}

/// The result of a charge request.
pub(super) enum ChargeResult {
    /// A new entry was written.
    Created(Charge),
    /// The key was used before for the same request, with this result.
    Existing(Charge),
    /// The key was used before for another request.
    KeyReused,
}

pub(super) struct Ledger {
    entries: Vec<Charge>,
    by_id: HashMap<String, usize>,
    by_key: HashMap<String, usize>,
    by_operation: HashMap<String, usize>,
    refunds: Vec<Refund>,
    refunds_by_key: HashMap<String, usize>,
    file: Option<LedgerFile>,
}

/// A line of the file. Only a refund has a `charge_id`.
enum Line {
    Charge(Charge),
    Refund(Refund),
}

impl Line {
    fn parse(line: &str) -> serde_json::Result<Self> {
        let value: Value = serde_json::from_str(line)?;
        if value.get("charge_id").is_some() {
            return serde_json::from_value(value).map(Self::Refund);
        }
        serde_json::from_value(value).map(Self::Charge)
    }
}

impl Ledger {
    pub(super) fn open(path: Option<PathBuf>) -> Result<Self, Error> {
        let mut ledger = Self {
            entries: Vec::new(),
            by_id: HashMap::new(),
            by_key: HashMap::new(),
            by_operation: HashMap::new(),
            refunds: Vec::new(),
            refunds_by_key: HashMap::new(),
            file: None,
        };
        if let Some(path) = path {
            let (file, text) = LedgerFile::open(&path).map_err(|source| Error::Ledger {
                path: path.clone(),
                source,
            })?;
            for (index, line) in text.split_terminator('\n').enumerate() {
                let line = Line::parse(line).map_err(|source| Error::LedgerLine {
                    path: path.clone(),
                    line: index + 1,
                    source,
                })?;
                match line {
                    Line::Charge(charge) => ledger.remember(charge),
                    Line::Refund(refund) => ledger.remember_refund(refund),
                }
            }
            ledger.file = Some(file);
        }
        Ok(ledger)
    }

    /// What to wait for before an entry may be acknowledged; `None` without a file.
    pub(super) fn sync(&self) -> Option<Sync> {
        self.file.as_ref().map(LedgerFile::sync)
    }

    /// Makes a charge, unless the key has one. It is durable after the next [`Sync::wait`].
    pub(super) fn charge(
        &mut self,
        request: ChargeRequest,
        key: Option<String>,
        status: ChargeStatus,
    ) -> io::Result<ChargeResult> {
        if let Some(before) = key.as_deref().and_then(|key| self.find_by_key(key)) {
            return Ok(if before.answers(&request) {
                ChargeResult::Existing(before.clone())
            } else {
                ChargeResult::KeyReused
            });
        }
        if self.entries.len() >= MAX_ENTRIES {
            return Err(io::Error::other("the ledger is full"));
        }
        let charge = Charge {
            id: format!("ch_{}", Uuid::now_v7().simple()),
            idempotency_key: key,
            amount: request.amount,
            currency: request.currency,
            reference: request.reference,
            card: request.card,
            metadata: request.metadata,
            status,
        };
        if let Some(file) = &mut self.file {
            file.append(&charge)?;
        }
        self.remember(charge.clone());
        Ok(ChargeResult::Created(charge))
    }

    /// Refunds a charge or a part of it, unless the key has a refund. It is durable after the next
    /// [`Sync::wait`].
    pub(super) fn refund(
        &mut self,
        request: RefundRequest,
        key: Option<String>,
        status: ChargeStatus,
    ) -> io::Result<RefundResult> {
        let before = key.as_ref().and_then(|key| self.refunds_by_key.get(key));
        if let Some(before) = before.map(|&index| &self.refunds[index]) {
            return Ok(if before.answers(&request) {
                RefundResult::Existing(before.clone())
            } else {
                RefundResult::KeyReused
            });
        }
        let paid = self.find(&request.charge_id);
        let Some(paid) = paid.filter(|charge| charge.status == ChargeStatus::Succeeded) else {
            return Ok(RefundResult::NothingPaid);
        };
        let (paid, currency) = (paid.amount, paid.currency.clone());
        let moved = |refund: &&Refund| {
            refund.charge_id == request.charge_id && refund.status == ChargeStatus::Succeeded
        };
        let back: i64 = self.refunds.iter().filter(moved).map(|r| r.amount).sum();
        if request.amount > paid - back {
            return Ok(RefundResult::TooMuch);
        }
        if self.entries.len() + self.refunds.len() >= MAX_ENTRIES {
            return Err(io::Error::other("the ledger is full"));
        }
        let refund = Refund {
            id: format!("re_{}", Uuid::now_v7().simple()),
            idempotency_key: key,
            charge_id: request.charge_id,
            amount: request.amount,
            currency,
            status,
        };
        if let Some(file) = &mut self.file {
            file.append(&refund)?;
        }
        self.remember_refund(refund.clone());
        Ok(RefundResult::Created(refund))
    }

    pub(super) fn refunds(&self) -> &[Refund] {
        &self.refunds
    }

    pub(super) fn find(&self, id: &str) -> Option<&Charge> {
        self.by_id.get(id).map(|&index| &self.entries[index])
    }

    pub(super) fn find_by_key(&self, key: &str) -> Option<&Charge> {
        self.by_key.get(key).map(|&index| &self.entries[index])
    }

    /// The first charge with this operation in its metadata.
    pub(super) fn find_by_operation(&self, id: &str) -> Option<&Charge> {
        self.by_operation.get(id).map(|&index| &self.entries[index])
    }

    pub(super) fn entries(&self) -> &[Charge] {
        &self.entries
    }

    /// Counted from the entries, since the indices cannot contain duplicates.
    pub(super) fn summary(&self) -> Summary {
        let mut summary = Summary {
            count: self.entries.len(),
            ..Summary::default()
        };
        for entry in &self.entries {
            match entry.status {
                ChargeStatus::Succeeded => summary.succeeded += 1,
                ChargeStatus::Declined => summary.declined += 1,
            }
            if let Some(key) = &entry.idempotency_key {
                *summary.duplicate_keys.entry(key.clone()).or_default() += 1;
            }
            let reference = entry.reference.clone();
            *summary.duplicate_references.entry(reference).or_default() += 1;
        }
        for refund in &self.refunds {
            if let Some(key) = &refund.idempotency_key {
                let times = summary.duplicate_refund_keys.entry(key.clone());
                *times.or_default() += 1;
            }
            if refund.status == ChargeStatus::Succeeded {
                summary.refunds += 1;
                let charge = refund.charge_id.clone();
                *summary.refunded_more_than_once.entry(charge).or_default() += 1;
            }
        }
        for counted in [
            &mut summary.duplicate_keys,
            &mut summary.duplicate_references,
            &mut summary.duplicate_refund_keys,
            &mut summary.refunded_more_than_once,
        ] {
            counted.retain(|_, count| *count > 1);
        }
        summary
    }

    fn remember_refund(&mut self, refund: Refund) {
        if let Some(key) = refund.idempotency_key.clone() {
            self.refunds_by_key.entry(key).or_insert(self.refunds.len());
        }
        self.refunds.push(refund);
    }

    fn remember(&mut self, charge: Charge) {
        let index = self.entries.len();
        self.by_id.entry(charge.id.clone()).or_insert(index);
        if let Some(key) = charge.idempotency_key.clone() {
            self.by_key.entry(key).or_insert(index);
        }
        if let Some(operation) = charge.metadata.get(OPERATION_ID).cloned() {
            self.by_operation.entry(operation).or_insert(index);
        }
        self.entries.push(charge);
    }
}

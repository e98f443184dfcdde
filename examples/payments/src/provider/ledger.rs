//! Every charge ever made, in order. Entries are added and never changed.

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::Error;

/// The whole ledger is in memory. More than any demonstration makes, and well within it.
const MAX_ENTRIES: usize = 1_000_000;
/// Ten thousand million in most currencies; sums of a full ledger stay within 64 bits.
pub(crate) const MAX_AMOUNT: i64 = 1_000_000_000_000;
/// As long as the longest idempotency key: the service may use one as the reference.
const MAX_TEXT_BYTES: usize = 255;
/// As many as providers commonly allow.
const MAX_METADATA: usize = 20;

/// What a charge is asked for with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
// A field that is not understood could make two different requests look the same.
#[serde(deny_unknown_fields)]
pub struct ChargeRequest {
    /// In minor units: cents, yen.
    pub amount: i64,
    /// Three capital letters.
    pub currency: String,
    /// What the merchant calls it.
    pub reference: String,
    /// A token for the card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<String>,
    /// The merchant's own; it comes back in events.
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
    /// The provider's name for it.
    pub id: String,
    /// The key it was asked for under, if any.
    pub idempotency_key: Option<String>,
    /// In minor units.
    pub amount: i64,
    /// Three capital letters.
    pub currency: String,
    /// What the merchant calls it.
    pub reference: String,
    /// A token for the card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<String>,
    /// The merchant's own.
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

/// The ledger at a glance: the answer of `GET /ledger/summary`.
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
    /// References with more than one entry: somebody was charged twice for one thing.
    pub duplicate_references: BTreeMap<String, usize>,
}

/// What became of a request.
pub(super) enum Charged {
    /// A new entry was written.
    Made(Charge),
    /// The key had been used for the same request, and this came of it.
    Before(Charge),
    /// The key had been used for another request.
    KeyReused,
}

pub(super) struct Ledger {
    entries: Vec<Charge>,
    by_id: HashMap<String, usize>,
    by_key: HashMap<String, usize>,
    file: Option<LedgerFile>,
}

impl Ledger {
    pub(super) fn open(path: Option<PathBuf>) -> Result<Self, Error> {
        let mut ledger = Self {
            entries: Vec::new(),
            by_id: HashMap::new(),
            by_key: HashMap::new(),
            file: None,
        };
        if let Some(path) = path {
            let (file, text) = LedgerFile::open(&path).map_err(|source| Error::Ledger {
                path: path.clone(),
                source,
            })?;
            for (index, line) in text.split_terminator('\n').enumerate() {
                let charge = serde_json::from_str(line).map_err(|source| Error::LedgerLine {
                    path: path.clone(),
                    line: index + 1,
                    source,
                })?;
                ledger.remember(charge);
            }
            ledger.file = Some(file);
        }
        Ok(ledger)
    }

    /// Makes a charge, unless the key has one. Returns when the entry is on the disk.
    pub(super) fn charge(
        &mut self,
        request: ChargeRequest,
        key: Option<String>,
        status: ChargeStatus,
    ) -> io::Result<Charged> {
        if let Some(before) = key.as_deref().and_then(|key| self.find_by_key(key)) {
            return Ok(if before.answers(&request) {
                Charged::Before(before.clone())
            } else {
                Charged::KeyReused
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
        Ok(Charged::Made(charge))
    }

    pub(super) fn find(&self, id: &str) -> Option<&Charge> {
        self.by_id.get(id).map(|&index| &self.entries[index])
    }

    pub(super) fn find_by_key(&self, key: &str) -> Option<&Charge> {
        self.by_key.get(key).map(|&index| &self.entries[index])
    }

    pub(super) fn entries(&self) -> &[Charge] {
        &self.entries
    }

    /// Counted from the entries and not from the indices, which could not show a duplicate.
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
        summary.duplicate_keys.retain(|_, count| *count > 1);
        summary.duplicate_references.retain(|_, count| *count > 1);
        summary
    }

    fn remember(&mut self, charge: Charge) {
        let index = self.entries.len();
        self.by_id.entry(charge.id.clone()).or_insert(index);
        if let Some(key) = charge.idempotency_key.clone() {
            self.by_key.entry(key).or_insert(index);
        }
        self.entries.push(charge);
    }
}

/// One JSON object a line.
struct LedgerFile {
    file: File,
    /// How much of the file is known to be entries.
    length: u64,
    /// Set by a failed write. What is on the disk is uncertain then, and only reading it anew
    /// can tell.
    broken: bool,
}

impl LedgerFile {
    /// Opens the file, and reads what is in it.
    fn open(path: &Path) -> io::Result<(Self, String)> {
        let mut file = OpenOptions::new()
            .create(true)
            .read(true)
            .append(true)
            .open(path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        // A last line without its end was being written when the provider died. Nobody was told
        // of that charge, so it was not made; left in place, it would spoil the next entry.
        let whole = bytes.iter().rposition(|&byte| byte == b'\n');
        let whole = whole.map_or(0, |end| end + 1);
        if whole < bytes.len() {
            bytes.truncate(whole);
            file.set_len(whole as u64)?;
        }
        file.sync_all()?;
        sync_directory(path)?;
        let text = String::from_utf8(bytes)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let file = Self {
            file,
            length: whole as u64,
            broken: false,
        };
        Ok((file, text))
    }

    fn append(&mut self, charge: &Charge) -> io::Result<()> {
        if self.broken {
            return Err(io::Error::other("a write to the ledger failed before"));
        }
        let mut line = serde_json::to_vec(charge)?;
        line.push(b'\n');
        let written = self
            .file
            .write_all(&line)
            .and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            self.broken = true;
            // The client is told that there is no charge; so there should be none on a restart.
            if let Err(error) = self.file.set_len(self.length) {
                tracing::error!(%error, "half a ledger entry may be left");
            }
            return Err(error);
        }
        self.length += line.len() as u64;
        Ok(())
    }
}

/// A new file is durable only when its directory says that it is there.
fn sync_directory(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}

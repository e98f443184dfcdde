//! What the provider did: its append-only file, of which only what is judged is read.

use std::collections::HashMap;
use std::path::PathBuf;

use serde::Deserialize;

use crate::Error;
use crate::lines::Lines;
use crate::report::LedgerCounts;

/// A line. Only a refund is of a charge.
#[derive(Deserialize)]
struct Entry {
    id: Box<str>,
    amount: i64,
    status: Status,
    #[serde(default)]
    reference: Option<Box<str>>,
    #[serde(default)]
    charge_id: Option<Box<str>>,
}

/// Whether money moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    Succeeded,
    Declined,
}

pub(crate) struct Charge {
    pub(crate) id: Box<str>,
    pub(crate) amount: i64,
    pub(crate) status: Status,
}

/// All ledgers of a run as one.
pub(crate) struct Ledger {
    by_reference: HashMap<Box<str>, Vec<Charge>>,
    counts: LedgerCounts,
}

impl Ledger {
    pub(crate) fn read(paths: &[PathBuf]) -> Result<Self, Error> {
        let mut ledger = Self {
            by_reference: HashMap::new(),
            counts: LedgerCounts::default(),
        };
        for path in paths {
            let mut lines = Lines::open(path)?;
            while let Some((number, entry)) = lines.next::<Entry>()? {
                if entry.charge_id.is_some() {
                    ledger.counts.refunds += 1;
                    continue;
                }
                let Some(reference) = entry.reference else {
                    return Err(lines.wrong(number, "a charge without a reference"));
                };
                ledger.counts.charges += 1;
                if entry.status == Status::Declined {
                    ledger.counts.declined += 1;
                }
                ledger
                    .by_reference
                    .entry(reference)
                    .or_default()
                    .push(Charge {
                        id: entry.id,
                        amount: entry.amount,
                        status: entry.status,
                    });
            }
        }
        Ok(ledger)
    }

    pub(crate) fn counts(&self) -> LedgerCounts {
        self.counts
    }

    pub(crate) fn of(&self, reference: &str) -> &[Charge] {
        self.by_reference.get(reference).map_or(&[], Vec::as_slice)
    }

    /// In the order of the references, so that two checks show the same examples.
    pub(crate) fn by_reference(&self) -> Vec<(&str, &[Charge])> {
        let all = self.by_reference.iter();
        let mut all: Vec<_> = all
            .map(|(name, of)| (name.as_ref(), of.as_slice()))
            .collect();
        all.sort_unstable_by_key(|(reference, _)| *reference);
        all
    }
}

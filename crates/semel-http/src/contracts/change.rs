//! What publishing changes, and why it is refused.

use std::fmt;

use semel_core::contract::{
    Contracts, IdentityContract, MAX_DOCUMENT, MAX_RULE_SETS, OperationMatch, RecordsInUse,
    RegionList,
};
use semel_core::store;

use crate::replay::http_date;

/// What identifies the records of one route changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContractChange {
    /// Method and path pattern.
    pub route: Box<str>,
    /// What identified its records; `None` where it was not guarded.
    pub from: Option<IdentityContract>,
    /// What identifies them under this configuration; `None` where it is not guarded.
    pub to: Option<IdentityContract>,
    /// The operations whose records a retry would not find.
    pub operations: OperationMatch,
    /// How many there are. Not counted where a person had accepted the change before.
    pub in_use: RecordsInUse,
    /// Whether a person accepted it.
    pub accepted: bool,
}

/// The fingerprint rules of an operation that are new to the store. Always allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RulesChange {
    /// The operation in the identity of its records.
    pub operation: Box<str>,
    /// The rules that the store holds for it, as JSON.
    pub from: Vec<Box<str>>,
    /// The rules of this configuration, as JSON.
    pub to: Box<str>,
}

/// What publishing a layer's contracts would change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContractPlan {
    /// Changes of what identifies records.
    pub changes: Vec<ContractChange>,
    /// New fingerprint rules.
    pub rules: Vec<RulesChange>,
    pub(super) revision: u64,
    pub(super) published: Contracts,
    pub(super) next: Contracts,
}

/// Why a layer's contracts were not published.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ContractError {
    /// Retries of existing records would execute again.
    #[error("{}", refused(.0))]
    Refused(Vec<ContractChange>),
    /// The store holds too many rule sets of one operation.
    #[error(
        "operation {operation:?} has records under {} sets of fingerprint rules, and this would be one more: \
         go back to an earlier set, or wait until older records are deleted",
        MAX_RULE_SETS - 1
    )]
    TooManyRules {
        /// The operation.
        operation: Box<str>,
    },
    /// The document would be larger than a store keeps.
    #[error("the contracts of all routes are {0} bytes long; at most {MAX_DOCUMENT} are stored")]
    TooLarge(usize),
    /// Other processes published at the same time, again and again.
    #[error("other processes publish their contracts at the same time; try again")]
    Busy,
    /// The store did not answer.
    #[error("the contracts cannot be compared with those in the store: {0}")]
    Store(#[from] store::Error),
}

fn refused(changes: &[ContractChange]) -> String {
    let mut text = String::from(
        "this configuration would take retries of existing records for new requests, and execute them again:",
    );
    for change in changes {
        text.push_str("\n  ");
        text.push_str(&change.to_string());
    }
    text.push_str(
        "\nKeep the earlier setting; keep the earlier name of an operation with `was = \"…\"`; wait until the \
         replay windows have ended and unknown outcomes are resolved; or accept that these retries execute \
         again: `semel contract accept --reason TEXT`.",
    );
    text
}

impl fmt::Display for ContractChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = (self.from.as_ref(), self.to.as_ref());
        let (from, to) = (changed_parts(from, to), changed_parts(to, from));
        write!(f, "{}: {from} → {to}", self.route)?;
        if self.accepted {
            return f.write_str(" (accepted)");
        }
        let RecordsInUse {
            unfinished,
            replayable,
            last_window_ends,
            ..
        } = self.in_use;
        let operations = &self.operations;
        write!(
            f,
            "; {unfinished} unfinished and {replayable} replayable records of {operations}",
        )?;
        if let Some(at) = last_window_ends {
            write!(f, ", the last window ends at {}", http_date(at))?;
        }
        if let Some(problem) = self.region_refusal() {
            write!(f, "; {problem}")?;
        }
        Ok(())
    }
}

impl ContractChange {
    /// Whether publishing is refused because of this change.
    pub fn is_refused(&self) -> bool {
        !self.accepted && (self.in_use.protect_retries() || self.region_refusal().is_some())
    }

    fn region_refusal(&self) -> Option<String> {
        let to = self.to.as_ref()?;
        RegionList::refusal(self.from.as_ref()?.regions.as_ref(), to.regions.as_ref())
    }
}

/// The parts of one side of a change that the other does not have.
fn changed_parts(side: Option<&IdentityContract>, other: Option<&IdentityContract>) -> String {
    match (side, other) {
        (None, _) => "not guarded".to_owned(),
        (Some(side), None) => side.to_string(),
        (Some(side), Some(other)) => {
            let other = other.parts();
            let mut parts = side.parts().to_vec();
            parts.retain(|part| !other.contains(part));
            parts.join(", ")
        }
    }
}

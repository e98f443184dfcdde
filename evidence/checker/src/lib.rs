//! Judges a campaign by two files: what the clients saw, and what the provider's ledger says.
//!
//! Nothing here depends on the product. A checker that shared its code would share its mistakes.
//!
//! ```no_run
//! # fn main() -> Result<(), semel_campaign_checker::Error> {
//! use std::path::{Path, PathBuf};
//!
//! let ledgers = [PathBuf::from("ledger.jsonl")];
//! let mut report = semel_campaign_checker::check(Path::new("history.jsonl"), &ledgers)?;
//! report.require("operations", 100_000);
//! report.require("kills", 500);
//! assert!(report.passed);
//! # Ok(())
//! # }
//! ```
//!
//! What the history must keep to, for the rules to mean what they say:
//! - A reference belongs to one operation. An operation comes before its calls.
//! - A call with another body is sent only when an answer has shown that the operation is recorded.
//!   Before that it might be the first to arrive, and then it would be the operation.
//! - Every operation that is not meant to be refused is asked for until it has a final answer.
//! - The answers are those of the payments example: JSON that names `merchant_reference`,
//!   `amount` and `charge_id`.

mod error;
pub mod history;
mod ledger;
mod lines;
mod operation;
mod report;
mod rule;
mod tally;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

pub use error::Error;
pub use report::{Example, LedgerCounts, Phase, Report, Requirement, Second, Totals};
pub use rule::Rule;

use history::Line;
use ledger::Ledger;
use lines::Lines;
use operation::Told;
use rule::Findings;
use tally::Tally;

/// Reads what the clients saw and what the provider did, and says where the two disagree.
///
/// The history is read line by line; what is kept of it is a little for each operation.
///
/// # Errors
/// Where a file cannot be read, ends in the middle of a line, or is not what it should be. Then
/// nothing is known about the run, neither good nor bad.
pub fn check(history: &Path, ledgers: &[PathBuf]) -> Result<Report, Error> {
    let ledger = Ledger::read(ledgers)?;
    let mut lines = Lines::open(history)?;
    let Some((_, Line::Run(run))) = lines.next::<Line>()? else {
        return Err(lines.wrong(1, "it does not begin with what run it is"));
    };
    let mut told: HashMap<u64, Told> = HashMap::new();
    let mut by_reference: HashMap<Box<str>, u64> = HashMap::new();
    let mut tally = Tally::default();
    let mut found = Findings::default();
    while let Some((number, line)) = lines.next::<Line>()? {
        match line {
            Line::Run(_) => return Err(lines.wrong(number, "a second run begins")),
            Line::Operation(operation) => {
                let reference = operation.reference.as_str().into();
                let (op, new) = (operation.op, Told::new(operation));
                if by_reference.insert(reference, op).is_some() || told.insert(op, new).is_some() {
                    return Err(lines.wrong(number, "two operations share a number or reference"));
                }
            }
            Line::Call(call) => {
                let Some(told) = told.get_mut(&call.op) else {
                    return Err(lines.wrong(number, "a call of no operation"));
                };
                if !tally.call(&call, told.is_untried()) {
                    return Err(lines.wrong(number, "a call ends before it began, or in days"));
                }
                told.hear(call);
            }
            Line::Fault(fault) => tally.fault(fault),
            Line::Decision(decision) => tally.decision(decision.verdict),
            Line::Leftover(leftover) => found.add(
                Rule::StuckKeys,
                None,
                format!("{} is left {} in the store", leftover.id, leftover.status),
            ),
        }
    }
    for (reference, charges) in ledger.by_reference() {
        if !by_reference.contains_key(reference) {
            let id = charges.first().map_or("", |charge| charge.id.as_ref());
            let what = format!("{id} is for {reference}, which nobody asked for");
            found.add(Rule::EffectsNeverSurfaced, None, what);
        }
    }
    // In their order, so that two checks of one history show the same examples.
    let mut told: Vec<(u64, Told)> = told.into_iter().collect();
    told.sort_unstable_by_key(|(op, _)| *op);
    for (op, told) in &told {
        told.judge(*op, &ledger, &mut found);
    }
    let operations = told.len() as u64;
    Ok(Report::new(&run, operations, tally, ledger.counts(), found))
}

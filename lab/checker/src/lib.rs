//! Checks a campaign by two files: the clients' history and the provider's ledger.
//!
//! Nothing here depends on the product: a checker with shared code would share its bugs.
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
//! Requirements on the history:
//! - An operation comes before its calls, its executions and its status reads.
//! - A tenant has one operation with a key, and one with a reference. Operations of other tenants may
//!   have the same key and reference (twins); each of them is to be executed once.
//! - A call with another body is sent only after an answer has shown that the operation is recorded.
//!   Otherwise it might arrive first and become the operation.
//! - Every operation that is not meant to be refused is retried until it has a final answer.
//! - It contains every call, also those without an answer: otherwise their effect looks like that of a
//!   refused call.
//! - A call has a status, a body and header lines only where the complete answer arrived. Header lines
//!   that may differ between an answer and its replay are left out.
//! - Every request with an operation's id that reaches the application is an execution. Operations
//!   that are meant to be refused may be executed: the application may be the one to refuse them.
//! - The status of an operation is read only after its end, and while the store is reachable.
//! - The exit of a process is recorded in the phase in which it happened.
//! - The last phase is called `heal`. With `all_replayed` in the run, every finished operation is
//!   requested in it until it is answered, unless its answer was erased.
//! - The answers are those of the payments example: JSON that names `merchant_reference`,
//!   `amount` and `charge_id`.

mod error;
mod hash;
pub mod history;
mod history_check;
mod ledger;
mod lines;
mod operation;
mod reference;
mod report;
mod rule;
mod tally;

use std::path::{Path, PathBuf};

pub use error::Error;
pub use report::{Example, LedgerCounts, Phase, Report, Requirement, Second, Totals};
pub use rule::Rule;

use history::Line;
use history_check::HistoryCheck;
use ledger::Ledger;
use lines::Lines;

/// Compares the history with the ledgers, and reports the broken rules.
///
/// The history is read line by line, with little memory for each operation.
///
/// # Errors
/// Where a file cannot be read, ends in the middle of a line, or is malformed. Then nothing is known
/// about the run.
pub fn check(history: &Path, ledgers: &[PathBuf]) -> Result<Report, Error> {
    let ledger = Ledger::read(ledgers)?;
    let mut lines = Lines::open(history)?;
    let Some((_, Line::Run(run))) = lines.next::<Line>()? else {
        return Err(lines.wrong(1, "it does not begin with its run"));
    };
    let mut check = HistoryCheck::default();
    while let Some((number, line)) = lines.next::<Line>()? {
        check
            .record(line)
            .map_err(|what| lines.wrong(number, what))?;
    }
    Ok(check.conclude(&run, &ledger))
}

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
//! - An operation comes before its calls, its executions, and whoever asks for its status.
//! - A tenant has one operation of a key, and one of a reference. Operations of other tenants may
//!   have the same key and the same reference; then they ask for the very same thing, and each of
//!   them is to be executed once.
//! - A call with another body is sent only when an answer has shown that the operation is recorded.
//!   Before that it might be the first to arrive, and then it would be the operation.
//! - Every operation that is not meant to be refused is asked for until it has a final answer.
//! - Every call is in it, also where nobody heard an answer: an end that was made by a call that
//!   is not written down looks like one that was made by a call that was refused.
//! - A call has a status, a body and header lines only where the whole answer came. Header lines
//!   that may differ from one answer to the next are left out, above all the mark of a replay.
//! - Every request with an operation's id that is given to the application is an execution.
//!   Executions of operations that are meant to be refused may be there: what is malformed for
//!   the application, and for nobody before it, is for the application to refuse.
//! - A tenant asks for the status of its own operation only after the end, and while the store can
//!   be reached. Whoever else asks does so then, too.
//! - What ends by itself is noticed in the phase in which it ended.
//! - The last phase is called `heal`. Where the run says `all_replayed`, everything that had ended
//!   before is asked for in it until it is answered.
//! - The answers are those of the payments example: JSON that names `merchant_reference`,
//!   `amount` and `charge_id`.

mod error;
mod hash;
pub mod history;
mod judge;
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
use judge::Judge;
use ledger::Ledger;
use lines::Lines;

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
    let mut judge = Judge::default();
    while let Some((number, line)) = lines.next::<Line>()? {
        judge.hear(line).map_err(|what| lines.wrong(number, what))?;
    }
    Ok(judge.conclude(&run, &ledger))
}

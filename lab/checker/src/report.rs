//! The judgement, as it goes into the evidence.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::history::Run;
use crate::rule::{Findings, Rule};
use crate::tally::Tally;

/// What a history and its ledgers come to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Everything random in the schedule came from it.
    pub seed: u64,
    /// Whether it was the short one.
    pub short: bool,
    /// How much happened.
    pub totals: Totals,
    /// How often each fault was injected.
    pub faults: BTreeMap<String, u64>,
    /// The phases, in their order.
    pub phases: Vec<Phase>,
    /// How often each rule was broken; a zero where it was not.
    pub violations: BTreeMap<Rule, u64>,
    /// Some of what broke them.
    pub examples: BTreeMap<Rule, Vec<Example>>,
    /// What the run has to have seen to count.
    pub requirements: Vec<Requirement>,
    /// Answers by the second in which they came.
    pub timeline: Vec<Second>,
    /// What operators decided, and how often.
    pub decisions: BTreeMap<String, u64>,
    /// What is in the ledgers.
    pub ledger: LedgerCounts,
    /// Whether no rule was broken and every requirement is met.
    pub passed: bool,
}

/// How much happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Things that clients wanted done once.
    pub operations: u64,
    /// Calls made for them.
    pub calls: u64,
    /// Calls that had a final answer.
    pub ok: u64,
    /// Calls by which certainly nothing was executed.
    pub failed: u64,
    /// Calls with an indeterminate outcome.
    pub indeterminate: u64,
    /// Answers that said that they were replays.
    pub replayed: u64,
    /// Final answers over TLS.
    pub ok_over_tls: u64,
    /// Of these, over HTTP/2.
    pub ok_over_http2: u64,
    /// Calls with a used key and another body.
    pub other_body: u64,
    /// Calls that no server should take.
    pub malformed: u64,
    /// Requests that reached the application.
    pub executions: u64,
    /// Times that the status of an operation was asked for.
    pub peeks: u64,
    /// Answers that operators erased.
    pub erasures: u64,
    /// Messages that were published.
    pub messages: u64,
    /// Deliveries of messages after the first.
    pub redelivered: u64,
    /// Operations that share their reference with those of other tenants.
    pub twins: u64,
    /// Faults named `kill`: processes ended by SIGKILL.
    pub kills: u64,
    /// Faults named `stop`: processes held by SIGSTOP.
    pub stops: u64,
    /// Faults named `cut_after_commit`: the store committed, and its answer was lost.
    pub ambiguous_commits: u64,
}

/// A phase of the campaign.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Phase {
    /// As in the history.
    pub name: String,
    /// From its first call or fault to that of the next phase.
    pub seconds: u64,
    /// Operations first asked for in it.
    pub operations: u64,
    /// Calls that began in it.
    pub calls: u64,
    /// Of these, with a final answer.
    pub ok: u64,
    /// Of these, by which certainly nothing was executed.
    pub failed: u64,
    /// Of these, with an indeterminate outcome.
    pub indeterminate: u64,
    /// What was broken in it, and how often.
    pub faults: BTreeMap<String, u64>,
}

/// The calls that ended in one second.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Second {
    /// Since the run began.
    pub second: u64,
    /// Final answers.
    pub ok: u64,
    /// Certainly not executed.
    pub failed: u64,
    /// Indeterminate.
    pub indeterminate: u64,
    /// The phase that had begun by then.
    pub phase: String,
}

/// Something that must not have been.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Example {
    /// The operation's number in the history, where it is about one.
    pub op: Option<u64>,
    /// In words.
    pub what: String,
}

/// What is in the ledgers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LedgerCounts {
    /// Charges, declined ones as well.
    pub charges: u64,
    /// Charges by which no money moved.
    pub declined: u64,
    /// Refunds.
    pub refunds: u64,
}

/// What a run has to have seen to count: a quiet run proves little.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Requirement {
    /// The field of the [totals](Totals), or the fault.
    pub name: String,
    /// As often.
    pub at_least: u64,
    /// As often it was.
    pub seen: u64,
    /// Whether that is enough.
    pub met: bool,
}

impl Report {
    pub(crate) fn new(
        run: &Run,
        operations: u64,
        tally: Tally,
        ledger: LedgerCounts,
        found: Findings,
    ) -> Self {
        let totals = Totals {
            operations,
            ..tally.totals
        };
        let (faults, decisions) = (tally.faults.clone(), tally.decisions.clone());
        let (phases, timeline) = tally.course();
        // Nothing can go wrong where nothing was asked for.
        let passed = operations > 0 && found.counts.values().all(|count| *count == 0);
        Self {
            seed: run.seed,
            short: run.short,
            totals,
            faults,
            phases,
            violations: found.counts,
            examples: found.examples,
            requirements: Vec::new(),
            timeline,
            decisions,
            ledger,
            passed,
        }
    }

    /// Asks for at least so many of a field of the [totals](Totals) or of a fault. A name that
    /// there is nothing of was seen no time.
    pub fn require(&mut self, name: &str, at_least: u64) {
        let seen = self.seen(name);
        let met = seen >= at_least;
        self.passed &= met;
        self.requirements.push(Requirement {
            name: name.to_owned(),
            at_least,
            seen,
            met,
        });
    }

    fn seen(&self, name: &str) -> u64 {
        let totals = self.totals;
        match name {
            "operations" => totals.operations,
            "calls" => totals.calls,
            "ok" => totals.ok,
            "failed" => totals.failed,
            "indeterminate" => totals.indeterminate,
            "replayed" => totals.replayed,
            "ok_over_tls" => totals.ok_over_tls,
            "ok_over_http2" => totals.ok_over_http2,
            "other_body" => totals.other_body,
            "malformed" => totals.malformed,
            "executions" => totals.executions,
            "peeks" => totals.peeks,
            "erasures" => totals.erasures,
            "messages" => totals.messages,
            "redelivered" => totals.redelivered,
            "twins" => totals.twins,
            "kills" => totals.kills,
            "stops" => totals.stops,
            "ambiguous_commits" => totals.ambiguous_commits,
            fault => self.faults.get(fault).copied().unwrap_or_default(),
        }
    }
}

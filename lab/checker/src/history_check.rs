//! Reads a history line by line, and checks it against the ledger at the end.

use std::collections::{HashMap, HashSet};

use crate::hash::hashed;
use crate::history::{
    Call, Decision, Erasure, Execution, Fault, Line, Message, Operation, Peek, Run,
};
use crate::ledger::Ledger;
use crate::operation::ObservedOperation;
use crate::reference::Reference;
use crate::report::Report;
use crate::rule::{Findings, Rule};
use crate::tally::Tally;

/// The fault of a process that exited without being killed.
const ENDED_BY_ITSELF: &str = "ended_by_itself";
/// The fault of a process that holds too much.
const RESOURCES_HELD: &str = "resources_held";
/// The phase in which a process may exit: it cannot write.
const DISK_FULL: &str = "disk_full";
/// The only verdict that may need an operator.
const NOT_EXECUTED: &str = "not_executed";
/// The route whose provider gets a key, so that "not found" is a proof.
const KEYED: &str = "payments";

/// The history so far.
#[derive(Default)]
pub(crate) struct HistoryCheck {
    operations: HashMap<u64, ObservedOperation>,
    /// Operations by tenant and key.
    by_key: HashMap<u64, u64>,
    by_reference: HashMap<Box<str>, Vec<u64>>,
    /// Executions, by id and attempt.
    executed: HashSet<u64>,
    tally: Tally,
    found: Findings,
}

impl HistoryCheck {
    /// The error is a malformed history, which proves nothing about the run.
    pub(crate) fn record(&mut self, line: Line) -> Result<(), &'static str> {
        match line {
            Line::Run(_) => return Err("a second run begins"),
            Line::Operation(operation) => self.operation(operation)?,
            Line::Call(call) => self.call(call)?,
            Line::Execution(execution) => self.execution(&execution),
            Line::Peek(peek) => self.peek(peek)?,
            Line::Erasure(erasure) => self.erasure(erasure)?,
            Line::Fault(fault) => self.fault(fault),
            Line::Decision(decision) => self.decision(decision),
            Line::Message(message) => self.message(message),
            Line::Leftover(leftover) => {
                let what = format!("{} is left {} in the store", leftover.id, leftover.status);
                self.found.add(Rule::StuckKeys, None, what);
            }
        }
        Ok(())
    }

    fn operation(&mut self, operation: Operation) -> Result<(), &'static str> {
        let op = operation.op;
        let key = hashed(&(&operation.tenant, &operation.key));
        let new = ObservedOperation::new(operation);
        let same = self.by_reference.entry(new.reference.clone());
        let same = same.or_default();
        let mut others = same.iter().filter_map(|other| self.operations.get(other));
        if others.any(|other| other.tenant == new.tenant) {
            return Err("two operations of one tenant share a reference");
        }
        same.push(op);
        if self.by_key.insert(key, op).is_some() {
            return Err("two operations of one tenant share a key");
        }
        if self.operations.insert(op, new).is_some() {
            return Err("two operations share a number");
        }
        Ok(())
    }

    fn call(&mut self, call: Call) -> Result<(), &'static str> {
        let operation = self.operations.get_mut(&call.op);
        let operation = operation.ok_or("a call of an unknown operation")?;
        if !self.tally.call(&call, operation.is_untried()) {
            return Err("a call ends before it began, or in days");
        }
        operation.record(call);
        Ok(())
    }

    fn execution(&mut self, execution: &Execution) {
        let Execution {
            tenant, key, id, ..
        } = execution;
        self.tally.totals.executions += 1;
        let first = self.executed.insert(hashed(&(id, execution.attempt)));
        let op = self.by_key.get(&hashed(&(tenant, key)));
        if let Some(operation) = op.and_then(|op| self.operations.get_mut(op)) {
            operation.execute(execution, first);
        } else {
            let what = format!("{id} was executed for {tenant} by {key}, which was not requested");
            self.found.add(Rule::EffectsNeverSurfaced, None, what);
        }
    }

    fn peek(&mut self, peek: Peek) -> Result<(), &'static str> {
        let operation = self.operations.get_mut(&peek.op);
        operation
            .ok_or("a status of an unknown operation")?
            .peek(peek);
        self.tally.totals.peeks += 1;
        Ok(())
    }

    fn erasure(&mut self, erasure: Erasure) -> Result<(), &'static str> {
        let operation = self.operations.get_mut(&erasure.op);
        operation
            .ok_or("an erasure of an unknown operation")?
            .erase(erasure);
        self.tally.totals.erasures += 1;
        Ok(())
    }

    fn message(&mut self, message: Message) {
        let Message {
            id,
            is_committed,
            deliveries,
            effects,
        } = message;
        let totals = &mut self.tally.totals;
        totals.messages += u64::from(is_committed);
        totals.redelivered += deliveries.saturating_sub(1);
        if is_committed && effects == 0 {
            let what = format!("{id} was delivered {deliveries} times, and has no effect");
            self.found.add(Rule::LostMessages, None, what);
        }
        if effects > u64::from(is_committed) || (!is_committed && deliveries > 0) {
            let published = if is_committed {
                "committed"
            } else {
                "rolled back"
            };
            let what = format!("{id}, {published}, had {deliveries} deliveries, {effects} effects");
            self.found.add(Rule::WrongMessages, None, what);
        }
    }

    fn fault(&mut self, fault: Fault) {
        if fault.name == ENDED_BY_ITSELF && fault.phase != DISK_FULL {
            let what = format!("{} ended by itself in {}", fault.target, fault.phase);
            self.found.add(Rule::Crashes, None, what);
        }
        if fault.name == RESOURCES_HELD {
            self.found
                .add(Rule::ResourcesHeld, None, fault.target.clone());
        }
        self.tally.fault(fault);
    }

    fn decision(&mut self, decision: Decision) {
        let Decision { id, verdict, route } = decision;
        if verdict != NOT_EXECUTED || route == KEYED {
            let what = format!("{id} of the route {route:?} was decided to be {verdict}");
            self.found.add(Rule::NeedlessDecisions, None, what);
        }
        self.tally.decision(verdict);
    }

    /// Checks the history against the ledger. In a fixed order, so that two checks of one history
    /// report the same examples.
    pub(crate) fn conclude(mut self, run: &Run, ledger: &Ledger) -> Report {
        let found = &mut self.found;
        for (reference, charges) in ledger.by_reference() {
            if !self.by_reference.contains_key(reference) {
                let id = charges.first().map_or("", |charge| charge.id.as_ref());
                let what = format!("{id} is for {reference}, which was not requested");
                found.add(Rule::EffectsNeverSurfaced, None, what);
            }
        }
        for operation in self.operations.values_mut() {
            operation.conclude(ledger.of(&operation.reference), run.all_replayed);
        }
        let mut operations: Vec<(u64, &ObservedOperation)> =
            self.operations.iter().map(|(op, it)| (*op, it)).collect();
        operations.sort_unstable_by_key(|(op, _)| *op);
        let mut named: HashMap<&str, u64> = HashMap::new();
        for (op, operation) in operations {
            operation.report(op, found);
            if let Some(charge) = operation.charge_id()
                && let Some(other) = named.insert(charge, op)
            {
                let what = format!("its answer names {charge}, like that of operation {other}");
                found.add(Rule::AnswersAcrossTenants, Some(op), what);
            }
        }
        let mut references: Vec<Reference<'_>> = Vec::with_capacity(self.by_reference.len());
        for (name, ops) in &self.by_reference {
            let operations = ops
                .iter()
                .filter_map(|op| Some((*op, self.operations.get(op)?)));
            let mut operations: Vec<(u64, &ObservedOperation)> = operations.collect();
            operations.sort_unstable_by_key(|(op, _)| *op);
            if operations.len() > 1 {
                self.tally.totals.twins += operations.len() as u64;
            }
            references.push(Reference {
                name,
                operations,
                charges: ledger.of(name),
            });
        }
        references
            .sort_unstable_by_key(|reference| reference.operations.first().map(|(op, _)| *op));
        for reference in references {
            reference.check(found);
        }
        let operations = self.operations.len() as u64;
        Report::new(run, operations, self.tally, ledger.counts(), self.found)
    }
}

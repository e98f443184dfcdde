//! Hears a history line by line, and judges when it is over.

use std::collections::{HashMap, HashSet};

use crate::hash::hashed;
use crate::history::{Call, Decision, Execution, Fault, Line, Operation, Peek, Run};
use crate::ledger::Ledger;
use crate::operation::Told;
use crate::reference::Reference;
use crate::report::Report;
use crate::rule::{Findings, Rule};
use crate::tally::Tally;

/// A supervisor had to start something again.
const ENDED_BY_ITSELF: &str = "ended_by_itself";
/// The phase in which a process may end by itself: there is nowhere to write to.
const DISK_FULL: &str = "disk_full";
/// That it did not happen is all that a person may have to say.
const NOT_EXECUTED: &str = "not_executed";
/// The route whose provider is given a key, so that "not found" is an answer.
const KEYED: &str = "payments";

/// What was heard so far.
#[derive(Default)]
pub(crate) struct Judge {
    told: HashMap<u64, Told>,
    /// Operations by whose they are and their keys.
    by_key: HashMap<u64, u64>,
    by_reference: HashMap<Box<str>, Vec<u64>>,
    /// What reached the application, by id and attempt.
    executed: HashSet<u64>,
    tally: Tally,
    found: Findings,
}

impl Judge {
    /// What is wrong with the line is the history's fault, and says nothing about the run.
    pub(crate) fn hear(&mut self, line: Line) -> Result<(), &'static str> {
        match line {
            Line::Run(_) => return Err("a second run begins"),
            Line::Operation(operation) => self.operation(operation)?,
            Line::Call(call) => self.call(call)?,
            Line::Execution(execution) => self.execution(&execution),
            Line::Peek(peek) => self.peek(peek)?,
            Line::Fault(fault) => self.fault(fault),
            Line::Decision(decision) => self.decision(decision),
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
        let new = Told::new(operation);
        let same = self.by_reference.entry(new.reference.clone());
        let same = same.or_default();
        let mut others = same.iter().filter_map(|other| self.told.get(other));
        if others.any(|other| other.tenant == new.tenant) {
            return Err("two operations of one tenant share a reference");
        }
        same.push(op);
        if self.by_key.insert(key, op).is_some() {
            return Err("two operations of one tenant share a key");
        }
        if self.told.insert(op, new).is_some() {
            return Err("two operations share a number");
        }
        Ok(())
    }

    fn call(&mut self, call: Call) -> Result<(), &'static str> {
        let told = self.told.get_mut(&call.op);
        let told = told.ok_or("a call of no operation")?;
        if !self.tally.call(&call, told.is_untried()) {
            return Err("a call ends before it began, or in days");
        }
        told.hear(call);
        Ok(())
    }

    fn execution(&mut self, execution: &Execution) {
        let Execution {
            tenant, key, id, ..
        } = execution;
        self.tally.totals.executions += 1;
        let first = self.executed.insert(hashed(&(id, execution.attempt)));
        let op = self.by_key.get(&hashed(&(tenant, key)));
        if let Some(told) = op.and_then(|op| self.told.get_mut(op)) {
            told.execute(execution, first);
        } else {
            let what = format!("{id} was executed for {tenant} by {key}, which nobody asked for");
            self.found.add(Rule::EffectsNeverSurfaced, None, what);
        }
    }

    fn peek(&mut self, peek: Peek) -> Result<(), &'static str> {
        let told = self.told.get_mut(&peek.op);
        told.ok_or("a status of no operation")?.peek(peek);
        self.tally.totals.peeks += 1;
        Ok(())
    }

    fn fault(&mut self, fault: Fault) {
        if fault.name == ENDED_BY_ITSELF && fault.phase != DISK_FULL {
            let what = format!("{} ended by itself in {}", fault.target, fault.phase);
            self.found.add(Rule::Crashes, None, what);
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

    /// Judges by the ledger what was heard. Everything in its order, so that two checks of one
    /// history show the same examples.
    pub(crate) fn conclude(mut self, run: &Run, ledger: &Ledger) -> Report {
        let found = &mut self.found;
        for (reference, charges) in ledger.by_reference() {
            if !self.by_reference.contains_key(reference) {
                let id = charges.first().map_or("", |charge| charge.id.as_ref());
                let what = format!("{id} is for {reference}, which nobody asked for");
                found.add(Rule::EffectsNeverSurfaced, None, what);
            }
        }
        for told in self.told.values_mut() {
            told.conclude(ledger.of(&told.reference), run.all_replayed);
        }
        let mut told: Vec<(u64, &Told)> = self.told.iter().map(|(op, told)| (*op, told)).collect();
        told.sort_unstable_by_key(|(op, _)| *op);
        let mut named: HashMap<&str, u64> = HashMap::new();
        for (op, told) in told {
            told.report(op, found);
            if let Some(charge) = told.charge_id()
                && let Some(other) = named.insert(charge, op)
            {
                let what = format!("it is told of {charge}, as operation {other} is");
                found.add(Rule::AnswersAcrossTenants, Some(op), what);
            }
        }
        let mut references: Vec<Reference<'_>> = Vec::with_capacity(self.by_reference.len());
        for (name, ops) in &self.by_reference {
            let told = ops.iter().filter_map(|op| Some((*op, self.told.get(op)?)));
            let mut told: Vec<(u64, &Told)> = told.collect();
            told.sort_unstable_by_key(|(op, _)| *op);
            if told.len() > 1 {
                self.tally.totals.twins += told.len() as u64;
            }
            references.push(Reference {
                name,
                told,
                charges: ledger.of(name),
            });
        }
        references.sort_unstable_by_key(|reference| reference.told.first().map(|(op, _)| *op));
        for reference in references {
            reference.judge(found);
        }
        let operations = self.told.len() as u64;
        Report::new(run, operations, self.tally, ledger.counts(), self.found)
    }
}

//! All operations of one reference, compared with all its charges. Twins request the same, and the
//! ledger does not show which charge belongs to which of them, so they are counted together.

use crate::ledger::{Charge, Status};
use crate::operation::ObservedOperation;
use crate::rule::{Findings, Rule};

/// One reference.
pub(crate) struct Reference<'a> {
    pub(crate) name: &'a str,
    /// Its operations by their numbers, in their order.
    pub(crate) operations: Vec<(u64, &'a ObservedOperation)>,
    pub(crate) charges: &'a [Charge],
}

impl Reference<'_> {
    pub(crate) fn check(&self, found: &mut Findings) {
        let Self { name, charges, .. } = self;
        let operations = self.operations.len();
        // A decline is an effect, too: the card was charged once more.
        if charges.len() > operations {
            let what = format!(
                "{} charges for {name} of {operations} operations",
                charges.len()
            );
            found.add(Rule::DuplicateEffects, self.first(|_| true), what);
        }
        self.check_lost(found);
        self.check_unreported(found);
        self.check_amounts(found);
    }

    /// Whether there is a charge for every operation with a final answer.
    fn check_lost(&self, found: &mut Findings) {
        let (charges, moved) = (self.charges.len(), self.moved());
        let successes = self.count(ObservedOperation::has_success);
        let ends = successes + self.count(ObservedOperation::is_declined);
        // An operation that is already reported as lost is not counted a second time.
        let lost = self.count(|operation| operation.breaks(Rule::LostAcknowledgements));
        if successes > moved + lost {
            let what = format!(
                "{successes} operations succeeded for {}, and money moved {moved} times",
                self.name
            );
            let op = self.first(ObservedOperation::has_success);
            found.add(Rule::LostAcknowledgements, op, what);
        } else if ends > charges + lost {
            let what = format!(
                "{ends} operations have a final answer for {}, and there are {charges} charges",
                self.name
            );
            let op = self.first(ObservedOperation::is_declined);
            found.add(Rule::LostAcknowledgements, op, what);
        }
    }

    /// Whether every charge was reported to a client.
    fn check_unreported(&self, found: &mut Findings) {
        let name = self.name;
        let refused = self.count(ObservedOperation::is_refused);
        if refused > 0 && self.charges.len() > self.operations.len() - refused {
            let what = format!("{name} has a charge, and every call was refused");
            let op = self.first(ObservedOperation::is_refused);
            found.add(Rule::EffectsOfRefusedCalls, op, what);
        } else if self.moved().min(self.operations.len())
            > self.count(ObservedOperation::has_success)
        {
            let what = format!("{name} was charged, and no client got the answer");
            let op = self.first(|operation| !operation.has_success());
            found.add(Rule::EffectsNeverSurfaced, op, what);
        }
    }

    fn check_amounts(&self, found: &mut Findings) {
        if self.count(|operation| operation.breaks(Rule::MisuseAccepted)) > 0 {
            return;
        }
        let wanted =
            |charge: &&Charge| self.count(|operation| operation.amount == charge.amount) > 0;
        if let Some(charge) = self.charges.iter().find(|charge| !wanted(charge)) {
            let what = format!(
                "{} charged {}, which was not requested for {}",
                charge.id, charge.amount, self.name
            );
            found.add(Rule::MisuseAccepted, self.first(|_| true), what);
        }
    }

    fn moved(&self) -> usize {
        let charges = self.charges.iter();
        charges.filter(|it| it.status == Status::Succeeded).count()
    }

    fn count(&self, which: impl Fn(&ObservedOperation) -> bool) -> usize {
        self.operations.iter().filter(|(_, it)| which(it)).count()
    }

    fn first(&self, which: impl Fn(&ObservedOperation) -> bool) -> Option<u64> {
        let mut operations = self.operations.iter();
        operations.find(|(_, it)| which(it)).map(|(op, _)| *op)
    }
}

//! All operations of one reference beside all charges of it. Twins ask for the same, and the
//! ledger does not say which charge is whose, so that they are counted together.

use crate::ledger::{Charge, Status};
use crate::operation::Told;
use crate::rule::{Findings, Rule};

/// One reference.
pub(crate) struct Reference<'a> {
    pub(crate) name: &'a str,
    /// Its operations by their numbers, in their order.
    pub(crate) told: Vec<(u64, &'a Told)>,
    pub(crate) charges: &'a [Charge],
}

impl Reference<'_> {
    pub(crate) fn judge(&self, found: &mut Findings) {
        let Self { name, charges, .. } = self;
        let operations = self.told.len();
        // A decline is an effect, too: somebody's card was asked for once more.
        if charges.len() > operations {
            let what = format!(
                "{} charges for {name} of {operations} operations",
                charges.len()
            );
            found.add(Rule::DuplicateEffects, self.first(|_| true), what);
        }
        self.judge_lost(found);
        self.judge_untold(found);
        self.judge_amounts(found);
    }

    /// Whether everybody who was told an end can have a charge of their own.
    fn judge_lost(&self, found: &mut Findings) {
        let (charges, moved) = (self.charges.len(), self.moved());
        let told = self.count(Told::is_told_of_success);
        let ends = told + self.count(Told::is_declined);
        // Those that are known to be lost already are not missed a second time.
        let lost = self.count(|told| told.breaks(Rule::LostAcknowledgements));
        if told > moved + lost {
            let what = format!(
                "{told} were told of success for {}, and money moved {moved} times",
                self.name
            );
            let op = self.first(Told::is_told_of_success);
            found.add(Rule::LostAcknowledgements, op, what);
        } else if ends > charges + lost {
            let what = format!(
                "{ends} were told an end for {}, and {charges} were made",
                self.name
            );
            let op = self.first(Told::is_declined);
            found.add(Rule::LostAcknowledgements, op, what);
        }
    }

    /// Whether somebody was told of everything that was done.
    fn judge_untold(&self, found: &mut Findings) {
        let name = self.name;
        let refused = self.count(Told::is_refused);
        if refused > 0 && self.charges.len() > self.told.len() - refused {
            let what = format!("{name} has a charge, and every call was refused");
            let op = self.first(Told::is_refused);
            found.add(Rule::EffectsOfRefusedCalls, op, what);
        } else if self.moved().min(self.told.len()) > self.count(Told::is_told_of_success) {
            let what = format!("{name} was charged, and nobody was told");
            let op = self.first(|told| !told.is_told_of_success());
            found.add(Rule::EffectsNeverSurfaced, op, what);
        }
    }

    fn judge_amounts(&self, found: &mut Findings) {
        if self.count(|told| told.breaks(Rule::MisuseAccepted)) > 0 {
            return;
        }
        let wanted = |charge: &&Charge| self.count(|told| told.amount == charge.amount) > 0;
        if let Some(charge) = self.charges.iter().find(|charge| !wanted(charge)) {
            let what = format!(
                "{} charged {}, which nobody wanted for {}",
                charge.id, charge.amount, self.name
            );
            found.add(Rule::MisuseAccepted, self.first(|_| true), what);
        }
    }

    fn moved(&self) -> usize {
        let charges = self.charges.iter();
        charges.filter(|it| it.status == Status::Succeeded).count()
    }

    fn count(&self, which: impl Fn(&Told) -> bool) -> usize {
        self.told.iter().filter(|(_, told)| which(told)).count()
    }

    fn first(&self, which: impl Fn(&Told) -> bool) -> Option<u64> {
        let mut told = self.told.iter();
        told.find(|(_, told)| which(told)).map(|(op, _)| *op)
    }
}

//! What the clients were told about one operation, and what of it cannot be.

use std::hash::{DefaultHasher, Hash, Hasher as _};

use serde::Deserialize;

use crate::history::{Call, Operation, Outcome, Sent};
use crate::ledger::{Ledger, Status};
use crate::rule::{Findings, Rule};

/// The refusals that say nothing about the operation: they may come after its end. Every other
/// one means that its end was forgotten.
const SAY_NOTHING: [&str; 2] = ["idempotency_store_unavailable", "request_incomplete"];
const DECLINED: u16 = 402;

/// What was told, as little as can be judged by.
pub(crate) struct Told {
    reference: Box<str>,
    amount: i64,
    refusable: bool,
    calls: u32,
    /// Calls after which something may have been done.
    unrefused: u32,
    /// The first final answer; the others have to be like it.
    answer: Option<Answer>,
    /// When the first final answer was there, in milliseconds.
    answered_ms: u64,
    /// The last call that was told that there is no end, and what it was told.
    denied: Option<(u64, Box<str>)>,
    altered: Option<&'static str>,
    foreign: Option<Box<str>>,
    misused: Option<Box<str>>,
}

struct Answer {
    status: u16,
    body: u64,
    headers: u64,
    charge_id: Option<Box<str>>,
    /// Whether it says which payment it is about.
    names_it: bool,
}

/// What the payments example answers with, as far as it is looked at.
#[derive(Default, Deserialize)]
struct Payment {
    #[serde(default, alias = "reference")]
    merchant_reference: Option<Box<str>>,
    #[serde(default)]
    amount: Option<i64>,
    #[serde(default)]
    charge_id: Option<Box<str>>,
}

impl Told {
    pub(crate) fn new(operation: Operation) -> Self {
        Self {
            reference: operation.reference.into(),
            amount: operation.amount,
            refusable: operation.refusable,
            calls: 0,
            unrefused: 0,
            answer: None,
            answered_ms: u64::MAX,
            denied: None,
            altered: None,
            foreign: None,
            misused: None,
        }
    }

    pub(crate) fn is_untried(&self) -> bool {
        self.calls == 0
    }

    pub(crate) fn hear(&mut self, call: Call) {
        self.calls += 1;
        self.unrefused += u32::from(call.outcome != Outcome::Failed);
        let succeeded = call.status.is_some_and(is_success);
        match call.sent {
            Sent::OtherBody | Sent::Malformed => {
                if call.outcome == Outcome::Ok || succeeded {
                    let what = format!("{:?} was answered {:?}", call.sent, call.status);
                    self.misused = Some(what.into());
                }
            }
            Sent::Same => match call.outcome {
                Outcome::Ok => self.hear_end(&call),
                // A success that is not final, or not whole, is no answer.
                Outcome::Failed | Outcome::Indeterminate => self.hear_denial(call),
            },
        }
    }

    fn hear_end(&mut self, call: &Call) {
        self.answered_ms = self.answered_ms.min(call.ended_ms);
        let body = call.body.as_deref().unwrap_or_default();
        let payment: Payment = serde_json::from_str(body).unwrap_or_default();
        let foreign = match (&payment.merchant_reference, payment.amount) {
            (Some(named), _) if *named != self.reference => Some(format!("it names {named}")),
            (_, Some(named)) if named != self.amount => Some(format!("it is about {named}")),
            (_, _) => None,
        };
        if let Some(foreign) = foreign {
            self.foreign = Some(foreign.into());
        }
        let answer = Answer {
            status: call.status.unwrap_or_default(),
            body: hashed(&call.body),
            headers: hashed(&call.headers),
            names_it: payment.merchant_reference.is_some() && payment.amount.is_some(),
            charge_id: payment.charge_id,
        };
        match &self.answer {
            None => self.answer = Some(answer),
            Some(first) if first.status != answer.status => self.altered = Some("the status"),
            Some(first) if first.body != answer.body => self.altered = Some("the body"),
            Some(first) if first.headers != answer.headers => self.altered = Some("a header"),
            Some(_) => {}
        }
    }

    fn hear_denial(&mut self, call: Call) {
        let Some(code) = call.code else { return };
        let later = self
            .denied
            .as_ref()
            .is_none_or(|(at, _)| *at < call.began_ms);
        if later && !SAY_NOTHING.contains(&code.as_str()) {
            self.denied = Some((call.began_ms, code.into()));
        }
    }

    pub(crate) fn judge(&self, op: u64, ledger: &Ledger, found: &mut Findings) {
        let mut add = |rule, what: String| found.add(rule, Some(op), what);
        let charges = ledger.of(&self.reference);
        let moved = charges
            .iter()
            .filter(|charge| charge.status == Status::Succeeded);
        let moved = moved.count();
        let told_of_success = self.answer.as_ref().is_some_and(|it| is_success(it.status));

        // A decline is an effect, too: somebody's card was asked for a second time.
        if charges.len() > 1 {
            add(
                Rule::DuplicateEffects,
                format!("{} charges for {}", charges.len(), self.reference),
            );
        }
        if let Some(what) = self.lost(ledger, moved) {
            add(Rule::LostAcknowledgements, what);
        }
        if let Some(what) = self.altered {
            add(
                Rule::AlteredReplays,
                format!("{what} is another than before"),
            );
        }
        if let Some(what) = &self.foreign {
            let own = format!("{} about {}", self.reference, self.amount);
            add(
                Rule::AnswersAcrossTenants,
                format!("an answer to {own}: {what}"),
            );
        }
        if self.answer.is_none() && !self.refusable {
            add(
                Rule::StuckKeys,
                format!("no end after {} calls", self.calls),
            );
        }
        let refused = self.refusable || self.unrefused == 0;
        if refused && !charges.is_empty() {
            let what = format!(
                "{} has a charge, and every call was refused",
                self.reference
            );
            add(Rule::EffectsOfRefusedCalls, what);
        } else if moved > 0 && !told_of_success {
            let what = format!("{} was charged, and nobody was told", self.reference);
            add(Rule::EffectsNeverSurfaced, what);
        }
        if let Some(what) = &self.misused {
            add(Rule::MisuseAccepted, what.to_string());
        } else if let Some(charge) = charges.iter().find(|charge| charge.amount != self.amount) {
            let what = format!(
                "{} charged {} and not {}",
                charge.id, charge.amount, self.amount
            );
            add(Rule::MisuseAccepted, what);
        }
    }

    /// How the end that the client was told of was lost, if it was.
    fn lost(&self, ledger: &Ledger, moved: usize) -> Option<String> {
        let answer = self.answer.as_ref()?;
        let charges = ledger.of(&self.reference);
        // In the same millisecond nobody knows which was first.
        if let Some((at, code)) = &self.denied
            && *at > self.answered_ms
        {
            return Some(format!("it had an end, and then {code}"));
        }
        if is_success(answer.status) && moved == 0 {
            return Some(format!("{} was answered, and not charged", self.reference));
        }
        if answer.status == DECLINED && charges.is_empty() {
            return Some(format!("{} was declined by nobody", self.reference));
        }
        if is_success(answer.status) && !answer.names_it {
            return Some("a success that does not say of what".to_owned());
        }
        // An answer about somebody else's payment names somebody else's charge, and is counted.
        if let Some(named) = answer.charge_id.as_ref().filter(|_| self.foreign.is_none())
            && !charges.iter().any(|charge| charge.id == *named)
        {
            return Some(format!(
                "it was told of {named}, which is not in the ledger"
            ));
        }
        None
    }
}

fn is_success(status: u16) -> bool {
    (200..300).contains(&status)
}

/// Its keys are fixed, so that the same bytes give the same number everywhere in a check.
fn hashed(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

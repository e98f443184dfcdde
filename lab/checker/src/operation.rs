//! What clients observed of one operation, and which rules it breaks.

use serde::Deserialize;

use crate::hash::hashed;
use crate::history::{Call, Erasure, Execution, Operation, Outcome, Peek, Sent};
use crate::ledger::{Charge, Status};
use crate::rule::{Findings, Rule};

/// Refusals that are independent of the operation and may follow its final answer. Any other one
/// means that the final answer was lost.
const NEUTRAL_CODES: [&str; 4] = [
    "idempotency_store_unavailable",
    "idempotency_home_unavailable",
    "idempotency_region_mismatch",
    "request_incomplete",
];
/// What a request for an erased answer gets.
const NOT_STORED: &str = "idempotency_response_not_stored";
/// How long a process may not have learnt of an erasure by another one, in milliseconds: as long as it
/// may take to find that its store is gone.
const NOTICED_WITHIN_MS: u64 = 10_000;
/// The phase in which every finished operation is requested again.
const HEAL: &str = "heal";
const DECLINED: u16 = 402;
const SHOWN: u16 = 200;
const NOT_FOUND: u16 = 404;

/// What clients observed of one operation, reduced to what the rules need.
pub(crate) struct ObservedOperation {
    pub(crate) tenant: u64,
    pub(crate) reference: Box<str>,
    pub(crate) amount: i64,
    refusable: bool,
    calls: u32,
    /// Calls that may have had an effect.
    unrefused: u32,
    /// The first final answer; all others must equal it.
    answer: Option<Answer>,
    /// When the first final answer was complete, in milliseconds.
    answered_ms: u64,
    /// Final answers that were not marked as replays.
    unmarked: u32,
    /// When the call with the last of these began.
    unmarked_ms: u64,
    /// When the first call with an indeterminate outcome began.
    doubt_ms: u64,
    /// The last answer that denied a final outcome, and when its call began.
    denied: Option<(u64, Box<str>)>,
    /// Whether it had a final answer before the last phase.
    ended_early: bool,
    /// Whether the final answer was replayed in the last phase.
    given_again: bool,
    /// The id of its executions.
    id: Option<u64>,
    /// The erasure of its answer.
    erasure: Option<Erasure>,
    /// The broken rules, each once.
    wrong: Vec<(Rule, Box<str>)>,
}

struct Answer {
    status: u16,
    body: u64,
    headers: u64,
    charge_id: Option<Box<str>>,
    /// Whether it names its payment.
    names_it: bool,
    /// Whether that is another payment.
    foreign: bool,
}

/// The answer of the payments example, reduced to what is checked.
#[derive(Default, Deserialize)]
struct Payment {
    #[serde(default, alias = "reference")]
    merchant_reference: Option<Box<str>>,
    #[serde(default)]
    amount: Option<i64>,
    #[serde(default)]
    charge_id: Option<Box<str>>,
}

impl ObservedOperation {
    pub(crate) fn new(operation: Operation) -> Self {
        Self {
            tenant: hashed(&operation.tenant),
            reference: operation.reference.into(),
            amount: operation.amount,
            refusable: operation.refusable,
            calls: 0,
            unrefused: 0,
            answer: None,
            answered_ms: u64::MAX,
            unmarked: 0,
            unmarked_ms: 0,
            doubt_ms: u64::MAX,
            denied: None,
            ended_early: false,
            given_again: false,
            id: None,
            erasure: None,
            wrong: Vec::new(),
        }
    }

    pub(crate) fn is_untried(&self) -> bool {
        self.calls == 0
    }

    /// Whether it must not have an effect.
    pub(crate) fn is_refused(&self) -> bool {
        self.refusable || self.unrefused == 0
    }

    pub(crate) fn has_success(&self) -> bool {
        self.answer.as_ref().is_some_and(|it| is_success(it.status))
    }

    pub(crate) fn is_declined(&self) -> bool {
        let answer = self.answer.as_ref();
        answer.is_some_and(|answer| answer.status == DECLINED)
    }

    /// The charge that its answer names, unless the answer is about another payment.
    pub(crate) fn charge_id(&self) -> Option<&str> {
        let own = self.answer.as_ref().filter(|answer| !answer.foreign);
        own.and_then(|answer| answer.charge_id.as_deref())
    }

    pub(crate) fn breaks(&self, rule: Rule) -> bool {
        self.wrong.iter().any(|(broken, _)| *broken == rule)
    }

    fn note(&mut self, rule: Rule, what: impl Into<Box<str>>) {
        if !self.breaks(rule) {
            self.wrong.push((rule, what.into()));
        }
    }

    pub(crate) fn record(&mut self, call: Call) {
        self.calls += 1;
        self.unrefused += u32::from(call.outcome != Outcome::Failed);
        let succeeded = call.status.is_some_and(is_success);
        match call.sent {
            Sent::OtherBody | Sent::Malformed => {
                if call.outcome == Outcome::Ok || succeeded {
                    let what = format!("{:?} was answered {:?}", call.sent, call.status);
                    self.note(Rule::MisuseAccepted, what);
                }
            }
            Sent::Same => match call.outcome {
                Outcome::Ok => self.record_final(&call),
                Outcome::Failed => self.record_denial(call),
                // A success that is not final does not count as an answer.
                Outcome::Indeterminate => {
                    self.doubt_ms = self.doubt_ms.min(call.began_ms);
                    self.record_denial(call);
                }
            },
        }
    }

    fn record_final(&mut self, call: &Call) {
        let erased_ms = self.erasure.and_then(|erasure| erasure.acknowledged_ms);
        if erased_ms.is_some_and(|at| call.began_ms > at + NOTICED_WITHIN_MS) {
            self.note(
                Rule::ErasedAnswers,
                "its answer was erased, and given again",
            );
        }
        self.answered_ms = self.answered_ms.min(call.ended_ms);
        if !call.replayed {
            self.unmarked += 1;
            self.unmarked_ms = self.unmarked_ms.max(call.began_ms);
        }
        if call.phase == HEAL {
            self.given_again |= call.replayed;
        } else {
            self.ended_early = true;
        }
        let body = call.body.as_deref().unwrap_or_default();
        let payment: Payment = serde_json::from_str(body).unwrap_or_default();
        let foreign = match (&payment.merchant_reference, payment.amount) {
            (Some(named), _) if *named != self.reference => Some(format!("it names {named}")),
            (_, Some(named)) if named != self.amount => Some(format!("it is about {named}")),
            (_, _) => None,
        };
        let answer = Answer {
            status: call.status.unwrap_or_default(),
            body: hashed(&call.body),
            headers: hashed(&call.headers),
            names_it: payment.merchant_reference.is_some() && payment.amount.is_some(),
            charge_id: payment.charge_id,
            foreign: foreign.is_some(),
        };
        if let Some(what) = foreign {
            let own = format!("{} about {}", self.reference, self.amount);
            let what = format!("an answer to {own}: {what}");
            self.note(Rule::AnswersAcrossTenants, what);
        }
        let altered = match &self.answer {
            None => {
                self.answer = Some(answer);
                return;
            }
            Some(first) if first.status != answer.status => "the status",
            Some(first) if first.body != answer.body => "the body",
            Some(first) if first.headers != answer.headers => "a header",
            Some(_) => return,
        };
        self.note(
            Rule::AlteredReplays,
            format!("{altered} is another than before"),
        );
    }

    fn record_denial(&mut self, call: Call) {
        let denial = match (call.code, call.status) {
            (Some(code), _) if NEUTRAL_CODES.contains(&code.as_str()) => return,
            (Some(code), _) if code == NOT_STORED && self.erasure.is_some() => return,
            (Some(code), _) => code,
            // From the application or from something in between: not a final answer either way.
            (None, Some(status)) => format!("a {status} that does not say why"),
            (None, None) => return,
        };
        let denied = self.denied.as_ref();
        if denied.is_none_or(|(at, _)| *at < call.began_ms) {
            self.denied = Some((call.began_ms, denial.into()));
        }
    }

    /// `first`: whether this is the first execution of this attempt.
    pub(crate) fn execute(&mut self, execution: &Execution, first: bool) {
        let Execution { id, attempt, .. } = execution;
        if !first {
            let what = format!("attempt {attempt} of {id} reached the application twice");
            self.note(Rule::ExecutedAgain, what);
        }
        let now = hashed(id);
        if self.id.is_some_and(|before| before != now) {
            let what = format!("{id} is not the id that it was executed under before");
            self.note(Rule::ExecutedAgain, what);
        }
        self.id = Some(now);
    }

    pub(crate) fn erase(&mut self, erasure: Erasure) {
        self.erasure = Some(erasure);
    }

    pub(crate) fn peek(&mut self, peek: Peek) {
        let status = peek.status;
        if peek.own && status != SHOWN {
            let what = format!("it had an end, and its status is answered {status}");
            self.note(Rule::LostAcknowledgements, what);
        }
        if !peek.own && status != NOT_FOUND {
            let what = format!("its status is answered {status} to another tenant");
            self.note(Rule::AnswersAcrossTenants, what);
        }
    }

    /// Checks the complete history. `replayed`: whether every finished operation was requested
    /// again.
    pub(crate) fn conclude(&mut self, charges: &[Charge], replayed: bool) {
        if let Some(what) = self.lost(charges, replayed) {
            self.note(Rule::LostAcknowledgements, what);
        }
        if self.unmarked > 1 {
            let what = format!("{} final answers are not marked as replays", self.unmarked);
            self.note(Rule::ExecutedAgain, what);
        }
        // Within a millisecond the order is unknown.
        if self.unmarked_ms > self.answered_ms {
            let what = "it had an end, and then one that is not marked as a replay";
            self.note(Rule::ExecutedAgain, what);
        }
        // The call that had the effect began before the first final answer.
        let doubted = self.doubt_ms <= self.answered_ms;
        if self.answer.is_some() && self.unmarked == 0 && !doubted {
            let what = "every end is a replay, and every call before said that nothing was done";
            self.note(Rule::EffectsOfRefusedCalls, what);
        }
        if self.answer.is_none() && !self.refusable {
            self.note(
                Rule::StuckKeys,
                format!("no end after {} calls", self.calls),
            );
        }
    }

    pub(crate) fn report(&self, op: u64, found: &mut Findings) {
        for (rule, what) in &self.wrong {
            found.add(*rule, Some(op), what.to_string());
        }
    }

    /// How the final answer was lost, if it was. Whether there are enough charges is checked for all
    /// operations of the reference together.
    fn lost(&self, charges: &[Charge], replayed: bool) -> Option<String> {
        let answer = self.answer.as_ref()?;
        // Within a millisecond the order is unknown.
        if let Some((at, denial)) = &self.denied
            && *at > self.answered_ms
        {
            return Some(format!("it had an end, and then {denial}"));
        }
        let is_erased = self.erasure.is_some();
        if replayed && self.ended_early && !self.given_again && !is_erased {
            return Some("it had an end, and was not given it again".to_owned());
        }
        let success = is_success(answer.status);
        if success && !answer.names_it {
            return Some("a success that does not say of what".to_owned());
        }
        let named = self.charge_id()?;
        match charges.iter().find(|charge| *charge.id == *named) {
            None => Some(format!(
                "its answer names {named}, which is not in the ledger"
            )),
            Some(charge) if success && charge.status != Status::Succeeded => {
                Some(format!("its answer names {named}, which was declined"))
            }
            Some(_) => None,
        }
    }
}

fn is_success(status: u16) -> bool {
    (200..300).contains(&status)
}

//! What the clients were told about one operation, and what of it cannot be.

use serde::Deserialize;

use crate::hash::hashed;
use crate::history::{Call, Execution, Operation, Outcome, Peek, Sent};
use crate::ledger::{Charge, Status};
use crate::rule::{Findings, Rule};

/// The refusals that say nothing about the operation: they may come after its end. Every other
/// one means that its end was forgotten.
const SAY_NOTHING: [&str; 2] = ["idempotency_store_unavailable", "request_incomplete"];
/// The phase in which every operation that had ended is asked for again.
const HEAL: &str = "heal";
const DECLINED: u16 = 402;
const SHOWN: u16 = 200;
const NOT_FOUND: u16 = 404;

/// What was told, as little as can be judged by.
pub(crate) struct Told {
    pub(crate) tenant: u64,
    pub(crate) reference: Box<str>,
    pub(crate) amount: i64,
    refusable: bool,
    calls: u32,
    /// Calls after which something may have been done.
    unrefused: u32,
    /// The first final answer; the others have to be like it.
    answer: Option<Answer>,
    /// When the first final answer was there, in milliseconds.
    answered_ms: u64,
    /// Final answers that did not say that they were replays.
    unmarked: u32,
    /// When the call began that was given the last of these.
    unmarked_ms: u64,
    /// When the first call began from which nobody can tell.
    doubt_ms: u64,
    /// The last call that was told that there is no end, and what it was told.
    denied: Option<(u64, Box<str>)>,
    /// Whether it had an end before everything was healed.
    ended_early: bool,
    /// Whether it was given its end again then.
    given_again: bool,
    /// The id that it was executed under.
    id: Option<u64>,
    /// What is wrong with it, once for each rule.
    wrong: Vec<(Rule, Box<str>)>,
}

struct Answer {
    status: u16,
    body: u64,
    headers: u64,
    charge_id: Option<Box<str>>,
    /// Whether it says which payment it is about.
    names_it: bool,
    /// Whether that is another payment.
    foreign: bool,
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
            wrong: Vec::new(),
        }
    }

    pub(crate) fn is_untried(&self) -> bool {
        self.calls == 0
    }

    /// Whether nothing may have been done for it.
    pub(crate) fn is_refused(&self) -> bool {
        self.refusable || self.unrefused == 0
    }

    pub(crate) fn is_told_of_success(&self) -> bool {
        self.answer.as_ref().is_some_and(|it| is_success(it.status))
    }

    pub(crate) fn is_declined(&self) -> bool {
        let answer = self.answer.as_ref();
        answer.is_some_and(|answer| answer.status == DECLINED)
    }

    /// The charge that its own answer names. An answer about somebody else's payment names
    /// somebody else's charge, and is counted.
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

    pub(crate) fn hear(&mut self, call: Call) {
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
                Outcome::Ok => self.hear_end(&call),
                Outcome::Failed => self.hear_denial(call),
                // A success that is not final is no answer.
                Outcome::Indeterminate => {
                    self.doubt_ms = self.doubt_ms.min(call.began_ms);
                    self.hear_denial(call);
                }
            },
        }
    }

    fn hear_end(&mut self, call: &Call) {
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

    fn hear_denial(&mut self, call: Call) {
        let said = match (call.code, call.status) {
            (Some(code), _) if SAY_NOTHING.contains(&code.as_str()) => return,
            (Some(code), _) => code,
            // It is the application's word, or a stranger's: the end is not in it either way.
            (None, Some(status)) => format!("a {status} that does not say why"),
            (None, None) => return,
        };
        let denied = self.denied.as_ref();
        if denied.is_none_or(|(at, _)| *at < call.began_ms) {
            self.denied = Some((call.began_ms, said.into()));
        }
    }

    /// `first` says whether nobody has yet been given this attempt of this id.
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

    /// What can be said when everything has been heard. `replayed` is whether everything that had
    /// ended was asked for again.
    pub(crate) fn conclude(&mut self, charges: &[Charge], replayed: bool) {
        if let Some(what) = self.lost(charges, replayed) {
            self.note(Rule::LostAcknowledgements, what);
        }
        if self.unmarked > 1 {
            let what = format!("{} final answers are not marked as replays", self.unmarked);
            self.note(Rule::ExecutedAgain, what);
        }
        // In the same millisecond nobody knows which was first.
        if self.unmarked_ms > self.answered_ms {
            let what = "it had an end, and then one that is not marked as a replay";
            self.note(Rule::ExecutedAgain, what);
        }
        // Whatever made the end began before anybody heard of it.
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

    /// How the end that the client was told of was lost, if it was. Whether there are charges
    /// enough is for all operations of the reference together.
    fn lost(&self, charges: &[Charge], replayed: bool) -> Option<String> {
        let answer = self.answer.as_ref()?;
        // In the same millisecond nobody knows which was first.
        if let Some((at, said)) = &self.denied
            && *at > self.answered_ms
        {
            return Some(format!("it had an end, and then {said}"));
        }
        if replayed && self.ended_early && !self.given_again {
            return Some("it had an end, and was not given it again".to_owned());
        }
        let success = is_success(answer.status);
        if success && !answer.names_it {
            return Some("a success that does not say of what".to_owned());
        }
        let named = self.charge_id()?;
        match charges.iter().find(|charge| *charge.id == *named) {
            None => Some(format!(
                "it was told of {named}, which is not in the ledger"
            )),
            Some(charge) if success && charge.status != Status::Succeeded => {
                Some(format!("it was told of {named}, by which no money moved"))
            }
            Some(_) => None,
        }
    }
}

fn is_success(status: u16) -> bool {
    (200..300).contains(&status)
}

//! What a probe writes down while it runs.

use crate::answers::{brief, tell};
use crate::caller::Settled;
use crate::catalogue::Id;
use crate::report::{Finding, Verdict};
use crate::wire::Answer;

/// Why a probe ended without a judgement.
pub(crate) enum Stop {
    /// Something is missing to see it.
    NotSeen(String),
    /// It does not apply.
    Skipped(String),
}

/// What was sent and seen so far, and what that means.
#[derive(Default)]
pub(crate) struct Record {
    sent: Vec<String>,
    seen: Vec<String>,
    brief: Vec<String>,
    wrong: Vec<String>,
    unseen: Vec<String>,
    notes: Vec<String>,
}

/// How many notes and reasons of a kind are kept: the tenth says nothing new.
const KEPT: usize = 4;

impl Record {
    pub(crate) fn sent(&mut self, what: impl Into<String>) {
        self.sent.push(what.into());
    }

    pub(crate) fn saw(&mut self, what: impl Into<String>) {
        let what = what.into();
        self.saw_at_length(what.clone(), what);
    }

    pub(crate) fn saw_answer(&mut self, which: &str, answer: &Result<Answer, String>) {
        let short = format!("{which}: {}", brief(answer));
        self.saw_at_length(short, format!("{which}: {}", tell(answer)));
    }

    fn saw_at_length(&mut self, brief: String, seen: String) {
        // Rounds of a race mostly look alike.
        if !self.brief.contains(&brief) {
            self.brief.push(brief);
        }
        if self.seen.last() != Some(&seen) {
            self.seen.push(seen);
        }
    }

    pub(crate) fn saw_settled(&mut self, which: &str, settled: &Settled) {
        let tries = match settled.tries {
            1 => String::new(),
            tries => format!(" (after {tries} tries)"),
        };
        let short = format!("{which}: {}{tries}", brief(&settled.answer));
        self.saw_at_length(short, format!("{which}: {}{tries}", tell(&settled.answer)));
    }

    /// A guarantee is broken.
    pub(crate) fn fail(&mut self, what: impl Into<String>) {
        keep(&mut self.wrong, what.into());
    }

    /// Something could not be seen.
    pub(crate) fn blind(&mut self, what: impl Into<String>) {
        keep(&mut self.unseen, what.into());
    }

    /// Worth knowing, and no reason to fail.
    pub(crate) fn note(&mut self, what: impl Into<String>) {
        keep(&mut self.notes, what.into());
    }

    pub(crate) fn failed(&self) -> bool {
        !self.wrong.is_empty()
    }

    /// Nobody may have done it twice.
    pub(crate) fn at_most_one(&mut self, effects: Option<u64>) {
        if let Some(effects @ 2..) = effects {
            self.fail(format!("it was executed {effects} times"));
        }
    }

    /// It was done, and not twice.
    pub(crate) fn exactly_one(&mut self, effects: Option<u64>) {
        self.at_most_one(effects);
        if effects == Some(0) {
            self.fail("success was answered, and nothing happened");
        }
    }

    /// Nothing may have happened.
    pub(crate) fn none(&mut self, effects: Option<u64>) {
        if let Some(effects @ 1..) = effects {
            self.fail(format!(
                "it was refused, and executed {effects} times all the same"
            ));
        }
    }

    pub(crate) fn finding(self, id: Id, ended: Result<(), Stop>) -> Finding {
        let about = id.about();
        let (verdict, reasons) = match ended {
            // What was found before counts, whatever ended the probe.
            _ if !self.wrong.is_empty() => (Verdict::Fail, self.wrong),
            Err(Stop::Skipped(reason)) => (Verdict::Skipped, vec![reason]),
            Err(Stop::NotSeen(reason)) => (Verdict::NotSeen, vec![reason]),
            Ok(()) if !self.unseen.is_empty() => (Verdict::NotSeen, self.unseen),
            Ok(()) => (Verdict::Pass, Vec::new()),
        };
        let brief = match verdict {
            Verdict::Pass => self.brief.join("; "),
            Verdict::Fail | Verdict::NotSeen | Verdict::Skipped => reasons.join("; "),
        };
        let seen: Vec<String> = reasons.into_iter().chain(self.seen).collect();
        Finding {
            id,
            title: about.title,
            why: about.why,
            sent: self.sent.join("; "),
            seen: seen.join("; "),
            expected: about.expected,
            verdict,
            notes: self.notes,
            brief,
        }
    }
}

fn keep(list: &mut Vec<String>, what: String) {
    if list.len() < KEPT && !list.contains(&what) {
        list.push(what);
    }
}

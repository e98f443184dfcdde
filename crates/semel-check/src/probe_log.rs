//! What a probe sends and sees, and its verdict.

use crate::catalogue::ProbeId;
use crate::client::FinalResponse;
use crate::report::{Finding, Verdict};
use crate::response::{describe, summarize};
use crate::wire::Response;

/// Why a probe ended without a verdict of its own.
pub(crate) enum Stop {
    /// Something needed for the probe is missing.
    NotSeen(String),
    /// It does not apply.
    Skipped(String),
}

/// What a probe sent, saw and concluded so far.
#[derive(Default)]
pub(crate) struct ProbeLog {
    sent: Vec<String>,
    seen: Vec<String>,
    brief: Vec<String>,
    failures: Vec<String>,
    gaps: Vec<String>,
    notes: Vec<String>,
}

/// Most notes and reasons of a kind that are kept.
const KEPT: usize = 4;

impl ProbeLog {
    pub(crate) fn sent(&mut self, what: impl Into<String>) {
        self.sent.push(what.into());
    }

    pub(crate) fn observe(&mut self, what: impl Into<String>) {
        let what = what.into();
        self.push_observation(what.clone(), what);
    }

    pub(crate) fn observe_response(&mut self, which: &str, answer: &Result<Response, String>) {
        let short = format!("{which}: {}", summarize(answer));
        self.push_observation(short, format!("{which}: {}", describe(answer)));
    }

    fn push_observation(&mut self, brief: String, seen: String) {
        // Rounds of a race mostly give the same observations.
        if !self.brief.contains(&brief) {
            self.brief.push(brief);
        }
        if self.seen.last() != Some(&seen) {
            self.seen.push(seen);
        }
    }

    pub(crate) fn observe_final(&mut self, which: &str, settled: &FinalResponse) {
        let tries = match settled.tries {
            1 => String::new(),
            tries => format!(" (after {tries} tries)"),
        };
        let short = format!("{which}: {}{tries}", summarize(&settled.answer));
        self.push_observation(
            short,
            format!("{which}: {}{tries}", describe(&settled.answer)),
        );
    }

    /// A guarantee is broken.
    pub(crate) fn fail(&mut self, what: impl Into<String>) {
        keep(&mut self.failures, what.into());
    }

    /// The guarantee could not be seen to hold.
    pub(crate) fn inconclusive(&mut self, what: impl Into<String>) {
        keep(&mut self.gaps, what.into());
    }

    /// Worth knowing, but not a failure.
    pub(crate) fn note(&mut self, what: impl Into<String>) {
        keep(&mut self.notes, what.into());
    }

    pub(crate) fn failed(&self) -> bool {
        !self.failures.is_empty()
    }

    /// Fails if it was executed twice.
    pub(crate) fn expect_at_most_one_effect(&mut self, effects: Option<u64>) {
        if let Some(effects @ 2..) = effects {
            self.fail(format!("it was executed {effects} times"));
        }
    }

    /// Fails unless it was executed exactly once.
    pub(crate) fn expect_one_effect(&mut self, effects: Option<u64>) {
        self.expect_at_most_one_effect(effects);
        if effects == Some(0) {
            self.fail("the server reported success, and nothing was executed");
        }
    }

    /// Fails if it was executed.
    pub(crate) fn expect_no_effect(&mut self, effects: Option<u64>) {
        if let Some(effects @ 1..) = effects {
            self.fail(format!("it was refused, but executed {effects} times"));
        }
    }

    pub(crate) fn finding(self, id: ProbeId, ended: Result<(), Stop>) -> Finding {
        let info = id.info();
        let (verdict, reasons) = match ended {
            // A failure stands, even if the probe ended early afterwards.
            _ if !self.failures.is_empty() => (Verdict::Fail, self.failures),
            Err(Stop::Skipped(reason)) => (Verdict::Skipped, vec![reason]),
            Err(Stop::NotSeen(reason)) => (Verdict::NotSeen, vec![reason]),
            Ok(()) if !self.gaps.is_empty() => (Verdict::NotSeen, self.gaps),
            Ok(()) => (Verdict::Pass, Vec::new()),
        };
        let brief = match verdict {
            Verdict::Pass => self.brief.join("; "),
            Verdict::Fail | Verdict::NotSeen | Verdict::Skipped => reasons.join("; "),
        };
        let seen: Vec<String> = reasons.into_iter().chain(self.seen).collect();
        Finding {
            id,
            title: info.title,
            why: info.why,
            sent: self.sent.join("; "),
            seen: seen.join("; "),
            expected: info.expected,
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

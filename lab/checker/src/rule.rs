//! The rules, and where they were broken.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::report::Example;

/// How many examples of each rule are reported.
const MAX_EXAMPLES: usize = 10;

/// A rule of the campaign: what must never happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// The provider was called more often for a reference than there are operations of it.
    DuplicateEffects,
    /// A client got a final answer that the ledger, or a later answer, contradicts.
    LostAcknowledgements,
    /// Two final answers to one operation are not the same.
    AlteredReplays,
    /// A client got the answer of another client.
    AnswersAcrossTenants,
    /// An answer was given although it had been erased, and every process had had the time to learn of
    /// it.
    ErasedAnswers,
    /// An operation has no final answer although all faults are over.
    StuckKeys,
    /// Money moved, and no client got the answer; or an execution was not requested.
    EffectsNeverSurfaced,
    /// A key with another body, or a malformed request, was accepted.
    MisuseAccepted,
    /// There was an effect although every call was answered with "not executed".
    EffectsOfRefusedCalls,
    /// An operation reached the application again, whether or not money moved.
    ExecutedAgain,
    /// An operator had to decide what the application could have answered.
    NeedlessDecisions,
    /// A message whose transaction was committed has no effect.
    LostMessages,
    /// A message had its effect twice, or its transaction was rolled back.
    WrongMessages,
    /// A process exited although its disk was not full.
    Crashes,
    /// Clients made a process hold too much memory, or hold sockets after they left.
    ResourcesHeld,
}

impl Rule {
    /// All rules: an unbroken one is reported with a zero.
    pub const ALL: [Self; 15] = [
        Self::DuplicateEffects,
        Self::LostAcknowledgements,
        Self::AlteredReplays,
        Self::AnswersAcrossTenants,
        Self::ErasedAnswers,
        Self::StuckKeys,
        Self::EffectsNeverSurfaced,
        Self::MisuseAccepted,
        Self::EffectsOfRefusedCalls,
        Self::ExecutedAgain,
        Self::NeedlessDecisions,
        Self::LostMessages,
        Self::WrongMessages,
        Self::Crashes,
        Self::ResourcesHeld,
    ];
}

/// The findings so far.
pub(crate) struct Findings {
    pub(crate) counts: BTreeMap<Rule, u64>,
    pub(crate) examples: BTreeMap<Rule, Vec<Example>>,
}

impl Default for Findings {
    fn default() -> Self {
        Self {
            counts: Rule::ALL.into_iter().map(|rule| (rule, 0)).collect(),
            examples: BTreeMap::new(),
        }
    }
}

impl Findings {
    pub(crate) fn add(&mut self, rule: Rule, op: Option<u64>, what: String) {
        *self.counts.entry(rule).or_default() += 1;
        let examples = self.examples.entry(rule).or_default();
        if examples.len() < MAX_EXAMPLES {
            examples.push(Example { op, what });
        }
    }
}

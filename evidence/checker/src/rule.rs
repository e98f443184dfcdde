//! What must never happen, and where it did.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::report::Example;

/// As many are shown of each rule: enough to see what they have in common.
const MAX_EXAMPLES: usize = 10;

/// What must never happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// The provider was asked more often for a reference than there are operations of it,
    /// whatever it answered.
    DuplicateEffects,
    /// A client was told an end that the ledger, or a later answer, knows nothing of.
    LostAcknowledgements,
    /// Two final answers to one operation are not the same.
    AlteredReplays,
    /// A client was given something of somebody else's operation.
    AnswersAcrossTenants,
    /// An operation has no end although everything has been healed.
    StuckKeys,
    /// Money moved, and nobody was ever told; or the application was asked for what nobody wanted.
    EffectsNeverSurfaced,
    /// A key with another body, or something malformed, was answered as if it were right.
    MisuseAccepted,
    /// Something was done although every call that can have done it said that nothing was.
    EffectsOfRefusedCalls,
    /// An operation was given to the application once more than it may be, whether or not money
    /// moved.
    ExecutedAgain,
    /// A person had to decide what the application could have told.
    NeedlessDecisions,
    /// A process ended by itself while its disk was not full.
    Crashes,
}

impl Rule {
    /// All of them: a rule that was not broken is shown with a zero.
    pub const ALL: [Self; 11] = [
        Self::DuplicateEffects,
        Self::LostAcknowledgements,
        Self::AlteredReplays,
        Self::AnswersAcrossTenants,
        Self::StuckKeys,
        Self::EffectsNeverSurfaced,
        Self::MisuseAccepted,
        Self::EffectsOfRefusedCalls,
        Self::ExecutedAgain,
        Self::NeedlessDecisions,
        Self::Crashes,
    ];
}

/// What was found so far.
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

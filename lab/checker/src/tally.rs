//! How much happened, and when.

use std::collections::BTreeMap;

use crate::history::{Call, Fault, Outcome, Sent, Transport};
use crate::report::{Phase, Second, Totals};

/// A day. A time beyond it is a mistake in the history, and would fill the memory.
const MAX_SECONDS: u64 = 86_400;

/// Counted while the history is read.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) totals: Totals,
    pub(crate) faults: BTreeMap<String, u64>,
    pub(crate) decisions: BTreeMap<String, u64>,
    phases: BTreeMap<String, Spell>,
    seconds: Vec<Second>,
    ended_ms: u64,
}

/// A phase, while it is counted.
struct Spell {
    began_ms: u64,
    phase: Phase,
}

impl Tally {
    /// Says whether the call's times can be.
    pub(crate) fn call(&mut self, call: &Call, first: bool) -> bool {
        let second = call.ended_ms / 1_000;
        if second >= MAX_SECONDS || call.began_ms > call.ended_ms {
            return false;
        }
        self.ended_ms = self.ended_ms.max(call.ended_ms);
        self.totals.calls += 1;
        self.totals.replayed += u64::from(call.replayed);
        if call.outcome == Outcome::Ok {
            self.totals.ok_over_tls += u64::from(call.transport != Transport::Plain);
            self.totals.ok_over_http2 += u64::from(call.transport == Transport::Http2);
        }
        match call.sent {
            Sent::Same => {}
            Sent::OtherBody => self.totals.other_body += 1,
            Sent::Malformed => self.totals.malformed += 1,
        }
        let spell = self.phases.entry(call.phase.clone());
        let spell = spell.or_insert_with(|| Spell::new(&call.phase, call.began_ms));
        spell.began_ms = spell.began_ms.min(call.began_ms);
        spell.phase.calls += 1;
        spell.phase.operations += u64::from(first);
        let index = usize::try_from(second).unwrap_or_default();
        if self.seconds.len() <= index {
            self.seconds.resize_with(index + 1, Second::default);
        }
        let second = &mut self.seconds[index];
        let (total, phase, second) = match call.outcome {
            Outcome::Ok => (&mut self.totals.ok, &mut spell.phase.ok, &mut second.ok),
            Outcome::Failed => (
                &mut self.totals.failed,
                &mut spell.phase.failed,
                &mut second.failed,
            ),
            Outcome::Indeterminate => (
                &mut self.totals.indeterminate,
                &mut spell.phase.indeterminate,
                &mut second.indeterminate,
            ),
        };
        for count in [total, phase, second] {
            *count += 1;
        }
        true
    }

    pub(crate) fn fault(&mut self, fault: Fault) {
        match fault.name.as_str() {
            "kill" => self.totals.kills += 1,
            "stop" => self.totals.stops += 1,
            "cut_after_commit" => self.totals.ambiguous_commits += 1,
            _ => {}
        }
        let spell = self.phases.entry(fault.phase.clone());
        let spell = spell.or_insert_with(|| Spell::new(&fault.phase, fault.at_ms));
        spell.began_ms = spell.began_ms.min(fault.at_ms);
        *spell.phase.faults.entry(fault.name.clone()).or_default() += 1;
        *self.faults.entry(fault.name).or_default() += 1;
    }

    pub(crate) fn decision(&mut self, verdict: String) {
        *self.decisions.entry(verdict).or_default() += 1;
    }

    /// The phases in their order, and the seconds with the phase that each began in.
    pub(crate) fn course(self) -> (Vec<Phase>, Vec<Second>) {
        let mut spells: Vec<Spell> = self.phases.into_values().collect();
        spells.sort_by_key(|spell| spell.began_ms);
        let ends: Vec<u64> = spells.iter().map(|spell| spell.began_ms).skip(1).collect();
        let ends = ends.into_iter().chain([self.ended_ms]);
        let mut phases: Vec<Phase> = Vec::new();
        let mut seconds = self.seconds;
        for (spell, ends_ms) in spells.into_iter().zip(ends) {
            for (number, second) in (0_u64..).zip(seconds.iter_mut()) {
                second.second = number;
                if phases.is_empty() || spell.began_ms <= number * 1_000 {
                    second.phase.clone_from(&spell.phase.name);
                }
            }
            let mut phase = spell.phase;
            phase.seconds = (ends_ms.saturating_sub(spell.began_ms) + 500) / 1_000;
            phases.push(phase);
        }
        (phases, seconds)
    }
}

impl Spell {
    fn new(name: &str, began_ms: u64) -> Self {
        Self {
            began_ms,
            phase: Phase {
                name: name.to_owned(),
                ..Phase::default()
            },
        }
    }
}

//! What is to be reached, and whether it is.

use serde::Serialize;

/// A result that is compared with a limit.
#[derive(Serialize)]
pub(crate) struct Target {
    name: String,
    /// `None` where it was not asked for or could not be had.
    measured: Option<f64>,
    limit: Limit,
}

/// Where a target lies.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Limit {
    AtLeast(f64),
    AtMost(f64),
}

/// How many of the targets were missed, and how many not measured.
pub(crate) struct Kept {
    missed: usize,
    not_measured: usize,
}

impl Target {
    pub(crate) fn new(name: impl Into<String>, measured: Option<f64>, limit: Limit) -> Self {
        Self {
            name: name.into(),
            measured,
            limit,
        }
    }

    fn holds(&self) -> Option<bool> {
        self.measured.map(|measured| match self.limit {
            Limit::AtLeast(bound) => measured >= bound,
            Limit::AtMost(bound) => measured <= bound,
        })
    }
}

impl Kept {
    pub(crate) fn holds(&self, all_asked_for: bool) -> bool {
        self.missed == 0 && (self.not_measured == 0 || !all_asked_for)
    }
}

/// Prints all targets, and counts those that are missed.
pub(crate) fn verdict(targets: &[Target]) -> Kept {
    println!("\n{:<46} {:>9} {:>9}  holds", "target", "measured", "limit");
    let mut kept = Kept {
        missed: 0,
        not_measured: 0,
    };
    for target in targets {
        let holds = target.holds();
        let (sign, bound) = match target.limit {
            Limit::AtLeast(bound) => ('≥', bound),
            Limit::AtMost(bound) => ('≤', bound),
        };
        let measured = target
            .measured
            .map_or_else(|| "-".into(), |measured| format!("{measured:.2}"));
        let limit = format!("{sign} {bound}");
        let verdict = match holds {
            Some(true) => "ok",
            Some(false) => "MISSED",
            None => "not measured",
        };
        kept.missed += usize::from(holds == Some(false));
        kept.not_measured += usize::from(holds.is_none());
        println!("{:<46} {measured:>9} {limit:>9}  {verdict}", target.name);
    }
    kept
}

//! Ways in which a store could be broken, to see that the simulation would say so.

/// One guard that the simulated store, or the way it is set up, is without. The product has no
/// such switch: all of this stands in front of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sabotage {
    /// Nothing is broken.
    #[default]
    None,
    /// A holder's word counts whatever attempt it is of.
    IgnoresFences,
    /// A lease that ran out means that nothing happened.
    ReexecutesExpiredLeases,
    /// The sweeper frees what it finds, instead of calling it unknown.
    FreesWhatItSweeps,
    /// Nobody compares what was asked for.
    IgnoresFingerprints,
    /// A key belongs to whoever knows it.
    IgnoresTenants,
    /// Where the store cannot answer, the request executes.
    FailsOpen,
    /// "The provider does not know it" is taken for proof where it is none.
    TrustsAbsence,
    /// Retention lets go of what is unknown.
    PrunesUnknowns,
    /// A later attempt, too, can have everything forgotten.
    ForgetsLaterAttempts,
    /// An end is acknowledged before it is written, and sometimes is not.
    AcknowledgesBeforeWriting,
    /// The last end counts, not the first.
    OverwritesAnswers,
    /// A new attempt has the number of the one before.
    RepeatsAttempts,
    /// Nobody is told what is due for a look.
    NeverLooksAgain,
    /// Every retry is answered with another header.
    AltersReplays,
}

impl Sabotage {
    /// All that break something.
    pub const ALL: [Self; 14] = [
        Self::IgnoresFences,
        Self::ReexecutesExpiredLeases,
        Self::FreesWhatItSweeps,
        Self::IgnoresFingerprints,
        Self::IgnoresTenants,
        Self::FailsOpen,
        Self::TrustsAbsence,
        Self::PrunesUnknowns,
        Self::ForgetsLaterAttempts,
        Self::AcknowledgesBeforeWriting,
        Self::OverwritesAnswers,
        Self::RepeatsAttempts,
        Self::NeverLooksAgain,
        Self::AltersReplays,
    ];

    /// The one of that name, as `Debug` writes it.
    pub fn from_name(name: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|sabotage| format!("{sabotage:?}") == name)
    }
}

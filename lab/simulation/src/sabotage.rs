//! Removed guards, to check that the simulation detects them.

/// A guard that is removed from the simulated store or from its setup. The product has no such
/// switch: wrappers around it do this.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sabotage {
    /// No guard is removed.
    #[default]
    None,
    /// The store accepts a holder's write of any attempt.
    IgnoresFences,
    /// An expired lease is taken as proof that nothing was executed.
    ReexecutesExpiredLeases,
    /// The sweeper releases records instead of marking them as unknown.
    ReleasesSweptRecords,
    /// Fingerprints are not compared.
    IgnoresFingerprints,
    /// A key is not scoped to its tenant.
    IgnoresTenants,
    /// A request executes when the store returns an error.
    FailsOpen,
    /// "Not found" at the provider is taken as proof where it is none.
    TrustsAbsence,
    /// Retention deletes unknown records.
    PrunesUnknowns,
    /// A later attempt can evict the record, too.
    ForgetsLaterAttempts,
    /// A completion is acknowledged before it is written, and sometimes lost.
    AcknowledgesBeforeWriting,
    /// The last completion is kept, not the first.
    OverwritesAnswers,
    /// A new attempt has the same number as the one before.
    RepeatsAttempts,
    /// No record is ever due for reconciliation.
    NeverReconciles,
    /// Every replay has another header.
    AltersReplays,
}

impl Sabotage {
    /// Every variant that removes a guard.
    pub const ALL: [Self; 14] = [
        Self::IgnoresFences,
        Self::ReexecutesExpiredLeases,
        Self::ReleasesSweptRecords,
        Self::IgnoresFingerprints,
        Self::IgnoresTenants,
        Self::FailsOpen,
        Self::TrustsAbsence,
        Self::PrunesUnknowns,
        Self::ForgetsLaterAttempts,
        Self::AcknowledgesBeforeWriting,
        Self::OverwritesAnswers,
        Self::RepeatsAttempts,
        Self::NeverReconciles,
        Self::AltersReplays,
    ];

    /// The variant with this name, as `Debug` writes it.
    pub fn from_name(name: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|sabotage| format!("{sabotage:?}") == name)
    }
}

//! What is wrong with the API, and in which ways it may be right.

/// The defect of an API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    /// Nothing.
    None,
    /// Looks a key up, works, and stores it afterwards.
    NoReservation,
    /// The same, and the second one to store gets a 500: a unique index, after the charge.
    ConflictsLate,
    /// Compares no bodies.
    ForgetsBody,
    /// The body is part of the key.
    KeyWithBody,
    /// Frees the key of a client that went away, and ends its work.
    FreesOnDisconnect,
    /// Frees the key of a client that went away, and works on; where work takes long, since the
    /// rest is over before it is noticed.
    FreesAndWorksOn,
    /// Frees the key of an operation that takes long.
    ReleasesAfterLease,
    /// Stores the beginning of a large answer.
    Truncates,
    /// Forgets an answer that is too large to store.
    ForgetsLarge,
    /// Takes a 504 for "nothing happened".
    RetriesTimeout,
    /// Takes a decline for "nothing happened".
    RetriesDeclined,
    /// Keeps its keys in memory.
    CrashForgets,
    /// Frees the key of an operation that it could not record.
    FreesOnStoreFailure,
    /// All customers share one set of keys.
    NoTenant,
    /// Treats a key that it cannot read as none.
    IgnoresMalformed,
    /// Treats a key that is too long as none.
    IgnoresOversized,
    /// Takes as much of a key as it has room for.
    CutsKeys,
    /// Treats no key as the same key, and compares no bodies.
    SharesNoKey,
    /// Treats no key and an empty one as the same key.
    SharesEmpty,
    /// Treats blanks as a key like any other, and compares no bodies under it.
    SharesBlank,
    /// The first retry is executed and breaks; later ones are replays.
    BreaksOnce,
    /// Replays with status 200.
    ReplaysAs200,
    /// A proxy in front responds to all but the first request under a good key with this status, for
    /// every client; 0 means no response.
    TurnsAway(u16),
    /// Misuse is answered with this status, or with nothing where it is 0.
    MisuseIs(u16),
    /// A duplicate of what is under way is answered with this status.
    RunningIs(u16),
    /// Not its own: a limiter lets one request in at a time.
    Limits,
}

/// How it is correct. APIs differ, and all of these are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ApiStyle {
    /// As the draft has it.
    Draft,
    /// The same, and keys may be left out.
    Optional,
    /// The same, and quotes may be left out.
    Lenient,
    /// A duplicate waits for the first.
    Waits,
    /// A duplicate is accepted, and is to come back.
    Accepts,
    /// Every operation is accepted, and done later.
    Later,
    /// Unquoted keys, other statuses, no mark on a replay, keys optional, bodies compared raw.
    Plain,
    /// As `Plain`, and every execution is answered alike but for what was asked.
    Mute,
    /// As `Plain`, and quotes are a part of the key.
    Opaque,
    /// As `Opaque`, and a reference is good for one operation.
    Unique,
    /// As `Plain`, and a 504 is an answer like any other, and is given again.
    KeepsTimeout,
}

impl ApiStyle {
    /// Whether keys are as they are written.
    pub(crate) fn is_plain(self) -> bool {
        matches!(
            self,
            Self::Plain | Self::Mute | Self::Opaque | Self::Unique | Self::KeepsTimeout
        )
    }
}

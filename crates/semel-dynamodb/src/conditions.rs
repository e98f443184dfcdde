//! Every condition of a write: what must be true of an item for it to be changed.
//!
//! A test removes each of them in turn, and the conformance suite must fail.

use std::borrow::Cow;

/// A condition. An absent item has no attributes, and no version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// A record is made where none is: of many callers, one begins.
    Begin,
    /// A record is replaced as it was read. The version stands for all of it: the id, the attempt,
    /// the status, the lease, the point and the history.
    Replace,
    /// A record is removed as it was read.
    Remove,
    /// An entry of a history is written once: written again it would bring back erased evidence.
    Append,
    /// A message is stored once.
    Receive,
    /// An item is changed only where there is one: an update would create it.
    Exists,
    /// A parked message goes to the one that claims it first, and not after it was settled.
    ClaimParked,
    /// A message is removed as it was read: of two processes one counts it.
    Forget,
    /// The first contracts are published where there are none.
    PublishFirst,
    /// Contracts replace the revision that they were made from.
    Publish,
    /// Record counts do not replace later ones.
    PublishCounts,
    /// One process scans records at a time.
    Scan,
    /// A misuse that is later than the latest one replaces its time and record.
    LaterMisuse,
    /// A misuse that is earlier than the first one replaces its time.
    EarlierMisuse,
}

impl Condition {
    #[cfg(test)]
    pub(crate) const ALL: [Self; 14] = [
        Self::Begin,
        Self::Replace,
        Self::Remove,
        Self::Append,
        Self::Receive,
        Self::Exists,
        Self::ClaimParked,
        Self::Forget,
        Self::PublishFirst,
        Self::Publish,
        Self::PublishCounts,
        Self::Scan,
        Self::LaterMisuse,
        Self::EarlierMisuse,
    ];

    fn expression(self) -> &'static str {
        match self {
            Self::Begin | Self::Append | Self::Receive | Self::PublishFirst => {
                "attribute_not_exists(p)"
            }
            Self::Replace | Self::Remove | Self::ClaimParked | Self::Forget => "v = :seen",
            Self::Exists => "attribute_exists(p)",
            Self::Publish => "n = :seen",
            Self::PublishCounts => "attribute_not_exists(p) OR ea <= :ended",
            Self::Scan => "attribute_not_exists(p) OR o = :owner OR lu <= :now",
            Self::LaterMisuse => "attribute_not_exists(l) OR l <= :last",
            Self::EarlierMisuse => "f > :first",
        }
    }
}

/// The conditions of a store.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Conditions {
    removed: Option<Condition>,
}

impl Conditions {
    /// All but one, for the test of that one.
    #[cfg(test)]
    pub(crate) fn without(removed: Condition) -> Self {
        Self {
            removed: Some(removed),
        }
    }

    /// The expression of a condition. A removed one still uses its values, so that a write fails
    /// for no other reason, and holds for every item.
    pub(crate) fn text(self, condition: Condition) -> Cow<'static, str> {
        let expression = condition.expression();
        if self.removed == Some(condition) {
            Cow::Owned(format!("({expression}) OR attribute_not_exists(zz)"))
        } else {
            Cow::Borrowed(expression)
        }
    }
}

//! Which keys are worth asking a reader about.
//!
//! Most requests bring a new key, and for those a reader's "not here" would be a wasted
//! round; they go to the writer at once. A retry mostly comes soon after its first attempt,
//! through the same process: its key is found here, and a reader answers it without waiting
//! for a commit. Nothing depends on this but speed: the writer can answer everything.

use std::sync::atomic::{AtomicU64, Ordering};

use semel_core::identity::IdentityHash;

/// Slots, each for one key: half a mebibyte, and minutes of traffic.
const SLOTS: usize = 64 * 1024;

/// The keys that this process has lately reserved or been asked about.
pub(crate) struct Recent {
    slots: Box<[AtomicU64]>,
}

impl Recent {
    pub(crate) fn new() -> Self {
        Self {
            slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Notes that there is a record under this hash.
    pub(crate) fn note(&self, hash: IdentityHash) {
        let (slot, mark) = self.place(hash);
        slot.store(mark, Ordering::Relaxed);
    }

    /// Whether there may be one.
    pub(crate) fn may_know(&self, hash: IdentityHash) -> bool {
        let (slot, mark) = self.place(hash);
        slot.load(Ordering::Relaxed) == mark
    }

    fn place(&self, IdentityHash(bytes): IdentityHash) -> (&AtomicU64, u64) {
        let bits = u128::from_le_bytes(bytes);
        #[allow(
            clippy::cast_possible_truncation,
            reason = "both take the bits they need"
        )]
        let (slot, mark) = (bits as usize % SLOTS, (bits >> 64) as u64);
        // A slot that was never written holds 0, so no mark is 0.
        (&self.slots[slot], mark | 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_what_was_noted_until_its_slot_is_taken() {
        let recent = Recent::new();
        let hash = IdentityHash([7; 16]);
        assert!(!recent.may_know(hash));
        recent.note(hash);
        assert!(recent.may_know(hash));
        let mut rival = hash;
        rival.0[9] = 8;
        assert!(!recent.may_know(rival));
        recent.note(rival);
        assert!(!recent.may_know(hash));
    }
}

//! The keys that this process has seen lately.
//!
//! Most requests have a new key: to look for a record first would only cost time, and a store inserts
//! at once. A retry mostly comes soon after its first attempt, through the same process: its key is
//! found here, and the store reads before it writes. Only speed depends on this.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::identity::IdentityHash;

/// Slots, each for one key: half a mebibyte, and minutes of traffic.
const SLOTS: usize = 64 * 1024;

/// Slots that a key may be in. With one, two keys that share it would replace each other again and
/// again, and each of their retries would wait for the writer.
const WAYS: usize = 4;

/// The keys that this process has lately reserved, so that a store reads their records before it writes.
#[derive(Debug)]
pub struct RecentKeys {
    slots: Box<[AtomicU64]>,
}

impl Default for RecentKeys {
    fn default() -> Self {
        Self {
            slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
        }
    }
}

impl RecentKeys {
    /// Notes that there is a record under this hash.
    pub fn note(&self, hash: IdentityHash) {
        let (slots, mark) = self.slots_of(hash);
        let holds = |wanted| {
            slots
                .iter()
                .find(|slot| slot.load(Ordering::Relaxed) == wanted)
        };
        // The key's own slot, one that was never used, or that of another key.
        let slot = holds(mark).or_else(|| holds(0));
        let victim = &slots[usize::from(hash.0[15]) % WAYS];
        slot.unwrap_or(victim).store(mark, Ordering::Relaxed);
    }

    /// Whether there may be a record under this hash.
    pub fn may_know(&self, hash: IdentityHash) -> bool {
        let (slots, mark) = self.slots_of(hash);
        slots
            .iter()
            .any(|slot| slot.load(Ordering::Relaxed) == mark)
    }

    fn slots_of(&self, IdentityHash(bytes): IdentityHash) -> (&[AtomicU64], u64) {
        let bits = u128::from_le_bytes(bytes);
        #[allow(
            clippy::cast_possible_truncation,
            reason = "both take the bits they need"
        )]
        let (set, mark) = (bits as usize % (SLOTS / WAYS), (bits >> 64) as u64);
        // A slot that was never written holds 0, so no mark is 0.
        (&self.slots[set * WAYS..][..WAYS], mark | 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_noted_key_is_known_until_its_slots_are_taken() {
        let recent = RecentKeys::default();
        // All in one set of slots, with different marks.
        let hash = |number: u8| {
            let mut hash = IdentityHash([7; 16]);
            hash.0[9] = number;
            hash
        };
        for number in 0..4 {
            assert!(!recent.may_know(hash(number)));
            recent.note(hash(number));
            recent.note(hash(number));
        }
        for number in 0..4 {
            assert!(recent.may_know(hash(number)), "{number}");
        }
        recent.note(hash(4));
        assert!(recent.may_know(hash(4)));
        let left = (0..4).filter(|number| recent.may_know(hash(*number)));
        assert_eq!(left.count(), 3);
    }
}

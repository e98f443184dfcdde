//! Random numbers, all of them from the seed.

use std::time::Duration;

/// `SplitMix64`: small, good enough to draw from, and the same on every machine.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    /// Neighbouring seeds give unrelated streams.
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Self(seed ^ 0x5e6d_e150_9a17_b0a7);
        rng.next();
        rng
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Less than `end`, or 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// From `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// Milliseconds from `low` to `high`. Tokio's timers have no finer resolution.
    pub(crate) fn millis(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_millis(self.between(low, high))
    }

    /// True in so many of a thousand cases.
    pub(crate) fn in_thousand(&mut self, cases: u64) -> bool {
        self.below(1000) < cases
    }

    /// `first` or one of `others`, each with the same probability.
    pub(crate) fn pick<T: Copy>(&mut self, first: T, others: &[T]) -> T {
        let at = self.below(others.len() as u64 + 1);
        let at = usize::try_from(at).unwrap_or(0);
        at.checked_sub(1)
            .and_then(|at| others.get(at).copied())
            .unwrap_or(first)
    }

    /// An index into something of that length.
    pub(crate) fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_stream_every_time() {
        let mut rng = Rng::new(7);
        let drawn: Vec<_> = (0..4).map(|_| rng.below(1000)).collect();
        let mut again = Rng::new(7);
        assert_eq!(drawn, (0..4).map(|_| again.below(1000)).collect::<Vec<_>>());
        assert_ne!(Rng::new(7).next(), Rng::new(8).next());
        assert!((0..100).all(|_| (3..=5).contains(&again.between(3, 5))));
    }
}

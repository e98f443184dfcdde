//! How long requests took.

use std::time::Duration;

/// Room that is taken once: to grow while measuring would cost the cores that the server
/// under test runs on.
const ROOM: usize = 1 << 20;

/// Times of single requests, exact, in nanoseconds. One of more than four seconds counts as
/// four: no percentile of use here is that long.
pub(crate) struct Latencies(Vec<u32>);

impl Latencies {
    pub(crate) fn new() -> Self {
        Self(Vec::with_capacity(ROOM))
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn record(&mut self, time: Duration) {
        self.0
            .push(u32::try_from(time.as_nanos()).unwrap_or(u32::MAX));
    }

    /// In microseconds, each the time that `share` of the requests did not exceed.
    pub(crate) fn percentiles<const N: usize>(&mut self, shares: [f64; N]) -> [f64; N] {
        self.0.sort_unstable();
        shares.map(|share| {
            let at = (self.0.len() as f64 * share) as usize;
            let time = self.0.get(at).or(self.0.last());
            time.map_or(f64::NAN, |&nanos| f64::from(nanos) / 1e3)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_sorted_times() {
        let mut latencies = Latencies::new();
        for micros in (1..=100).rev() {
            latencies.record(Duration::from_micros(micros));
        }
        let [first, half, last] = latencies.percentiles([0.0, 0.5, 1.0]);
        assert!((first - 1.0).abs() < 1e-9);
        assert!((half - 51.0).abs() < 1e-9);
        assert!((last - 100.0).abs() < 1e-9);
    }

    #[test]
    fn of_nothing_there_is_no_percentile() {
        assert!(Latencies::new().percentiles([0.5])[0].is_nan());
    }
}

//! How the provider fails, and for how long.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use uuid::Uuid;

/// Longer than any client waits.
const MAX_DELAY_MS: u64 = 600_000;
/// Noticeable at a terminal, and shorter than the service's timeout.
const DEFAULT_DELAY_MS: u64 = 5_000;

/// A fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Fault {
    /// No fault.
    #[default]
    None,
    /// Waits before it charges. The charge is made afterwards, even if the client gave up.
    Slow,
    /// The charge is made and written; then the connection is reset without a byte of answer.
    ResetAfterSuccess,
    /// The connection is reset, and no charge is made. To the client it looks the same.
    ResetBefore,
    /// The charge is written as declined, and the answer is 402.
    Decline,
    /// 500, and no charge is made. The client cannot know that.
    #[serde(rename = "error_500")]
    Error500,
    /// 503, and no charge is made. The client cannot know that.
    #[serde(rename = "error_503")]
    Error503,
}

/// How the provider fails from now on: the body of `PUT /faults`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Faults {
    /// How many requests fail; all where absent.
    #[serde(default)]
    pub next: Option<u32>,
    /// The fault.
    pub fault: Fault,
    /// How long [`Fault::Slow`] waits. `PUT /faults` ends the delay of waiting requests.
    #[serde(default = "default_delay_ms")]
    pub delay_ms: u64,
    /// The probability that a request fails, from 0 to 1.
    #[serde(default = "always")]
    pub probability: f64,
}

impl Default for Faults {
    fn default() -> Self {
        Self::every(Fault::None)
    }
}

impl Faults {
    /// Every request fails.
    pub fn every(fault: Fault) -> Self {
        Self {
            next: None,
            fault,
            delay_ms: DEFAULT_DELAY_MS,
            probability: always(),
        }
    }

    /// The next `count` requests fail.
    pub fn next(count: u32, fault: Fault) -> Self {
        Self {
            next: Some(count),
            ..Self::every(fault)
        }
    }

    pub(super) fn check(&self) -> Result<(), &'static str> {
        if self.delay_ms > MAX_DELAY_MS {
            return Err("delay_ms is at most 600000");
        }
        if !(0.0..=1.0).contains(&self.probability) {
            return Err("probability is from 0 to 1");
        }
        Ok(())
    }

    /// Draws the fault of one request.
    fn draw(&mut self) -> Fault {
        if self.next == Some(0) || !happens(self.probability) {
            return Fault::None;
        }
        if let Some(next) = &mut self.next {
            *next -= 1;
        }
        self.fault
    }
}

fn default_delay_ms() -> u64 {
    DEFAULT_DELAY_MS
}

fn always() -> f64 {
    1.0
}

/// Draws with the random end of a UUID, which needs no random number generator.
pub(super) fn happens(probability: f64) -> bool {
    let [.., a, b, c, d] = *Uuid::now_v7().as_bytes();
    let drawn = u32::from_be_bytes([a, b, c, d]);
    f64::from(drawn) < probability * (f64::from(u32::MAX) + 1.0)
}

/// The value of a fault header: `decline`, `slow`, `slow:1500`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FaultHeader {
    pub(super) fault: Fault,
    pub(super) delay_ms: u64,
}

impl FaultHeader {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (name, delay) = match text.split_once(':') {
            Some((name, delay)) => (name, Some(delay.parse::<u64>().ok()?)),
            None => (text, None),
        };
        let fault = serde_json::from_value(serde_json::Value::from(name)).ok()?;
        let delay_ms = delay.unwrap_or(DEFAULT_DELAY_MS);
        let meant = delay.is_none() || fault == Fault::Slow;
        (meant && delay_ms <= MAX_DELAY_MS).then_some(Self { fault, delay_ms })
    }
}

/// The fault of one request, which can be called off while it waits.
pub(super) struct AppliedFault {
    pub(super) fault: Fault,
    delay: Duration,
    changes: watch::Receiver<Faults>,
}

impl AppliedFault {
    /// Waits for the delay, or for the next `PUT /faults`.
    pub(super) async fn hold(&mut self) {
        tokio::select! {
            () = tokio::time::sleep(self.delay) => {}
            _ = self.changes.changed() => {}
        }
    }
}

/// The faults in force.
pub(super) struct FaultSwitch(watch::Sender<Faults>);

impl FaultSwitch {
    pub(super) fn new(faults: Faults) -> Self {
        Self(watch::Sender::new(faults))
    }

    pub(super) fn current(&self) -> Faults {
        *self.0.borrow()
    }

    pub(super) fn put(&self, faults: Faults) -> Faults {
        self.0.send_replace(faults);
        faults
    }

    /// The fault of one request. A fault header does not count towards `next`.
    pub(super) fn apply(&self, named: Option<FaultHeader>) -> AppliedFault {
        // Subscribed before the draw: a `PUT /faults` in between must still end the wait.
        let changes = self.0.subscribe();
        let mut decided = named;
        if decided.is_none() {
            self.0.send_if_modified(|faults| {
                decided = Some(FaultHeader {
                    fault: faults.draw(),
                    delay_ms: faults.delay_ms,
                });
                // Counting down must not end the wait of other requests.
                false
            });
        }
        let decided = decided.unwrap_or(FaultHeader {
            fault: Fault::None,
            delay_ms: 0,
        });
        AppliedFault {
            fault: decided.fault,
            delay: Duration::from_millis(decided.delay_ms),
            changes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_end_after_their_count() {
        let switch = FaultSwitch::new(Faults::next(2, Fault::Decline));
        let drawn: Vec<Fault> = (0..3).map(|_| switch.apply(None).fault).collect();
        assert_eq!(drawn, [Fault::Decline, Fault::Decline, Fault::None]);
        assert_eq!(switch.current().next, Some(0));
    }

    #[test]
    fn a_fault_header_does_not_count_down() {
        let switch = FaultSwitch::new(Faults::next(1, Fault::Decline));
        let named = FaultHeader::parse("reset_before");
        assert_eq!(switch.apply(named).fault, Fault::ResetBefore);
        assert_eq!(switch.apply(None).fault, Fault::Decline);
    }

    #[test]
    fn probability_is_between_never_and_always() {
        assert!((0..1000).all(|_| happens(1.0)));
        assert!(!(0..1000).any(|_| happens(0.0)));
        let half = (0..1000).filter(|_| happens(0.5)).count();
        assert!((300..700).contains(&half), "{half} of 1000");
    }

    #[test]
    fn fault_headers_are_parsed() {
        let slow = FaultHeader::parse("slow:1500").expect("a fault");
        assert_eq!((slow.fault, slow.delay_ms), (Fault::Slow, 1500));
        assert_eq!(
            FaultHeader::parse("error_503").expect("a fault").fault,
            Fault::Error503
        );
        for wrong in [
            "",
            "Slow",
            "slow:",
            "slow:-1",
            "slow:600001",
            "decline:5",
            "x",
        ] {
            assert_eq!(FaultHeader::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn impossible_faults_are_refused() {
        let mut faults = Faults::every(Fault::Slow);
        faults.delay_ms = MAX_DELAY_MS + 1;
        assert!(faults.check().is_err());
        faults.delay_ms = MAX_DELAY_MS;
        assert!(faults.check().is_ok());
        faults.probability = 1.5;
        assert!(faults.check().is_err());
        faults.probability = f64::NAN;
        assert!(faults.check().is_err());
    }
}

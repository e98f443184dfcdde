//! How the provider breaks, and for how long.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use uuid::Uuid;

/// Longer than any client waits, and short enough that nobody forgets what was put.
const MAX_DELAY_MS: u64 = 600_000;
/// Long enough to be felt at a terminal, within the service's timeout.
const DEFAULT_DELAY_MS: u64 = 5_000;

/// A way to break.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Fault {
    /// It works.
    #[default]
    None,
    /// Waits before it charges. The charge is made afterwards, even if the client gave up:
    /// what was unknown becomes true later.
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

/// How the provider breaks from now on: the body of `PUT /faults`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Faults {
    /// How many requests it strikes before all is well again; every one where absent.
    #[serde(default)]
    pub next: Option<u32>,
    /// The way to break.
    pub fault: Fault,
    /// How long [`Fault::Slow`] waits. Putting other faults ends the wait of those that are
    /// held, so that a test need not wait for time to pass.
    #[serde(default = "default_delay_ms")]
    pub delay_ms: u64,
    /// How likely a request is struck, from 0 to 1.
    #[serde(default = "always")]
    pub probability: f64,
}

impl Default for Faults {
    fn default() -> Self {
        Self::every(Fault::None)
    }
}

impl Faults {
    /// Every request is struck.
    pub fn every(fault: Fault) -> Self {
        Self {
            next: None,
            fault,
            delay_ms: DEFAULT_DELAY_MS,
            probability: always(),
        }
    }

    /// The next `count` requests are struck.
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

    /// What strikes one request.
    fn strike(&mut self) -> Fault {
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

/// Chance from the random end of a UUID: good enough to break things by, without a generator.
pub(super) fn happens(probability: f64) -> bool {
    let [.., a, b, c, d] = *Uuid::now_v7().as_bytes();
    let drawn = u32::from_be_bytes([a, b, c, d]);
    f64::from(drawn) < probability * (f64::from(u32::MAX) + 1.0)
}

/// A fault as a header names it: `decline`, `slow`, `slow:1500`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(super) fault: Fault,
    pub(super) delay_ms: u64,
}

impl Named {
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

/// What happens to one request, and how it would learn that this has been called off.
pub(super) struct Strike {
    pub(super) fault: Fault,
    delay: Duration,
    changes: watch::Receiver<Faults>,
}

impl Strike {
    /// Waits for the delay, or until other faults are put.
    pub(super) async fn hold(&mut self) {
        tokio::select! {
            () = tokio::time::sleep(self.delay) => {}
            _ = self.changes.changed() => {}
        }
    }
}

/// The faults in force.
pub(super) struct Switch(watch::Sender<Faults>);

impl Switch {
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

    /// Decides about one request. A fault named by the request itself uses up none of `next`.
    pub(super) fn strike(&self, named: Option<Named>) -> Strike {
        // Subscribed before deciding: faults put in between must still end the wait.
        let changes = self.0.subscribe();
        let mut decided = named;
        if decided.is_none() {
            self.0.send_if_modified(|faults| {
                decided = Some(Named {
                    fault: faults.strike(),
                    delay_ms: faults.delay_ms,
                });
                // Counting down is no change that should end a wait.
                false
            });
        }
        let decided = decided.unwrap_or(Named {
            fault: Fault::None,
            delay_ms: 0,
        });
        Strike {
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
    fn a_count_is_used_up() {
        let switch = Switch::new(Faults::next(2, Fault::Decline));
        let struck: Vec<Fault> = (0..3).map(|_| switch.strike(None).fault).collect();
        assert_eq!(struck, [Fault::Decline, Fault::Decline, Fault::None]);
        assert_eq!(switch.current().next, Some(0));
    }

    #[test]
    fn a_named_fault_leaves_the_count_alone() {
        let switch = Switch::new(Faults::next(1, Fault::Decline));
        let named = Named::parse("reset_before");
        assert_eq!(switch.strike(named).fault, Fault::ResetBefore);
        assert_eq!(switch.strike(None).fault, Fault::Decline);
    }

    #[test]
    fn probability_is_between_never_and_always() {
        assert!((0..1000).all(|_| happens(1.0)));
        assert!(!(0..1000).any(|_| happens(0.0)));
        let half = (0..1000).filter(|_| happens(0.5)).count();
        assert!((300..700).contains(&half), "{half} of 1000");
    }

    #[test]
    fn headers_name_faults() {
        let slow = Named::parse("slow:1500").expect("a fault");
        assert_eq!((slow.fault, slow.delay_ms), (Fault::Slow, 1500));
        assert_eq!(
            Named::parse("error_503").expect("a fault").fault,
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
            assert_eq!(Named::parse(wrong), None, "{wrong:?}");
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

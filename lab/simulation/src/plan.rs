//! The plan that is drawn from a seed before anything happens.

use std::time::Duration;

use semel_core::key::Dialect;
use semel_core::{OnExpired, Windows};
use semel_http::InFlight;

use crate::rng::Rng;

/// The operation whose provider supports keys: the same call twice is one effect.
pub(crate) const PAY: &str = "create_payment";

/// The operation whose provider has no keys: every call is an effect.
pub(crate) const TRANSFER: &str = "create_transfer";

/// The operation with phases, whose provider has no keys either: another attempt resumes it, and the
/// call must still be made once.
pub(crate) const BOOK: &str = "create_booking";

/// How long an operation with phases waits to be resumed.
pub(crate) const RESUME_WITHIN: Duration = Duration::from_secs(15);

/// The path of an operation.
pub(crate) fn path_of(command: &str) -> &'static str {
    match command {
        PAY => "/payments",
        BOOK => "/bookings",
        _ => "/transfers",
    }
}

/// The operation of a path.
pub(crate) fn command_of(path: &str) -> &'static str {
    let all = [PAY, BOOK, TRANSFER];
    all.into_iter()
        .find(|command| path_of(command) == path)
        .unwrap_or(TRANSFER)
}

/// The longest delay of a late call or a stopped process. Retention windows are longer: a provider or
/// a store that is hours late is beyond what Semel guarantees.
pub(crate) const LATEST: Duration = Duration::from_mins(1);

/// One request of a client, which should take effect once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Intent {
    pub(crate) tenant: &'static str,
    pub(crate) command: &'static str,
    pub(crate) key: &'static str,
    pub(crate) amount: u64,
}

/// How often a store call goes wrong, in a thousand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rates {
    pub(crate) fails: u64,
    pub(crate) lost: u64,
    pub(crate) late: u64,
    pub(crate) slow: u64,
}

/// The scenario of one seed.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) dialect: Dialect,
    pub(crate) in_flight: InFlight,
    pub(crate) lease: Duration,
    pub(crate) execute_max: Duration,
    pub(crate) store_patience: Duration,
    pub(crate) record_patience: Duration,
    pub(crate) windows: Windows,
    pub(crate) on_expired: OnExpired,
    pub(crate) cache_bytes: u64,
    pub(crate) gateways: usize,
    pub(crate) workers: usize,
    pub(crate) rates: Rates,
    /// How often the application misbehaves, in a thousand.
    pub(crate) app_faults: u64,
    /// How often a client reuses the key for another request, or gives up early, in a thousand.
    pub(crate) misuse: u64,
    pub(crate) disconnects: u64,
    /// The number of kills, stops and drains.
    pub(crate) process_faults: u64,
    /// How often a process is killed or stopped in the middle of an execution or a lookup, in a
    /// thousand.
    pub(crate) mishaps: u64,
    /// How long faults are injected.
    pub(crate) length: Duration,
    /// When many clients send the same request at once, in order.
    pub(crate) bursts: Vec<(Duration, Intent)>,
    pub(crate) clients: usize,
}

impl Plan {
    /// Draws the plan. Not every seed has every fault: some bugs show only without the other faults.
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        let lease = rng.millis(2000, 6000);
        let short = rng.in_thousand(250);
        // Short windows end while faults are still injected.
        let seconds = if short {
            rng.between(200, 400)
        } else {
            rng.between(20, 60)
        };
        let length = Duration::from_secs(seconds);
        let rate = |rng: &mut Rng, most: u64| rng.pick(0, &[most / 4, most]);
        let window = Duration::from_secs(if short { 150 } else { 24 * 3600 });
        let stripe = rng.in_thousand(250);
        let wait = InFlight::Wait {
            max: rng.millis(500, 4000),
        };
        Self {
            dialect: if stripe {
                Dialect::Stripe
            } else {
                Dialect::Ietf { lenient: true }
            },
            in_flight: rng.pick(InFlight::Reject, &[wait, wait, InFlight::Accept]),
            lease,
            execute_max: lease + rng.millis(1000, 8000),
            store_patience: rng.millis(500, 3000),
            record_patience: rng.millis(300, 2000),
            windows: Windows {
                replay: window,
                body: window,
                tombstone: rng.pick(Some(window), &[None]),
            },
            on_expired: rng.pick(OnExpired::Reject, &[OnExpired::Execute]),
            cache_bytes: rng.pick(0, &[1 << 20]),
            gateways: rng.index(3) + 1,
            workers: rng.index(2) + 1,
            rates: Rates {
                fails: rate(rng, 80),
                lost: rate(rng, 80),
                late: rate(rng, 120),
                slow: rate(rng, 60),
            },
            app_faults: rng.pick(0, &[150, 500]),
            misuse: rng.pick(0, &[150]),
            disconnects: rng.pick(0, &[100, 300]),
            process_faults: rng.pick(0, &[3, 8]),
            mishaps: rng.pick(0, &[60, 200]),
            length,
            bursts: bursts(rng, length),
            clients: rng.index(6) + 3,
        }
    }
}

/// Draws few keys, so that clients collide, sometimes on a record that is long finished; and the same
/// keys for both tenants.
fn bursts(rng: &mut Rng, length: Duration) -> Vec<(Duration, Intent)> {
    let count = rng.between(2, 10);
    let mut bursts: Vec<_> = (0..count)
        .map(|_| {
            let at = rng.millis(0, u64::try_from(length.as_millis()).unwrap_or(0));
            let intent = Intent {
                tenant: rng.pick("acme", &["globex"]),
                command: rng.pick(TRANSFER, &[PAY, BOOK]),
                key: rng.pick(
                    "key-0000000000000",
                    &["key-0000000000001", "key-0000000000002"],
                ),
                // Mostly the same: another amount with the same key is misuse.
                amount: rng.pick(100, &[100, 100, 200]),
            };
            (at, intent)
        })
        .collect();
    bursts.sort();
    bursts
}

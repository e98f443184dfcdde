//! What a seed decides before anything happens.

use std::time::Duration;

use semel_core::key::Dialect;
use semel_core::{OnExpired, Windows};
use semel_http::InFlight;

use crate::rng::Rng;

/// The command whose provider knows a key: the same call twice is one effect.
pub(crate) const PAY: &str = "create_payment";

/// The command whose provider does whatever it is told, as often as it is told.
pub(crate) const TRANSFER: &str = "create_transfer";

/// The command that is made of phases, and whose provider does what it is told, too: a silent
/// owner's work is resumed, and the call must still be made once.
pub(crate) const BOOK: &str = "create_booking";

/// How long an operation made of phases waits for somebody who resumes it.
pub(crate) const RESUME_WITHIN: Duration = Duration::from_secs(15);

/// Where a command is sent to.
pub(crate) fn path_of(command: &str) -> &'static str {
    match command {
        PAY => "/payments",
        BOOK => "/bookings",
        _ => "/transfers",
    }
}

/// The command that is sent there.
pub(crate) fn command_of(path: &str) -> &'static str {
    let all = [PAY, BOOK, TRANSFER];
    all.into_iter()
        .find(|command| path_of(command) == path)
        .unwrap_or(TRANSFER)
}

/// How late anything may still come: a call that lands late, a process that was paused.
/// Windows are longer, since a provider and a store that are hours late are beyond any promise.
pub(crate) const LATEST: Duration = Duration::from_mins(1);

/// What a client wants, once.
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

/// One seed's world.
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
    /// How often a client sends something else under the key, or gives up early, in a thousand.
    pub(crate) misuse: u64,
    pub(crate) disconnects: u64,
    /// How much is killed, stopped and drained, at any time.
    pub(crate) blows: u64,
    /// How often a process is killed or stopped in the middle of an execution or of a look, in a
    /// thousand.
    pub(crate) mishaps: u64,
    /// How long there are faults.
    pub(crate) length: Duration,
    /// When many clients come at once, and what for, in order.
    pub(crate) storms: Vec<(Duration, Intent)>,
    pub(crate) clients: usize,
}

impl Plan {
    /// Not every seed has every fault: what never fails together with something else hides bugs.
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        let lease = rng.millis(2000, 6000);
        let short = rng.in_thousand(250);
        // Where windows are short they end while there still are faults.
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
            blows: rng.pick(0, &[3, 8]),
            mishaps: rng.pick(0, &[60, 200]),
            length,
            storms: storms(rng, length),
            clients: rng.index(6) + 3,
        }
    }
}

/// Few keys, so that clients meet, now and then over something long past; and the same keys in
/// both tenants.
fn storms(rng: &mut Rng, length: Duration) -> Vec<(Duration, Intent)> {
    let count = rng.between(2, 10);
    let mut storms: Vec<_> = (0..count)
        .map(|_| {
            let at = rng.millis(0, u64::try_from(length.as_millis()).unwrap_or(0));
            let intent = Intent {
                tenant: rng.pick("acme", &["globex"]),
                command: rng.pick(TRANSFER, &[PAY, BOOK]),
                key: rng.pick(
                    "key-0000000000000",
                    &["key-0000000000001", "key-0000000000002"],
                ),
                // Mostly the same: something else under the same key is misuse.
                amount: rng.pick(100, &[100, 100, 200]),
            };
            (at, intent)
        })
        .collect();
    storms.sort();
    storms
}

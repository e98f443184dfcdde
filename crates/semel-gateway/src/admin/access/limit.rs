//! How often somebody may be wrong.
//!
//! What is limited is presenting a *wrong* token, by peer and in all. A right bearer token always
//! passes: peers share addresses behind a proxy, and a limit that counted against an address as
//! such would let anybody lock the operator out, which during an incident is worse than guessing.
//! So the limit does not make a short token safe; a token is long and random, and a short one is
//! warned about at start. It makes guessing slow by the form, and visible in the log without
//! filling it.
//!
//! The form is refused while its peer's attempts are used up, right or wrong: it is made for
//! people, who can wait a minute or use the API. Who is logged in already is not touched.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};

use semel_core::Timestamp;

/// Wrong tokens of one peer within a minute: somebody who mistypes needs fewer.
pub(super) const PER_PEER: u32 = 5;

/// Wrong tokens of all peers within a minute: many addresses are cheap to have.
pub(super) const IN_ALL: u32 = 100;

/// Peers that are remembered. More cannot be wrong within the minute that a bucket takes to fill,
/// so this is a bound that is never reached rather than one that forgets.
const MAX_PEERS: usize = 4 * IN_ALL as usize;

const MINUTE_MICROS: i64 = 60_000_000;

/// Attempts that are left, as a bucket that fills evenly.
#[derive(Clone, Copy)]
struct Bucket {
    /// In attempts times microseconds of a minute, so that whole numbers are exact.
    level: i64,
    at: Timestamp,
}

impl Bucket {
    fn full(most: u32, now: Timestamp) -> Self {
        let level = i64::from(most) * MINUTE_MICROS;
        Self { level, at: now }
    }

    fn fill(&mut self, most: u32, now: Timestamp) {
        // A clock that goes back fills nothing, and takes nothing away.
        let passed = now.as_micros().saturating_sub(self.at.as_micros());
        let passed = passed.clamp(0, MINUTE_MICROS);
        let full = i64::from(most) * MINUTE_MICROS;
        self.level = (self.level + passed * i64::from(most)).min(full);
        self.at = now;
    }

    /// Seconds until there is one, if there is none.
    fn wait(&self, most: u32) -> Option<u64> {
        let missing = u64::try_from(MINUTE_MICROS - self.level).unwrap_or_default();
        (missing > 0).then(|| missing.div_ceil(u64::from(most) * 1_000_000))
    }
}

/// The attempts of everybody.
pub(super) struct Limit(Mutex<Buckets>);

struct Buckets {
    all: Bucket,
    peers: HashMap<IpAddr, Bucket>,
}

/// Too often: try again after so many seconds.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooOften {
    pub(super) retry_after_seconds: u64,
}

impl Limit {
    pub(super) fn new(now: Timestamp) -> Self {
        Self(Mutex::new(Buckets {
            all: Bucket::full(IN_ALL, now),
            peers: HashMap::new(),
        }))
    }

    /// Takes an attempt. Before the token is looked at, so that requests side by side cannot all
    /// have the last one.
    pub(super) fn take(&self, peer: IpAddr, now: Timestamp) -> Result<(), TooOften> {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Buckets { all, peers } = &mut *buckets;
        let peer = network(peer);
        if peers.len() >= MAX_PEERS && !peers.contains_key(&peer) {
            peers.retain(|_, bucket| {
                bucket.fill(PER_PEER, now);
                bucket.level < i64::from(PER_PEER) * MINUTE_MICROS
            });
        }
        all.fill(IN_ALL, now);
        let fresh = Bucket::full(PER_PEER, now);
        let mut own = peers.get(&peer).copied().unwrap_or(fresh);
        own.fill(PER_PEER, now);
        let wait = own.wait(PER_PEER).max(all.wait(IN_ALL));
        let full = peers.len() >= MAX_PEERS && !peers.contains_key(&peer);
        if let Some(retry_after_seconds) = wait.or(full.then_some(60)) {
            return Err(TooOften {
                retry_after_seconds,
            });
        }
        all.level -= MINUTE_MICROS;
        own.level -= MINUTE_MICROS;
        peers.insert(peer, own);
        Ok(())
    }

    /// The attempt was right, and does not count.
    pub(super) fn give_back(&self, peer: IpAddr) {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        buckets.all.level += MINUTE_MICROS;
        if let Some(own) = buckets.peers.get_mut(&network(peer)) {
            own.level += MINUTE_MICROS;
        }
    }
}

/// What one peer has: an IPv4 address, or the 64 bits of an IPv6 network, within which addresses
/// are free.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from(network))
        }
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(7).saturating_add(Duration::from_secs(seconds))
    }

    fn peer(number: u32) -> IpAddr {
        IpAddr::V4(number.into())
    }

    #[test]
    fn a_peer_is_wrong_five_times_a_minute() {
        let limit = Limit::new(at(0));
        for _ in 0..PER_PEER {
            assert_eq!(limit.take(peer(1), at(0)), Ok(()));
        }
        let refused = limit.take(peer(1), at(0)).unwrap_err();
        assert_eq!(refused.retry_after_seconds, 12);
        assert_eq!(limit.take(peer(2), at(0)), Ok(()), "another peer");
        assert!(limit.take(peer(1), at(11)).is_err());
        assert_eq!(limit.take(peer(1), at(12)), Ok(()));
        assert!(limit.take(peer(1), at(12)).is_err());
        for _ in 0..PER_PEER {
            assert_eq!(limit.take(peer(1), at(1000)), Ok(()));
        }
        assert!(limit.take(peer(1), at(1000)).is_err(), "it is no deeper");
    }

    #[test]
    fn a_right_one_does_not_count() {
        let limit = Limit::new(at(0));
        for _ in 0..10 * IN_ALL {
            assert_eq!(limit.take(peer(1), at(0)), Ok(()));
            limit.give_back(peer(1));
        }
    }

    #[test]
    fn all_together_are_limited_and_remembered_within_bounds() {
        let limit = Limit::new(at(0));
        for number in 0..IN_ALL {
            assert_eq!(limit.take(peer(number), at(0)), Ok(()));
        }
        assert!(limit.take(peer(IN_ALL), at(0)).is_err());
        for minute in 1..50 {
            for number in 0..2 * IN_ALL {
                let _ = limit.take(peer(minute * 1000 + number), at(u64::from(minute) * 60));
            }
            assert!(limit.0.lock().unwrap().peers.len() <= MAX_PEERS);
        }
        assert!(limit.0.lock().unwrap().peers.len() > 1);
    }

    #[test]
    fn a_network_is_one_peer() {
        let limit = Limit::new(at(0));
        for number in 0..PER_PEER {
            let address = format!("2001:db8:0:1::{number:x}");
            assert_eq!(limit.take(address.parse().unwrap(), at(0)), Ok(()));
        }
        let address = |text: &str| text.parse().unwrap();
        assert!(limit.take(address("2001:db8:0:1:ffff::"), at(0)).is_err());
        assert!(limit.take(address("2001:db8:0:2::"), at(0)).is_ok());
        for _ in 0..PER_PEER {
            assert!(limit.take(address("::ffff:192.0.2.1"), at(0)).is_ok());
        }
        assert!(limit.take(address("192.0.2.1"), at(0)).is_err());
    }

    #[test]
    fn a_clock_that_goes_back_gives_nothing() {
        let limit = Limit::new(at(100));
        for _ in 0..PER_PEER {
            assert_eq!(limit.take(peer(1), at(100)), Ok(()));
        }
        assert!(limit.take(peer(1), at(0)).is_err());
        assert!(limit.take(peer(1), at(1)).is_err());
    }
}

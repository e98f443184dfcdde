//! Rate limit of wrong tokens, per peer and in total.
//!
//! A right bearer token always passes. Peers behind a proxy share an address, and a limit on the
//! address itself would let an attacker lock operators out, which during an incident is worse than
//! guessing. So the limit does not make a short token safe (a short one causes a warning at start);
//! it slows down guessing at the login form, and bounds what guessing writes to the log.
//!
//! The login form is refused while the peer has no attempts left, even with the right token: people
//! can wait a minute or use the API. Existing sessions are not affected.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};

use semel_core::Timestamp;

/// Wrong tokens per peer and minute; enough for typing errors.
pub(super) const PER_PEER: u32 = 5;

/// Wrong tokens of all peers per minute: addresses are cheap.
pub(super) const IN_TOTAL: u32 = 100;

/// Tracked peers. The total limit admits fewer per minute, the time a bucket takes to refill, so
/// this bound is not reached in practice.
const MAX_PEERS: usize = 4 * IN_TOTAL as usize;

const MINUTE_MICROS: i64 = 60_000_000;

/// A token bucket.
#[derive(Clone, Copy)]
struct Bucket {
    /// Attempts times the microseconds of a minute, so that integers are exact.
    level: i64,
    at: Timestamp,
}

impl Bucket {
    fn full(capacity: u32, now: Timestamp) -> Self {
        let level = i64::from(capacity) * MINUTE_MICROS;
        Self { level, at: now }
    }

    fn refill(&mut self, capacity: u32, now: Timestamp) {
        // A clock that goes back neither adds nor removes attempts.
        let passed = now.as_micros().saturating_sub(self.at.as_micros());
        let passed = passed.clamp(0, MINUTE_MICROS);
        let full = i64::from(capacity) * MINUTE_MICROS;
        self.level = (self.level + passed * i64::from(capacity)).min(full);
        self.at = now;
    }

    /// Seconds until the next attempt; `None` if one is available.
    fn wait_seconds(&self, capacity: u32) -> Option<u64> {
        let missing = u64::try_from(MINUTE_MICROS - self.level).unwrap_or_default();
        (missing > 0).then(|| missing.div_ceil(u64::from(capacity) * 1_000_000))
    }
}

/// The attempts of all peers.
pub(super) struct TokenRateLimit(Mutex<Buckets>);

struct Buckets {
    all: Bucket,
    peers: HashMap<IpAddr, Bucket>,
}

/// No attempt is left.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RateLimited {
    pub(super) retry_after_seconds: u64,
}

impl TokenRateLimit {
    pub(super) fn new(now: Timestamp) -> Self {
        Self(Mutex::new(Buckets {
            all: Bucket::full(IN_TOTAL, now),
            peers: HashMap::new(),
        }))
    }

    /// Takes an attempt. Called before the token is compared, so that concurrent requests cannot
    /// share the last one.
    pub(super) fn take(&self, peer: IpAddr, now: Timestamp) -> Result<(), RateLimited> {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Buckets { all, peers } = &mut *buckets;
        let peer = peer_key(peer);
        if peers.len() >= MAX_PEERS && !peers.contains_key(&peer) {
            peers.retain(|_, bucket| {
                bucket.refill(PER_PEER, now);
                bucket.level < i64::from(PER_PEER) * MINUTE_MICROS
            });
        }
        all.refill(IN_TOTAL, now);
        let new = Bucket::full(PER_PEER, now);
        let mut bucket = peers.get(&peer).copied().unwrap_or(new);
        bucket.refill(PER_PEER, now);
        let wait = bucket
            .wait_seconds(PER_PEER)
            .max(all.wait_seconds(IN_TOTAL));
        let full = peers.len() >= MAX_PEERS && !peers.contains_key(&peer);
        if let Some(retry_after_seconds) = wait.or(full.then_some(60)) {
            return Err(RateLimited {
                retry_after_seconds,
            });
        }
        all.level -= MINUTE_MICROS;
        bucket.level -= MINUTE_MICROS;
        peers.insert(peer, bucket);
        Ok(())
    }

    /// Returns an attempt: the token was right.
    pub(super) fn give_back(&self, peer: IpAddr) {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        buckets.all.level += MINUTE_MICROS;
        if let Some(bucket) = buckets.peers.get_mut(&peer_key(peer)) {
            bucket.level += MINUTE_MICROS;
        }
    }
}

/// The key of a peer: its IPv4 address, or its IPv6 /64, within which addresses are free.
fn peer_key(peer: IpAddr) -> IpAddr {
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
    fn the_sixth_wrong_token_of_a_peer_within_a_minute_is_refused() {
        let limit = TokenRateLimit::new(at(0));
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
        assert!(
            limit.take(peer(1), at(1000)).is_err(),
            "the bucket holds no more"
        );
    }

    #[test]
    fn a_returned_attempt_does_not_count() {
        let limit = TokenRateLimit::new(at(0));
        for _ in 0..10 * IN_TOTAL {
            assert_eq!(limit.take(peer(1), at(0)), Ok(()));
            limit.give_back(peer(1));
        }
    }

    #[test]
    fn the_total_limit_holds_and_tracked_peers_are_bounded() {
        let limit = TokenRateLimit::new(at(0));
        for number in 0..IN_TOTAL {
            assert_eq!(limit.take(peer(number), at(0)), Ok(()));
        }
        assert!(limit.take(peer(IN_TOTAL), at(0)).is_err());
        for minute in 1..50 {
            for number in 0..2 * IN_TOTAL {
                let _ = limit.take(peer(minute * 1000 + number), at(u64::from(minute) * 60));
            }
            assert!(limit.0.lock().unwrap().peers.len() <= MAX_PEERS);
        }
        assert!(limit.0.lock().unwrap().peers.len() > 1);
    }

    #[test]
    fn an_ipv6_64_network_is_one_peer() {
        let limit = TokenRateLimit::new(at(0));
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
    fn a_clock_that_goes_back_adds_no_attempts() {
        let limit = TokenRateLimit::new(at(100));
        for _ in 0..PER_PEER {
            assert_eq!(limit.take(peer(1), at(100)), Ok(()));
        }
        assert!(limit.take(peer(1), at(0)).is_err());
        assert!(limit.take(peer(1), at(1)).is_err());
    }
}

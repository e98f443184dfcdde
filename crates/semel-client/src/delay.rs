//! How long to wait before the next request.

use std::time::{Duration, UNIX_EPOCH};

use http::HeaderMap;
use http::header::RETRY_AFTER;
use semel_core::Timestamp;

use crate::profile::{Backoff, RetryAfter};

impl Backoff {
    /// Delay number `nth` from 0. `random` is between 0 and 1.
    pub fn delay(&self, nth: u32, random: f64) -> Duration {
        let factor = 2_u32.checked_pow(nth).unwrap_or(u32::MAX);
        let bound = self.base.saturating_mul(factor).min(self.cap);
        let share = self.fixed + (1.0 - self.fixed) * random.clamp(0.0, 1.0);
        bound.mul_f64(share.clamp(0.0, 1.0)).max(self.floor)
    }
}

impl RetryAfter {
    /// What a response asks for, within the bound; `None` without a readable header.
    pub fn read(self, headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
        let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
        let seconds = || {
            let all_digits = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
            // More digits than a u64 has are a long time, and no error.
            all_digits.then(|| value.parse().unwrap_or(u64::MAX))
        };
        match self {
            Self::UpTo(bound) => {
                let asked = match seconds() {
                    Some(seconds) => Duration::from_secs(seconds),
                    None => until(http_date(value)?, now),
                };
                Some(asked.min(bound))
            }
            Self::SecondsUnlessOver(bound) => seconds()
                .map(Duration::from_secs)
                .filter(|asked| *asked <= bound),
        }
    }
}

/// An HTTP date.
pub(crate) fn http_date(value: &str) -> Option<Timestamp> {
    let date = httpdate::parse_http_date(value).ok()?;
    let since_epoch = date.duration_since(UNIX_EPOCH).unwrap_or_default();
    Some(Timestamp::from_micros(0).saturating_add(since_epoch))
}

/// The time from `now` to `then`; zero if that has passed.
pub(crate) fn until(then: Timestamp, now: Timestamp) -> Duration {
    let micros = then.as_micros().saturating_sub(now.as_micros());
    Duration::from_micros(u64::try_from(micros).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Profile;

    #[test]
    fn full_jitter_reaches_from_zero_to_the_bound() {
        let backoff = Profile::ietf().backoff;
        assert_eq!(backoff.delay(0, 0.0), Duration::ZERO);
        assert_eq!(backoff.delay(1, 0.5), Duration::from_millis(500));
        assert_eq!(backoff.delay(100, 1.0), Duration::from_secs(8));
    }

    #[test]
    fn stripes_jitter_keeps_half_and_half_a_second() {
        let backoff = Profile::stripe().backoff;
        assert_eq!(backoff.delay(0, 0.0), Duration::from_millis(500));
        assert_eq!(backoff.delay(2, 0.0), Duration::from_secs(1));
        assert_eq!(backoff.delay(9, 1.0), Duration::from_secs(5));
    }

    #[test]
    fn a_retry_after_beyond_any_number_is_bounded() {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, "99999999999999999999999".parse().unwrap());
        let now = Timestamp::from_micros(0);
        let ietf = Profile::ietf().retry_after;
        assert_eq!(ietf.read(&headers, now), Some(Duration::from_mins(5)));
        assert_eq!(Profile::stripe().retry_after.read(&headers, now), None);
    }
}

//! Timestamps of RFC 3339, as instants.
//!
//! Strict: a text that two parsers could read differently is not a timestamp here. A leap second is
//! not one either, since most servers read it as another instant.

use serde::{Deserialize, Serialize};

/// How much of a timestamp counts. The rest is cut off, towards the past.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// Whole minutes.
    Minute,
    /// Whole seconds.
    Second,
    /// Thousandths of a second.
    Millisecond,
    /// Millionths of a second.
    Microsecond,
}

impl Precision {
    /// All four, coarsest first.
    pub const ALL: [Self; 4] = [
        Self::Minute,
        Self::Second,
        Self::Millisecond,
        Self::Microsecond,
    ];

    /// As written in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Minute => "minute",
            Self::Second => "second",
            Self::Millisecond => "millisecond",
            Self::Microsecond => "microsecond",
        }
    }

    const fn micros(self) -> i64 {
        match self {
            Self::Minute => 60_000_000,
            Self::Second => 1_000_000,
            Self::Millisecond => 1_000,
            Self::Microsecond => 1,
        }
    }
}

/// The instant of a timestamp, in whole units of the precision since 1970. `None` where the text
/// is not a timestamp.
pub(super) fn parse(text: &[u8], precision: Precision) -> Option<i64> {
    let mut rest = text;
    let year = digits(&mut rest, 4)?;
    literal(&mut rest, b"-")?;
    let month = digits(&mut rest, 2)?;
    literal(&mut rest, b"-")?;
    let day = digits(&mut rest, 2)?;
    literal(&mut rest, b"Tt")?;
    let hour = digits(&mut rest, 2)?;
    literal(&mut rest, b":")?;
    let minute = digits(&mut rest, 2)?;
    literal(&mut rest, b":")?;
    let second = digits(&mut rest, 2)?;
    let micros = match rest.strip_prefix(b".") {
        Some(fraction) => {
            rest = fraction;
            micros(&mut rest)?
        }
        None => 0,
    };
    let offset = offset_minutes(&mut rest)?;
    let valid = (1..=12).contains(&month)
        && (1..=days_in_month(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60
        && rest.is_empty();
    if !valid {
        return None;
    }
    let days = days_before_year(year) + days_before_month(year, month) + day - 1;
    let minutes = (days - DAYS_TO_1970) * 24 * 60 + hour * 60 + minute - offset;
    let instant = (minutes * 60 + second) * 1_000_000 + micros;
    Some(instant.div_euclid(precision.micros()))
}

/// From the first day of the year 0 to that of 1970.
const DAYS_TO_1970: i64 = 719_528;

fn days_before_year(year: i64) -> i64 {
    // The years 0, 4, 8 … before this one are leap years, except some that begin a century.
    let leap = (year + 3) / 4 - (year + 99) / 100 + (year + 399) / 400;
    year * 365 + leap
}

fn days_before_month(year: i64, month: i64) -> i64 {
    (1..month).map(|month| days_in_month(year, month)).sum()
}

fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

/// `Z`, or the difference to UTC.
fn offset_minutes(rest: &mut &[u8]) -> Option<i64> {
    match literal(rest, b"Zz+-")? {
        b'Z' | b'z' => Some(0),
        sign => {
            let hours = digits(rest, 2)?;
            literal(rest, b":")?;
            let minutes = digits(rest, 2)?;
            let offset = hours * 60 + minutes;
            let valid = hours < 24 && minutes < 60;
            valid.then_some(if sign == b'-' { -offset } else { offset })
        }
    }
}

/// Any number of digits, of which the first six count.
fn micros(rest: &mut &[u8]) -> Option<i64> {
    let length = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (fraction, after) = rest.split_at(length);
    *rest = after;
    let digit = |at| fraction.get(at).map_or(0, |byte| i64::from(byte - b'0'));
    (length > 0).then(|| (0..6).fold(0, |micros, at| micros * 10 + digit(at)))
}

fn digits(rest: &mut &[u8], count: usize) -> Option<i64> {
    let (number, after) = rest.split_at_checked(count)?;
    *rest = after;
    number.iter().try_fold(0, |number, byte| {
        byte.is_ascii_digit()
            .then(|| number * 10 + i64::from(byte - b'0'))
    })
}

/// One of these bytes.
fn literal(rest: &mut &[u8], any_of: &[u8]) -> Option<u8> {
    let (first, after) = rest.split_first()?;
    *rest = after;
    any_of.contains(first).then_some(*first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(text: &str) -> Option<i64> {
        parse(text.as_bytes(), Precision::Second)
    }

    #[test]
    fn known_instants() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1969-12-31T23:59:59Z", -1),
            ("2000-02-29T12:00:00Z", 951_825_600),
            ("2000-03-01T00:00:00Z", 951_868_800),
            ("2024-12-31T23:59:59Z", 1_735_689_599),
            ("2100-03-01T00:00:00Z", 4_107_542_400),
            ("0000-01-01T00:00:00Z", -62_167_219_200),
            ("9999-12-31T23:59:59Z", 253_402_300_799),
            ("1996-12-19T16:39:57-08:00", 851_042_397),
            ("1937-01-01T12:00:27.87+00:20", -1_041_337_173),
        ] {
            assert_eq!(second(text), Some(seconds), "{text}");
        }
    }

    #[test]
    fn equal_instants_have_many_spellings() {
        let instant = second("2026-11-18T02:03:04Z").unwrap();
        for text in [
            "2026-11-18t02:03:04z",
            "2026-11-18T02:03:04.999999999999Z",
            "2026-11-18T03:03:04+01:00",
            "2026-11-17T20:33:04-05:30",
            "2026-11-18T02:03:04-00:00",
        ] {
            assert_eq!(second(text), Some(instant), "{text}");
        }
        assert_ne!(second("2026-11-18T02:03:05Z"), Some(instant));
    }

    #[test]
    fn the_precision_cuts_towards_the_past() {
        for (precision, units) in [
            (Precision::Minute, -1),
            (Precision::Second, -2),
            (Precision::Millisecond, -1_500),
            (Precision::Microsecond, -1_499_999),
        ] {
            let found = parse(b"1969-12-31T23:59:58.500001999Z", precision);
            assert_eq!(found, Some(units), "{precision:?}");
        }
    }

    #[test]
    fn everything_else_is_not_a_timestamp() {
        for text in [
            "",
            "2026-11-18",
            "2026-11-18T02:03:04",
            "2026-11-18 02:03:04Z",
            "2026-11-18T02:03Z",
            "2026-11-18T02:03:04,5Z",
            "2026-11-18T02:03:04.Z",
            "2026-11-18T02:03:04Z ",
            "2026-11-18T02:03:04+0100",
            "2026-11-18T02:03:04+24:00",
            "2026-11-18T02:03:04+01:60",
            "2026-11-18T24:00:00Z",
            "2026-11-18T02:60:00Z",
            "2016-12-31T23:59:60Z",
            "2026-00-18T02:03:04Z",
            "2026-13-18T02:03:04Z",
            "2026-11-00T02:03:04Z",
            "2026-11-31T02:03:04Z",
            "2026-02-29T02:03:04Z",
            "2100-02-29T02:03:04Z",
            "+026-11-18T02:03:04Z",
            "20261118T020304Z",
            "\u{661}026-11-18T02:03:04Z",
        ] {
            assert_eq!(second(text), None, "{text}");
        }
    }
}

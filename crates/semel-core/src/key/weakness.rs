//! Keys that another request could have, or that say something about a person.

use std::fmt;

use super::Key;

/// The most digits of a key that counts as a counter. Longer numbers may be random.
const COUNTER_DIGITS: usize = 12;

/// Unix times from September 2001 to January 2065, in seconds. Card numbers of 13 digits begin
/// with a 4, so that they are not taken for milliseconds.
const UNIX_SECONDS: std::ops::Range<u64> = 1_000_000_000..3_000_000_000;

/// Why a key is weak.
///
/// Two clients, or two operations of one client, may come upon the same counter or timestamp: the
/// second gets the first one's response, or a refusal. Addresses and card numbers are personal
/// data, which keys are not handled as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weakness {
    /// It contains an e-mail address.
    Email,
    /// A card number: 13 to 19 digits with a valid check digit.
    CardNumber,
    /// A Unix time, or a date and time of ISO 8601.
    Timestamp,
    /// A number of a few digits.
    Counter,
}

impl Weakness {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Email,
        Self::CardNumber,
        Self::Timestamp,
        Self::Counter,
    ];

    /// The weakness of a key, if it has one.
    pub fn of(key: &Key) -> Option<Self> {
        let text = key.as_str();
        if contains_email(text) {
            return Some(Self::Email);
        }
        if is_timestamp(text) {
            return Some(Self::Timestamp);
        }
        if is_card_number(text) {
            return Some(Self::CardNumber);
        }
        (all_digits(text) && text.len() <= COUNTER_DIGITS).then_some(Self::Counter)
    }

    /// As metrics label it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Email => "email",
            Self::CardNumber => "card_number",
            Self::Timestamp => "timestamp",
            Self::Counter => "counter",
        }
    }
}

/// As a message names it.
impl fmt::Display for Weakness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Email => "an e-mail address",
            Self::CardNumber => "a card number",
            Self::Timestamp => "a timestamp",
            Self::Counter => "a counter",
        })
    }
}

fn all_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn contains_email(text: &str) -> bool {
    text.match_indices('@').any(|(at, _)| {
        let local = text[..at].bytes().next_back();
        let domain = &text[at + 1..];
        let end = domain
            .find(|c: char| !c.is_ascii_alphanumeric() && !".-".contains(c))
            .unwrap_or(domain.len());
        let mut labels = domain[..end].split('.');
        local.is_some_and(|byte| byte.is_ascii_alphanumeric() || b"._%+-".contains(&byte))
            && labels.clone().count() >= 2
            && labels.all(|label| !label.is_empty())
    })
}

fn is_timestamp(text: &str) -> bool {
    let unix = |divisor: u64| {
        let number: Option<u64> = text.parse().ok();
        number.is_some_and(|number| UNIX_SECONDS.contains(&(number / divisor)))
    };
    if all_digits(text) {
        return match text.len() {
            8 => is_date(text),
            10 => unix(1),
            13 => unix(1000),
            _ => false,
        };
    }
    // A date, then a time with its zone: nothing but digits and these.
    let separators = |c: char| "-:.,+TtZz ".contains(c);
    if !text.chars().all(|c| c.is_ascii_digit() || separators(c)) {
        return false;
    }
    let (date, time) = text.split_at(text.find(['T', 't', ' ']).unwrap_or(text.len()));
    let date = match date.len() {
        10 if date[4..5] == *"-" && date[7..8] == *"-" => date.replace('-', ""),
        8 => date.to_owned(),
        _ => return false,
    };
    is_date(&date) && (time.is_empty() || time[1..].starts_with(|c: char| c.is_ascii_digit()))
}

/// Whether eight digits are a day of this or the last century.
fn is_date(digits: &str) -> bool {
    all_digits(digits)
        && digits.len() == 8
        && ["19", "20"].contains(&&digits[..2])
        && ("01"..="12").contains(&&digits[4..6])
        && ("01"..="31").contains(&&digits[6..])
}

/// Digits, in groups or not, that Luhn's check digit fits.
fn is_card_number(text: &str) -> bool {
    if !text
        .bytes()
        .all(|byte| byte.is_ascii_digit() || b" -".contains(&byte))
    {
        return false;
    }
    let digits = || text.bytes().filter(u8::is_ascii_digit);
    let sum: u32 = digits()
        .rev()
        .enumerate()
        .map(|(place, digit)| {
            let digit = u32::from(digit - b'0');
            match (place % 2, digit * 2) {
                (0, _) => digit,
                (_, doubled) if doubled > 9 => doubled - 9,
                (_, doubled) => doubled,
            }
        })
        .sum();
    (13..=19).contains(&digits().count()) && sum > 0 && sum.is_multiple_of(10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weak_keys_are_recognised() {
        for (key, weakness) in [
            ("alice@example.com", Weakness::Email),
            ("pay:alice+shop@mail.example.co.uk:7", Weakness::Email),
            ("4111111111111111", Weakness::CardNumber),
            ("4111 1111 1111 1111", Weakness::CardNumber),
            ("3782-822463-10005", Weakness::CardNumber),
            ("4222222222222", Weakness::CardNumber),
            ("6304000000000000000", Weakness::CardNumber),
            ("1763430000", Weakness::Timestamp),
            ("1763430000123", Weakness::Timestamp),
            ("2026-11-18", Weakness::Timestamp),
            ("20261118", Weakness::Timestamp),
            ("2026-11-18T02:00:00Z", Weakness::Timestamp),
            ("2026-11-18 02:00:00.123+01:00", Weakness::Timestamp),
            ("20261118T020000Z", Weakness::Timestamp),
            ("0", Weakness::Counter),
            ("42", Weakness::Counter),
            ("000000001234", Weakness::Counter),
            ("20261399", Weakness::Counter),
        ] {
            assert_eq!(
                Weakness::of(&Key::new(key).unwrap()),
                Some(weakness),
                "{key}"
            );
        }
    }

    #[test]
    fn other_keys_are_not_weak() {
        for key in [
            "8e03978e-40d5-43dd-bc93-6894a57f9324",
            "00000000-0000-4000-8000-000000000000",
            "order-1001",
            "2026-11-18-order-7",
            "2026-13-18T02:00:00Z",
            "2026-11-18T",
            "1234567890123456",
            "4111111111111112",
            "0000000000000000",
            "12345678901234567890",
            "9999999999999",
            "a@b",
            "@example.com",
            "user@.com",
            "user@example..com",
            "-",
        ] {
            assert_eq!(Weakness::of(&Key::new(key).unwrap()), None, "{key}");
        }
    }
}

//! Durations and sizes, as people write them. One number, one unit: `90m`, not `1h30m`.

use std::time::Duration;

/// The longest duration. A century is a slip of the finger, and sums of several still fit the
/// microseconds of a timestamp.
pub const MAX_DURATION: Duration = Duration::from_hours(100 * 365 * 24);

/// Milliseconds per unit, longest first.
const DURATIONS: [(&str, u64); 5] = [
    ("d", 24 * 60 * 60 * 1000),
    ("h", 60 * 60 * 1000),
    ("m", 60 * 1000),
    ("s", 1000),
    ("ms", 1),
];

/// Bytes per unit. `KB` is written by many who mean `kB`.
const SIZES: [(&str, u64); 8] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
];

/// Reads `30s`, `5m`, `24h`, `30d` or `100ms`.
///
/// ```
/// # use std::time::Duration;
/// # use semel_gateway::config::duration;
/// assert_eq!(duration("5m"), Ok(Duration::from_mins(5)));
/// assert!(duration("30").is_err());
/// ```
///
/// # Errors
/// A message with the way out.
pub fn duration(text: &str) -> Result<Duration, String> {
    let advice = r#"write a whole number and a unit: "100ms", "30s", "5m", "24h" or "30d""#;
    let milliseconds = read(text, &DURATIONS)
        .map_err(|problem| format!("{text:?} is no duration: {problem}; {advice}"))?;
    let duration = Duration::from_millis(milliseconds);
    if duration > MAX_DURATION {
        return Err(format!("{text:?} is longer than a hundred years"));
    }
    Ok(duration)
}

/// Reads `8MiB`, `1KiB`, `512B` or `1MB` as bytes.
///
/// # Errors
/// A message with the way out.
pub fn size(text: &str) -> Result<u64, String> {
    let advice = r#"write a whole number and a unit: "512B", "1KiB", "8MiB" or "1MB""#;
    read(text, &SIZES).map_err(|problem| format!("{text:?} is no size: {problem}; {advice}"))
}

/// As [`duration`] would read it, in the longest unit that fits.
pub(super) fn spell(duration: Duration) -> String {
    let milliseconds = duration.as_millis();
    let (unit, each) = DURATIONS
        .iter()
        .find(|(_, each)| milliseconds.is_multiple_of(u128::from(*each)) && milliseconds > 0)
        .unwrap_or(&("s", 1000));
    format!("{}{unit}", milliseconds / u128::from(*each))
}

fn read(text: &str, units: &[(&str, u64)]) -> Result<u64, &'static str> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err("it does not begin with a digit");
    }
    if unit.is_empty() {
        return Err("it has no unit");
    }
    let each = units
        .iter()
        .find(|(name, _)| *name == unit)
        .map(|(_, each)| *each)
        .ok_or("the unit is unknown")?;
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(each))
        .ok_or("it is too large")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, milliseconds) in [
            ("100ms", 100),
            ("30s", 30_000),
            ("5m", 300_000),
            ("24h", 86_400_000),
            ("30d", 2_592_000_000),
            ("0s", 0),
            ("007s", 7000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(milliseconds)));
        }
        for text in [
            "",
            "30",
            "s",
            "-1s",
            "+1s",
            "1.5s",
            "1h30m",
            "30 s",
            " 30s",
            "30S",
            "30sec",
            "1w",
            "1_0s",
            "٣s",
            "99999999999999999999s",
            "36501d",
        ] {
            assert!(duration(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("8MiB", 8 << 20),
            ("1KiB", 1024),
            ("512B", 512),
            ("1MB", 1_000_000),
            ("1kB", 1_000),
            ("0B", 0),
        ] {
            assert_eq!(size(text), Ok(bytes));
        }
        for text in [
            "",
            "8",
            "MiB",
            "-1B",
            "1.5MiB",
            "8 MiB",
            "8mib",
            "8M",
            "99999999999GiB",
        ] {
            assert!(size(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn spelling_leads_back() {
        for text in ["100ms", "1500ms", "30s", "90m", "25h", "30d", "0s"] {
            assert_eq!(spell(duration(text).unwrap()), text);
        }
    }
}

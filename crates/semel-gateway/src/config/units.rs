//! Durations and sizes: one number and one unit, such as `90m` or `8MiB`.
//!
//! Why not `humantime` and `bytesize`: both accept more than the documentation promises, and some of
//! it is dangerous. `humantime` reads `1M` as a month beside `1m`, a minute; `bytesize` reads a
//! missing unit as bytes, and `8M` as decimal megabytes. Here each of these is an error that says
//! what to write.

use std::time::Duration;

/// Maximum duration. A century is certainly a typing error, and the sum of several still fits the
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

/// Bytes per unit. `KB` is a common spelling of `kB`.
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

/// Parses `30s`, `5m`, `24h`, `30d` or `100ms`.
///
/// ```
/// # use std::time::Duration;
/// # use semel_gateway::config::duration;
/// assert_eq!(duration("5m"), Ok(Duration::from_mins(5)));
/// assert_eq!(
///     duration("30").unwrap_err(),
///     r#"invalid duration "30": add a unit, for example "30s""#
/// );
/// ```
///
/// # Errors
/// A message that says what to write.
pub fn duration(text: &str) -> Result<Duration, String> {
    let invalid = |problem| format!("invalid duration {text:?}: {problem}");
    let milliseconds = parse(text, &DURATIONS, "s").map_err(invalid)?;
    let duration = Duration::from_millis(milliseconds);
    if duration > MAX_DURATION {
        return Err(invalid("the maximum is 100 years".to_owned()));
    }
    Ok(duration)
}

/// Parses `8MiB`, `1KiB`, `512B` or `1MB` as bytes.
///
/// # Errors
/// A message that says what to write.
pub fn size(text: &str) -> Result<u64, String> {
    parse(text, &SIZES, "MiB").map_err(|problem| format!("invalid size {text:?}: {problem}"))
}

/// Formats a duration as [`duration`] parses it, in the longest unit that fits.
pub(super) fn format_duration(duration: Duration) -> String {
    let milliseconds = duration.as_millis();
    let (unit, factor) = DURATIONS
        .iter()
        .find(|(_, factor)| milliseconds.is_multiple_of(u128::from(*factor)) && milliseconds > 0)
        .unwrap_or(&("s", 1000));
    format!("{}{unit}", milliseconds / u128::from(*factor))
}

fn parse(text: &str, units: &[(&str, u64)], example_unit: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(format!(
            "begin with a number, for example \"30{example_unit}\""
        ));
    }
    if unit.is_empty() {
        return Err(format!(
            "add a unit, for example \"{number}{example_unit}\""
        ));
    }
    let Some((_, factor)) = units.iter().find(|(name, _)| *name == unit) else {
        let known: Vec<_> = units.iter().map(|(name, _)| format!("{name:?}")).collect();
        return Err(format!(
            "unknown unit {unit:?}; use one of {}",
            known.join(", ")
        ));
    };
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(*factor))
        .ok_or_else(|| "it is too large".to_owned())
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
    fn formatted_durations_parse_to_the_same_value() {
        for text in ["100ms", "1500ms", "30s", "90m", "25h", "30d", "0s"] {
            assert_eq!(format_duration(duration(text).unwrap()), text);
        }
    }
}

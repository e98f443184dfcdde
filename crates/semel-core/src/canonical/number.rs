//! Numbers: the printing of RFC 8785, and exact comparison of decimals.

use super::{Reason, excerpt};

/// A decimal number with this many digits always survives a double.
const SAFE_DIGITS: usize = 15;
/// ECMAScript writes a number without exponent down to `0.000001`.
const PLAIN_ZEROS: usize = 5;
/// Above this length a lexeme is shortened before it is parsed.
const LONG_LEXEME: usize = 64;
/// No double needs more digits than this to differ from its neighbours.
const MAX_DIGITS: usize = 800;
/// Exponents of exact decimals: beyond this no sum of money is meant, and adding up
/// exponents stays far from overflow.
const MAX_EXPONENT: i64 = 100_000;

/// Appends a number as RFC 8785 prints it; where `exact`, refuses one whose printed
/// value would be another. `lexeme` is a JSON number.
pub(crate) fn write(lexeme: &[u8], exact: bool, out: &mut Vec<u8>) -> Result<(), Reason> {
    if let Some(printed) = short(lexeme) {
        out.extend_from_slice(printed);
        return Ok(());
    }
    let decimal = Decimal::new(lexeme);
    let double = if lexeme.len() > LONG_LEXEME {
        decimal.shortened().parse()
    } else {
        std::str::from_utf8(lexeme).unwrap_or_default().parse()
    };
    let double: f64 = match double {
        Ok(double) if f64::is_finite(double) => double,
        Ok(_) | Err(_) => return Err(Reason::OutOfRange(excerpt(lexeme))),
    };
    let mut buffer = ryu_js::Buffer::new();
    let printed = buffer.format_finite(double);
    if exact {
        if decimal.digits.is_empty() && decimal.negative {
            return Err(Reason::NegativeZero);
        }
        if Decimal::new(printed.as_bytes()) != decimal {
            return Err(Reason::Lossy(excerpt(lexeme)));
        }
    }
    out.extend_from_slice(printed.as_bytes());
    Ok(())
}

/// The exact value of a number at a pointer declared as decimal, where a double would
/// lose some of it: `digits e exponent`, one form per value, and none that RFC 8785 prints
/// for another value.
pub(crate) fn write_exact(lexeme: &[u8], out: &mut Vec<u8>) -> Result<(), Reason> {
    if write(lexeme, true, out).is_ok() {
        return Ok(());
    }
    let decimal = Decimal::new(lexeme);
    if decimal.digits.is_empty() {
        return Err(Reason::NegativeZero);
    }
    if decimal.exponent.abs() > MAX_EXPONENT {
        return Err(Reason::OutOfRange(excerpt(lexeme)));
    }
    if decimal.negative {
        out.push(b'-');
    }
    out.extend_from_slice(&decimal.digits);
    out.push(b'e');
    out.extend_from_slice(itoa::Buffer::new().format(decimal.exponent).as_bytes());
    Ok(())
}

/// The shortest text of a plain decimal such as `10.00`; nothing for anything else, such
/// as `1e1`, `+1`, `007`, `.5`, or a zero with a minus sign.
pub(crate) fn plain_decimal(text: &[u8]) -> Option<&[u8]> {
    let unsigned = text.strip_prefix(b"-").unwrap_or(text);
    let point = unsigned.iter().position(|&byte| byte == b'.');
    let (whole, fraction) = unsigned.split_at(point.unwrap_or(unsigned.len()));
    let digits = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    let padded = whole.len() > 1 && whole[0] == b'0';
    if !digits(whole) || padded || !(fraction.is_empty() || digits(&fraction[1..])) {
        return None;
    }
    let trimmed = trim_fraction(text);
    (trimmed != b"-0").then_some(trimmed)
}

/// The printed form of the usual numbers, straight from the lexeme: without exponent,
/// at most 15 digits, not tiny. A double tells all of these apart, so its shortest form
/// is the lexeme without idle zeros.
fn short(lexeme: &[u8]) -> Option<&[u8]> {
    let unsigned = lexeme.strip_prefix(b"-").unwrap_or(lexeme);
    if unsigned.len() > SAFE_DIGITS || unsigned.iter().any(|&byte| matches!(byte, b'e' | b'E')) {
        return None;
    }
    let printed = trim_fraction(lexeme);
    let tiny = unsigned.strip_prefix(b"0.").is_some_and(|fraction| {
        fraction.iter().take_while(|&&digit| digit == b'0').count() > PLAIN_ZEROS
    });
    (!tiny && printed != b"-0").then_some(printed)
}

fn trim_fraction(number: &[u8]) -> &[u8] {
    if !number.contains(&b'.') {
        return number;
    }
    let kept = number.iter().rposition(|&byte| byte != b'0').unwrap_or(0);
    if number[kept] == b'.' {
        &number[..kept]
    } else {
        &number[..=kept]
    }
}

/// A decimal value: digits without idle zeros, times ten to the exponent. Zero has no
/// digits and the exponent 0.
#[derive(Debug, PartialEq, Eq)]
struct Decimal {
    negative: bool,
    digits: Vec<u8>,
    exponent: i64,
}

impl Decimal {
    /// Of a JSON number, or of what ECMAScript prints for one.
    fn new(number: &[u8]) -> Self {
        let negative = number.first() == Some(&b'-');
        let split = number.iter().position(|&byte| matches!(byte, b'e' | b'E'));
        let (mantissa, power) = number.split_at(split.unwrap_or(number.len()));
        let point = mantissa.iter().position(|&byte| byte == b'.');
        let places = point.map_or(0, |point| mantissa.len() - point - 1);
        let mut digits: Vec<u8> = mantissa
            .iter()
            .copied()
            .filter(u8::is_ascii_digit)
            .skip_while(|&digit| digit == b'0')
            .collect();
        let kept = digits
            .iter()
            .rposition(|&digit| digit != b'0')
            .map_or(0, |last| last + 1);
        let idle = digits.len() - kept;
        digits.truncate(kept);
        let exponent = if digits.is_empty() {
            0
        } else {
            exponent(power)
                .saturating_add(wide(idle))
                .saturating_sub(wide(places))
        };
        Self {
            negative,
            digits,
            exponent,
        }
    }

    /// The value with so few digits that any parser is exact: a last `1` stands for all the
    /// digits cut off, which only matters when the rest is a tie.
    fn shortened(&self) -> String {
        let sign = if self.negative { "-" } else { "" };
        let cut = self.digits.len().saturating_sub(MAX_DIGITS);
        let kept = &self.digits[..self.digits.len() - cut];
        let digits = std::str::from_utf8(kept).unwrap_or_default();
        let (zero, sticky) = (
            if kept.is_empty() { "0" } else { "" },
            if cut > 0 { "1" } else { "" },
        );
        let exponent = self.exponent.saturating_add(wide(cut)) - i64::from(cut > 0);
        // A double ends at 10^±400 with at most 800 digits; the bound keeps what is far out
        // far out, and within what a parser of exponents counts.
        let exponent = exponent.clamp(-5_000, 5_000);
        format!("{sign}{zero}{digits}{sticky}e{exponent}")
    }
}

/// The value of `e+12`, of nothing as 0; what does not fit saturates.
fn exponent(power: &[u8]) -> i64 {
    let negative = power.get(1) == Some(&b'-');
    let value = power
        .iter()
        .filter(|byte| byte.is_ascii_digit())
        .fold(0_i64, |value, &digit| {
            value
                .saturating_mul(10)
                .saturating_add(i64::from(digit - b'0'))
        });
    if negative { -value } else { value }
}

fn wide(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

//! The command line of `check` and `bench`.

pub mod bench;
pub mod check;

use std::io::{self, IsTerminal as _, Write};
use std::time::Duration;

use crate::target::Header;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckOutcome {
    /// No guarantee is broken.
    Passed,
    /// A guarantee is broken.
    Failed,
    /// No guarantee is broken, but `--strict` was given and some could not be seen.
    Incomplete,
}

/// Prints to stdout.
fn print(output: &mut impl Write, text: &str) -> io::Result<()> {
    match output
        .write_all(text.as_bytes())
        .and_then(|()| output.flush())
    {
        // The reader closed the pipe, as `head` does.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// The terminal's width in characters; `None` where stdout is not a terminal.
fn width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    (size.ws_col > 0).then(|| size.ws_col.into())
}

fn coloured() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

fn header(text: &str) -> Result<Header, String> {
    let (name, value) = text.split_once(':').ok_or("write it as 'NAME: VALUE'")?;
    let (name, value) = (name.trim(), value.trim());
    let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    if name.is_empty() || !name.chars().all(token) {
        return Err("use letters, digits and hyphens in a header's name".to_owned());
    }
    if value.chars().any(char::is_control) {
        return Err("write a header's value on one line".to_owned());
    }
    Ok(Header {
        name: name.to_owned(),
        value: value.to_owned(),
    })
}

fn token(text: &str) -> Result<String, String> {
    let token = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    if text.is_empty() || !text.chars().all(token) {
        return Err("use letters, digits and hyphens only".to_owned());
    }
    Ok(text.to_owned())
}

/// `500ms`, `30s`, `2m`.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number
        .parse()
        .map_err(|_| "write a number and a unit: 500ms, 30s or 2m")?;
    let time = match unit {
        "ms" => Duration::from_millis(number),
        "s" => Duration::from_secs(number),
        "m" => Duration::from_secs(number.saturating_mul(60)),
        _ => return Err("write a number and a unit: 500ms, 30s or 2m".to_owned()),
    };
    if time.is_zero() || time > Duration::from_hours(24) {
        return Err("use more than zero and at most 24 hours (1440m)".to_owned());
    }
    Ok(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit_and_a_sensible_value() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("2m"), Ok(Duration::from_mins(2)));
        for wrong in ["", "30", "s", "0s", "-1s", "1h", "99999999999m"] {
            assert!(duration(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_header_cannot_contain_another_one() {
        assert!(header("Authorization: Bearer x").is_ok());
        for wrong in ["Authorization", ": x", "A B: x", "A: x\r\nB: y"] {
            assert!(header(wrong).is_err(), "{wrong:?}");
        }
    }
}

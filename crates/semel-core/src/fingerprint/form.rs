//! `application/x-www-form-urlencoded`: decoded pairs, in order.

use super::frame::{Frame, Tag};

/// Hashes the pairs and says how many there are; or says why the body must stay raw, and
/// hashes nothing.
///
/// `a` and `a=` differ, as some servers tell them apart. An empty pair (`a=1&&b=2`) is
/// skipped by some servers and seen by others, and `;` separates pairs for some: both stay
/// raw.
pub(super) fn hash(body: &[u8], frame: &mut Frame) -> Result<usize, &'static str> {
    let pairs = || body.split(|&byte| byte == b'&');
    if body.contains(&b';') {
        return Err("the form has a `;`, which some servers take for a separator");
    }
    let mut buffer = Vec::new();
    for pair in pairs() {
        if pair.is_empty() {
            return Err("the form has an empty pair");
        }
        decode(pair, &mut buffer).ok_or("the form has an invalid percent escape")?;
    }
    frame.count(Tag::FormBody, pairs().count());
    for pair in pairs() {
        let name = pair.split(|&byte| byte == b'=').next().unwrap_or_default();
        // Every pair was decoded above, so nothing is left out here.
        let _ = decode(name, &mut buffer);
        frame.field(Tag::FormName, &buffer);
        match pair.get(name.len() + 1..) {
            Some(value) => {
                let _ = decode(value, &mut buffer);
                frame.field(Tag::FormValue, &buffer);
            }
            None => frame.field(Tag::FormNoValue, b""),
        }
    }
    Ok(pairs().count())
}

/// Resolves `+` and percent escapes into `buffer`.
fn decode(text: &[u8], buffer: &mut Vec<u8>) -> Option<()> {
    let hex = |digit: Option<&u8>| char::from(*digit?).to_digit(16);
    buffer.clear();
    let mut bytes = text.iter();
    while let Some(&byte) = bytes.next() {
        let resolved = match byte {
            b'+' => b' ',
            b'%' => {
                let (high, low) = (hex(bytes.next())?, hex(bytes.next())?);
                u8::try_from(high << 4 | low).ok()?
            }
            other => other,
        };
        buffer.push(resolved);
    }
    Some(())
}

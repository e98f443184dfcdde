//! How stored headers become bytes: all lines, in order, values as they came.
//!
//! Every line is its name and its value, each behind its length. Not JSON: header values
//! need not be text, and a store that rewrites what it keeps alters a replay.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// The stored form of header lines.
pub fn encode(headers: &[(Box<str>, Bytes)]) -> Bytes {
    let size = headers
        .iter()
        .map(|(name, value)| 8 + name.len() + value.len())
        .sum();
    let mut out = BytesMut::with_capacity(size);
    for (name, value) in headers {
        put(&mut out, name.as_bytes());
        put(&mut out, value);
    }
    out.freeze()
}

/// The header lines of a stored form; `None` where it is not one.
pub fn decode(mut stored: Bytes) -> Option<Vec<(Box<str>, Bytes)>> {
    let mut headers = Vec::new();
    while stored.has_remaining() {
        let name = take(&mut stored)?;
        let value = take(&mut stored)?;
        headers.push((std::str::from_utf8(&name).ok()?.into(), value));
    }
    Some(headers)
}

fn put(out: &mut BytesMut, part: &[u8]) {
    // A part that does not fit its length would be read back as another one, so it is cut:
    // HTTP stacks refuse headers long before 4 GiB.
    let length = u32::try_from(part.len()).unwrap_or(u32::MAX);
    out.put_u32(length);
    out.put_slice(&part[..length as usize]);
}

fn take(stored: &mut Bytes) -> Option<Bytes> {
    let length = stored.try_get_u32().ok()? as usize;
    (length <= stored.len()).then(|| stored.split_to(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_lead_back_in_order() {
        let headers: Vec<(Box<str>, Bytes)> = vec![
            ("link".into(), Bytes::from_static(b"<a>; rel=next")),
            ("etag".into(), Bytes::new()),
            ("link".into(), Bytes::from_static(b"\xff\x00\n")),
        ];
        assert_eq!(decode(encode(&headers)), Some(headers));
        assert_eq!(decode(Bytes::new()), Some(vec![]));
    }

    #[test]
    fn what_is_cut_short_is_refused() {
        let whole = encode(&[("a".into(), Bytes::from_static(b"bc"))]);
        for end in 1..whole.len() {
            assert_eq!(decode(whole.slice(..end)), None, "{end}");
        }
    }
}

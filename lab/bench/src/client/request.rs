//! Requests that are rendered once and sent many times.

use bytes::Bytes;
use semel_core::OperationId;

use crate::fingerprint::PAYMENT;

/// As long as a UUID, which is what most clients send.
pub(crate) const KEY_LENGTH: usize = 36;

/// The key of one request.
pub(crate) type KeyText = [u8; KEY_LENGTH];

/// A `POST` whose bytes do not change but for the key.
pub(crate) struct Request {
    pub(super) head: Vec<u8>,
    pub(super) key_at: Option<usize>,
    pub(super) body: Bytes,
}

/// Whether a request has a place for a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keyed {
    Yes,
    No,
}

impl Request {
    pub(crate) fn post(target: &str, content_type: &str, body: Bytes, keyed: Keyed) -> Self {
        let length = body.len();
        let mut head = format!(
            "POST {target} HTTP/1.1\r\n\
             Host: api.example.com\r\n\
             Authorization: Bearer 1Nv0FgLkdIwHu7ix8f2b1c94\r\n\
             Content-Type: {content_type}\r\n\
             Content-Length: {length}\r\n"
        )
        .into_bytes();
        let key_at = (keyed == Keyed::Yes).then(|| {
            head.extend_from_slice(b"Idempotency-Key: \"");
            let at = head.len();
            head.extend_from_slice(&[b'0'; KEY_LENGTH]);
            head.extend_from_slice(b"\"\r\n");
            at
        });
        head.extend_from_slice(b"\r\n");
        Self { head, key_at, body }
    }

    /// A payment of a kibibyte.
    pub(crate) fn payment(keyed: Keyed) -> Self {
        Self::post("/payments", "application/json", kibibyte(PAYMENT), keyed)
    }
}

/// A JSON object, filled up to 1,024 bytes.
pub(crate) fn kibibyte(object: &str) -> Bytes {
    let open = object.trim_end().trim_end_matches('}');
    let mut text = format!("{open},\"note\":\"");
    while text.len() + 2 < 1024 {
        text.push('x');
    }
    text.push_str("\"}");
    text.into()
}

/// What the answer to a request must look like; any other ends the run, so that no result
/// is made of error answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// 201, and not marked as a replay.
    First,
    /// 201, and marked as a replay.
    Replay,
}

/// One request to be sent.
pub(crate) struct Shot<'a> {
    pub(crate) request: &'a Request,
    pub(crate) key: Option<KeyText>,
    pub(crate) expect: Expect,
}

/// Says what is sent next.
pub(crate) trait Plan {
    fn next(&mut self) -> Shot<'_>;
}

/// Numbered keys that no other set of keys contains.
#[derive(Clone)]
pub(crate) struct Keys {
    set: [u8; 20],
}

impl Keys {
    pub(crate) fn new() -> Self {
        let mut set = [b'-'; 20];
        // Of a time-ordered id the last part is the random one.
        let id = OperationId::generate();
        for (place, byte) in set[..16].chunks_mut(2).zip(&id.as_bytes()[8..]) {
            place.copy_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
        Self { set }
    }

    pub(crate) fn text(&self, number: u64) -> KeyText {
        let mut text = [b'0'; KEY_LENGTH];
        text[..self.set.len()].copy_from_slice(&self.set);
        let (mut rest, mut at) = (number, KEY_LENGTH);
        while rest > 0 {
            at -= 1;
            text[at] = HEX[(rest & 15) as usize];
            rest >>= 4;
        }
        text
    }
}

const HEX: &[u8; 16] = b"0123456789abcdef";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_by_set_and_by_number() {
        let (one, other) = (Keys::new(), Keys::new());
        assert_ne!(one.text(1), other.text(1));
        assert_ne!(one.text(1), one.text(16));
        assert!(one.text(0x1f).ends_with(b"001f"));
        // The largest number fits behind the name of the set.
        assert!(one.text(u64::MAX).starts_with(&one.set));
    }

    #[test]
    fn bodies_are_json_of_a_kibibyte() {
        let body = kibibyte(PAYMENT);
        assert_eq!(body.len(), 1024);
        assert!(serde_json::from_slice::<serde_json::Value>(&body).is_ok());
    }

    #[test]
    fn the_key_has_its_place_between_the_quotes() {
        let request = Request::payment(Keyed::Yes);
        let at = request.key_at.unwrap();
        assert!(request.head[..at].ends_with(b"Idempotency-Key: \""));
        assert!(request.head[at + KEY_LENGTH..].starts_with(b"\"\r\n"));
        assert!(Request::payment(Keyed::No).key_at.is_none());
    }
}

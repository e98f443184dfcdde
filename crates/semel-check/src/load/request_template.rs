//! A request template, with slots for reference and key.

use std::fmt::Write as _;

use uuid::Uuid;

use super::LoadOptions;
use crate::target::Dialect;

/// The request in pieces, with slots between them.
#[derive(Clone)]
pub(super) struct RequestTemplate {
    head: Vec<Piece>,
    body: Vec<Piece>,
    /// Makes the keys of this run unique.
    run: String,
}

#[derive(Clone)]
enum Piece {
    Text(Vec<u8>),
    Reference,
    Key,
}

/// As long as a UUID, which most clients send.
const LENGTH: usize = 36;

impl RequestTemplate {
    pub(super) fn new(options: &LoadOptions) -> Self {
        let body = pieces(&options.body);
        let length: usize = body
            .iter()
            .map(|piece| match piece {
                Piece::Text(text) => text.len(),
                Piece::Reference | Piece::Key => LENGTH,
            })
            .sum();
        let mut head = format!(
            "{} {} HTTP/1.1\r\nHost: {}\r\nContent-Length: {length}\r\n",
            options.method, options.address.path, options.address.authority
        );
        for header in &options.headers {
            // Writing to a string cannot fail, here and below.
            let _ = write!(head, "{}: {}\r\n", header.name, header.value);
        }
        let typed = |header: &crate::Header| header.name.eq_ignore_ascii_case("content-type");
        if !options.headers.iter().any(typed) {
            head.push_str("Content-Type: application/json\r\n");
        }
        let quote = match options.dialect {
            Dialect::Ietf => "\"",
            Dialect::Stripe => "",
        };
        let _ = write!(
            head,
            "{}: {quote}{{key}}{quote}\r\n\r\n",
            options.key_header
        );
        let run = Uuid::new_v4().simple().to_string();
        Self {
            head: pieces(&head),
            body,
            run: run[..LENGTH - 17].to_owned(),
        }
    }

    /// Writes the whole request of this number.
    pub(super) fn write(&self, number: u64, bytes: &mut Vec<u8>) {
        for piece in self.head.iter().chain(&self.body) {
            match piece {
                Piece::Text(text) => bytes.extend_from_slice(text),
                Piece::Reference | Piece::Key => self.name(number, bytes),
            }
        }
    }

    fn name(&self, number: u64, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self.run.as_bytes());
        bytes.push(b'-');
        for shift in (0..16).rev() {
            let digit = (number >> (shift * 4)) & 15;
            bytes.push(b"0123456789abcdef"[usize::try_from(digit).unwrap_or(0)]);
        }
    }
}

fn pieces(template: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut rest = template;
    loop {
        let places = [("{reference}", Piece::Reference), ("{key}", Piece::Key)];
        let next = places
            .into_iter()
            .filter_map(|(name, piece)| rest.find(name).map(|at| (at, name, piece)))
            .min_by_key(|(at, _, _)| *at);
        let Some((at, name, piece)) = next else {
            pieces.push(Piece::Text(rest.as_bytes().to_vec()));
            return pieces;
        };
        pieces.push(Piece::Text(rest.as_bytes()[..at].to_vec()));
        pieces.push(piece);
        rest = &rest[at + name.len()..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_differ_by_number_alone_and_are_as_long_as_they_say() {
        let drive = LoadOptions::new("http://shop/payments".parse().unwrap());
        let template = RequestTemplate::new(&drive);
        let text = |number| {
            let mut bytes = Vec::new();
            template.write(number, &mut bytes);
            String::from_utf8(bytes).unwrap()
        };
        assert_eq!(text(7), text(7));
        assert_ne!(text(7), text(8));
        assert_ne!(text(7), {
            let mut bytes = Vec::new();
            RequestTemplate::new(&drive).write(7, &mut bytes);
            String::from_utf8(bytes).unwrap()
        });
        let (head, body) = text(u64::MAX)
            .split_once("\r\n\r\n")
            .map(|(h, b)| (h.to_owned(), b.to_owned()))
            .unwrap();
        assert!(
            head.contains(&format!("Content-Length: {}\r\n", body.len())),
            "{head}"
        );
        assert!(head.contains("Idempotency-Key: \""), "{head}");
        assert!(
            serde_json::from_str::<serde_json::Value>(&body).is_ok(),
            "{body}"
        );
    }
}

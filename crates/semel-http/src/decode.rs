//! Decoding `Content-Encoding` before the body is hashed, so that a retry may be compressed in
//! another way. The body is forwarded as it came.
//!
//! A decoder that stops early would hash two different bodies alike. So a body with anything
//! after the coded data counts as undecodable, and is hashed as it is.
//!
//! Without the feature `decompression` every coding counts as unknown. A retry that is compressed in
//! another way is then refused as misuse; it never matches by mistake.

use http::{HeaderMap, header};

/// A body as it is hashed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decoded {
    /// There is no content coding.
    Plain,
    /// The decoded body.
    Body(Vec<u8>),
    /// It could not be decoded: it is hashed as it is, with the coding's name.
    Raw(String),
    /// The decoded body is over the limit.
    TooLarge,
}

/// Decodes a body with one content coding, up to `limit` bytes.
pub(crate) fn decode(headers: &HeaderMap, body: &[u8], limit: usize) -> Decoded {
    let mut lines = headers.get_all(header::CONTENT_ENCODING).iter();
    let Some(first) = lines.next() else {
        return Decoded::Plain;
    };
    let name = lines.fold(
        String::from_utf8_lossy(first.as_bytes()).into_owned(),
        |all, line| all + ", " + &String::from_utf8_lossy(line.as_bytes()),
    );
    let name = name.trim().to_ascii_lowercase();
    if name == "identity" {
        return Decoded::Plain;
    }
    #[cfg(feature = "decompression")]
    match codecs::decompress(&name, body, limit) {
        Some(Ok(Some(body))) => return Decoded::Body(body),
        Some(Ok(None)) => return Decoded::TooLarge,
        Some(Err(_)) | None => {}
    }
    #[cfg(not(feature = "decompression"))]
    let _ = (body, limit);
    Decoded::Raw(name)
}

#[cfg(feature = "decompression")]
mod codecs;

#[cfg(test)]
#[cfg(feature = "decompression")]
mod tests {
    use super::*;
    use std::io::Write as _;

    const TEXT: &[u8] = br#"{"amount":100,"currency":"EUR","note":"aaaaaaaaaaaaaaaaaaaaaaaa"}"#;

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn deflate(text: &[u8]) -> Vec<u8> {
        let mut encoder =
            flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    /// `TEXT` as the reference encoders write it.
    fn brotli_coded() -> Vec<u8> {
        let mut out = Vec::new();
        // An uncompressed meta-block (RFC 7932, section 9.2), then the empty last one.
        let length = TEXT.len() - 1;
        // WBITS 16 (one bit 0), ISLAST 0, MNIBBLES 4 (00), MLEN-1 in 16 bits, ISUNCOMPRESSED 1.
        let bits: u32 = (u32::try_from(length).unwrap() << 4) | (1 << 20);
        out.extend(&bits.to_le_bytes()[..3]);
        out.extend(TEXT);
        out.push(0x03);
        out
    }

    fn zstd_coded() -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(TEXT, ruzstd::encoding::CompressionLevel::Fastest)
    }

    fn run(coding: &str, body: &[u8], limit: usize) -> Decoded {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_ENCODING, coding.parse().unwrap());
        decode(&headers, body, limit)
    }

    fn coded() -> [(&'static str, Vec<u8>); 5] {
        [
            ("gzip", gzip(TEXT)),
            ("X-Gzip", gzip(TEXT)),
            ("deflate", deflate(TEXT)),
            ("br", brotli_coded()),
            ("zstd", zstd_coded()),
        ]
    }

    #[test]
    fn each_coding_is_decoded_within_the_limit() {
        for (name, body) in coded() {
            let decoded = run(name, &body, TEXT.len());
            assert_eq!(decoded, Decoded::Body(TEXT.to_vec()), "{name}");
            assert_eq!(
                run(name, &body, TEXT.len() - 1),
                Decoded::TooLarge,
                "{name}"
            );
        }
    }

    #[test]
    fn bytes_after_the_coded_data_make_it_raw() {
        for (name, body) in coded() {
            for rest in [&b"x"[..], b"\0", b"more of it"] {
                let mut longer = body.clone();
                longer.extend(rest);
                let name = name.to_ascii_lowercase();
                assert_eq!(run(&name, &longer, 10_000), Decoded::Raw(name), "{rest:?}");
            }
        }
    }

    #[test]
    fn several_members_are_one_body() {
        for (name, body) in [("gzip", gzip(TEXT)), ("zstd", zstd_coded())] {
            let twice = [&body[..], &body[..]].concat();
            let expected = [TEXT, TEXT].concat();
            assert_eq!(run(name, &twice, 10_000), Decoded::Body(expected));
            assert_eq!(run(name, &twice, TEXT.len()), Decoded::TooLarge);
        }
    }

    #[test]
    fn a_truncated_body_is_raw() {
        for (name, body) in coded() {
            let name = name.to_ascii_lowercase();
            for end in [1, body.len() / 2, body.len() - 1] {
                assert_eq!(
                    run(&name, &body[..end], 10_000),
                    Decoded::Raw(name.clone()),
                    "{end}"
                );
            }
        }
    }

    #[test]
    fn unknown_and_joined_codings_are_raw_under_their_names() {
        assert_eq!(
            run("compress", TEXT, 10_000),
            Decoded::Raw("compress".into())
        );
        assert_eq!(
            run("gzip, br", TEXT, 10_000),
            Decoded::Raw("gzip, br".into())
        );
        assert_eq!(run("Identity", TEXT, 10_000), Decoded::Plain);
        let mut headers = HeaderMap::new();
        assert_eq!(decode(&headers, TEXT, 10_000), Decoded::Plain);
        headers.append(header::CONTENT_ENCODING, "gzip".parse().unwrap());
        headers.append(header::CONTENT_ENCODING, "gzip".parse().unwrap());
        assert_eq!(
            decode(&headers, TEXT, 10_000),
            Decoded::Raw("gzip, gzip".into())
        );
    }

    #[test]
    fn more_members_than_the_maximum_are_raw() {
        for (name, empty) in [("gzip", gzip(b"")), ("zstd", zstd_empty())] {
            assert_eq!(
                run(name, &empty.repeat(1024), 10),
                Decoded::Body(Vec::new()),
                "{name}"
            );
            let more = empty.repeat(1025);
            assert_eq!(run(name, &more, 10), Decoded::Raw(name.into()), "{name}");
        }
    }

    fn zstd_empty() -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(&b""[..], ruzstd::encoding::CompressionLevel::Fastest)
    }

    #[test]
    fn a_decompression_bomb_is_too_large() {
        let bomb = gzip(&vec![0; 50 << 20]);
        assert!(bomb.len() < 100_000);
        assert_eq!(run("gzip", &bomb, 1 << 20), Decoded::TooLarge);
    }
}

//! Undoing `Content-Encoding` before the body is hashed, so that a client which compresses
//! its retry another way is still understood. What is forwarded stays as it came.
//!
//! A decoder that stops early would hash two different bodies alike, so whatever follows the
//! coded data makes it undecodable, and then it is hashed raw.

use std::io::{self, BufRead, Read};

use flate2::bufread::{MultiGzDecoder, ZlibDecoder};
use http::{HeaderMap, header};

/// A body as the fingerprint is to see it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decoded {
    /// There is no coding.
    Plain,
    /// The coding is undone.
    Undone(Vec<u8>),
    /// It could not be undone: to be hashed raw, with the coding's name.
    Raw(String),
    /// What is inside is larger than the bound.
    TooLarge,
}

/// Undoes the one content coding of a body, up to `limit` bytes.
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
    let undone = match name.as_str() {
        "identity" => return Decoded::Plain,
        "gzip" | "x-gzip" => bounded(limit, MultiGzDecoder::new(body), MultiGzDecoder::into_inner),
        "deflate" => bounded(limit, ZlibDecoder::new(body), ZlibDecoder::into_inner),
        "br" => brotli(body, limit),
        "zstd" => zstd(body, limit),
        _ => return Decoded::Raw(name),
    };
    match undone {
        Ok(Some(body)) => Decoded::Undone(body),
        Ok(None) => Decoded::TooLarge,
        Err(_) => Decoded::Raw(name),
    }
}

/// Reads to the end of the coded data, and refuses what follows it. `None`: over the limit.
fn bounded<'a, D: Read>(
    limit: usize,
    mut decoder: D,
    rest: impl FnOnce(D) -> &'a [u8],
) -> io::Result<Option<Vec<u8>>> {
    let Some(out) = up_to(limit, &mut decoder)? else {
        return Ok(None);
    };
    nothing_follows(rest(decoder))?;
    Ok(Some(out))
}

fn up_to(limit: usize, decoder: impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut out = Vec::new();
    let bound = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    decoder.take(bound).read_to_end(&mut out)?;
    Ok((out.len() <= limit).then_some(out))
}

fn nothing_follows(rest: &[u8]) -> io::Result<()> {
    if rest.is_empty() {
        Ok(())
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}

fn brotli(body: &[u8], limit: usize) -> io::Result<Option<Vec<u8>>> {
    // A buffer of one byte: what the decoder took from the input is what it used of it, but
    // for that byte.
    let mut input = io::Cursor::new(body);
    let mut decoder = brotli_decompressor::Decompressor::new(OneByOne(&mut input), 1);
    let Some(out) = up_to(limit, &mut decoder)? else {
        return Ok(None);
    };
    drop(decoder);
    nothing_follows(input.fill_buf()?)?;
    Ok(Some(out))
}

/// Hands out a byte at a time, so that a decoder cannot read ahead.
struct OneByOne<'a, 'b>(&'a mut io::Cursor<&'b [u8]>);

impl Read for OneByOne<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = buffer.len().min(1);
        self.0.read(&mut buffer[..length])
    }
}

fn zstd(body: &[u8], limit: usize) -> io::Result<Option<Vec<u8>>> {
    // Several frames in a row are one body (RFC 8878, section 3.1).
    let mut rest = body;
    let mut out = Vec::new();
    while !rest.is_empty() {
        let decoder = ruzstd::decoding::StreamingDecoder::new(&mut rest)
            .map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        let Some(frame) = up_to(limit - out.len(), decoder)? else {
            return Ok(None);
        };
        out.extend(frame);
    }
    Ok(Some(out))
}

#[cfg(test)]
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
    fn each_coding_is_undone_within_the_limit() {
        for (name, body) in coded() {
            let undone = run(name, &body, TEXT.len());
            assert_eq!(undone, Decoded::Undone(TEXT.to_vec()), "{name}");
            assert_eq!(
                run(name, &body, TEXT.len() - 1),
                Decoded::TooLarge,
                "{name}"
            );
        }
    }

    #[test]
    fn what_follows_is_never_ignored() {
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
    fn members_in_a_row_are_one_body() {
        for (name, body) in [("gzip", gzip(TEXT)), ("zstd", zstd_coded())] {
            let twice = [&body[..], &body[..]].concat();
            let expected = [TEXT, TEXT].concat();
            assert_eq!(run(name, &twice, 10_000), Decoded::Undone(expected));
            assert_eq!(run(name, &twice, TEXT.len()), Decoded::TooLarge);
        }
    }

    #[test]
    fn what_is_cut_short_is_raw() {
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
    fn a_small_bomb_does_not_grow() {
        let bomb = gzip(&vec![0; 50 << 20]);
        assert!(bomb.len() < 100_000);
        assert_eq!(run("gzip", &bomb, 1 << 20), Decoded::TooLarge);
    }
}

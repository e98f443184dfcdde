//! The decoders, each bounded and strict about what follows the coded data.

use std::io::{self, BufRead, Read};

use flate2::bufread::{GzDecoder, ZlibDecoder};

/// Maximum number of gzip members or zstd frames in a body. Each costs the set-up of a decoder even
/// if it is empty, so the limit on the decoded size does not bound the work.
const MAX_MEMBERS: usize = 1024;

/// Decodes a body with the named coding. `None`: the coding is unknown. `Some(Ok(None))`: the decoded
/// body is over the limit.
pub(super) fn decompress(
    name: &str,
    body: &[u8],
    limit: usize,
) -> Option<io::Result<Option<Vec<u8>>>> {
    Some(match name {
        "gzip" | "x-gzip" => gzip(body, limit),
        "deflate" => bounded(limit, ZlibDecoder::new(body), ZlibDecoder::into_inner),
        "br" => brotli(body, limit),
        "zstd" => zstd(body, limit),
        _ => return None,
    })
}

/// Reads to the end of the coded data, and refuses bytes after it. `None`: over the limit.
fn bounded<'a, D: Read>(
    limit: usize,
    mut decoder: D,
    rest: impl FnOnce(D) -> &'a [u8],
) -> io::Result<Option<Vec<u8>>> {
    let Some(out) = up_to(limit, &mut decoder)? else {
        return Ok(None);
    };
    check_nothing_follows(rest(decoder))?;
    Ok(Some(out))
}

fn up_to(limit: usize, decoder: impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut out = Vec::new();
    let bound = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    decoder.take(bound).read_to_end(&mut out)?;
    Ok((out.len() <= limit).then_some(out))
}

fn check_nothing_follows(rest: &[u8]) -> io::Result<()> {
    if rest.is_empty() {
        Ok(())
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}

fn gzip(mut rest: &[u8], limit: usize) -> io::Result<Option<Vec<u8>>> {
    // Several members in a row are one body (RFC 1952, section 2.2).
    let mut out = Vec::new();
    for _ in 0..MAX_MEMBERS {
        let Some(member) = up_to(limit - out.len(), GzDecoder::new(&mut rest))? else {
            return Ok(None);
        };
        out.extend(member);
        if rest.is_empty() {
            return Ok(Some(out));
        }
    }
    Err(io::ErrorKind::InvalidData.into())
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
    check_nothing_follows(input.fill_buf()?)?;
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
    let mut frames = 0;
    while !rest.is_empty() {
        frames += 1;
        if frames > MAX_MEMBERS {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let decoder = ruzstd::decoding::StreamingDecoder::new(&mut rest)
            .map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        let Some(frame) = up_to(limit - out.len(), decoder)? else {
            return Ok(None);
        };
        out.extend(frame);
    }
    Ok(Some(out))
}

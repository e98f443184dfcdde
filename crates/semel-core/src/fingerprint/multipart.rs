//! `multipart/form-data`: parts in order, whatever the boundary between them.
//!
//! Only the plain form that every library writes is understood. All else (a preamble, an
//! epilogue, padding, `filename*`, escapes, headers beside the two known ones) stays raw: then
//! the boundary is part of the bytes, and a retry with the same bytes still matches.

use super::frame::{Frame, Tag};
use super::media::{is_token, once, until, value};

/// No form has more; each part costs an entry in memory.
pub(super) const MAX_PARTS: usize = 1024;

/// RFC 2046 allows no longer boundary.
const MAX_BOUNDARY: usize = 70;

struct Part<'b> {
    name: &'b [u8],
    filename: Option<&'b [u8]>,
    kind: Option<&'b [u8]>,
    bytes: &'b [u8],
}

/// Hashes the parts and says how many there are; or says why the body must stay raw, and
/// hashes nothing.
pub(super) fn hash(
    body: &[u8],
    boundary: Option<&[u8]>,
    frame: &mut Frame,
) -> Result<usize, &'static str> {
    let boundary = boundary
        .filter(|boundary| (1..=MAX_BOUNDARY).contains(&boundary.len()))
        .ok_or("the content type has no usable boundary")?;
    let parts = split(body, boundary)?;
    frame.count(Tag::MultipartBody, parts.len());
    for part in &parts {
        frame.field(Tag::PartName, part.name);
        if let Some(filename) = part.filename {
            frame.field(Tag::PartFilename, filename);
        }
        if let Some(kind) = part.kind {
            frame.field(Tag::PartType, kind);
        }
        frame.field(Tag::PartBytes, part.bytes);
    }
    Ok(parts.len())
}

fn split<'b>(body: &'b [u8], boundary: &[u8]) -> Result<Vec<Part<'b>>, &'static str> {
    let delimiter = [b"\r\n--", boundary].concat();
    let mut rest = body
        .strip_prefix(&delimiter[2..])
        .ok_or("the multipart body does not begin with its boundary")?;
    let mut parts = Vec::new();
    loop {
        if matches!(rest, b"--" | b"--\r\n") {
            return Ok(parts);
        }
        if parts.len() == MAX_PARTS {
            return Err("the multipart body has too many parts");
        }
        let part = rest
            .strip_prefix(b"\r\n")
            .ok_or("the multipart body has something beside a boundary")?;
        let end = find(part, &delimiter).ok_or("the multipart body ends within a part")?;
        if find(&part[..end], &delimiter[2..]).is_some() {
            // A server that takes bare line feeds sees another part here.
            return Err("the multipart body has its boundary within a part");
        }
        parts.push(read(&part[..end]).ok_or("the multipart body has a part of unusual form")?);
        rest = &part[end + delimiter.len()..];
    }
}

fn find(text: &[u8], needle: &[u8]) -> Option<usize> {
    (0..text.len()).find(|&at| text[at] == needle[0] && text[at..].starts_with(needle))
}

fn read(part: &[u8]) -> Option<Part<'_>> {
    let (mut disposition, mut kind) = (None, None);
    let mut rest = part;
    let bytes = loop {
        if let Some(bytes) = rest.strip_prefix(b"\r\n") {
            break bytes;
        }
        let end = find(rest, b"\r\n")?;
        let (name, value) = until(&rest[..end], b':');
        let value = value.strip_prefix(b":")?.trim_ascii();
        if name.eq_ignore_ascii_case(b"content-disposition") {
            once(&mut disposition, value)?;
        } else if name.eq_ignore_ascii_case(b"content-type") {
            once(&mut kind, value)?;
        } else {
            return None;
        }
        rest = &rest[end + 2..];
    };
    let (name, filename) = form_data(disposition?)?;
    Some(Part {
        name,
        filename,
        kind,
        bytes,
    })
}

/// Name and file name of `form-data; name="…"; filename="…"`.
fn form_data(disposition: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    let (kind, mut rest) = until(disposition, b';');
    if !kind.trim_ascii_end().eq_ignore_ascii_case(b"form-data") {
        return None;
    }
    let (mut name, mut filename) = (None, None);
    while let Some(parameter) = rest.strip_prefix(b";") {
        let (key, after) = until(parameter.trim_ascii_start(), b'=');
        let (text, after) = value(after.strip_prefix(b"=")?)?;
        if !is_token(key) {
            return None;
        } else if key.eq_ignore_ascii_case(b"name") {
            once(&mut name, text)?;
        } else if key.eq_ignore_ascii_case(b"filename") {
            once(&mut filename, text)?;
        } else {
            return None;
        }
        rest = after.trim_ascii_start();
    }
    if rest.is_empty() {
        Some((name?, filename))
    } else {
        None
    }
}

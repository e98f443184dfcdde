//! The path of a request, as applications read it.
//!
//! Applications route more loosely than any one rule: one serves `/PAYMENTS` as `/payments`, another
//! `/%70ayments` or `//payments`. So there are two forms of a path:
//!
//! - [`FoldedPath`] finds the route and the record: every spelling that an application may take for
//!   the same path has the same folded form.
//! - [`normalize`] is what the fingerprint is taken of: only what RFC 3986 calls equivalent is equal.
//!
//! Another spelling under a used key finds the record and does not match it: misuse, never a second
//! execution.

use std::borrow::Cow;
use std::fmt::Write as _;

/// How often an application may decode a path. More rounds than this are not read.
const MAX_DECODES: usize = 4;

/// The path in the normal form of RFC 3986, 6.2.2: unreserved characters decoded, other
/// percent-encodings in upper case, dot segments removed. The case of letters, a trailing slash and
/// repeated slashes count.
///
/// ```
/// use semel_core::path::normalize;
///
/// assert_eq!(normalize("/a/./%70ay%2f../b"), "/a/pay%2F../b");
/// assert_eq!(normalize("/Payments//"), "/Payments//");
/// ```
pub fn normalize(path: &str) -> Cow<'_, str> {
    if !path.contains('%') && !path.contains("/.") {
        return Cow::Borrowed(path);
    }
    remove_dot_segments(&decode(path, is_unreserved)).into()
}

/// A path folded for matching and identity: unreserved and other harmless percent-encodings decoded,
/// dot segments removed, slashes merged, the trailing slash and matrix parameters (`;x`) dropped, in
/// lower case.
///
/// ```
/// use semel_core::path::FoldedPath;
///
/// for spelling in ["/payments", "/Payments/", "//payments", "/%70ayments", "/x/../payments;v=1"] {
///     assert_eq!(FoldedPath::new(spelling).as_str(), "/payments");
/// }
/// assert!(FoldedPath::new("/orders%2F7").is_undecidable());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoldedPath<'a> {
    folded: Cow<'a, str>,
    others: Vec<String>,
    undecidable: bool,
}

impl<'a> FoldedPath<'a> {
    /// Folds a path.
    pub fn new(path: &'a str) -> Self {
        if is_folded(path) {
            return Self {
                folded: Cow::Borrowed(path),
                others: Vec::new(),
                undecidable: false,
            };
        }
        let decoded = decode(path, is_harmless);
        let without_matrix = drop_matrix(&decoded);
        let folded = finish(&remove_dot_segments(&without_matrix));
        let mut others = readings(path, decoded);
        others.retain(|reading| *reading != folded);
        Self {
            undecidable: has_undecidable_character(path)
                || has_hidden_dots(path)
                || finish(&remove_dot_segments(&merge_slashes(&without_matrix))) != folded,
            folded: folded.into(),
            others,
        }
    }

    /// The folded path.
    pub fn as_str(&self) -> &str {
        &self.folded
    }

    /// The folded path.
    pub fn into_inner(self) -> Cow<'a, str> {
        self.folded
    }

    /// What else an application may take the path for: dot segments kept, `%2F` as a slash, and the
    /// like. Empty for nearly all paths.
    pub fn other_readings(&self) -> &[String] {
        &self.others
    }

    /// Whether two applications may read the path differently in a way that folding cannot settle:
    /// an encoded slash, backslash, semicolon, dot segment or control character, a percent sign
    /// that is encoded itself or encodes nothing, a backslash, or a character that is not ASCII.
    pub fn is_undecidable(&self) -> bool {
        self.undecidable
    }
}

/// The pattern of a route as folded paths are matched with it: its literal parts are folded, its
/// `{parameters}` stay.
///
/// # Errors
/// What is wrong with a pattern that no folded path can match, or that can be read in two ways.
pub fn fold_pattern(pattern: &str) -> Result<String, &'static str> {
    let mut parameters = Vec::new();
    let mut masked = String::with_capacity(pattern.len());
    let mut rest = pattern;
    while let Some(at) = rest.find('{') {
        masked.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix("{{") {
            masked.push_str("{{");
            rest = after;
            continue;
        }
        let (parameter, after) = rest.split_once('}').unwrap_or((rest, ""));
        parameters.push(parameter);
        masked.push_str("{}");
        rest = after;
    }
    masked.push_str(rest);
    let folded = FoldedPath::new(&masked);
    if folded.is_undecidable() || !folded.other_readings().is_empty() {
        return Err(
            "applications may read it in more than one way: write it without `;`, `\\`, dot segments \
             and percent-encodings, or match it exactly",
        );
    }
    let braces = |text: &str| text.matches(['{', '}']).count();
    if braces(folded.as_str()) != braces(&masked) {
        return Err("write braces as `{{` and `}}`, not percent-encoded");
    }
    let mut parameters = parameters.into_iter();
    let mut restored = String::with_capacity(pattern.len());
    let mut rest = folded.as_str();
    while let Some(at) = rest.find(['{', '}']) {
        restored.push_str(&rest[..at]);
        let braces = rest.get(at..at + 2).unwrap_or("}");
        match (braces, parameters.as_slice()) {
            ("{}", [parameter, ..]) => {
                restored.push_str(parameter);
                restored.push('}');
                parameters.next();
            }
            _ => restored.push_str(braces),
        }
        rest = &rest[at + braces.len()..];
    }
    restored.push_str(rest);
    Ok(restored)
}

/// Whether folding would change nothing, and there is one reading.
fn is_folded(path: &str) -> bool {
    let is_plain = |byte: u8| {
        byte.is_ascii_graphic() && !byte.is_ascii_uppercase() && !b"%;\\".contains(&byte)
    };
    path.bytes().all(is_plain)
        && (path.len() == 1 || !path.ends_with('/'))
        && !path.contains("//")
        && !path.contains("/.")
}

/// All that an application may take the path for, folded.
fn readings(path: &str, decoded: String) -> Vec<String> {
    let mut fully = path.to_owned();
    for _ in 0..MAX_DECODES {
        fully = decode_all(&fully);
    }
    let mut readings = vec![decoded, fully];
    let is_control = |c: char| c.is_ascii_control();
    vary(&mut readings, |text| vec![text.replace('\\', "/")]);
    vary(&mut readings, |text| {
        let end = text.find(|c| is_control(c) || c == '?' || c == '#');
        let cut = text[..end.unwrap_or(text.len())].to_owned();
        let without_blanks = text.replace(|c| is_control(c) || c == ' ', "");
        vec![cut, without_blanks]
    });
    vary(&mut readings, |text| vec![drop_matrix(text)]);
    vary(&mut readings, |text| {
        let merged = merge_slashes(text);
        vec![remove_dot_segments(text), remove_dot_segments(&merged)]
    });
    vary(&mut readings, |text| {
        vec![text.to_uppercase().to_lowercase()]
    });
    for reading in &mut readings {
        *reading = finish(reading);
    }
    readings.sort_unstable();
    readings.dedup();
    readings
}

/// Adds the variants of each reading that are new.
fn vary(readings: &mut Vec<String>, variants: impl Fn(&str) -> Vec<String>) {
    for at in 0..readings.len() {
        for variant in variants(&readings[at]) {
            if !readings.contains(&variant) {
                readings.push(variant);
            }
        }
    }
}

fn finish(path: &str) -> String {
    let mut merged = merge_slashes(path);
    if merged.len() > 1 && merged.ends_with('/') {
        merged.pop();
    }
    merged.make_ascii_lowercase();
    merged
}

fn merge_slashes(path: &str) -> String {
    let mut merged = String::with_capacity(path.len());
    for c in path.chars() {
        if c != '/' || !merged.ends_with('/') {
            merged.push(c);
        }
    }
    if merged.is_empty() {
        merged.push('/');
    }
    merged
}

fn drop_matrix(path: &str) -> String {
    let names = path.split('/').map(without_matrix);
    names.collect::<Vec<_>>().join("/")
}

fn without_matrix(segment: &str) -> &str {
    segment.split_once(';').map_or(segment, |(name, _)| name)
}

/// RFC 3986, 5.2.4, of an absolute path.
fn remove_dot_segments(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match segment {
            "." => {}
            ".." => {
                kept.pop();
            }
            name => {
                kept.push(name);
                continue;
            }
        }
        if is_last {
            kept.push("");
        }
    }
    format!("/{}", kept.join("/"))
}

/// A dot segment that only shows once its percent-encodings or its matrix parameters are gone.
fn has_hidden_dots(path: &str) -> bool {
    path.split('/').any(|segment| {
        let decoded = decode(segment, is_harmless);
        let name = without_matrix(&decoded);
        matches!(name, "." | "..") && name != segment
    })
}

fn has_undecidable_character(path: &str) -> bool {
    let is_undecidable = |after_percent: &str| match escape(after_percent) {
        None => true,
        Some((b'%', rest)) => escape(rest).is_some(),
        Some((byte, _)) => b"/\\;".contains(&byte) || byte.is_ascii_control(),
    };
    !path.is_ascii() || path.contains('\\') || path.split('%').skip(1).any(is_undecidable)
}

/// Decodes the percent-encodings of some characters; the others get upper-case digits.
fn decode(path: &str, is_decoded: impl Fn(u8) -> bool) -> String {
    let mut pieces = path.split('%');
    let mut decoded = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        match escape(piece) {
            Some((byte, rest)) if is_decoded(byte) => {
                decoded.push(char::from(byte));
                decoded.push_str(rest);
            }
            Some((byte, rest)) => {
                // Writing to a string does not fail.
                let _ = write!(decoded, "%{byte:02X}{rest}");
            }
            None => {
                decoded.push('%');
                decoded.push_str(piece);
            }
        }
    }
    decoded
}

/// Decodes all percent-encodings, once.
fn decode_all(path: &str) -> String {
    let mut pieces = path.split('%');
    let mut decoded = pieces.next().unwrap_or_default().as_bytes().to_vec();
    for piece in pieces {
        if let Some((byte, rest)) = escape(piece) {
            decoded.push(byte);
            decoded.extend_from_slice(rest.as_bytes());
        } else {
            decoded.push(b'%');
            decoded.extend_from_slice(piece.as_bytes());
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

/// The byte that two hexadecimal digits after a percent sign stand for, and what follows them.
fn escape(after_percent: &str) -> Option<(u8, &str)> {
    let digits = after_percent.get(..2)?;
    let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let byte = u8::from_str_radix(digits, 16).ok().filter(|_| is_hex)?;
    Some((byte, &after_percent[2..]))
}

/// RFC 3986, 2.3.
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

/// Characters that structure no path: an application may take them for their encoding.
fn is_harmless(byte: u8) -> bool {
    byte.is_ascii_graphic() && !b"/\\%;?#".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_form_keeps_what_rfc_3986_distinguishes() {
        for (path, normal) in [
            ("/payments", "/payments"),
            ("/%70ayments", "/payments"),
            ("/a%2fb%3a", "/a%2Fb%3A"),
            ("/Payments/", "/Payments/"),
            ("//payments", "//payments"),
            ("/a/./b/../c", "/a/c"),
            ("/a/%2E%2e/c", "/c"),
            ("/../a/..", "/"),
            ("/a/b/..", "/a/"),
            ("/a//../b", "/a/b"),
            ("/a/...", "/a/..."),
            ("/a%zz%", "/a%zz%"),
            ("/a%+f", "/a%+f"),
            ("/é%C3%a9", "/é%C3%A9"),
            ("/", "/"),
        ] {
            assert_eq!(normalize(path), normal, "{path}");
        }
    }

    #[test]
    fn every_spelling_folds_onto_the_same_path() {
        for spelling in [
            "/payments/7",
            "/payments/7/",
            "/PAYMENTS/7",
            "//payments///7//",
            "/%70ayments/%37",
            "/./payments/./7/.",
            "/x/../payments/7",
            "/../payments/7",
            "/payments;v=1/7;x;y",
            "/;x/payments/7",
        ] {
            let folded = FoldedPath::new(spelling);
            assert_eq!(folded.as_str(), "/payments/7", "{spelling}");
            assert!(!folded.is_undecidable(), "{spelling}");
        }
        let same = ["/u/a%40b", "/u/a@b", "/u/A%40B"].map(|path| FoldedPath::new(path).folded);
        assert!(same.iter().all(|path| path == "/u/a@b"), "{same:?}");
        for (path, folded) in [
            ("/", "/"),
            ("//", "/"),
            ("/.", "/"),
            ("/a%20b", "/a%20b"),
            ("/%c3%A9", "/%c3%a9"),
            ("/100%25", "/100%25"),
            ("/a;b/..", "/"),
        ] {
            assert_eq!(FoldedPath::new(path).as_str(), folded, "{path}");
            assert!(!FoldedPath::new(path).is_undecidable(), "{path}");
        }
    }

    #[test]
    fn undecidable_spelling_has_the_path_among_its_readings() {
        for spelling in [
            "/payments%2F7",
            "/payments%2f7",
            "/payments%252F7",
            "/payments%25252F7",
            "/payments%5C7",
            "/payments\\7",
            "/payments%3Bx/7",
            "/payments/%2e/7",
            "/payments/x/%2E%2e/7",
            "/payments/x/.%2e/7",
            "/payments/x/..;y/7",
            "/payments/x//../7",
            "/payments/7%00",
            "/payments/7%00.png",
            "/pay%00ments/7",
            "/payments/7%0A",
            "/payments/7%0d%0A",
            "/payments/7%7F",
            "/payment\u{17f}/7",
            "/payments%2F%37",
            "/%2570ayments/7",
        ] {
            let folded = FoldedPath::new(spelling);
            assert!(folded.is_undecidable(), "{spelling}");
            let mut readings = vec![folded.as_str().to_owned()];
            readings.extend_from_slice(folded.other_readings());
            assert!(
                readings.iter().any(|reading| reading == "/payments/7"),
                "{spelling}: {readings:?}"
            );
        }
        for spelling in [
            "/payments/%",
            "/payments/%zz",
            "/payments/%7",
            "/payments/é",
        ] {
            assert!(FoldedPath::new(spelling).is_undecidable(), "{spelling}");
        }
    }

    /// Decidable, but an application may keep what folding removes.
    #[test]
    fn removed_segments_and_parameters_are_another_reading() {
        for (path, other) in [
            ("/payments/../refunds", "/payments/../refunds"),
            ("/payments;x", "/payments;x"),
            ("/rooms/%23a", "/rooms"),
            ("/rooms/%3Fa", "/rooms"),
            ("/payments%20", "/payments"),
            ("/payment%C5%BF", "/payments"),
        ] {
            let folded = FoldedPath::new(path);
            let others = folded.other_readings();
            assert!(others.iter().any(|reading| reading == other), "{others:?}");
            assert!(!folded.is_undecidable(), "{path}");
        }
        for path in ["/payments", "/Payments/", "//a//B", "/%70"] {
            let folded = FoldedPath::new(path);
            let others = folded.other_readings();
            assert!(others.is_empty(), "{path}: {others:?}");
        }
    }

    #[test]
    fn work_on_a_hostile_path_is_bounded() {
        let hostile = "/%25%2f..;%00\\é//".repeat(512);
        let folded = FoldedPath::new(&hostile);
        assert!(folded.is_undecidable());
        assert!(folded.other_readings().len() <= 2 * 2 * 3 * 2 * 3 * 2);
    }

    #[test]
    fn patterns_fold_like_the_paths_that_they_match() {
        for (pattern, folded) in [
            ("/payments/{Id}", "/payments/{Id}"),
            ("/Payments/{Id}/Capture/", "/payments/{Id}/capture"),
            ("/files/{*Rest}", "/files/{*Rest}"),
            ("//a/%70/{id}", "/a/p/{id}"),
            ("/a{{B}}/{X}", "/a{{b}}/{X}"),
            ("/{X}}}Y", "/{X}}}y"),
            ("/u/%40Me", "/u/@me"),
            ("/{a}-{B}/C", "/{a}-{B}/c"),
            ("/", "/"),
        ] {
            assert_eq!(fold_pattern(pattern).as_deref(), Ok(folded), "{pattern}");
        }
        for pattern in [
            "/a;x",
            "/a/../b",
            "/./a",
            "/a%2Fb",
            "/a\\b",
            "/a%zz",
            "/é",
            "/a%00",
            "/a%3F",
            "/%7Bid%7D",
        ] {
            assert!(fold_pattern(pattern).is_err(), "{pattern}");
        }
    }
}

//! The report for CI systems, as `JUnit` XML.
//!
//! Written by hand: `quick-junit` would add ten crates (among them `chrono`) for three elements, and
//! it drops characters that XML cannot contain, where this spells them out.

use std::fmt::Write as _;

use crate::report::{Finding, Report, Verdict};

pub(crate) fn render(report: &Report, strict: bool) -> String {
    let counts = report.counts;
    let (failures, skipped) = if strict {
        (counts.fail + counts.not_seen, counts.skipped)
    } else {
        (counts.fail, counts.not_seen + counts.skipped)
    };
    let totals = format!(
        "tests=\"{}\" failures=\"{failures}\" errors=\"0\" skipped=\"{skipped}\"",
        report.probes.len()
    );
    let mut cases = String::new();
    for finding in &report.probes {
        case(&mut cases, finding, strict);
    }
    suite(&report.url, &totals, &cases)
}

/// The report where no probe could run.
pub(crate) fn render_error(url: &str, reason: &str) -> String {
    let totals = "tests=\"1\" failures=\"0\" errors=\"1\" skipped=\"0\"";
    let case = format!(
        "    <testcase classname=\"semel.check\" name=\"first_request\">\n      <error \
         message=\"{}\" type=\"unprobed\"/>\n    </testcase>\n",
        escaped(reason)
    );
    suite(url, totals, &case)
}

fn suite(url: &str, totals: &str, cases: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites {totals}>\n  <testsuite \
         name=\"semel check {}\" {totals}>\n{cases}  </testsuite>\n</testsuites>\n",
        escaped(url)
    )
}

fn case(text: &mut String, finding: &Finding, strict: bool) {
    let name = finding.id.name();
    // Writing to a string cannot fail, here and below.
    let _ = write!(
        text,
        "    <testcase classname=\"semel.check\" name=\"{name}\""
    );
    let element = match finding.verdict {
        Verdict::Pass => {
            text.push_str("/>\n");
            return;
        }
        Verdict::Fail => "failure",
        Verdict::NotSeen if strict => "failure",
        Verdict::NotSeen | Verdict::Skipped => {
            let _ = writeln!(
                text,
                ">\n      <skipped message=\"{}\"/>\n    </testcase>",
                escaped(&finding.seen)
            );
            return;
        }
    };
    let details = format!(
        "sent: {}\nseen: {}\nexpected: {}\nwhy it matters: {}",
        finding.sent, finding.seen, finding.expected, finding.why
    );
    let _ = writeln!(
        text,
        ">\n      <{element} message=\"{}\" type=\"guarantee\">{}</{element}>\n    </testcase>",
        escaped(finding.title),
        escaped(&details)
    );
}

/// Escapes text for elements and attributes. Characters that XML cannot contain, such as control
/// characters, are spelled out.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&apos;"),
            '\n' => safe.push('\n'),
            '\u{fffe}' | '\u{ffff}' => safe.push('?'),
            other if other.escape_debug().len() > 1 && other != '\\' => {
                safe.extend(other.escape_debug());
            }
            other => safe.push(other),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::ProbeId;
    use crate::target::Dialect;

    /// The names of all elements, in order; panics where a parser would fail.
    fn elements(xml: &str) -> Vec<&str> {
        let allowed = |c: char| matches!(c, '\n' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..);
        assert!(xml.chars().all(allowed), "a character that XML has not");
        let declaration = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
        let mut rest = xml.strip_prefix(declaration).unwrap();
        let (mut found, mut open) = (Vec::new(), Vec::new());
        while let Some((text, after)) = rest.split_once('<') {
            assert!(is_text(text), "{text:?}");
            let (tag, after) = after.split_once('>').unwrap();
            rest = after;
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop(), Some(name));
                continue;
            }
            let (tag, empty) = match tag.strip_suffix('/') {
                Some(tag) => (tag, true),
                None => (tag, false),
            };
            let (name, mut attributes) = tag.split_once(' ').unwrap_or((tag, ""));
            while let Some((attribute, after)) = attributes.split_once("=\"") {
                let (value, after) = after.split_once('"').unwrap();
                assert!(attribute.chars().all(|c| c.is_ascii_lowercase()), "{tag:?}");
                assert!(is_text(value), "{value:?}");
                attributes = after.trim_start();
            }
            assert_eq!(attributes, "", "{tag:?}");
            found.push(name);
            if !empty {
                open.push(name);
            }
        }
        assert_eq!((open, rest), (Vec::new(), "\n"));
        found
    }

    /// Whether text or a value is without markup, and every `&` begins one of the five entities.
    fn is_text(text: &str) -> bool {
        let known = ["amp;", "lt;", "gt;", "quot;", "apos;"];
        let mut entities = text.split('&').skip(1);
        !text.contains(['<', '>', '"']) && entities.all(|e| known.iter().any(|k| e.starts_with(k)))
    }

    fn finding(verdict: Verdict, text: &str) -> Finding {
        let info = ProbeId::Replay.info();
        Finding {
            id: ProbeId::Replay,
            title: info.title,
            why: info.why,
            sent: text.to_owned(),
            seen: text.to_owned(),
            expected: info.expected,
            verdict,
            notes: vec![text.to_owned()],
            brief: text.to_owned(),
        }
    }

    #[test]
    fn hostile_text_from_a_server_leaves_well_formed_xml() {
        let mut hostile: String = ('\0'..='\u{10fff}').collect();
        hostile.push_str("]]> <!-- --> &#0; </failure> \u{10ffff} \" onerror=\"");
        let verdicts = [
            Verdict::Fail,
            Verdict::NotSeen,
            Verdict::Skipped,
            Verdict::Pass,
        ];
        let findings = verdicts.map(|verdict| finding(verdict, &hostile));
        let url = "http://shop/?a=<b>&c=\"'".to_owned();
        let report = Report::new(url, Dialect::Ietf, false, findings.into());
        for (strict, not_seen) in [(false, "skipped"), (true, "failure")] {
            let seen = elements(&render(&report, strict)).join(" ");
            let cases = format!("testcase failure testcase {not_seen} testcase skipped testcase");
            assert_eq!(seen, format!("testsuites testsuite {cases}"));
        }
        let seen = render_error(&report.url, &hostile);
        assert_eq!(
            elements(&seen),
            ["testsuites", "testsuite", "testcase", "error"]
        );
        assert!(seen.contains("<testsuites tests=\"1\" failures=\"0\" errors=\"1\""));
    }

    #[test]
    fn characters_that_xml_cannot_contain_are_spelled_out() {
        assert_eq!(
            escaped("<a b=\"c\">&'"),
            "&lt;a b=&quot;c&quot;&gt;&amp;&apos;"
        );
        assert_eq!(escaped("\u{1b}[2J\0\\"), "\\u{1b}[2J\\0\\");
        assert_eq!(escaped("]]>"), "]]&gt;");
    }
}

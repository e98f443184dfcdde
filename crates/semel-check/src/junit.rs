//! The report for CI systems.

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
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites {totals}>\n  <testsuite \
         name=\"semel check {}\" {totals}>\n",
        escaped(&report.url)
    );
    for finding in &report.probes {
        case(&mut text, finding, strict);
    }
    text.push_str("  </testsuite>\n</testsuites>\n");
    text
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
    let told = format!(
        "sent: {}\nseen: {}\nexpected: {}\nwhy it matters: {}",
        finding.sent, finding.seen, finding.expected, finding.why
    );
    let _ = writeln!(
        text,
        ">\n      <{element} message=\"{}\" type=\"guarantee\">{}</{element}>\n    </testcase>",
        escaped(finding.title),
        escaped(&told)
    );
}

/// Harmless in text and in attributes. What XML cannot say at all, control characters mostly, is
/// spelled out.
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

    #[test]
    fn what_xml_cannot_say_is_spelled_out() {
        assert_eq!(
            escaped("<a b=\"c\">&'"),
            "&lt;a b=&quot;c&quot;&gt;&amp;&apos;"
        );
        assert_eq!(escaped("\u{1b}[2J\0\\"), "\\u{1b}[2J\\0\\");
        assert_eq!(escaped("]]>"), "]]&gt;");
    }
}

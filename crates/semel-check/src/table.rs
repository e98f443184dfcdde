//! The report as text.

use std::fmt::Write as _;

use crate::report::{Finding, Report, Verdict};
use crate::text::{line, wrap};

/// The width without a terminal.
const WIDTH: usize = 100;
/// On a narrower terminal, lines are longer than the terminal.
const NARROWEST: usize = 60;
const GAP: usize = 2;
/// As wide as the widest verdict.
const VERDICT: usize = 8;

pub(crate) fn render(report: &Report, width: Option<usize>, colour: bool) -> String {
    let width = width.unwrap_or(WIDTH).max(NARROWEST);
    let mut text = format!(
        "{}, keys as in the {} dialect{}\n\n",
        line(&report.url),
        report.dialect.name(),
        if report.counted {
            ""
        } else {
            ", effects not counted"
        }
    );
    let names = report.probes.iter().map(|finding| finding.id.name().len());
    let name_width = names.max().unwrap_or(0);
    let indent = VERDICT + GAP + name_width + GAP;
    let head = format!("{:VERDICT$}  {:name_width$}  SEEN", "VERDICT", "PROBE");
    // Writing to a string cannot fail, here and below.
    let _ = writeln!(text, "{head}");
    for finding in &report.probes {
        let seen = wrap(&summary(finding), width.saturating_sub(indent));
        for (number, part) in seen.iter().enumerate() {
            let (verdict, name) = match number {
                0 => (label(finding.verdict), finding.id.name()),
                _ => ("", ""),
            };
            let verdict = colored(finding.verdict, &format!("{verdict:VERDICT$}"), colour);
            let row = format!("{verdict}  {name:name_width$}  {part}");
            let _ = writeln!(text, "{}", row.trim_end());
        }
    }
    for finding in &report.probes {
        if finding.verdict == Verdict::Fail {
            let _ = write!(text, "\n{}", failure(finding, width, colour));
        }
    }
    let _ = write!(text, "\n{}", closing(report));
    text
}

/// What fits into a table.
fn summary(finding: &Finding) -> String {
    let mut seen = line(&finding.brief);
    if finding.verdict == Verdict::Pass {
        for note in &finding.notes {
            let _ = write!(seen, ". Note: {}", line(note));
        }
    }
    seen
}

fn failure(finding: &Finding, width: usize, colour: bool) -> String {
    let title = format!("{}: {}", finding.id.name(), finding.title);
    let mut text = format!("{}\n", colored(Verdict::Fail, &title, colour));
    let mut part = |name: &str, what: &str| {
        for (number, row) in wrap(&line(what), width - 12).iter().enumerate() {
            let name = if number == 0 { name } else { "" };
            let _ = writeln!(text, "  {name:8}  {row}");
        }
    };
    part("sent", &finding.sent);
    part("seen", &finding.seen);
    part("expected", finding.expected);
    part("why", finding.why);
    for note in &finding.notes {
        part("note", note);
    }
    text
}

fn closing(report: &Report) -> String {
    let counts = report.counts;
    let mut text = format!("{} passed, {} failed", counts.pass, counts.fail);
    if counts.not_seen > 0 {
        let _ = write!(
            text,
            ", {} not seen (see above for what is missing)",
            counts.not_seen
        );
    }
    if counts.skipped > 0 {
        let _ = write!(text, ", {} skipped", counts.skipped);
    }
    text.push('\n');
    if !report.counted {
        text.push_str(
            "Effects were not counted: add --count-url or --count-command to see what responses do not \
             show.\n",
        );
    }
    text
}

fn label(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "pass",
        Verdict::Fail => "FAIL",
        Verdict::NotSeen => "not seen",
        Verdict::Skipped => "skipped",
    }
}

fn colored(verdict: Verdict, text: &str, colour: bool) -> String {
    let code = match verdict {
        _ if !colour => return text.to_owned(),
        Verdict::Pass => 32,
        Verdict::Fail => 31,
        Verdict::NotSeen => 33,
        Verdict::Skipped => 2,
    };
    format!("\u{1b}[{code}m{text}\u{1b}[0m")
}

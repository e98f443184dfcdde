//! The results of the probes.

use serde::Serialize;

use crate::catalogue::ProbeId;
use crate::target::Dialect;
use crate::{junit, table, text};

/// The verdict of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The guarantee holds.
    Pass,
    /// The guarantee does not hold.
    Fail,
    /// It could not be seen: a counter or something else is missing.
    NotSeen,
    /// The probe did not run: not requested, or not applicable.
    Skipped,
}

/// The result of one probe.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Which probe.
    pub id: ProbeId,
    /// The guarantee, in one line.
    pub title: &'static str,
    /// What happens to a client where the guarantee does not hold.
    pub why: &'static str,
    /// What was sent.
    pub sent: String,
    /// What came back, and what it means.
    pub seen: String,
    /// What should have come back.
    pub expected: &'static str,
    /// The verdict.
    pub verdict: Verdict,
    /// Remarks beside the verdict.
    pub notes: Vec<String>,
    /// A summary for the table.
    #[serde(skip)]
    pub(crate) brief: String,
}

/// The number of probes per verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// The guarantee holds.
    pub pass: usize,
    /// The guarantee does not hold.
    pub fail: usize,
    /// It could not be seen to hold.
    pub not_seen: usize,
    /// The probe did not run.
    pub skipped: usize,
}

/// The results of all probes.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The URL.
    pub url: String,
    /// How keys were written.
    pub dialect: Dialect,
    /// Whether effects were counted.
    pub counted: bool,
    /// In the order of the catalogue.
    pub probes: Vec<Finding>,
    /// The number of probes per verdict.
    pub counts: Counts,
}

impl Report {
    pub(crate) fn new(url: String, dialect: Dialect, counted: bool, probes: Vec<Finding>) -> Self {
        let mut counts = Counts::default();
        for finding in &probes {
            match finding.verdict {
                Verdict::Pass => counts.pass += 1,
                Verdict::Fail => counts.fail += 1,
                Verdict::NotSeen => counts.not_seen += 1,
                Verdict::Skipped => counts.skipped += 1,
            }
        }
        Self {
            url,
            dialect,
            counted,
            probes,
            counts,
        }
    }

    /// Whether no guarantee is broken and, if `strict`, every requested one was seen to hold.
    pub fn passed(&self, strict: bool) -> bool {
        self.counts.fail == 0 && !(strict && self.counts.not_seen > 0)
    }

    /// One JSON document, safe to print on a terminal.
    pub fn json(&self) -> String {
        let json = serde_json::to_string_pretty(self);
        // Serializing strings and numbers cannot fail.
        text::document(&json.unwrap_or_default())
    }

    /// `JUnit` XML for CI systems. If `strict`, a probe that is `not seen` is a failure.
    pub fn junit(&self, strict: bool) -> String {
        junit::render(self, strict)
    }

    /// Text: a table, then every failure in full. `width` is the terminal's width, `colour` turns
    /// colours on.
    pub fn table(&self, width: Option<usize>, colour: bool) -> String {
        table::render(self, width, colour)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::probe_log::{ProbeLog, Stop};

    /// One finding of each verdict, one of them from a hostile server.
    fn report() -> Report {
        let mut failed = ProbeLog::default();
        failed.sent("POST /payments with Idempotency-Key: \"k\" and {\"amount\":1}, twice");
        failed.observe("first: 201 <b>\"it's\"</b> & more");
        failed.observe("retry: 201 \u{1b}[2J\u{1b}[1;1Hpass\u{0}\u{202e}");
        failed.fail("it was executed 2 times");
        let mut passed = ProbeLog::default();
        passed.sent("another");
        passed.observe("other body: 409");
        passed.note("misuse got a 409, which clients retry");
        let findings = vec![
            failed.finding(ProbeId::Replay, Ok(())),
            passed.finding(ProbeId::DifferentBody, Ok(())),
            ProbeLog::default().finding(
                ProbeId::SlowOperation,
                Err(Stop::NotSeen("needs a request that takes long".to_owned())),
            ),
            ProbeLog::default().finding(
                ProbeId::CrashAndRestart,
                Err(Stop::Skipped("only with --disruptive".to_owned())),
            ),
        ];
        Report::new(
            "http://shop/payments".to_owned(),
            Dialect::Ietf,
            false,
            findings,
        )
    }

    /// `SEMEL_UPDATE_SNAPSHOTS=1` rewrites the snapshots for review.
    fn snapshot(name: &str, text: &str) {
        let file = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("tests/snapshots")
            .join(name);
        if std::env::var_os("SEMEL_UPDATE_SNAPSHOTS").is_some() {
            std::fs::write(&file, text).unwrap();
        }
        assert_eq!(text, std::fs::read_to_string(&file).unwrap(), "{name}");
    }

    #[test]
    fn reports_match_their_snapshots() {
        let report = report();
        snapshot("report.json", &report.json());
        snapshot("report.xml", &report.junit(false));
        snapshot("strict.xml", &report.junit(true));
        snapshot("report.txt", &report.table(Some(80), false));
    }

    #[test]
    fn reports_contain_no_control_characters_from_a_server() {
        let report = report();
        for text in [
            report.json(),
            report.junit(false),
            report.table(None, false),
        ] {
            let obeyed = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
            assert!(!text.contains(obeyed), "{text:?}");
        }
        assert!(report.table(None, true).contains("\u{1b}[31m"));
    }

    #[test]
    fn not_seen_fails_only_with_strict() {
        let mut report = report();
        assert!(!report.passed(false));
        report.probes.remove(0);
        let report = Report::new(report.url, report.dialect, false, report.probes);
        assert!(report.passed(false) && !report.passed(true));
    }
}

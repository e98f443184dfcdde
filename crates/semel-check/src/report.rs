//! What was found.

use serde::Serialize;

use crate::catalogue::Id;
use crate::target::Dialect;
use crate::{junit, table, text};

/// What came of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The guarantee holds.
    Pass,
    /// It does not.
    Fail,
    /// It could not be seen: a counter or something else is missing.
    NotSeen,
    /// It was not looked at: not asked for, or it does not apply.
    Skipped,
}

/// What one probe found.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Which probe.
    pub id: Id,
    /// The guarantee, in one line.
    pub title: &'static str,
    /// What happens to whoever relies on it where it does not hold.
    pub why: &'static str,
    /// What was sent.
    pub sent: String,
    /// What came back, and what that means.
    pub seen: String,
    /// What should have come back.
    pub expected: &'static str,
    /// What came of it.
    pub verdict: Verdict,
    /// What is worth knowing beside the verdict.
    pub notes: Vec<String>,
    /// What fits into a table.
    #[serde(skip)]
    pub(crate) brief: String,
}

/// How many probes came to what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// The guarantee holds.
    pub pass: usize,
    /// It does not.
    pub fail: usize,
    /// It could not be seen.
    pub not_seen: usize,
    /// It was not looked at.
    pub skipped: usize,
}

/// What all probes found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Where.
    pub url: String,
    /// How keys were written.
    pub dialect: Dialect,
    /// Whether effects were counted.
    pub counted: bool,
    /// In the order of the catalogue.
    pub probes: Vec<Finding>,
    /// How many came to what.
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

    /// Whether no guarantee was found broken. Where `strict`, all that was asked for was seen.
    pub fn passed(&self, strict: bool) -> bool {
        self.counts.fail == 0 && !(strict && self.counts.not_seen > 0)
    }

    /// One JSON document, harmless on a terminal.
    pub fn json(&self) -> String {
        let json = serde_json::to_string_pretty(self);
        // Strings, numbers and names of our own: there is nothing that JSON cannot say.
        text::document(&json.unwrap_or_default())
    }

    /// `JUnit`'s XML, as CI systems read it. Where `strict`, what was not seen is a failure.
    pub fn junit(&self, strict: bool) -> String {
        junit::render(self, strict)
    }

    /// For people: a table, then every failure in full. `width` is that of the terminal, and
    /// `colour` whether it has any.
    pub fn table(&self, width: Option<usize>, colour: bool) -> String {
        table::render(self, width, colour)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::record::{Record, Stop};

    /// One finding of each kind, one of them by a server that means harm.
    fn report() -> Report {
        let mut failed = Record::default();
        failed.sent("POST /payments with Idempotency-Key: \"k\" and {\"amount\":1}, twice");
        failed.saw("first: 201 <b>\"it's\"</b> & more");
        failed.saw("retry: 201 \u{1b}[2J\u{1b}[1;1Hpass\u{0}\u{202e}");
        failed.fail("it was executed 2 times");
        let mut passed = Record::default();
        passed.sent("another");
        passed.saw("other body: 409");
        passed.note("misuse was answered with 409, which clients retry");
        let findings = vec![
            failed.finding(Id::Replay, Ok(())),
            passed.finding(Id::DifferentBody, Ok(())),
            Record::default().finding(
                Id::SlowOperation,
                Err(Stop::NotSeen("needs a request that takes long".to_owned())),
            ),
            Record::default().finding(
                Id::CrashAndRestart,
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

    /// `SEMEL_UPDATE_SNAPSHOTS=1` writes them anew, to be looked at.
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
    fn reports_look_as_they_did() {
        let report = report();
        snapshot("report.json", &report.json());
        snapshot("report.xml", &report.junit(false));
        snapshot("strict.xml", &report.junit(true));
        snapshot("report.txt", &report.table(Some(80), false));
    }

    #[test]
    fn no_report_does_what_a_server_wants() {
        let report = report();
        for told in [
            report.json(),
            report.junit(false),
            report.table(None, false),
        ] {
            let obeyed = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
            assert!(!told.contains(obeyed), "{told:?}");
        }
        assert!(report.table(None, true).contains("\u{1b}[31m"));
    }

    #[test]
    fn what_was_not_seen_fails_only_where_that_is_asked() {
        let mut report = report();
        assert!(!report.passed(false));
        report.probes.remove(0);
        let report = Report::new(report.url, report.dialect, false, report.probes);
        assert!(report.passed(false) && !report.passed(true));
    }
}

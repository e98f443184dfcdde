//! Tests that could not run here, and why.
//!
//! A test without its server, SDK or vectors passes and prints a line that begins with `SKIPPED:`.
//! Such a run proves less than it seems, so the end of every run counts them, and CI fails.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

/// The prefix of the line that a skipped test prints.
const MARK: &str = "SKIPPED:";
/// Nextest's report with the output of the tests, below the target directory.
const REPORT: &str = "nextest/default/junit.xml";

/// Counts the skipped tests of the last nextest run by their reasons and prints them. In CI a skip
/// is a failure.
pub(crate) fn report(target: &Path, is_ci: bool) -> Result<()> {
    let path = target.join(REPORT);
    let text = fs::read_to_string(&path)
        .with_context(|| format!("nextest left no report at {}", path.display()))?;
    print(text.split("<testcase").skip(1), is_ci)
}

/// The same from the output of each test.
pub(crate) fn print<'a>(outputs: impl Iterator<Item = &'a str>, is_ci: bool) -> Result<()> {
    let reasons = count_reasons(outputs);
    let skipped: usize = reasons.values().sum();
    println!("{skipped} test(s) skipped");
    for (reason, count) in &reasons {
        println!("  {count} \u{d7} {reason}");
    }
    if skipped > 0 && is_ci {
        bail!("{skipped} test(s) were skipped, and in CI every test has to run");
    }
    Ok(())
}

/// Each test counts once, by the first reason that it printed.
fn count_reasons<'a>(outputs: impl Iterator<Item = &'a str>) -> BTreeMap<String, usize> {
    let mut reasons = BTreeMap::new();
    for output in outputs {
        let first = output.lines().find_map(|line| {
            let (_, reason) = line.split_once(MARK)?;
            let reason = reason.split("</system-").next().unwrap_or(reason);
            Some(reason.trim().to_owned())
        });
        if let Some(reason) = first {
            *reasons.entry(reason).or_default() += 1;
        }
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;

    const JUNIT: &str = r#"<testsuite name="a">
        <testcase name="runs"><system-out>running 1 test</system-out></testcase>
        <testcase name="skips"><system-out>
SKIPPED: no Redis
SKIPPED: no Redis, again
</system-out></testcase>
        <testcase name="also"><system-out>SKIPPED: no Redis</system-out></testcase>
    </testsuite>"#;

    fn reported(junit: &str, is_ci: bool) -> Result<()> {
        let target = tempfile::tempdir().unwrap();
        let path = target.path().join(REPORT);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, junit).unwrap();
        report(target.path(), is_ci)
    }

    #[test]
    fn skipped_tests_are_counted_by_reason() {
        let reasons = count_reasons(JUNIT.split("<testcase").skip(1));
        assert_eq!(reasons.len(), 1, "{reasons:?}");
        assert_eq!(reasons["no Redis"], 2);
    }

    #[test]
    fn a_skip_fails_in_ci_only() {
        assert!(reported(JUNIT, false).is_ok());
        assert!(reported(JUNIT, true).is_err());
        assert!(reported("<testsuite/>", true).is_ok());
    }

    #[test]
    fn a_run_without_a_report_fails() {
        let target = tempfile::tempdir().unwrap();
        assert!(report(target.path(), false).is_err());
    }
}

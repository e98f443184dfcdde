//! `check URL`.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::ValueEnum;
use clap::error::ErrorKind;

use super::CheckOutcome;
use crate::target::{Case, Counter, Dialect, DialectChoice, Header, Target};
use crate::{Address, Error, Report, SystemEnvironment};

/// Probe an HTTP API for safe retries. It executes real operations, each under a new key: use a
/// test environment. In bodies, headers, URLs and commands, `{reference}` is replaced by a name
/// that is new for each operation, and `{key}` by its key.
#[derive(clap::Args)]
pub struct Args {
    /// URL of the operation, for example `http://127.0.0.1:8080/payments`
    #[arg(value_name = "URL")]
    url: Address,

    /// HTTP method
    #[arg(long, default_value = "POST", value_parser = super::token)]
    method: String,

    /// Request body; a small payment by default
    #[arg(long, value_name = "TEXT")]
    body: Option<String>,

    /// A different body for the same key; by default, the first number in the body is changed
    #[arg(long, value_name = "TEXT")]
    other_body: Option<String>,

    /// Header of every request; its value is never printed (repeatable)
    #[arg(long = "header", short = 'H', value_name = "NAME: VALUE", value_parser = super::header)]
    headers: Vec<Header>,

    /// Header of a second customer, for `tenant_isolation` (repeatable)
    #[arg(long = "other-header", value_name = "NAME: VALUE", value_parser = super::header)]
    other_headers: Vec<Header>,

    /// Name of the key's header
    #[arg(long, value_name = "NAME", default_value = "Idempotency-Key", value_parser = super::token)]
    key_header: String,

    /// How keys are written: quoted or unquoted
    #[arg(long, value_enum, default_value_t = DialectArg::Auto)]
    dialect: DialectArg,

    /// How long an operation may take, and how long retries wait for its outcome
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = super::duration)]
    operation_timeout: std::time::Duration,

    /// URL that returns the number of effects of an operation: a number, or an array
    #[arg(long, value_name = "URL", conflicts_with = "count_command")]
    count_url: Option<String>,

    /// JSON Pointer to the number or the array in the URL's response
    #[arg(long, value_name = "POINTER", requires = "count_url")]
    count_pointer: Option<String>,

    /// Command that prints the number of effects of an operation
    #[arg(long, value_name = "COMMAND")]
    count_command: Option<String>,

    /// Also run the probes that take long or break something
    #[arg(long)]
    disruptive: bool,

    /// A header or body that makes the API behave in a certain way: slow, linger (works at once,
    /// responds late), timeout (works, then responds 504), declined, large, `store_failure`
    /// (repeatable)
    #[arg(long = "case", value_name = "NAME=HEADER: VALUE|NAME=body:TEXT", value_parser = case)]
    cases: Vec<(CaseName, Case)>,

    /// Command that kills the server at once and starts it again
    #[arg(long, value_name = "COMMAND")]
    crash_command: Option<String>,

    /// Command that makes the key store fail
    #[arg(long, value_name = "COMMAND", requires = "heal_store_command")]
    break_store_command: Option<String>,

    /// Command that makes the key store work again
    #[arg(long, value_name = "COMMAND", requires = "break_store_command")]
    heal_store_command: Option<String>,

    /// Fail if a guarantee could not be seen
    #[arg(long)]
    strict: bool,

    /// Print one JSON document
    #[arg(long)]
    json: bool,

    /// Also write a `JUnit` report
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DialectArg {
    /// Detect it from what the API does with quotes
    Auto,
    /// Quoted, as in the IETF draft
    Ietf,
    /// Unquoted, as at Stripe
    Stripe,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CaseName {
    Slow,
    Linger,
    Timeout,
    Declined,
    Large,
    StoreFailure,
}

impl Args {
    fn target(&self) -> Target {
        let mut target = Target::new(self.url.clone());
        target.method.clone_from(&self.method);
        if let Some(body) = &self.body {
            target.body.clone_from(body);
        }
        target.other_body.clone_from(&self.other_body);
        target.headers.clone_from(&self.headers);
        target.other_headers.clone_from(&self.other_headers);
        target.key_header.clone_from(&self.key_header);
        target.dialect = match self.dialect {
            DialectArg::Auto => DialectChoice::Auto,
            DialectArg::Ietf => DialectChoice::Fixed(Dialect::Ietf),
            DialectArg::Stripe => DialectChoice::Fixed(Dialect::Stripe),
        };
        target.operation_timeout = self.operation_timeout;
        target.counter = match (&self.count_url, &self.count_command) {
            (Some(url), _) => Some(Counter::Url {
                url: url.clone(),
                pointer: self.count_pointer.clone(),
            }),
            (None, Some(command)) => Some(Counter::Command(command.clone())),
            (None, None) => None,
        };
        for (name, case) in &self.cases {
            let place = match name {
                CaseName::Slow => &mut target.cases.slow,
                CaseName::Linger => &mut target.cases.linger,
                CaseName::Timeout => &mut target.cases.timeout,
                CaseName::Declined => &mut target.cases.declined,
                CaseName::Large => &mut target.cases.large,
                CaseName::StoreFailure => &mut target.cases.store_failure,
            };
            *place = Some(case.clone());
        }
        target.commands.crash.clone_from(&self.crash_command);
        target
            .commands
            .break_store
            .clone_from(&self.break_store_command);
        target
            .commands
            .heal_store
            .clone_from(&self.heal_store_command);
        target.disruptive = self.disruptive;
        target
    }
}

/// Runs the command. An invalid `--count-url` and a `--junit` file that cannot be written are usage
/// errors and end the process with 2.
///
/// # Errors
/// Where nothing could be probed, or the report could not be written.
pub fn run(args: &Args) -> Result<CheckOutcome, Error> {
    let junit = prepare(args).unwrap_or_else(|wrong| wrong.exit());
    let checked = super::runtime()?.block_on(crate::check(&args.target(), &SystemEnvironment));
    write_reports(args, checked, junit, &mut io::stdout().lock())
}

/// Checks the options before the first request. The file is created here: a run that is interrupted
/// leaves an empty file, not the last run's report.
fn prepare(args: &Args) -> Result<Option<File>, clap::Error> {
    let wrong = |text: String| clap::Error::raw(ErrorKind::ValueValidation, text);
    if let Some(url) = &args.count_url {
        let filled = crate::fill(url, "reference", "key").parse::<Address>();
        filled.map_err(|reason| wrong(format!("--count-url: {reason}\n")))?;
    }
    let file = args.junit.as_ref().map(|path| {
        File::create(path).map_err(|reason| {
            wrong(format!(
                "--junit: cannot write {}: {reason}\n",
                path.display()
            ))
        })
    });
    file.transpose()
}

/// Writes both reports. Prints first, so that the result of so many operations is not lost if the
/// file cannot be written. If nothing could be probed, both contain the error.
fn write_reports(
    args: &Args,
    checked: Result<Report, Error>,
    junit: Option<File>,
    output: &mut impl Write,
) -> Result<CheckOutcome, Error> {
    let text = match &checked {
        Ok(report) if args.json => report.json(),
        Ok(report) => report.table(super::width(), super::coloured()),
        Err(error) if args.json => error.json(&args.url),
        // The binary prints the error to stderr.
        Err(_) => String::new(),
    };
    let printed = super::print(output, &text);
    let written = junit.map_or(Ok(()), |mut file| {
        let xml = match &checked {
            Ok(report) => report.junit(args.strict),
            Err(error) => error.junit(&args.url),
        };
        let failed = |error: io::Error| io::Error::new(error.kind(), format!("--junit: {error}"));
        file.write_all(xml.as_bytes()).map_err(failed)
    });
    let report = checked?;
    printed?;
    written?;
    Ok(match (report.passed(false), report.passed(args.strict)) {
        (true, true) => CheckOutcome::Passed,
        (true, false) => CheckOutcome::Incomplete,
        (false, _) => CheckOutcome::Failed,
    })
}

fn case(text: &str) -> Result<(CaseName, Case), String> {
    let (name, how) = text
        .split_once('=')
        .ok_or("write it as NAME='HEADER: VALUE' or NAME=body:TEXT")?;
    let name = match name.trim() {
        "slow" => CaseName::Slow,
        "linger" => CaseName::Linger,
        "timeout" => CaseName::Timeout,
        "declined" => CaseName::Declined,
        "large" => CaseName::Large,
        "store_failure" => CaseName::StoreFailure,
        other => {
            return Err(format!(
                "unknown case {other:?}: use slow, linger, timeout, declined, large or store_failure"
            ));
        }
    };
    let case = match how.strip_prefix("body:") {
        Some(body) => Case::Body(body.to_owned()),
        None => Case::Header(super::header(how)?),
    };
    Ok((name, case))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::Value;

    use super::*;
    use crate::catalogue::ProbeId;
    use crate::probe_log::{ProbeLog, Stop};

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn args(more: &[&str]) -> Args {
        let args = ["check", "http://shop/payments"].iter().chain(more);
        Cli::parse_from(args).args
    }

    /// A temporary file, deleted on drop.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let name = format!("semel-check-{}-{name}", std::process::id());
            Self(std::env::temp_dir().join(name))
        }

        fn option(&self) -> String {
            format!("--junit={}", self.0.display())
        }

        fn text(&self) -> String {
            std::fs::read_to_string(&self.0).unwrap()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn report(fails: bool, unseen: bool) -> Report {
        let mut replay = ProbeLog::default();
        if fails {
            replay.fail("it was executed 2 times");
        }
        let slow = if unseen {
            Err(Stop::NotSeen("needs --case slow".to_owned()))
        } else {
            Ok(())
        };
        let findings = vec![
            replay.finding(ProbeId::Replay, Ok(())),
            ProbeLog::default().finding(ProbeId::SlowOperation, slow),
        ];
        Report::new("http://shop/".to_owned(), Dialect::Ietf, true, findings)
    }

    fn unreachable() -> Error {
        Error::Unreachable {
            address: "http://shop/payments".to_owned(),
            reason: "connection <refused>".to_owned(),
        }
    }

    #[test]
    fn options_that_cannot_work_are_refused_before_the_first_request() {
        let nowhere = Scratch::new("nowhere").0.join("x.xml");
        let option = format!("--junit={}", nowhere.display());
        for (option, name) in [(&option[..], "--junit"), ("--count-url=odd", "--count-url")] {
            let wrong = prepare(&args(&[option])).unwrap_err();
            assert_eq!(wrong.exit_code(), 2);
            assert!(wrong.to_string().contains(name), "{wrong}");
        }
        let good = "--count-url=http://shop/?r={reference}";
        assert!(prepare(&args(&[good])).unwrap().is_none());
    }

    #[test]
    fn a_run_replaces_the_junit_file_of_the_last_one_at_its_start() {
        let scratch = Scratch::new("last.xml");
        std::fs::write(&scratch.0, "<testsuites failures=\"0\"/>").unwrap();
        let args = args(&[&scratch.option(), "--json"]);
        let junit = prepare(&args).unwrap();
        assert_eq!(scratch.text(), "");

        let mut printed = Vec::new();
        let ended = write_reports(&args, Err(unreachable()), junit, &mut printed);
        assert!(matches!(ended, Err(Error::Unreachable { .. })));
        let document: Value = serde_json::from_slice(&printed).unwrap();
        assert_eq!(document["url"], "http://shop/payments");
        let error = document["error"].as_str().unwrap();
        assert!(error.contains("connection <refused>"), "{error}");
        let xml = scratch.text();
        assert!(xml.contains("errors=\"1\""), "{xml}");
        assert!(xml.contains("connection &lt;refused&gt;\" type="), "{xml}");
    }

    #[test]
    fn a_report_is_printed_even_if_the_junit_file_cannot_be_written() {
        let scratch = Scratch::new("full.xml");
        std::fs::write(&scratch.0, "").unwrap();
        // Open for reading alone: to write to it fails, as on a full disk.
        let closed = || Some(File::open(&scratch.0).unwrap());
        let mut printed = Vec::new();
        let args = args(&[]);
        let ended = write_reports(&args, Ok(report(true, false)), closed(), &mut printed);
        let error = ended.unwrap_err().to_string();
        assert!(error.starts_with("--junit: "), "{error}");
        let table = String::from_utf8(printed).unwrap();
        assert!(table.contains("it was executed 2 times"), "{table}");
        // The reason why nothing was probed takes precedence over the failed write.
        let ended = write_reports(&args, Err(unreachable()), closed(), &mut Vec::new());
        assert!(matches!(ended, Err(Error::Unreachable { .. })));
    }

    #[test]
    fn strict_distinguishes_incomplete_from_failed() {
        for (strict, fails, unseen, expected) in [
            (false, false, true, CheckOutcome::Passed),
            (true, false, false, CheckOutcome::Passed),
            (true, false, true, CheckOutcome::Incomplete),
            (true, true, true, CheckOutcome::Failed),
            (false, true, false, CheckOutcome::Failed),
        ] {
            let args = args(if strict { &["--strict"] } else { &[] });
            let ended = write_reports(&args, Ok(report(fails, unseen)), None, &mut Vec::new());
            assert_eq!(ended.unwrap(), expected, "{strict} {fails} {unseen}");
        }
    }
}

//! `check URL`.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::ValueEnum;
use clap::error::ErrorKind;

use super::Ended;
use crate::target::{Case, Chosen, Counter, Dialect, Header, Target};
use crate::{Address, Error, Real, Report};

/// Probe an HTTP API for safe retries. It does real operations there, each under a new key: use a
/// test environment. `{reference}` and `{key}` in bodies, headers, URLs and commands stand for a
/// new name for each operation and for its key.
#[derive(clap::Args)]
pub struct Args {
    /// Where the operation is, for example `http://127.0.0.1:8080/payments`
    #[arg(value_name = "URL")]
    url: Address,

    /// How requests are sent
    #[arg(long, default_value = "POST", value_parser = super::token)]
    method: String,

    /// What requests carry; a small payment if absent
    #[arg(long, value_name = "TEXT")]
    body: Option<String>,

    /// Another request for the same key; if absent, the first number in the body is changed
    #[arg(long, value_name = "TEXT")]
    other_body: Option<String>,

    /// A header of every request; its value is never printed (repeatable)
    #[arg(long = "header", short = 'H', value_name = "NAME: VALUE", value_parser = super::header)]
    headers: Vec<Header>,

    /// What a second customer sends instead, for the probe of isolation (repeatable)
    #[arg(long = "other-header", value_name = "NAME: VALUE", value_parser = super::header)]
    other_headers: Vec<Header>,

    /// The header that the key is in
    #[arg(long, value_name = "NAME", default_value = "Idempotency-Key", value_parser = super::token)]
    key_header: String,

    /// How keys are written: quoted, or as they are
    #[arg(long, value_enum, default_value_t = Spelling::Auto)]
    dialect: Spelling,

    /// How long an operation may take, and how long its outcome is waited for
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = super::duration)]
    operation_timeout: std::time::Duration,

    /// URL that counts the effects of an operation: a number, or an array
    #[arg(long, value_name = "URL", conflicts_with = "count_command")]
    count_url: Option<String>,

    /// JSON Pointer to the number or the array in what the URL answers
    #[arg(long, value_name = "POINTER", requires = "count_url")]
    count_pointer: Option<String>,

    /// Command that prints the number of effects of an operation
    #[arg(long, value_name = "COMMAND")]
    count_command: Option<String>,

    /// Also run the probes that take long or break something
    #[arg(long)]
    disruptive: bool,

    /// How the API is brought to behave in some way: slow, linger (works at once, answers late),
    /// timeout (works, then answers 504), declined, large, `store_failure` (repeatable)
    #[arg(long = "case", value_name = "NAME=HEADER: VALUE|NAME=body:TEXT", value_parser = case)]
    cases: Vec<(Name, Case)>,

    /// Kills the server at once and starts it again
    #[arg(long, value_name = "COMMAND")]
    crash_command: Option<String>,

    /// Makes the store of the keys fail
    #[arg(long, value_name = "COMMAND", requires = "heal_store_command")]
    break_store_command: Option<String>,

    /// Makes the store of the keys work again
    #[arg(long, value_name = "COMMAND", requires = "break_store_command")]
    heal_store_command: Option<String>,

    /// What could not be seen counts as a failure
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
enum Spelling {
    /// By what the API does with quotes
    Auto,
    /// Quoted, as the IETF draft has it
    Ietf,
    /// Unquoted, as Stripe has it
    Stripe,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Name {
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
            Spelling::Auto => Chosen::Auto,
            Spelling::Ietf => Chosen::Fixed(Dialect::Ietf),
            Spelling::Stripe => Chosen::Fixed(Dialect::Stripe),
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
                Name::Slow => &mut target.cases.slow,
                Name::Linger => &mut target.cases.linger,
                Name::Timeout => &mut target.cases.timeout,
                Name::Declined => &mut target.cases.declined,
                Name::Large => &mut target.cases.large,
                Name::StoreFailure => &mut target.cases.store_failure,
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

/// Runs the command. A URL to count at that is none, and a file that cannot be written, are usage
/// errors and end the process with 2.
///
/// # Errors
/// Where nothing could be probed, or the report could not be written.
pub fn run(args: &Args) -> Result<Ended, Error> {
    let junit = prepare(args).unwrap_or_else(|wrong| wrong.exit());
    let checked = super::runtime()?.block_on(crate::check(&args.target(), &Real));
    tell(args, checked, junit, &mut io::stdout().lock())
}

/// All that can be wrong before anything is done at the target. The file is made here: a run that
/// does not come to its end leaves an empty one, and not what the last run found.
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

/// Prints first: what was found at the cost of so many operations is not lost with a file. Where
/// nothing was found, both say why.
fn tell(
    args: &Args,
    checked: Result<Report, Error>,
    junit: Option<File>,
    output: &mut impl Write,
) -> Result<Ended, Error> {
    let text = match &checked {
        Ok(report) if args.json => report.json(),
        Ok(report) => report.table(super::width(), super::coloured()),
        Err(error) if args.json => error.json(&args.url),
        // Whoever runs the command says it where errors belong.
        Err(_) => String::new(),
    };
    let printed = super::print(output, &text);
    let written = junit.map_or(Ok(()), |mut file| {
        let xml = match &checked {
            Ok(report) => report.junit(args.strict),
            Err(error) => error.junit(&args.url),
        };
        let told = |error: io::Error| io::Error::new(error.kind(), format!("--junit: {error}"));
        file.write_all(xml.as_bytes()).map_err(told)
    });
    let report = checked?;
    printed?;
    written?;
    Ok(match (report.passed(false), report.passed(args.strict)) {
        (true, true) => Ended::Well,
        (true, false) => Ended::Unseen,
        (false, _) => Ended::Badly,
    })
}

fn case(text: &str) -> Result<(Name, Case), String> {
    let (name, how) = text
        .split_once('=')
        .ok_or("write it as NAME='HEADER: VALUE' or NAME=body:TEXT")?;
    let name = match name.trim() {
        "slow" => Name::Slow,
        "linger" => Name::Linger,
        "timeout" => Name::Timeout,
        "declined" => Name::Declined,
        "large" => Name::Large,
        "store_failure" => Name::StoreFailure,
        other => {
            return Err(format!(
                "{other:?} is no case: slow, linger, timeout, declined, large or store_failure"
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
    use crate::catalogue::Id;
    use crate::record::{Record, Stop};

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn args(more: &[&str]) -> Args {
        let args = ["check", "http://shop/payments"].iter().chain(more);
        Cli::parse_from(args).args
    }

    /// A file of this test alone, which is there no more when the test is over.
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
        let mut replay = Record::default();
        if fails {
            replay.fail("it was executed 2 times");
        }
        let slow = if unseen {
            Err(Stop::NotSeen("needs --case slow".to_owned()))
        } else {
            Ok(())
        };
        let findings = vec![
            replay.finding(Id::Replay, Ok(())),
            Record::default().finding(Id::SlowOperation, slow),
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
    fn what_cannot_be_written_is_said_before_anything_is_done() {
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
    fn the_last_run_is_gone_as_soon_as_this_one_begins() {
        let scratch = Scratch::new("last.xml");
        std::fs::write(&scratch.0, "<testsuites failures=\"0\"/>").unwrap();
        let args = args(&[&scratch.option(), "--json"]);
        let junit = prepare(&args).unwrap();
        assert_eq!(scratch.text(), "");

        let mut printed = Vec::new();
        let ended = tell(&args, Err(unreachable()), junit, &mut printed);
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
    fn what_was_found_is_printed_even_if_the_file_cannot_be_written() {
        let scratch = Scratch::new("full.xml");
        std::fs::write(&scratch.0, "").unwrap();
        // Open for reading alone: to write to it fails, as on a full disk.
        let closed = || Some(File::open(&scratch.0).unwrap());
        let mut printed = Vec::new();
        let args = args(&[]);
        let ended = tell(&args, Ok(report(true, false)), closed(), &mut printed);
        let error = ended.unwrap_err().to_string();
        assert!(error.starts_with("--junit: "), "{error}");
        let table = String::from_utf8(printed).unwrap();
        assert!(table.contains("it was executed 2 times"), "{table}");
        // Why nothing was probed matters more than that this could not be written.
        let ended = tell(&args, Err(unreachable()), closed(), &mut Vec::new());
        assert!(matches!(ended, Err(Error::Unreachable { .. })));
    }

    #[test]
    fn what_was_not_seen_is_told_from_what_is_broken() {
        for (strict, fails, unseen, expected) in [
            (false, false, true, Ended::Well),
            (true, false, false, Ended::Well),
            (true, false, true, Ended::Unseen),
            (true, true, true, Ended::Badly),
            (false, true, false, Ended::Badly),
        ] {
            let args = args(if strict { &["--strict"] } else { &[] });
            let ended = tell(&args, Ok(report(fails, unseen)), None, &mut Vec::new());
            assert_eq!(ended.unwrap(), expected, "{strict} {fails} {unseen}");
        }
    }
}

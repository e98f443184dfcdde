//! `check URL`.

use std::path::PathBuf;

use clap::ValueEnum;
use clap::error::ErrorKind;

use super::Ended;
use crate::target::{Case, Chosen, Counter, Dialect, Header, Target};
use crate::{Address, Error, Real};

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
    /// What is accepted, quoted first
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

/// Runs the command. A URL to count at that is none is a usage error and ends the process with 2.
///
/// # Errors
/// Where nothing could be probed.
pub fn run(args: &Args) -> Result<Ended, Error> {
    if let Some(url) = &args.count_url
        && let Err(wrong) = crate::fill(url, "reference", "key").parse::<Address>()
    {
        clap::Error::raw(
            ErrorKind::ValueValidation,
            format!("--count-url: {wrong}\n"),
        )
        .exit()
    }
    let report = super::runtime()?.block_on(crate::check(&args.target(), &Real))?;
    if let Some(file) = &args.junit {
        std::fs::write(file, report.junit(args.strict))?;
    }
    if args.json {
        super::print(&report.json())?;
    } else {
        super::print(&report.table(super::width(), super::coloured()))?;
    }
    Ok(if report.passed(args.strict) {
        Ended::Well
    } else {
        Ended::Badly
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

//! `semel operations resolve`, `reconcile` and `erase`. The gateway validates each decision; this
//! module asks for confirmation.

use std::fs::File;
use std::io::{self, IsTerminal as _, Read, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::error::ErrorKind;
use semel_core::OperationId;
use serde::Serialize;
use serde::de::IgnoredAny;

use super::admin::Admin;
use super::answers::{Decided, Operation, Reconciled};
use super::{note, print, show, text};

/// The largest body: the gateway accepts 2 MiB for the whole decision.
const MAX_BODY: u64 = 2 << 20;

/// How many characters of the id are typed to confirm.
const CONFIRM_CHARS: usize = 6;

const DANGER: &str = "\
DANGER: after --not-executed the next request with this key EXECUTES. If the first attempt took effect
after all (a charge, an order, an email), it happens TWICE. A provider that does not find it is not
proof: the call may still arrive. Without proof, leave it unknown: unknown is safe.";

const LOSS: &str = "\
The stored response, its headers and the evidence in the history are removed permanently. Retries are
refused as already executed, and no longer get the response.";

/// Resolve an unknown operation.
#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("verdict").required(true))]
pub(crate) struct Resolve {
    /// Id of the operation
    #[arg(value_name = "ID", value_parser = super::id)]
    id: OperationId,

    /// It executed, with success or with a final failure: every retry gets this response
    #[arg(long, group = "verdict", requires = "response_status")]
    completed: bool,

    /// There is PROOF that it did not execute: the next request with its key executes
    #[arg(long, group = "verdict", conflicts_with_all = ["response_status", "body", "json_body", "headers"])]
    not_executed: bool,

    /// Status of the response, such as 201, or 402 for a decline
    #[arg(long, value_name = "STATUS", value_parser = clap::value_parser!(u16).range(200..=599))]
    response_status: Option<u16>,

    /// File with the body of the response, as text; - for standard input
    #[arg(long, value_name = "FILE", conflicts_with = "json_body")]
    body: Option<PathBuf>,

    /// File with the body of the response, as JSON; - for standard input
    #[arg(long, value_name = "FILE")]
    json_body: Option<PathBuf>,

    /// A header of the response (repeatable)
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = header)]
    headers: Vec<(String, String)>,

    /// How you know; kept in the history
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    reason: String,

    /// Your name; kept in the history
    #[arg(long, value_name = "NAME")]
    by: Option<String>,

    /// The attempt that `show` displayed; refused if there was another one since
    #[arg(long, value_name = "N")]
    attempt: Option<u32>,

    /// Skip the confirmation of --not-executed
    #[arg(long)]
    yes: bool,
}

/// Look up an unknown operation now.
#[derive(clap::Args)]
pub(crate) struct Reconcile {
    /// Id of the operation
    #[arg(value_name = "ID", value_parser = super::id)]
    id: OperationId,

    /// Reason; kept in the history
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    reason: Option<String>,

    /// Your name; kept in the history
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
}

/// Remove a stored response.
#[derive(clap::Args)]
pub(crate) struct Erase {
    /// Id of the operation
    #[arg(value_name = "ID", value_parser = super::id)]
    id: OperationId,

    /// Reason, such as the request for erasure; kept in the history
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    reason: String,

    /// Your name; kept in the history
    #[arg(long, value_name = "NAME")]
    by: Option<String>,

    /// Skip the confirmation
    #[arg(long)]
    yes: bool,
}

#[derive(Serialize)]
struct Decision<'a> {
    verdict: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    response: Option<ResponseToStore>,
    reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
}

#[derive(Serialize)]
struct ResponseToStore {
    status: u16,
    headers: Vec<(String, String)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
}

#[derive(Serialize)]
struct Reason<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<&'a str>,
}

pub(super) async fn resolve(admin: &Admin, args: &Resolve, json: bool) -> Result<()> {
    let mut attempt = args.attempt;
    if args.not_executed && !args.yes {
        require_terminal(DANGER);
        let (_, operation) = show::find(admin, args.id, false).await?;
        let found = &operation.summary;
        if found.status != "unknown" {
            let status = text::line(&found.status);
            bail!("only an unknown operation can be resolved; this one is {status}");
        }
        // The decision applies to the attempt that is shown.
        attempt = attempt.or(Some(found.attempt));
        confirm(args.id, &operation, DANGER)?;
    }
    let response = match args.response_status {
        Some(status) => Some(args.response(status)?),
        None => None,
    };
    let decision = Decision {
        verdict: if args.completed {
            "completed"
        } else {
            "not_executed"
        },
        response,
        reason: &args.reason,
        by: args.by.as_deref(),
        attempt,
    };
    let answer = admin.post(args.id, "resolve", &decision).await?;
    let decided: Decided = answer.read()?;
    if json {
        return print(&text::document(&answer.text));
    }
    let follows = match args.response_status {
        Some(status) => format!("every retry gets the {status}"),
        None => "the next request with its key executes".to_owned(),
    };
    let (id, status) = (text::line(&decided.id), text::line(&decided.status));
    print(&format!("{id} is {status} now: {follows}\n"))
}

pub(super) async fn reconcile(admin: &Admin, args: &Reconcile, json: bool) -> Result<()> {
    let request = Reason {
        reason: args.reason.as_deref(),
        by: args.by.as_deref(),
    };
    let answer = admin.post(args.id, "reconcile", &request).await?;
    let reconciled: Reconciled = answer.read()?;
    if json {
        return print(&text::document(&answer.text));
    }
    let code = reconciled
        .code
        .as_deref()
        .map(text::line)
        .unwrap_or_default();
    let found = match &*reconciled.outcome {
        "completed" => "is completed now: it had executed, and every retry gets its response".to_owned(),
        "not_executed" => "is failed_retryable now: it had not executed, and the next request with its key executes".to_owned(),
        "still_unknown" => format!("is still unknown: {code}"),
        other => format!("was looked up: {}", text::line(other)),
    };
    print(&format!("{} {found}\n", text::line(&reconciled.id)))
}

pub(super) async fn erase(admin: &Admin, args: &Erase, json: bool) -> Result<()> {
    if !args.yes {
        require_terminal(LOSS);
        let (_, operation) = show::find(admin, args.id, false).await?;
        confirm(args.id, &operation, LOSS)?;
    }
    let request = Reason {
        reason: Some(&args.reason),
        by: args.by.as_deref(),
    };
    let answer = admin.post(args.id, "erase", &request).await?;
    let decided: Decided = answer.read()?;
    if json {
        return print(&text::document(&answer.text));
    }
    let (id, status) = (text::line(&decided.id), text::line(&decided.status));
    print(&format!("{id} stays {status}; its response is erased\n"))
}

impl Resolve {
    /// Sends the body as text: parsing and serializing it would change large numbers.
    fn response(&self, status: u16) -> Result<ResponseToStore> {
        let mut headers = self.headers.clone();
        let body = match (&self.body, &self.json_body) {
            (Some(file), _) => Some(read(file)?),
            (None, Some(file)) => {
                let body = read(file)?;
                serde_json::from_str::<IgnoredAny>(&body)
                    .with_context(|| format!("{} is not JSON", file.display()))?;
                let typed =
                    |(name, _): &(String, String)| name.eq_ignore_ascii_case("content-type");
                if !headers.iter().any(typed) {
                    headers.push(("content-type".to_owned(), "application/json".to_owned()));
                }
                Some(body.trim().to_owned())
            }
            (None, None) => None,
        };
        Ok(ResponseToStore {
            status,
            headers,
            body,
        })
    }
}

/// Ends the process with 2 if there is no terminal for the confirmation.
fn require_terminal(what: &str) {
    if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        let message =
            format!("{what}\nThere is no terminal to ask for confirmation. Confirm with --yes.\n");
        clap::Error::raw(ErrorKind::MissingRequiredArgument, message).exit()
    }
}

fn confirm(id: OperationId, operation: &Operation, what: &str) -> Result<()> {
    let summary = &operation.summary;
    let since = summary.last_error.as_deref().map(text::line);
    note(&format!(
        "{} {} of tenant {}, key {}, attempt {}, {}{}\n{what}",
        text::line(&summary.id),
        text::line(&summary.operation),
        text::line(&summary.tenant),
        text::line(&summary.key),
        summary.attempt,
        text::line(&summary.status),
        since.map_or_else(String::new, |code| format!(" since {code}")),
    ));
    let id = id.to_string();
    let end = &id[id.len() - CONFIRM_CHARS..];
    let mut output = io::stderr();
    write!(
        output,
        "Type the last {CONFIRM_CHARS} characters of the id to confirm: "
    )
    .and_then(|()| output.flush())
    .context("cannot ask for confirmation")?;
    let mut typed = String::new();
    let most = u64::try_from(id.len()).unwrap_or_default();
    io::BufRead::read_line(&mut io::stdin().lock().take(most), &mut typed)
        .context("cannot read the confirmation")?;
    if typed.trim() == end {
        return Ok(());
    }
    Err(anyhow!(
        "the characters do not match the id; nothing was changed"
    ))
}

fn read(file: &Path) -> Result<String> {
    let (name, input): (String, Box<dyn Read>) = if file == Path::new("-") {
        ("standard input".to_owned(), Box::new(io::stdin().lock()))
    } else {
        let name = file.display().to_string();
        let opened = File::open(file).with_context(|| format!("cannot open {name}"))?;
        (name, Box::new(opened))
    };
    let mut body = Vec::new();
    input
        .take(MAX_BODY + 1)
        .read_to_end(&mut body)
        .with_context(|| format!("cannot read {name}"))?;
    if body.len() as u64 > MAX_BODY {
        bail!("{name} has more than {MAX_BODY} bytes, the maximum of the gateway");
    }
    String::from_utf8(body).map_err(|_| anyhow!("{name} is not UTF-8 text"))
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("write it as NAME: VALUE")?;
    let value = value.trim_matches([' ', '\t']);
    Ok((name.trim().to_owned(), value.to_owned()))
}

fn reason(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("the reason is empty: say how you know; it is kept in the history".to_owned()),
        reason => Ok(reason.to_owned()),
    }
}

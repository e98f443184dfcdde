//! `semel call`: one request from a script, safe to run again after any failure.

mod journal;
mod progress;

use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use reqwest::Method;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use semel_client::{Client, Error, GaveUp, Options, Profile, Request, Reqwest, Response};
use semel_gateway::config::duration;

use progress::Progress;

pub(crate) const HELP: &str = "\
The intent names what should happen once. Its key is stored in the journal before anything is sent, so the same command
can run again after a failure, a crash or a reboot, also at the same time: it continues with the same key, and a finished
intent prints its stored response without a request.

Exit codes:
  0  final success: the response is on standard output; of one over 1 MiB only in the first run, and standard error says so later
  1  failure before anything was sent, or the journal failed; run again
  2  usage: the command is wrong, or the intent is known with another request
  3  final rejection: the server's answer, which is no success, is on standard output
  4  the outcome is unknown; run again later, and never under another intent. Where the lifetime of the key is over: look the
     outcome up, then forget the intent
  5  gave up before a final response; run again later

Example:
  semel call --intent invoice-7781 -X POST https://api.example/payments -d @body.json";

/// Sends one request, and retries it until its outcome is known.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The name of what should happen once
    #[arg(long, value_name = "NAME", required_unless_present_any = ["list", "forget"])]
    intent: Option<String>,

    /// Where the request goes
    #[arg(required_unless_present_any = ["list", "forget"])]
    url: Option<String>,

    /// Print the intents of the journal that are not finished, and send nothing
    #[arg(long, conflicts_with_all = ["intent", "url", "forget"])]
    list: bool,

    /// Remove an intent from the journal whose outcome you have looked up: its next call is a new operation
    #[arg(long, value_name = "NAME", conflicts_with_all = ["intent", "url"])]
    forget: Option<String>,

    /// The method
    #[arg(
        short = 'X',
        long = "request",
        value_name = "METHOD",
        default_value = "POST"
    )]
    method: Method,

    /// A header, `Name: value`; or a file with one in each line, @FILE. Their values are not in the journal, but for Content-Type
    #[arg(short = 'H', long = "header", value_name = "HEADER")]
    headers: Vec<String>,

    /// The body, as it is; or @FILE; or @- for standard input. It is JSON unless there is a header Content-Type
    #[arg(short = 'd', long = "data", value_name = "DATA")]
    data: Option<String>,

    /// The file with keys and responses; by default in the user's state directory, because another file is another key
    #[arg(long, value_name = "FILE", env = "SEMEL_JOURNAL")]
    journal: Option<PathBuf>,

    /// How long to retry, such as 90s, 10m or 2h
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration)]
    deadline: Duration,

    /// How long one attempt may take
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    attempt_timeout: Duration,

    /// The dialect of the server
    #[arg(long, value_name = "PROFILE", default_value = "ietf")]
    profile: Dialect,

    /// Also print the status line and the headers
    #[arg(short = 'i', long)]
    include: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Dialect {
    /// Semel, and the IETF draft
    Ietf,
    /// Stripe
    Stripe,
}

const FAILURE: u8 = 1;
const USAGE: u8 = 2;
const REJECTED: u8 = 3;
const UNKNOWN: u8 = 4;
const GAVE_UP: u8 = 5;

pub(crate) fn run(args: &Args) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return fail(FAILURE, &format!("cannot start the runtime: {error}")),
    };
    // Without them it is a question to the journal.
    let (Some(intent), Some(url)) = (&args.intent, &args.url) else {
        let answered = journal::open(args.journal.as_deref()).and_then(|journal| {
            runtime.block_on(journal::answer(&journal, args.forget.as_deref()))
        });
        return match answered {
            Ok(code) => code,
            Err(error) => fail(FAILURE, &format!("{error:#}")),
        };
    };
    let request = match request(args, url) {
        Ok(request) => request,
        Err(error) => return fail(USAGE, &format!("{error:#}")),
    };
    let client = match client(args, &request) {
        Ok(client) => client,
        Err(error) => return fail(FAILURE, &format!("{error:#}")),
    };
    let ended = runtime.block_on(client.call(intent, request));
    progress::clear();
    end(&ended, args.include)
}

fn end(ended: &Result<Response, Error>, include: bool) -> ExitCode {
    let (code, response) = match ended {
        Ok(response) if (200..300).contains(&response.status) => (0, Some(response)),
        Ok(response) => (REJECTED, Some(response)),
        // A success, although there is no more to print than its status.
        Err(Error::ResponseNotStored(response)) if (200..300).contains(&response.status) => {
            (0, Some(&**response))
        }
        Err(
            Error::KeyReused(response)
            | Error::KeyExpired(response)
            | Error::ResponseNotStored(response),
        ) => (REJECTED, Some(&**response)),
        Err(
            Error::Unknown { .. }
            | Error::GaveUp {
                reason: GaveUp::KeyLifetime,
                ..
            },
        ) => (UNKNOWN, None),
        Err(Error::GaveUp { .. }) => (GAVE_UP, None),
        Err(Error::IntentConflict | Error::Request(_)) => (USAGE, None),
        Err(Error::Failed(_) | Error::Journal(_) | _) => (FAILURE, None),
    };
    if let Some(response) = response
        && let Err(error) = print(response, include)
    {
        return fail(
            FAILURE,
            &format!("cannot print the response: {error}; run again"),
        );
    }
    if let Err(error) = ended {
        return fail(code, &error.to_string());
    }
    ExitCode::from(code)
}

#[allow(clippy::print_stderr)]
fn fail(code: u8, message: &str) -> ExitCode {
    eprintln!("semel: {message}");
    ExitCode::from(code)
}

fn print(response: &Response, include: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if include {
        writeln!(out, "HTTP {}", response.status)?;
        for (name, value) in &response.headers {
            write!(out, "{name}: ")?;
            out.write_all(value.as_bytes())?;
            writeln!(out)?;
        }
        writeln!(out)?;
    }
    out.write_all(&response.body)?;
    out.flush()
}

fn request(args: &Args, url: &str) -> Result<Request> {
    let mut request = Request::new(args.method.clone(), url)?;
    request.headers = headers(&args.headers)?;
    if let Some(data) = &args.data {
        request.body = data_of(data)?.into();
        if !request.headers.contains_key(CONTENT_TYPE) {
            let json = HeaderValue::from_static("application/json");
            request.headers.insert(CONTENT_TYPE, json);
        }
    }
    Ok(request)
}

fn data_of(data: &str) -> Result<Vec<u8>> {
    match data.strip_prefix('@') {
        None => Ok(data.as_bytes().to_vec()),
        Some("-") => {
            let mut body = Vec::new();
            let read = io::stdin().lock().read_to_end(&mut body);
            read.context("cannot read standard input")?;
            Ok(body)
        }
        Some(file) => std::fs::read(file).with_context(|| format!("cannot read {file}")),
    }
}

fn headers(arguments: &[String]) -> Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    for argument in arguments {
        let text = match argument.strip_prefix('@') {
            Some(file) => {
                std::fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?
            }
            None => argument.clone(),
        };
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            // Without the value, which may be a credential.
            let Some((name, value)) = line.split_once(':') else {
                bail!("a header has the form `Name: value`");
            };
            let wrong = || format!("`{name}` is not a header that can be sent");
            let name = HeaderName::try_from(name.trim()).with_context(wrong)?;
            let value = HeaderValue::try_from(value.trim()).with_context(wrong)?;
            headers.append(name, value);
        }
    }
    Ok(headers)
}

fn client(args: &Args, request: &Request) -> Result<Client> {
    let journal = journal::open(args.journal.as_deref())?;
    let options = Options {
        profile: match args.profile {
            Dialect::Ietf => Profile::ietf(),
            Dialect::Stripe => Profile::stripe(),
        },
        deadline: args.deadline,
        attempt_timeout: args.attempt_timeout,
        // Any header may be a credential, and the next run has them all.
        secret_headers: request.headers.keys().cloned().collect(),
        ..Options::default()
    };
    let progress = Progress::new(Reqwest::new()?, io::stderr().is_terminal());
    Ok(Client::builder(journal)
        .options(options)
        .environment(Arc::new(progress.clone()))
        .build_with(progress))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_that_cannot_be_sent_is_named_without_its_value() {
        let error = headers(&["Auth orization: secret".to_owned()]).unwrap_err();
        assert!(!format!("{error:#}").contains("secret"));
        let error = headers(&["secret".to_owned()]).unwrap_err();
        assert!(!format!("{error:#}").contains("secret"));
    }
}

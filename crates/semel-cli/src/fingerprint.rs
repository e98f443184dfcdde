//! `semel fingerprint`: the fingerprint of a body or a request, and the rule that applied.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::error::ErrorKind;
use semel_core::canonical;
use semel_core::fingerprint::{Authority, Hosts, Options, Precision, Request, Rules};

/// Far more than a gateway accepts (8 MiB by default); canonicalising takes a few times the size in
/// memory.
const MAX_BODY: u64 = 256 * 1024 * 1024;

/// Print the fingerprint of a request body. With the operation, method, path and headers that the
/// gateway saw, it is the fingerprint in the record.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// File with the body; by default standard input
    file: Option<PathBuf>,

    /// The request's Content-Type
    #[arg(long, value_name = "TYPE", default_value = "application/json")]
    content_type: String,

    /// Print only the RFC 8785 bytes of the body
    #[arg(long, conflicts_with_all = ["explain", "ignore", "defaults", "decimal", "field", "enums", "timestamp"])]
    canonical: bool,

    /// Print which rule applied, and why
    #[arg(long)]
    explain: bool,

    /// Name of the operation
    #[arg(long, value_name = "NAME", default_value = "")]
    operation: String,

    /// Method of the request
    #[arg(long, default_value = "POST")]
    method: String,

    /// Path of the request
    #[arg(long, default_value = "/")]
    path: String,

    /// Raw query of the request, without `?`; an empty one differs from none
    #[arg(long)]
    query: Option<String>,

    /// Host of the request; without it as with `hosts = "any"`
    #[arg(long)]
    host: Option<String>,

    /// A semantic header of the route, as sent (repeatable)
    #[arg(long = "header", value_name = "NAME:VALUE", value_parser = header)]
    headers: Vec<(String, String)>,

    /// JSON Pointer to a value that the route ignores (repeatable)
    #[arg(long, value_name = "POINTER")]
    ignore: Vec<String>,

    /// JSON Pointer and JSON text of a default of the route (repeatable)
    #[arg(long = "default", value_name = "POINTER=JSON", value_parser = default)]
    defaults: Vec<(String, String)>,

    /// JSON Pointer to a decimal number of the route (repeatable)
    #[arg(long, value_name = "POINTER")]
    decimal: Vec<String>,

    /// JSON Pointer to a value that counts; with one of these, nothing else does (repeatable)
    #[arg(long, value_name = "POINTER")]
    field: Vec<String>,

    /// JSON Pointer to a string whose case does not matter (repeatable)
    #[arg(long = "enum", value_name = "POINTER")]
    enums: Vec<String>,

    /// JSON Pointer to a timestamp, and how much of it counts: minute, second, millisecond or
    /// microsecond (repeatable)
    #[arg(long, value_name = "POINTER=PRECISION", value_parser = timestamp)]
    timestamp: Vec<(String, Precision)>,
}

/// Runs the command. An invalid rule is a usage error and ends the process with 2.
pub(crate) fn run(args: &Args) -> Result<()> {
    let rules = Rules::new(&args.options()).unwrap_or_else(|error| {
        clap::Error::raw(ErrorKind::ValueValidation, format!("{error}\n")).exit()
    });
    let rules = rules.with_hosts(&match args.host {
        Some(_) => Hosts::default(),
        None => Hosts::any(),
    });
    let body = read(args.file.as_deref())?;
    if args.canonical {
        let canonical = canonical::pure(&body)
            .map_err(|refused| anyhow::anyhow!("not I-JSON (RFC 7493): {refused}"))?;
        return print(&canonical);
    }
    let (fingerprint, rule) = args.request(&body).explain(&rules);
    let mut text = format!("{fingerprint}\n");
    if args.explain {
        text.push_str(&args.explanation(&rule.to_string(), body.len()));
    }
    print(text.as_bytes())
}

impl Args {
    fn options(&self) -> Options {
        Options {
            headers: self.headers.iter().map(|(name, _)| name.clone()).collect(),
            ignore: self.ignore.clone(),
            defaults: self.defaults.clone(),
            decimals: self.decimal.clone(),
            fields: self.field.clone(),
            enums: self.enums.clone(),
            timestamps: self.timestamp.clone(),
        }
    }

    fn request<'a>(&'a self, body: &'a [u8]) -> Request<'a> {
        let mut request = Request::new(&self.operation, &self.method, &self.path)
            .content_type(&self.content_type)
            .body(body);
        if let Some(query) = &self.query {
            request = request.query(query);
        }
        if let Some(host) = &self.host {
            request = request.authority(Authority {
                scheme: None,
                host: host.as_bytes(),
            });
        }
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        request
    }

    fn explanation(&self, rule: &str, length: usize) -> String {
        let query = self
            .query
            .as_deref()
            .map_or_else(|| "none".into(), |query| format!("{query:?}"));
        let host = self.host.as_deref().unwrap_or("none");
        let headers: Vec<_> = self
            .headers
            .iter()
            .map(|(name, _)| name.to_ascii_lowercase())
            .collect();
        let headers = if headers.is_empty() {
            "none".into()
        } else {
            headers.join(", ")
        };
        format!(
            "body: {rule} ({length} bytes)\n\
             also hashed: operation {:?}, method {:?}, path {:?}, query {query}, \
             host {host}, content type {:?} (type, subtype and charset), semantic headers: {headers}\n\
             rules: {} ignored, {} defaults, {} decimals, {} fields, {} enums, {} timestamps\n",
            self.operation,
            self.method,
            self.path,
            self.content_type,
            self.ignore.len(),
            self.defaults.len(),
            self.decimal.len(),
            self.field.len(),
            self.enums.len(),
            self.timestamp.len(),
        )
    }
}

fn read(file: Option<&Path>) -> Result<Vec<u8>> {
    let (name, input): (String, Box<dyn Read>) = match file {
        Some(path) => {
            let opened =
                File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
            (path.display().to_string(), Box::new(opened))
        }
        None => ("standard input".to_owned(), Box::new(io::stdin().lock())),
    };
    let mut body = Vec::new();
    input
        .take(MAX_BODY + 1)
        .read_to_end(&mut body)
        .with_context(|| format!("cannot read {name}"))?;
    if body.len() as u64 > MAX_BODY {
        bail!("{name} has more than {MAX_BODY} bytes, the maximum");
    }
    Ok(body)
}

fn print(bytes: &[u8]) -> Result<()> {
    let mut output = io::stdout().lock();
    output
        .write_all(bytes)
        .and_then(|()| output.flush())
        .context("cannot write standard output")
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("write it as NAME:VALUE")?;
    Ok((
        name.trim().to_owned(),
        value.trim_matches([' ', '\t']).to_owned(),
    ))
}

fn timestamp(text: &str) -> Result<(String, Precision), String> {
    text.rsplit_once('=')
        .and_then(|(pointer, name)| {
            let mut all = Precision::ALL.into_iter();
            let precision = all.find(|precision| precision.as_str() == name)?;
            Some((pointer.to_owned(), precision))
        })
        .ok_or_else(|| "write it as POINTER=PRECISION, such as /due_at=second".to_owned())
}

/// Splits at the first `=` that JSON follows: a pointer may contain `=`.
fn default(text: &str) -> Result<(String, String), String> {
    text.match_indices('=')
        .map(|(at, _)| (&text[..at], &text[at + 1..]))
        .find(|(_, json)| canonical::guarded(json.as_bytes()).is_ok())
        .map(|(pointer, json)| (pointer.to_owned(), json.to_owned()))
        .ok_or_else(|| {
            "write it as POINTER=JSON, strings in double quotes: '/channel=\"web\"'".to_owned()
        })
}

//! `bench URL`.

use std::io;
use std::time::Duration;

use clap::ValueEnum;

use crate::load::{LoadOptions, run_load};
use crate::target::{Dialect, Header};
use crate::{Address, Error, SystemEnvironment};

/// Measure an endpoint under load: new keys, replays and concurrent duplicates. It executes as
/// many real operations as it can: use a test environment.
#[derive(clap::Args)]
pub struct Args {
    /// URL of the operation, for example `http://127.0.0.1:8080/payments`
    #[arg(value_name = "URL")]
    url: Address,

    /// Number of concurrent connections, with one request each
    #[arg(long, value_name = "NUMBER", default_value_t = 16, value_parser = clap::value_parser!(u16).range(2..=4096))]
    connections: u16,

    /// Duration of each of the three phases
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = super::duration)]
    duration: Duration,

    /// HTTP method
    #[arg(long, default_value = "POST", value_parser = super::token)]
    method: String,

    /// Request body, with `{reference}` or `{key}` for values that are new for each key; a small
    /// payment by default
    #[arg(long, value_name = "TEXT")]
    body: Option<String>,

    /// Header of every request; its value is never printed (repeatable)
    #[arg(long = "header", short = 'H', value_name = "NAME: VALUE", value_parser = super::header)]
    headers: Vec<Header>,

    /// Name of the key's header
    #[arg(long, value_name = "NAME", default_value = "Idempotency-Key", value_parser = super::token)]
    key_header: String,

    /// How keys are written: quoted or unquoted
    #[arg(long, value_enum, default_value_t = DialectArg::Ietf)]
    dialect: DialectArg,

    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DialectArg {
    /// Quoted, as in the IETF draft
    Ietf,
    /// Unquoted, as at Stripe
    Stripe,
}

/// Runs the command.
///
/// # Errors
/// If the target does not respond, or no request with a new key succeeds.
pub fn run(args: &Args) -> Result<(), Error> {
    let mut load = LoadOptions::new(args.url.clone());
    load.connections = args.connections.into();
    load.duration = args.duration;
    load.method.clone_from(&args.method);
    if let Some(body) = &args.body {
        load.body.clone_from(body);
    }
    load.headers.clone_from(&args.headers);
    load.key_header.clone_from(&args.key_header);
    load.dialect = match args.dialect {
        DialectArg::Ietf => Dialect::Ietf,
        DialectArg::Stripe => Dialect::Stripe,
    };
    let seen = super::runtime()?.block_on(run_load(&load, &SystemEnvironment))?;
    let text = if args.json { seen.json() } else { seen.table() };
    super::print(&mut io::stdout().lock(), &text)?;
    Ok(())
}

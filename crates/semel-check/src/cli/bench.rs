//! `bench URL`.

use std::io;
use std::time::Duration;

use clap::ValueEnum;

use crate::load::{Drive, drive};
use crate::target::{Dialect, Header};
use crate::{Address, Error, Real};

/// Drive an endpoint with new keys, replays and concurrent duplicates. It does as many real
/// operations there as it can: use a test environment.
#[derive(clap::Args)]
pub struct Args {
    /// Where the operation is, for example `http://127.0.0.1:8080/payments`
    #[arg(value_name = "URL")]
    url: Address,

    /// How many requests are under way at once
    #[arg(long, value_name = "NUMBER", default_value_t = 16, value_parser = clap::value_parser!(u16).range(2..=4096))]
    connections: u16,

    /// How long each of the three parts takes
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = super::duration)]
    duration: Duration,

    /// How requests are sent
    #[arg(long, default_value = "POST", value_parser = super::token)]
    method: String,

    /// What requests carry, with {reference} or {key} for what is their own; a small payment if
    /// absent
    #[arg(long, value_name = "TEXT")]
    body: Option<String>,

    /// A header of every request; its value is never printed (repeatable)
    #[arg(long = "header", short = 'H', value_name = "NAME: VALUE", value_parser = super::header)]
    headers: Vec<Header>,

    /// The header that the key is in
    #[arg(long, value_name = "NAME", default_value = "Idempotency-Key", value_parser = super::token)]
    key_header: String,

    /// How keys are written: quoted, or as they are
    #[arg(long, value_enum, default_value_t = Spelling::Ietf)]
    dialect: Spelling,

    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Spelling {
    /// Quoted, as the IETF draft has it
    Ietf,
    /// Unquoted, as Stripe has it
    Stripe,
}

/// Runs the command.
///
/// # Errors
/// Where nothing answers, or no request with a new key succeeds.
pub fn run(args: &Args) -> Result<(), Error> {
    let mut load = Drive::new(args.url.clone());
    load.connections = args.connections.into();
    load.duration = args.duration;
    load.method.clone_from(&args.method);
    if let Some(body) = &args.body {
        load.body.clone_from(body);
    }
    load.headers.clone_from(&args.headers);
    load.key_header.clone_from(&args.key_header);
    load.dialect = match args.dialect {
        Spelling::Ietf => Dialect::Ietf,
        Spelling::Stripe => Dialect::Stripe,
    };
    let seen = super::runtime()?.block_on(drive(&load, &Real))?;
    let text = if args.json { seen.json() } else { seen.table() };
    super::print(&mut io::stdout().lock(), &text)?;
    Ok(())
}

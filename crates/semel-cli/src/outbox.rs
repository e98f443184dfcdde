//! `semel outbox`: the backlog, and events that the broker refused.

use anyhow::Result;
use clap::Subcommand;
use semel_core::outbox::EventId;
use serde::{Deserialize, Serialize};

use crate::operations::admin::{Admin, Answer};
use crate::operations::layout::{self, Table};
use crate::operations::{AdminOptions, note, print, text};

/// List the backlog of the outbox and its dead events, and retry them. The admin token is read from
/// `SEMEL_ADMIN_TOKEN`, or from a file.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    connection: AdminOptions,

    #[command(subcommand)]
    command: Command,
}

const RETRY_EXAMPLE: &str = "\
Example:
  semel outbox retry 0198a1b2-c3d4-7000-8000-00000000000a --reason 'raised the size limit'";

#[derive(Subcommand)]
enum Command {
    /// Show the number of waiting events, and the dead ones, oldest first
    #[command(after_help = "Example:\n  semel outbox list --limit 20")]
    List(List),
    /// Publish a dead event again, after its cause was fixed
    #[command(after_help = RETRY_EXAMPLE)]
    Retry(Retry),
}

/// Show the backlog and dead events.
#[derive(clap::Args)]
struct List {
    /// The most dead events to show
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: Option<u16>,
}

/// Publish a dead event again.
#[derive(clap::Args)]
struct Retry {
    /// Id of the event
    #[arg(value_name = "ID", value_parser = id)]
    id: EventId,

    /// What was fixed; written to the gateway's log
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    /// Your name; written to the gateway's log
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
}

#[derive(Deserialize)]
struct Listed {
    waiting: u64,
    #[serde(default)]
    waiting_or_more: bool,
    oldest_age_seconds: Option<f64>,
    dead: u64,
    dead_events: Vec<Event>,
}

#[derive(Deserialize)]
struct Event {
    id: String,
    kind: String,
    aggregate: String,
    payload_bytes: u64,
    dead_at: String,
    reason: String,
}

#[derive(Serialize)]
struct RetryRequest<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<&'a str>,
}

#[derive(Deserialize)]
struct Revived {
    id: String,
    status: String,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let json = args.connection.json;
    args.connection
        .run(async |admin: &Admin| match &args.command {
            Command::List(list) => list.run(admin, json).await,
            Command::Retry(retry) => retry.run(admin, json).await,
        })
}

impl List {
    async fn run(&self, admin: &Admin, json: bool) -> Result<()> {
        let limit = self.limit.map(|limit| limit.to_string());
        let query: Vec<_> = limit
            .iter()
            .map(|limit| ("limit", limit.as_str()))
            .collect();
        let answer = admin.read_collection("outbox", &[], &query).await?;
        let listed: Listed = answer.read()?;
        if json {
            return print(&text::document(&answer.text));
        }
        print(&table(&listed.dead_events, &answer))?;
        note(&summary(&listed));
        Ok(())
    }
}

const TITLES: [&str; 6] = ["ID", "KIND", "AGGREGATE", "BYTES", "DEAD FOR", "REASON"];

fn table(dead: &[Event], answer: &Answer) -> String {
    let mut table = Table::new(&TITLES, &[false, true, true, false, false, true]);
    let rows: Vec<Vec<String>> = dead.iter().map(|dead| row(dead, answer)).collect();
    table.measure(&rows);
    if let Some(width) = layout::width() {
        // If even this does not fit, the terminal wraps the lines.
        table.fit(width);
    }
    let head = (!rows.is_empty()).then(|| table.head());
    let rows = rows.iter().map(|row| table.row(row));
    head.into_iter().chain(rows).collect()
}

fn row(dead: &Event, answer: &Answer) -> Vec<String> {
    vec![
        text::line(&dead.id),
        text::line(&dead.kind),
        text::line(&dead.aggregate),
        dead.payload_bytes.to_string(),
        text::age(&dead.dead_at, answer.now),
        text::line(&dead.reason),
    ]
}

/// A summary in one line.
fn summary(listed: &Listed) -> String {
    let more = if listed.waiting_or_more { "+" } else { "" };
    let oldest = listed.oldest_age_seconds.map_or_else(String::new, |age| {
        format!(", the oldest for {age:.0} seconds")
    });
    let waiting = format!("{}{more} waiting{oldest}", listed.waiting);
    let dead = match listed.dead {
        0 => "none dead".to_owned(),
        dead => format!("{dead} dead: fix the cause, then semel outbox retry ID"),
    };
    format!("{waiting}; {dead}")
}

impl Retry {
    async fn run(&self, admin: &Admin, json: bool) -> Result<()> {
        let request = RetryRequest {
            reason: self.reason.as_deref(),
            by: self.by.as_deref(),
        };
        let id = self.id.to_string();
        let path = [&*id, "retry"];
        let decided = admin.post_to("outbox", &path, &request, "semel outbox list");
        let answer = decided.await?;
        let revived: Revived = answer.read()?;
        if json {
            return print(&text::document(&answer.text));
        }
        let (id, status) = (text::line(&revived.id), text::line(&revived.status));
        print(&format!(
            "{id} is {status} again: the relay publishes it next\n"
        ))
    }
}

/// Parses an id as printed here and in logs.
fn id(text: &str) -> Result<EventId, String> {
    let id = text.trim().parse::<EventId>();
    id.map_err(|_| "invalid id: expected one like 0198a1b2-c3d4-7000-8000-00000000000a".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_is_one_line() {
        let mut listed = Listed {
            waiting: 0,
            waiting_or_more: false,
            oldest_age_seconds: None,
            dead: 0,
            dead_events: Vec::new(),
        };
        assert_eq!(summary(&listed), "0 waiting; none dead");
        listed.waiting = 100_000;
        listed.waiting_or_more = true;
        listed.oldest_age_seconds = Some(61.4);
        listed.dead = 2;
        assert_eq!(
            summary(&listed),
            "100000+ waiting, the oldest for 61 seconds; 2 dead: fix the cause, then semel outbox \
             retry ID"
        );
    }
}

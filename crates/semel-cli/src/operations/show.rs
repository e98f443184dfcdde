//! `semel operations show`: the record and its history.

use std::fmt::Write as _;

use anyhow::Result;
use jiff::Timestamp;
use semel_core::OperationId;

use super::admin::{Admin, Answer};
use super::answers::{Entry, Operation, Response};
use super::layout::{self, Table};
use super::text;
use super::{note, print};

/// Show one operation and its history.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Id of the operation, from `list`, the logs or the client's response
    #[arg(value_name = "ID", value_parser = super::id)]
    id: OperationId,

    /// Also show the stored body, which may contain personal data
    #[arg(long)]
    reveal: bool,
}

pub(super) async fn run(admin: &Admin, args: &Args, json: bool) -> Result<()> {
    let (answer, operation) = find(admin, args.id, args.reveal).await?;
    if json {
        return print(&text::document(&answer.text));
    }
    print(&operation.render(args.id, answer.now, layout::width()))?;
    if operation.summary.status == "unknown" {
        note(&format!(
            "It may have executed, and retries do not execute until it is resolved. Look for it at the \
             provider, by the id or the downstream key; then resolve it: semel operations resolve {}",
            args.id
        ));
    }
    Ok(())
}

/// Fetches an operation.
pub(super) async fn find(
    admin: &Admin,
    id: OperationId,
    reveal: bool,
) -> Result<(Answer, Operation)> {
    let reveal: &[(&str, &str)] = if reveal { &[("reveal", "true")] } else { &[] };
    let answer = admin.get(&[&id.to_string()], reveal).await?;
    let operation = answer.read()?;
    Ok((answer, operation))
}

/// The width of the longest label.
const LABEL: usize = 16;

impl Operation {
    fn render(&self, id: OperationId, now: Option<Timestamp>, width: Option<usize>) -> String {
        let mut text = self.fields(id, now);
        if let Some(response) = &self.response {
            text.push_str(&response.render());
        }
        text.push('\n');
        text.push_str(&timeline(&self.events(), width));
        text.push('\n');
        text.push_str(&self.integrity());
        text
    }

    fn fields(&self, id: OperationId, now: Option<Timestamp>) -> String {
        let summary = &self.summary;
        let ago = |at: &str| format!("{} ({} ago)", text::line(at), text::age(at, now));
        let some = |field: &Option<String>| field.as_deref().map(text::line);
        let status = match &summary.dead_lettered_at {
            Some(at) => format!(
                "{}, a dead letter since {}",
                text::line(&summary.status),
                ago(at)
            ),
            None => text::line(&summary.status),
        };
        let lookups = self.reconcile_attempts.map(|lookups| lookups.to_string());
        let resource = self.resource.as_ref();
        let resource = resource.map(|created| {
            format!(
                "{} {}",
                text::line(&created.r#type),
                text::line(&created.id)
            )
        });
        // A dead letter is not looked up automatically, whatever time is recorded.
        let next_lookup =
            some(&self.reconcile_after).filter(|_| summary.dead_lettered_at.is_none());
        let fields = [
            ("id", Some(text::line(&summary.id))),
            ("status", Some(status)),
            ("operation", Some(text::line(&summary.operation))),
            ("tenant", Some(text::line(&summary.tenant))),
            ("key", Some(text::line(&summary.key))),
            ("downstream key", Some(id.downstream_key(""))),
            ("attempt", Some(summary.attempt.to_string())),
            ("last error", some(&summary.last_error)),
            ("created", Some(ago(&summary.created_at))),
            ("updated", Some(ago(&summary.updated_at))),
            ("owner", some(&self.owner)),
            ("locked until", some(&self.locked_until)),
            ("recovery point", some(&self.recovery_point)),
            ("lookups", lookups),
            ("next lookup", next_lookup),
            ("resource", resource),
            ("resolved by", some(&self.resolved_by)),
            ("completed", some(&self.completed_at)),
            ("replayed until", some(&self.expires_at)),
            ("body kept until", some(&self.body_expires_at)),
            ("purged after", some(&self.purge_at)),
            ("fingerprint", Some(text::line(&self.fingerprint))),
        ];
        let present = fields
            .into_iter()
            .filter_map(|(label, value)| Some(format!("{label:LABEL$} {}\n", value?)));
        present.collect()
    }

    /// The history, plus creation and completion, which the record itself has.
    fn events(&self) -> Vec<Event> {
        let mut events = vec![Event {
            at: text::line(&self.summary.created_at),
            attempt: "1".to_owned(),
            what: "created".to_owned(),
            who: "client".to_owned(),
            ..Event::default()
        }];
        events.extend(self.history.iter().map(Event::from));
        let is_completion =
            |entry: &Entry| ["completed_late", "resolved_completed"].contains(&&*entry.what);
        if let Some(at) = &self.completed_at
            && !self.history.iter().any(is_completion)
        {
            // Later entries, such as an erasure, come after it.
            let completed = text::time(at);
            let later = |event: &Event| completed.is_some() && text::time(&event.at) > completed;
            let place = events.iter().position(later).unwrap_or(events.len());
            let completed = Event {
                at: text::line(at),
                attempt: self.summary.attempt.to_string(),
                what: "completed".to_owned(),
                who: "executor".to_owned(),
                ..Event::default()
            };
            events.insert(place, completed);
        }
        events
    }

    fn integrity(&self) -> String {
        let problem = self.history_problem.as_deref().map(text::line);
        match (self.history_intact, self.history.len()) {
            (true, 0) => "history: intact (no entries)\n".to_owned(),
            (true, 1) => "history: intact (1 entry)\n".to_owned(),
            (true, entries) => format!("history: intact ({entries} entries)\n"),
            (false, _) => format!(
                "history: NOT INTACT: {}. The store was changed outside of Semel; trust neither the \
                 record nor its history.\n",
                problem.as_deref().unwrap_or("its hashes do not match")
            ),
        }
    }
}

impl Response {
    fn render(&self) -> String {
        let body = match (self.body_bytes, &self.body) {
            (None, _) => "body not stored".to_owned(),
            (Some(bytes), None) => format!("body of {bytes} bytes (show it with --reveal)"),
            (Some(bytes), Some(_)) => format!("body of {bytes} bytes"),
        };
        let schema = match self.schema_version {
            0 => String::new(),
            version => format!(", schema version {version}"),
        };
        let mut text = format!("{:LABEL$} {}{schema}, {body}\n", "response", self.status);
        for (name, value) in &self.headers {
            let (name, value) = (text::line(name), text::line(value));
            // Writing to a string cannot fail.
            let _ = writeln!(text, "    {name}: {value}");
        }
        if let Some(body) = &self.body {
            text.push('\n');
            text.push_str(&text::block(body, "    "));
        }
        text
    }
}

/// One line of the timeline.
#[derive(Default)]
struct Event {
    at: String,
    attempt: String,
    what: String,
    who: String,
    code: String,
    reason: String,
    evidence: Option<String>,
}

impl From<&Entry> for Event {
    fn from(entry: &Entry) -> Self {
        let safe = |text: &Option<String>| text.as_deref().map(text::line).unwrap_or_default();
        let evidence = match &entry.evidence {
            Some(evidence) => Some(text::block(evidence, "      ")),
            None if entry.evidence_erased => Some("      (erased)\n".to_owned()),
            None => None,
        };
        Self {
            at: text::line(&entry.at),
            attempt: entry.attempt.to_string(),
            what: text::line(&entry.what),
            who: text::line(&entry.actor),
            code: safe(&entry.code),
            reason: safe(&entry.reason),
            evidence,
        }
    }
}

const TITLES: [&str; 6] = ["TIME", "ATTEMPT", "WHAT", "WHO", "CODE", "REASON"];

fn timeline(events: &[Event], width: Option<usize>) -> String {
    // The reason is the last column and is never cut.
    let mut table = Table::new(&TITLES, &[false, false, false, true, true, false]);
    let cells = |event: &Event| {
        let cells = [
            &event.at,
            &event.attempt,
            &event.what,
            &event.who,
            &event.code,
        ];
        cells.map(Clone::clone).to_vec()
    };
    let rows: Vec<Vec<String>> = events.iter().map(cells).collect();
    table.measure(&rows);
    if let Some(width) = width {
        table.fit(width);
    }
    let mut text = table.head();
    for (mut row, event) in rows.into_iter().zip(events) {
        row.push(event.reason.clone());
        text.push_str(&table.row(&row));
        if let Some(evidence) = &event.evidence {
            text.push_str("    evidence\n");
            text.push_str(evidence);
        }
    }
    text
}

//! `semel operations show`: the record, and what happened to it.

use std::fmt::Write as _;

use anyhow::Result;
use jiff::Timestamp;
use semel_core::OperationId;

use super::admin::{Admin, Answer};
use super::answers::{Entry, Operation, Response};
use super::layout::{self, Table};
use super::text;
use super::{note, print};

/// Which operation.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Its id, as `list`, the logs and the clients' answers have it
    #[arg(value_name = "ID", value_parser = super::id)]
    id: OperationId,

    /// Show the stored body, too: it may hold what is nobody else's business
    #[arg(long)]
    reveal: bool,
}

pub(super) async fn run(admin: &Admin, args: &Args, json: bool) -> Result<()> {
    let (answer, operation) = find(admin, args.id, args.reveal).await?;
    if json {
        return print(&text::document(&answer.text));
    }
    print(&operation.told(args.id, answer.now, layout::width()))?;
    if operation.summary.status == "unknown" {
        note(&format!(
            "It may have happened, and nobody executes it until somebody knows. Look for it where \
             it would have happened, under the id or the downstream key; then say so with: semel \
             operations resolve {}",
            args.id
        ));
    }
    Ok(())
}

/// What is remembered of an operation.
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

/// Wide enough for the longest name of a field.
const LABEL: usize = 16;

impl Operation {
    fn told(&self, id: OperationId, now: Option<Timestamp>, width: Option<usize>) -> String {
        let mut told = self.fields(id, now);
        if let Some(response) = &self.response {
            told.push_str(&response.told());
        }
        told.push('\n');
        told.push_str(&timeline(&self.events(), width));
        told.push('\n');
        told.push_str(&self.verdict());
        told
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
        let looks = self.reconcile_attempts.map(|looks| looks.to_string());
        let resource = self.resource.as_ref();
        let resource =
            resource.map(|made| format!("{} {}", text::line(&made.r#type), text::line(&made.id)));
        // A dead letter is not looked for by itself any more, whatever time is noted.
        let next_look = some(&self.reconcile_after).filter(|_| summary.dead_lettered_at.is_none());
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
            ("looks so far", looks),
            ("next look", next_look),
            ("resource", resource),
            ("resolved by", some(&self.resolved_by)),
            ("completed", some(&self.completed_at)),
            ("replayed until", some(&self.expires_at)),
            ("body kept until", some(&self.body_expires_at)),
            ("gone after", some(&self.purge_at)),
            ("fingerprint", Some(text::line(&self.fingerprint))),
        ];
        let present = fields
            .into_iter()
            .filter_map(|(label, value)| Some(format!("{label:LABEL$} {}\n", value?)));
        present.collect()
    }

    /// An ordinary execution is told by the record's own times; the history has the rest.
    fn events(&self) -> Vec<Event> {
        let mut events = vec![Event {
            at: text::line(&self.summary.created_at),
            attempt: "1".to_owned(),
            what: "created".to_owned(),
            who: "client".to_owned(),
            ..Event::default()
        }];
        events.extend(self.history.iter().map(Event::from));
        let told = |entry: &Entry| ["completed_late", "resolved_completed"].contains(&&*entry.what);
        if let Some(at) = &self.completed_at
            && !self.history.iter().any(told)
        {
            // What came after it, such as an erasure, is told after it.
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

    fn verdict(&self) -> String {
        let problem = self.history_problem.as_deref().map(text::line);
        match (self.history_intact, self.history.len()) {
            (true, 0) => "history: intact; nothing out of the ordinary happened\n".to_owned(),
            (true, 1) => "history: intact (1 entry)\n".to_owned(),
            (true, entries) => format!("history: intact ({entries} entries)\n"),
            (false, _) => format!(
                "history: NOT INTACT: {}. Somebody changed the store by hand; trust neither the \
                 record nor its history.\n",
                problem.as_deref().unwrap_or("it does not hold")
            ),
        }
    }
}

impl Response {
    fn told(&self) -> String {
        let body = match (self.body_bytes, &self.body) {
            (None, _) => "its body is not stored".to_owned(),
            (Some(bytes), None) => format!("a body of {bytes} bytes (--reveal shows it)"),
            (Some(bytes), Some(_)) => format!("a body of {bytes} bytes"),
        };
        let mut told = format!("{:LABEL$} {}, {body}\n", "response", self.status);
        for (name, value) in &self.headers {
            let (name, value) = (text::line(name), text::line(value));
            // Writing to a string cannot fail.
            let _ = writeln!(told, "    {name}: {value}");
        }
        if let Some(body) = &self.body {
            told.push('\n');
            told.push_str(&text::block(body, "    "));
        }
        told
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
    // The reason is last, and wraps rather than being cut: it is what the next person needs.
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
    let mut told = table.head();
    for (mut row, event) in rows.into_iter().zip(events) {
        row.push(event.reason.clone());
        told.push_str(&table.row(&row));
        if let Some(evidence) = &event.evidence {
            told.push_str("    evidence\n");
            told.push_str(evidence);
        }
    }
    told
}

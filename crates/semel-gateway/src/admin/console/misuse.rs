//! Reuse of keys for different requests, by tenant and operation; and weak keys, by operation.

use std::collections::{BTreeMap, HashMap};

use askama::Template;
use axum::extract::State;
use http::StatusCode;
use semel_core::Store;
use semel_core::key::Weakness;
use semel_core::statistics::Misuse;

use super::layout::{Layout, Section};
use super::operations::tail;
use super::text::{Text, TimeLabel, link_to, number};
use super::{Console, PageResult, Shared, html};
use crate::admin::access::Caller;
use crate::admin::api::FullStore;

/// The maximum number of rows, most recent first.
const MAX_ROWS: usize = 200;

#[derive(Template)]
#[template(path = "misuse.html")]
struct Page {
    layout: Layout,
    rows: Vec<Row>,
    total: String,
    tenants: usize,
    full: bool,
    weak_keys: Vec<WeakKeyRow>,
}

/// Requests with weak keys of one operation.
struct WeakKeyRow {
    operation: Text,
    reason: &'static str,
    count: String,
}

struct Row {
    tenant: Text,
    tenant_link: String,
    operation: Text,
    count: String,
    /// The tenant's share of all listed rows, in percent.
    share: u64,
    first: TimeLabel,
    last: TimeLabel,
    id: String,
    tail: String,
}

pub(super) async fn page<S: FullStore, O: Store>(
    caller: Caller,
    State(console): Shared<S, O>,
) -> PageResult {
    let misuses = console.store.misuses(MAX_ROWS).await?;
    let now = console.now();
    let mut tenants = HashMap::<&str, u64>::new();
    for misuse in &misuses {
        *tenants.entry(&misuse.tenant).or_default() += misuse.count;
    }
    let total: u64 = tenants.values().sum();
    let row = |misuse: &Misuse| {
        let of_tenant = tenants.get(&*misuse.tenant).copied().unwrap_or_default();
        let id = misuse.last_id.to_string();
        Row {
            tenant: Text::line(&misuse.tenant),
            tenant_link: link_to("/operations", &[("tenant", &misuse.tenant)]),
            operation: Text::line(&console.shown_operation(&misuse.operation)),
            count: number(misuse.count),
            share: (of_tenant * 100).checked_div(total).unwrap_or_default(),
            first: TimeLabel::new(misuse.first_at, now),
            last: TimeLabel::new(misuse.last_at, now),
            tail: tail(&id, 12).to_owned(),
            id,
        }
    };
    let page = Page {
        layout: Layout::new(&caller, Section::Misuse),
        rows: misuses.iter().map(row).collect(),
        total: number(total),
        tenants: tenants.len(),
        full: misuses.len() >= MAX_ROWS,
        weak_keys: weak_keys(&console),
    };
    Ok(html(StatusCode::OK, &page))
}

fn weak_keys<S: FullStore, O: Store>(console: &Console<S, O>) -> Vec<WeakKeyRow> {
    let label = |reason: &str| match Weakness::ALL
        .into_iter()
        .find(|known| known.as_str() == reason)
    {
        Some(Weakness::Email) => "e-mail address",
        Some(Weakness::CardNumber) => "card number",
        Some(Weakness::Timestamp) => "timestamp",
        Some(Weakness::Counter) => "counter",
        None => "other",
    };
    // Requests from before a rename are counted under the earlier name.
    let mut counts = BTreeMap::<_, u64>::new();
    for (operation, reason, count) in console.counts.weak_keys() {
        let operation = console.shown_operation(&operation);
        *counts.entry((operation, reason)).or_default() += count;
    }
    counts
        .into_iter()
        .map(|((operation, reason), count)| WeakKeyRow {
            operation: Text::line(&operation),
            reason: label(&reason),
            count: number(count),
        })
        .collect()
}

//! Who uses keys for something else.

use std::collections::HashMap;

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use semel_core::Outbox;
use semel_core::figures::Misuse;

use super::layout::{Layout, Place};
use super::operations::tail;
use super::text::{Text, When, address, number};
use super::{Answer, Console, Shared, html, told};
use crate::admin::access::Caller;
use crate::admin::api::Whole;

/// How many lines are shown: those whose last misuse is the latest.
const SHOWN: usize = 200;

#[derive(Template)]
#[template(path = "misuse.html")]
struct Page {
    layout: Layout,
    rows: Vec<Row>,
    total: String,
    tenants: usize,
    full: bool,
}

struct Row {
    tenant: Text,
    tenant_link: String,
    command: Text,
    count: String,
    /// The tenant's share of all that is shown, in percent.
    share: u64,
    first: When,
    last: When,
    id: String,
    tail: String,
}

pub(super) async fn page<S: Whole, O: Outbox>(
    caller: Caller,
    State(console): Shared<S, O>,
) -> Response {
    told(&caller, misused(&caller, &console).await)
}

async fn misused<S: Whole, O: Outbox>(caller: &Caller, console: &Console<S, O>) -> Answer {
    let misuses = console.store.misuses(SHOWN).await?;
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
            tenant_link: address("/operations", &[("tenant", &misuse.tenant)]),
            command: Text::line(&misuse.operation),
            count: number(misuse.count),
            share: (of_tenant * 100).checked_div(total).unwrap_or_default(),
            first: When::new(misuse.first_at, now),
            last: When::new(misuse.last_at, now),
            tail: tail(&id, 12).to_owned(),
            id,
        }
    };
    let page = Page {
        layout: Layout::new(caller, Place::Misuse),
        rows: misuses.iter().map(row).collect(),
        total: number(total),
        tenants: tenants.len(),
        full: misuses.len() >= SHOWN,
    };
    Ok(html(StatusCode::OK, &page))
}

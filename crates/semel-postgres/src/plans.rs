//! Query plans: a statement that scans the whole table is quick in every test and too slow in
//! production. Checks the plans for an empty table, for which they are made, and for a large one.

use std::sync::Arc;

use semel_testkit::database::Database;
use tokio_postgres::{Client, NoTls};

use crate::connection::Connector;
use crate::queries::Queries;
use crate::time::Time;

/// The indexes that each statement uses.
const INDEXES: [(&str, &[&str]); 52] = [
    ("reserve_new", &["operations_pkey"]),
    ("reserve_existing", &["operations_pkey"]),
    ("reserve", &["operations_pkey"]),
    ("find", &["operations_id"]),
    ("find_identity", &["operations_pkey"]),
    ("find_resource", &["operations_resource"]),
    ("list", &["operations_id"]),
    ("list_unknown", &["operations_unknown"]),
    ("list_unknown_oldest", &["operations_unknown"]),
    ("list_in_progress", &["operations_leases"]),
    ("history", &["history_pkey"]),
    (
        "count_unfinished",
        &["operations_leases", "operations_unknown"],
    ),
    ("complete", &["operations_id"]),
    ("release", &["operations_id"]),
    ("evict", &["operations_id"]),
    ("mark_unknown", &["operations_id"]),
    ("heartbeat", &["operations_id"]),
    ("advance", &["operations_id"]),
    ("record_refusal", &["operations_id"]),
    ("watch", &["operations_id", "operations_pkey"]),
    ("sweep", &["operations_leases", "operations_pkey"]),
    ("claim_abandoned", &["operations_leases", "operations_pkey"]),
    ("claim_due", &["operations_unknown"]),
    ("schedule_claimed", &["operations_id"]),
    ("resolve_completed", &["operations_id"]),
    ("resolve_not_executed", &["operations_id"]),
    ("resolve_still_unknown", &["operations_id"]),
    ("dead_letter", &["operations_id"]),
    ("expire", &["operations_windows", "operations_pkey"]),
    ("drop_bodies", &["operations_bodies", "operations_pkey"]),
    ("purge", &["operations_tombstones", "operations_pkey"]),
    ("erase", &["operations_id", "history_pkey"]),
    ("audit_reveal", &["operations_id"]),
    ("settle", &["inbox_pkey"]),
    ("claim_parked", &["inbox_due"]),
    ("schedule_parked", &["inbox_pkey"]),
    ("forget", &["inbox_forget", "inbox_pkey"]),
    ("claim_events", &["outbox_waiting", "outbox_held_pkey"]),
    ("mark_sent", &["outbox_pkey", "outbox_held_pkey"]),
    ("hold_back", &["outbox_pkey"]),
    ("dead_letter_event", &["outbox_pkey", "outbox_held_pkey"]),
    ("dead_events", &["outbox_dead"]),
    ("revive", &["outbox_pkey"]),
    ("backlog", &["outbox_waiting", "outbox_dead"]),
    ("trim_misuse", &["misuse_last", "misuse_pkey"]),
    ("activity", &["activity_pkey"]),
    ("misuses", &["misuse_last"]),
    ("forget_activity", &["activity_pkey"]),
    ("forget_misuses", &["misuse_last", "misuse_pkey"]),
    ("scan_records", &["operations_id"]),
    ("record_callers", &["callers_pkey"]),
    ("find_keys", &["operations_pkey"]),
];

#[tokio::test]
async fn every_statement_finds_its_rows_by_an_index_from_an_empty_table_on() {
    let Some(database) = Database::new().await else {
        return;
    };
    crate::migrate(&database.url).await.unwrap();
    no_statement_scans_a_whole_table(&database).await;
}

/// Statistics may change the plan.
#[tokio::test]
async fn every_statement_finds_its_rows_by_an_index_in_a_large_table() {
    let Some(database) = Database::new().await else {
        return;
    };
    crate::migrate(&database.url).await.unwrap();
    let client = database.client().await;
    for sql in [
        include_str!("../tests/queries/many_operations.sql"),
        include_str!("../tests/queries/many_activities.sql"),
        include_str!("../tests/queries/many_misuses.sql"),
        include_str!("../tests/queries/many_callers.sql"),
        include_str!("../tests/queries/vacuum_analyze.sql"),
    ] {
        client.batch_execute(sql).await.unwrap();
    }
    no_statement_scans_a_whole_table(&database).await;
}

/// Statements without an index: they look up no rows, their table has one row at most, or they read
/// all of a table of bounded size.
const WITHOUT_INDEX: [&str; 17] = [
    "now",
    "contracts",
    "publish_contracts",
    // Reads all records, when a process starts with a contract that leaves some behind.
    "count_records",
    "receive",
    "publish_event",
    "acquire_relay_lease",
    "hold_aggregate",
    "release_relay_lease",
    "count_activity",
    "count_misuse",
    "lock_callers",
    "callers",
    "count_callers",
    "publish_record_counts",
    "acquire_scan_lease",
    "record_counts",
];

/// Statements that sort few rows: unknown, in progress or due records, one batch of a scan or of a
/// claim, or misuse, which is bounded.
const SORTING: [&str; 8] = [
    "claim_abandoned",
    "list_unknown",
    "list_unknown_oldest",
    "list_in_progress",
    "sweep",
    "scan_records",
    "misuses",
    "trim_misuse",
];

async fn no_statement_scans_a_whole_table(database: &Database) {
    let tables = [
        "operations",
        "history",
        "inbox",
        "outbox",
        "activity",
        "misuse",
        "callers",
    ];
    let connector =
        Connector::new(&database.url, Queries::default(), Arc::new(Time::new(None))).unwrap();
    let session = connector.session().await.unwrap();
    for (name, sql) in Queries::default().each() {
        if WITHOUT_INDEX.contains(&name) {
            continue;
        }
        let wanted = INDEXES.iter().find(|(known, _)| *known == name);
        let wanted = wanted
            .unwrap_or_else(|| panic!("{name}: add it to INDEXES or WITHOUT_INDEX"))
            .1;
        let plan = plan(&session.client, name, sql).await;
        for table in tables {
            let whole = format!("Seq Scan on {table}");
            assert!(!plan.contains(&whole), "{name}:\n{plan}");
        }
        let sorts = plan.contains("Sort") && !SORTING.contains(&name);
        assert!(!sorts, "{name} sorts:\n{plan}");
        if name == "claim_abandoned" {
            // What it claimed, and not what it chooses from.
            let keys: Vec<_> = plan
                .lines()
                .filter(|line| line.contains("Sort Key"))
                .collect();
            assert!(
                matches!(keys[..], [key] if key.ends_with(": claimed.expired_since")),
                "{name} sorts:\n{plan}"
            );
        }
        for index in wanted {
            assert!(plan.contains(index), "{name} without {index}:\n{plan}");
        }
        let used = tables.map(|table| format!(" using {table}_"));
        for line in plan
            .lines()
            .filter(|line| used.iter().any(|using| line.contains(using)))
        {
            assert!(
                wanted.iter().any(|index| line.contains(index)),
                "{name} also uses {line}"
            );
        }
        // A page starts with an index seek, and passes over no rows before it.
        if ["list", "scan_records"].contains(&name) {
            assert!(
                plan.contains("Index Cond: (id "),
                "{name} does not seek:\n{plan}"
            );
            let sought = plan.matches("using operations_id").count();
            assert_eq!(
                plan.matches("Index Cond: (id ").count(),
                sought,
                "{name}:\n{plan}"
            );
        }
    }
}

/// The generic plan, as the workers run it.
async fn plan(client: &Client, name: &str, sql: &str) -> String {
    let prepare = format!("PREPARE {name} AS {sql}");
    client.batch_execute(&prepare).await.unwrap();
    let parameters = client.prepare(sql).await.unwrap().params().len();
    let nulls = match parameters {
        0 => String::new(),
        many => format!("({})", vec!["NULL"; many].join(", ")),
    };
    let explain = format!("EXPLAIN (COSTS OFF) EXECUTE {name} {nulls}");
    let rows = client.query(&explain, &[]).await.unwrap();
    let lines: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
    lines.join("\n")
}

/// Without the session settings the same statement scans the table: the tests above can fail.
#[tokio::test]
async fn without_session_settings_a_plan_made_on_an_empty_table_scans_it() {
    let Some(database) = Database::new().await else {
        return;
    };
    crate::migrate(&database.url).await.unwrap();
    let (client, driver) = tokio_postgres::connect(&database.url, NoTls).await.unwrap();
    tokio::spawn(driver);
    client
        .batch_execute("SET plan_cache_mode = force_generic_plan")
        .await
        .unwrap();
    let plan = plan(&client, "complete", Queries::default().complete).await;
    assert!(plan.contains("Seq Scan on operations"), "{plan}");
}

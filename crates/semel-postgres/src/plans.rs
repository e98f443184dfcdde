//! A statement that reads the whole table is quick in every test and stands still in
//! production. The plans here are those of an empty table, which is when they are made, and those of
//! a large one.

use semel_testkit::database::Database;
use tokio_postgres::{Client, NoTls};

use crate::connection::Connector;
use crate::queries::Queries;

/// What each statement finds its rows by. Those that are not here look for none.
const INDEXES: [(&str, &[&str]); 49] = [
    ("reserve", &["operations_pkey"]),
    ("find", &["operations_id"]),
    ("find_identity", &["operations_pkey"]),
    ("find_resource", &["operations_resource"]),
    ("list", &["operations_id"]),
    ("list_unknown", &["operations_unknown"]),
    ("list_in_progress", &["operations_leases"]),
    ("history", &["history_pkey"]),
    ("standing", &["operations_leases", "operations_unknown"]),
    ("complete", &["operations_id"]),
    ("release", &["operations_id"]),
    ("evict", &["operations_id"]),
    ("mark_unknown", &["operations_id"]),
    ("heartbeat", &["operations_id"]),
    ("advance", &["operations_id"]),
    ("tell", &["operations_id"]),
    ("watch", &["operations_id", "operations_pkey"]),
    ("sweep", &["operations_leases", "operations_pkey"]),
    ("claim_abandoned", &["operations_leases", "operations_pkey"]),
    ("claim_due", &["operations_unknown"]),
    ("claim", &["operations_id"]),
    ("resolve_completed", &["operations_id"]),
    ("resolve_not_executed", &["operations_id"]),
    ("resolve_still_unknown", &["operations_id"]),
    ("dead_letter", &["operations_id"]),
    ("expire", &["operations_windows", "operations_pkey"]),
    ("drop_bodies", &["operations_bodies", "operations_pkey"]),
    ("purge", &["operations_tombstones", "operations_pkey"]),
    ("erase", &["operations_id", "history_pkey"]),
    ("revealed", &["operations_id"]),
    ("settle", &["inbox_pkey"]),
    ("claim_parked", &["inbox_due"]),
    ("park", &["inbox_pkey"]),
    ("forget", &["inbox_forget", "inbox_pkey"]),
    ("claim_events", &["outbox_waiting", "outbox_held_pkey"]),
    ("mark_sent", &["outbox_pkey", "outbox_held_pkey"]),
    ("hold_back", &["outbox_pkey"]),
    ("set_aside", &["outbox_pkey", "outbox_held_pkey"]),
    ("dead_events", &["outbox_dead"]),
    ("revive", &["outbox_pkey"]),
    ("backlog", &["outbox_waiting", "outbox_dead"]),
    ("trim_misuse", &["misuse_last", "misuse_pkey"]),
    ("activity", &["activity_pkey"]),
    ("misuses", &["misuse_last"]),
    ("forget_activity", &["activity_pkey"]),
    ("forget_misuses", &["misuse_last", "misuse_pkey"]),
    ("survey", &["operations_id"]),
    ("meet", &["callers_pkey"]),
    ("find_keys", &["operations_pkey"]),
];

#[tokio::test]
async fn every_statement_finds_its_rows_by_an_index_from_an_empty_table_on() {
    let Some(database) = Database::new().await else {
        return;
    };
    crate::migrate(&database.url).await.unwrap();
    no_statement_reads_a_whole_table(&database).await;
}

/// What the planner knows of a table may speak for another way than none.
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
    no_statement_reads_a_whole_table(&database).await;
}

/// Statements that look for no rows, whose table has one row at most, or that want all of a table
/// in which only so many are kept.
const WITHOUT: [&str; 14] = [
    "now",
    "receive",
    "publish_alone",
    "relay",
    "hold_until",
    "stand_down",
    "count_activity",
    "count_misuse",
    "lock_callers",
    "callers",
    "callers_count",
    "publish_census",
    "count_alone",
    "census",
];

/// What these sort is what is unknown, under way or due, the stretch that is surveyed, or misuse of
/// which only so much is kept: never what is stored.
const SORTING: [&str; 6] = [
    "list_unknown",
    "list_in_progress",
    "sweep",
    "survey",
    "misuses",
    "trim_misuse",
];

async fn no_statement_reads_a_whole_table(database: &Database) {
    let tables = [
        "operations",
        "history",
        "inbox",
        "outbox",
        "activity",
        "misuse",
        "callers",
    ];
    let connector = Connector::new(&database.url, Queries::default()).unwrap();
    let session = connector.session().await.unwrap();
    for (name, sql) in Queries::default().each() {
        if WITHOUT.contains(&name) {
            continue;
        }
        let wanted = INDEXES.iter().find(|(known, _)| *known == name);
        let wanted = wanted
            .unwrap_or_else(|| panic!("{name}: say which index it uses"))
            .1;
        let plan = plan(&session.client, name, sql).await;
        for table in tables {
            let whole = format!("Seq Scan on {table}");
            assert!(!plan.contains(&whole), "{name}:\n{plan}");
        }
        let sorts = plan.contains("Sort") && !SORTING.contains(&name);
        assert!(!sorts, "{name} sorts:\n{plan}");
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
        // A walk begins where it is told to: it passes over nothing on its way there.
        if ["list", "survey"].contains(&name) {
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

/// The generic plan, as the lanes run it.
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

/// Without the pins the same statement reads the table: the test above can fail.
#[tokio::test]
async fn without_the_pins_a_plan_made_on_an_empty_table_reads_all_of_it() {
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

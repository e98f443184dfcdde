//! The statements: one file each, prepared once per connection.

use rusqlite::{Connection, Statement};

macro_rules! statements {
    ($($name:ident)*) => {
        /// The text of every statement.
        #[derive(Clone, Debug)]
        pub(crate) struct Queries {
            $(pub(crate) $name: &'static str,)*
        }

        impl Default for Queries {
            fn default() -> Self {
                Self { $($name: include_str!(concat!("../queries/", stringify!($name), ".sql")),)* }
            }
        }

        /// Every statement, ready to run on one connection.
        pub(crate) struct Statements<'c> {
            $(pub(crate) $name: Statement<'c>,)*
        }

        impl<'c> Statements<'c> {
            pub(crate) fn prepare(
                connection: &'c Connection,
                queries: &Queries,
            ) -> rusqlite::Result<Self> {
                Ok(Self { $($name: connection.prepare(queries.$name)?,)* })
            }
        }

        #[cfg(test)]
        impl Queries {
            /// The statements by name, so that a test can replace one.
            pub(crate) fn each(&mut self) -> Vec<(&'static str, &mut &'static str)> {
                vec![$((stringify!($name), &mut self.$name),)*]
            }
        }
    };
}

statements! {
    begin commit rollback savepoint savepoint_release savepoint_rollback
    reserve reserve_again reserve_resume reserve_mark_unknown reserve_delete_expired
    find find_identity find_resource find_key
    list list_floor list_unknown list_unknown_oldest list_in_progress count_in_progress count_unknown
    history history_last history_append history_erase
    complete release evict mark_unknown heartbeat advance
    sweep claim_due schedule_claimed claim_abandoned resume_claimed
    resolve_completed resolve_not_executed resolve_still_unknown dead_letter
    expire expire_delete drop_bodies purge erase
    contracts publish_contracts count_records
    receive settle claim_parked schedule_parked forget
    acquire_relay_lease release_relay_lease claim_events mark_sent release_aggregate count_refusal hold_back
    dead_letter_event dead_events revive backlog
    write_activity find_activity activity forget_activity
    write_misuse find_misuse trim_misuse misuses forget_misuses
    scan_records record_caller find_caller count_callers callers acquire_scan_lease
    publish_record_counts clear_record_counts insert_record_count record_counts
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::Queries;

    fn plan(connection: &Connection, sql: &str) -> Vec<String> {
        let explain = format!("EXPLAIN QUERY PLAN {sql}");
        let mut statement = connection.prepare(&explain).unwrap();
        let mut rows = statement.raw_query();
        let mut plan = Vec::new();
        while let Some(row) = rows.next().unwrap() {
            plan.push(row.get(3).unwrap());
        }
        plan
    }

    const DEAD: &str = "semel_outbox USING INDEX semel_outbox_dead";
    const LEASES: &str = "semel_operations USING INDEX semel_operations_leases";

    /// What a statement may scan completely: an index of unfinished records, or a table of bounded
    /// size.
    fn whole_index(statement: &str) -> Option<&'static str> {
        match statement {
            "count_in_progress" | "list_in_progress" => Some(LEASES),
            "misuses" => Some("semel_misuse USING INDEX semel_misuse_last"),
            "callers" | "count_callers" => Some("semel_callers"),
            "count_unknown" => Some("semel_operations USING INDEX semel_operations_unknown"),
            "dead_events" => Some(DEAD),
            // At the start of a process whose contract leaves records behind, and by no request.
            "count_records" => Some("semel_operations"),
            _ => None,
        }
    }

    #[test]
    fn dead_letters_are_listed_by_the_index_of_unknown_records() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(&crate::schema()).unwrap();
        let Queries {
            list_unknown,
            list_unknown_oldest,
            ..
        } = Queries::default();
        for list in [list_unknown, list_unknown_oldest] {
            let plan = plan(&connection, list);
            let index = "INDEX semel_operations_unknown";
            assert!(plan.iter().any(|step| step.contains(index)), "{plan:?}");
        }
    }

    /// A list reads ahead for its floor, over many records that do not match.
    #[test]
    fn the_floor_of_a_list_is_read_from_a_covering_index() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(&crate::schema()).unwrap();
        assert_eq!(
            plan(&connection, Queries::default().list_floor),
            ["SEARCH semel_operations USING COVERING INDEX semel_operations_id (id<?)"]
        );
    }

    /// SQLite reads a row up to its last selected column. A scan must not read all bodies.
    #[test]
    fn a_record_scan_reads_no_bodies() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(&crate::schema()).unwrap();
        let mut columns = connection
            .prepare("SELECT name FROM pragma_table_info('semel_operations') ORDER BY cid")
            .unwrap();
        let columns = columns.query_map([], |row| row.get(0)).unwrap();
        let columns: Vec<String> = columns.map(Result::unwrap).collect();
        let position = |name: &str| columns.iter().position(|column| column == name).unwrap();
        let scan = connection.prepare(Queries::default().scan_records).unwrap();
        for column in scan.column_names() {
            assert!(position(column) < position("recovery_data"), "{column}");
            assert!(position(column) < position("response_body"), "{column}");
        }
    }

    /// A statement that scans the whole table is quick in every test and too slow in production.
    #[test]
    fn every_statement_finds_its_rows_by_an_index() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(&crate::schema()).unwrap();
        for (name, sql) in Queries::default().each() {
            let is_session = ["begin", "commit", "rollback"].contains(&name);
            let inserts = [
                "reserve",
                "receive",
                "history_append",
                "acquire_relay_lease",
                "hold_back",
                "write_activity",
                "write_misuse",
                "record_caller",
                "acquire_scan_lease",
                "publish_record_counts",
                "insert_record_count",
                // Deletes all rows of a table.
                "clear_record_counts",
            ];
            let is_insert = inserts.contains(&name);
            if is_session || name.starts_with("savepoint") || is_insert {
                continue;
            }
            let mut plan = plan(&connection, sql);
            if let Some(index) = whole_index(name) {
                // Scans this index, and nothing else.
                let scan = format!("SCAN {index}");
                assert_eq!(plan.first(), Some(&scan), "{name}: {plan:?}");
                continue;
            }
            // A few operations that the caller names, a bounded part of an index, and tables of bounded
            // size.
            let bounded = [
                "json_each",
                "CONSTANT ROW",
                "(subquery",
                DEAD,
                "semel_misuse USING COVERING INDEX semel_misuse_last",
                "semel_census LEFT-JOIN",
            ];
            plan.retain(|step| {
                let scanned = step.strip_prefix("SCAN ").unwrap_or_default();
                !bounded.iter().any(|bounded| scanned.starts_with(bounded))
            });
            assert!(
                plan.iter().any(|step| step.starts_with("SEARCH")),
                "{name}: {plan:?}"
            );
            assert!(
                !plan
                    .iter()
                    .any(|step| step.starts_with("SCAN") || step.contains("TEMP B-TREE")),
                "{name}: {plan:?}"
            );
        }
    }
}

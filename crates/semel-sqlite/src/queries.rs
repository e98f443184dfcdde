//! The statements: one file each, prepared once a connection.

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
            /// The statements by name, to be changed one at a time.
            pub(crate) fn each(&mut self) -> Vec<(&'static str, &mut &'static str)> {
                vec![$((stringify!($name), &mut self.$name),)*]
            }
        }
    };
}

statements! {
    begin commit rollback savepoint savepoint_release savepoint_rollback
    reserve reserve_again reserve_resume reserve_lose reserve_forget
    find find_identity find_resource find_key
    list list_floor list_unknown list_in_progress standing_in_progress standing_unknown
    history history_last history_append history_erase
    complete release evict mark_unknown heartbeat advance
    sweep claim_due claim claim_abandoned take_over
    resolve_completed resolve_not_executed resolve_still_unknown dead_letter
    expire expire_delete drop_bodies purge erase
    receive settle claim_parked claim_message forget
    claim_relay stand_down claim_events mark_sent let_go refuse hold_back
    set_aside dead_events revive backlog
    count count_find activity forget_activity
    misuse misuse_find misuse_make_room misuses forget_misuses
    survey meet meet_find meet_count callers count_alone
    publish_census publish_census_clear publish_census_line census
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

    /// What a statement reads from end to end: an index of what is unfinished, or a table that has
    /// a bound.
    fn whole_index(statement: &str) -> Option<&'static str> {
        match statement {
            "standing_in_progress" | "list_in_progress" => Some(LEASES),
            "misuses" => Some("semel_misuse USING INDEX semel_misuse_last"),
            "callers" | "meet_count" => Some("semel_callers"),
            "standing_unknown" => Some("semel_operations USING INDEX semel_operations_unknown"),
            "dead_events" => Some(DEAD),
            _ => None,
        }
    }

    #[test]
    fn dead_letters_are_listed_without_passing_over_what_ended() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(&crate::schema()).unwrap();
        let plan = plan(&connection, Queries::default().list_unknown);
        assert!(
            plan.iter()
                .any(|step| step.contains("INDEX semel_operations_unknown")),
            "{plan:?}"
        );
    }

    /// A list looks ahead for the end of its walk, and passes over many that do not fit.
    #[test]
    fn a_list_looks_ahead_in_the_index_alone() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(&crate::schema()).unwrap();
        assert_eq!(
            plan(&connection, Queries::default().list_floor),
            ["SEARCH semel_operations USING COVERING INDEX semel_operations_id (id<?)"]
        );
    }

    /// SQLite reads a row as far as it needs to. The bodies of all operations must not be read to
    /// count these.
    #[test]
    fn a_survey_reads_no_bodies() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(&crate::schema()).unwrap();
        let mut columns = connection
            .prepare("SELECT name FROM pragma_table_info('semel_operations') ORDER BY cid")
            .unwrap();
        let columns = columns.query_map([], |row| row.get(0)).unwrap();
        let columns: Vec<String> = columns.map(Result::unwrap).collect();
        let place = |name: &str| columns.iter().position(|column| column == name).unwrap();
        let survey = connection.prepare(Queries::default().survey).unwrap();
        for column in survey.column_names() {
            assert!(place(column) < place("recovery_data"), "{column}");
            assert!(place(column) < place("response_body"), "{column}");
        }
    }

    /// A statement that reads the whole table is quick in every test and stands still in
    /// production.
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
                "claim_relay",
                "hold_back",
                "count",
                "misuse",
                "meet",
                "count_alone",
                "publish_census",
                "publish_census_line",
                // All of a table, without looking.
                "publish_census_clear",
            ];
            let is_insert = inserts.contains(&name);
            if is_session || name.starts_with("savepoint") || is_insert {
                continue;
            }
            let mut plan = plan(&connection, sql);
            if let Some(index) = whole_index(name) {
                // All there is of it, and nothing else.
                let scan = format!("SCAN {index}");
                assert_eq!(plan.first(), Some(&scan), "{name}: {plan:?}");
                continue;
            }
            // The commands that a caller names, which are few; up to a bound of an index; and what
            // has a bound itself.
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

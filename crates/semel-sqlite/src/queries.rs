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
    find find_identity list
    complete release evict mark_unknown heartbeat advance
    sweep claim_due claim
    resolve_completed resolve_not_executed resolve_still_unknown dead_letter
    expire expire_delete drop_bodies purge erase
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::Queries;

    /// A statement that reads the whole table is quick in every test and stands still in
    /// production.
    #[test]
    fn every_statement_finds_its_rows_by_an_index() {
        let connection = Connection::open_in_memory().unwrap();
        connection
            .execute_batch(include_str!("../migrations/0001_operations.sql"))
            .unwrap();
        for (name, sql) in Queries::default().each() {
            let is_session = ["begin", "commit", "rollback"].contains(&name);
            if is_session || name.starts_with("savepoint") || name == "reserve" {
                continue;
            }
            let explain = format!("EXPLAIN QUERY PLAN {sql}");
            let mut statement = connection.prepare(&explain).unwrap();
            let mut rows = statement.raw_query();
            let mut plan: Vec<String> = Vec::new();
            while let Some(row) = rows.next().unwrap() {
                plan.push(row.get(3).unwrap());
            }
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

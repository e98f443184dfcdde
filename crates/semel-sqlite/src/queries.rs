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
    reserve reserve_again reserve_resume reserve_lose reserve_forget
    find find_identity list
    complete release evict mark_unknown heartbeat advance
    sweep claim_due claim
    resolve_completed resolve_not_executed resolve_still_unknown dead_letter
    expire expire_delete drop_bodies purge erase
}

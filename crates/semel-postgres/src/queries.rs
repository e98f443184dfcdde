//! The statements: one file each, prepared once a connection.

use tokio_postgres::{Client, Error, Statement};

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
        pub(crate) struct Statements {
            $(pub(crate) $name: Statement,)*
        }

        impl Statements {
            /// All at once: they travel together.
            pub(crate) async fn prepare(client: &Client, queries: &Queries) -> Result<Self, Error> {
                let ($($name,)*) = tokio::try_join!($(client.prepare(queries.$name),)*)?;
                Ok(Self { $($name,)* })
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
    reserve
    find find_identity find_resource list list_unknown list_in_progress history standing
    complete release evict mark_unknown heartbeat advance watch tell
    now sweep claim_abandoned claim_due claim
    resolve_completed resolve_not_executed resolve_still_unknown dead_letter
    expire drop_bodies purge erase revealed
    receive settle claim_parked park forget
    publish_alone relay claim_events mark_sent hold_back hold_until set_aside dead_events revive backlog stand_down
    count_activity count_misuse trim_misuse activity misuses forget_activity forget_misuses
    survey lock_callers meet callers callers_count find_keys count_alone publish_census census
}

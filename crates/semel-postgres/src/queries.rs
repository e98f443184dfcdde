//! The statements: one file each, prepared once per connection.

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
            /// Prepares all statements at once, in one round trip.
            pub(crate) async fn prepare(client: &Client, queries: &Queries) -> Result<Self, Error> {
                let ($($name,)*) = tokio::try_join!($(client.prepare(queries.$name),)*)?;
                Ok(Self { $($name,)* })
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
    reserve_new reserve_existing reserve
    find find_identity find_resource list list_unknown list_unknown_oldest list_in_progress history count_unfinished
    complete release evict mark_unknown heartbeat advance watch record_refusal
    now sweep claim_abandoned claim_due schedule_claimed
    resolve_completed resolve_not_executed resolve_still_unknown dead_letter
    expire drop_bodies purge erase audit_reveal
    contracts publish_contracts count_records
    receive settle claim_parked schedule_parked forget
    publish_event acquire_relay_lease claim_events mark_sent hold_back hold_aggregate dead_letter_event dead_events revive backlog release_relay_lease
    count_activity count_misuse trim_misuse activity misuses forget_activity forget_misuses
    scan_records lock_callers record_callers callers count_callers find_keys acquire_scan_lease publish_record_counts record_counts
}

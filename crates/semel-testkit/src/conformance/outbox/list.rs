//! The one list of cases.

/// Not part of the API: hands every case to `callback`, after its arguments.
#[doc(hidden)]
#[macro_export]
macro_rules! __outbox_cases {
    ([$($callback:tt)+] $args:tt) => {
        $($callback)+! {
            $args
            an_event_is_claimed_until_it_is_marked_sent,
            the_oldest_event_comes_first,
            a_relay_claims_a_bounded_batch,
            a_refused_event_holds_back_its_aggregate,
            a_hold_follows_the_given_backoff,
            a_sent_event_ends_a_hold,
            a_hold_ends_with_its_own_aggregate_only,
            a_dead_event_does_not_hold_back_its_aggregate,
            a_reason_is_bounded,
            the_oldest_dead_event_comes_first,
            a_dead_event_is_revived_once,
            one_relay_holds_the_outbox_until_its_lease_expires,
            a_relay_that_claims_nothing_holds_the_outbox,
            a_relay_that_stands_down_hands_over_at_once,
            a_relay_lease_of_the_longest_time_does_not_overflow,
            an_event_written_twice_is_stored_once,
            marking_an_unknown_event_changes_nothing,
            the_backlog_is_counted,
            events_come_back_unchanged,
            aggregates_with_similar_names_are_separate,
            one_of_many_relays_holds_the_outbox,
            events_of_many_publishers_are_claimed_once_each,
        }
    };
}

//! The one list of cases.

/// Not part of the API: hands every case to `callback`, after its arguments.
#[doc(hidden)]
#[macro_export]
macro_rules! __outbox_cases {
    ([$($callback:tt)+] $args:tt) => {
        $($callback)+! {
            $args
            an_event_is_handed_out_until_it_is_sent,
            the_oldest_event_comes_first,
            a_relay_is_handed_a_bounded_batch,
            a_refused_event_holds_back_its_aggregate,
            a_hold_follows_the_backoff_that_is_given,
            sending_ends_a_hold,
            a_hold_ends_with_its_own_aggregate_only,
            what_is_set_aside_lets_the_rest_go_on,
            a_reason_is_bounded,
            the_oldest_dead_event_comes_first,
            a_dead_event_is_revived_once,
            one_relay_has_the_outbox_until_its_lease_is_over,
            a_relay_that_finds_nothing_has_the_outbox,
            a_relay_hands_over,
            a_relay_may_have_the_outbox_for_ever,
            an_event_written_twice_is_there_once,
            marks_of_unknown_events_are_harmless,
            the_backlog_is_counted,
            events_are_kept_whole,
            aggregates_are_told_apart,
            one_of_many_relays_has_the_outbox,
            many_publishers_lose_and_double_nothing,
        }
    };
}

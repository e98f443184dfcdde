//! The one list of cases.

/// Not part of the API: hands every case to `callback`, after its arguments.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_cases {
    ([$($callback:tt)+] $args:tt) => {
        $($callback)+! {
            $args
            table {
                every_verb_on_in_progress,
                every_verb_on_in_progress_with_the_lease_over,
                every_verb_on_completed,
                every_verb_on_completed_with_the_window_over,
                every_verb_on_completed_with_the_body_over,
                every_verb_on_completed_without_body,
                every_verb_on_failed_retryable,
                every_verb_on_failed_retryable_with_the_window_over,
                every_verb_on_unknown_due,
                every_verb_on_unknown_not_due,
                every_verb_on_unknown_dead_lettered,
                every_verb_on_expired,
                every_verb_on_expired_past_its_purge,
                every_verb_on_evicted,
                every_verb_on_deleted,
            }
            reserving {
                the_first_request_executes,
                a_retry_meanwhile_is_in_progress,
                misuse_comes_first_in_every_state,
                misuse_comes_first_when_the_window_is_over,
                an_older_fingerprint_version_still_matches,
                an_unknown_fingerprint_version_is_misuse,
                every_bit_of_the_fingerprint_counts,
                a_lease_that_is_over_becomes_unknown,
                resume_needs_the_policy_and_recovery_points,
                resume_continues_at_the_recovery_point,
                the_recovery_point_survives_into_the_next_grant,
                a_recovery_point_may_have_no_data,
                a_released_operation_executes_again,
                a_new_attempt_takes_its_own_windows,
                an_evicted_key_is_as_if_never_used,
                only_a_first_attempt_without_phases_is_forgotten,
                a_first_attempt_is_not_forgotten_by_another_fence,
            }
            keys {
                tenants_are_isolated,
                keys_are_case_sensitive,
                an_operation_scoped_key_is_another_on_another_operation,
                the_parts_of_an_identity_are_framed,
                a_tenant_scoped_key_is_one_record_on_every_operation,
                scopes_do_not_meet,
                names_may_be_unicode,
                the_longest_names_are_kept_whole,
                what_was_never_used_is_not_found,
            }
            fences {
                the_same_completion_again_is_repeated,
                another_completion_is_fenced_and_the_first_stays,
                no_body_and_an_empty_body_are_not_the_same_write,
                a_late_owner_completes_from_unknown,
                a_late_owner_completes_from_the_dead_letters,
                a_late_owner_that_nobody_missed_completes,
                a_late_owner_may_only_complete,
                a_late_owner_after_not_executed_is_fenced,
                a_late_owner_after_a_new_attempt_is_fenced,
                a_fence_is_dead_after_the_key_began_anew,
                complete_after_a_verdict_keeps_the_verdict,
                a_heartbeat_only_lengthens_the_lease,
                a_heartbeat_revives_a_lease_that_nobody_missed,
                the_reason_is_kept,
            }
            verdicts {
                a_verdict_of_completed_is_replayed,
                a_verdict_of_not_executed_lets_the_next_attempt_in,
                still_unknown_reschedules_and_keeps_count,
                a_dead_lettered_operation_can_be_resolved,
                a_verdict_on_an_older_attempt_is_refused,
                a_verdict_on_anything_but_unknown_is_refused,
                the_first_verdict_stands,
                a_dead_letter_leaves_polling_and_keeps_its_first_instant,
                a_new_attempt_starts_with_no_looks_taken,
            }
            claims {
                sweep_takes_the_oldest_lapsed_leases_first,
                sweep_leaves_a_living_owner_alone,
                claim_due_hands_out_the_longest_due_first,
                claim_due_filters_by_operation,
                claim_due_filters_before_it_limits,
                claim_due_leaves_out_what_others_ask_for,
                dead_letters_do_not_block_claims,
                claim_due_follows_the_backoff,
                claim_due_gives_each_operation_to_one_claimer,
                sweep_names_each_lapsed_lease_once,
            }
            instants {
                a_lease_is_over_at_its_instant_for_reserve,
                a_lease_is_over_at_its_instant_for_resume,
                a_lease_is_over_at_its_instant_for_sweep,
                a_lease_of_no_length_is_over_at_once,
                the_replay_window_is_over_at_its_instant,
                expire_comes_at_the_instant,
                the_body_goes_at_its_instant,
                a_tombstone_is_purged_at_its_instant,
                an_unknown_is_due_at_its_instant,
                huge_windows_are_kept_exactly,
                the_longest_durations_do_not_wrap,
                times_before_the_epoch_are_times,
            }
            replays {
                every_replay_is_the_same,
                a_replay_changes_nothing,
                a_completed_operation_stays_completed,
                the_window_begins_at_the_end,
            }
            retention {
                expire_leaves_a_tombstone,
                expire_deletes_where_no_tombstone_is_kept,
                expire_deletes_nothing_that_is_open_or_under_way_again,
                a_window_that_is_over_counts_before_the_sweeper_came,
                a_tombstone_is_refused_or_begun_anew,
                what_is_unfinished_is_never_pruned,
                what_is_open_is_not_pruned,
                retention_keeps_its_limits,
                a_body_as_long_as_the_window_is_not_dropped,
                erase_removes_the_content_and_keeps_the_fact,
                erase_touches_only_what_is_completed,
            }
            content {
                bodies_are_bytes,
                an_empty_body_is_not_no_body,
                a_large_body_comes_back_whole,
                headers_keep_lines_and_order,
                header_values_are_bytes,
                many_headers_come_back,
                numbers_come_back_at_their_extremes,
                the_resource_comes_back,
                a_verdict_keeps_the_bytes_too,
                recovery_data_is_bytes,
                the_owner_comes_back,
            }
            listing {
                an_empty_store_has_an_empty_list,
                the_newest_comes_first,
                every_filter_and_their_combinations,
                a_page_exactly_full_is_the_last,
                pages_stand_still_while_new_ones_arrive,
                a_page_is_bounded,
            }
            races {
                one_of_many_executes,
                one_of_many_executes_after_a_release,
                one_of_many_begins_anew,
                one_of_many_resumes,
                nobody_executes_after_the_lease,
                one_body_of_many_executes,
                many_keys_execute_once_each,
                complete_against_sweep_against_reserve,
                one_of_many_completions_stands,
                one_of_two_verdicts_stands,
                a_late_owner_against_a_verdict,
                release_against_heartbeat,
                a_dropped_reserve_leaves_the_key_whole,
            }
            history {
                an_ordinary_execution_leaves_no_history,
                an_unused_name_has_no_history,
                a_loss_is_told_by_whoever_noticed,
                a_release_and_the_next_attempt_are_told,
                a_resumed_attempt_is_told,
                a_late_completion_is_told,
                an_attempt_in_time_after_a_loss_is_not_late,
                verdicts_are_told_with_reason_and_evidence,
                a_refused_verdict_is_not_told,
                a_dead_letter_is_told_once,
                every_fenced_write_is_told,
                the_same_fenced_write_twice_is_told_twice,
                a_fenced_write_without_a_record_tells_nothing,
                fenced_writes_at_once_leave_a_whole_chain,
                histories_are_kept_apart,
            }
            evidence {
                remarks_are_bounded_and_changes_are_not,
                evidence_is_kept_up_to_its_bound,
                a_reason_is_cut_between_characters,
                erase_removes_the_evidence_and_the_chain_holds,
                a_refused_erasure_keeps_the_evidence,
                a_history_goes_with_its_record,
                retention_leaves_the_histories_of_what_stays,
            }
            inbox {
                a_message_is_new_once,
                one_of_many_deliveries_is_new,
                a_message_is_its_source_and_its_id,
                what_is_settled_is_only_remembered,
                what_was_never_received_can_be_settled,
                a_claimed_message_can_be_settled,
                a_message_is_due_at_its_instant,
                the_longest_due_message_comes_first,
                claim_parked_follows_the_backoff,
                claim_parked_gives_each_message_to_one_claimer,
                a_message_is_forgotten_at_its_instant,
                what_is_over_is_known_until_it_is_forgotten,
                forget_keeps_its_limit,
                a_message_may_be_kept_for_ever,
                payloads_are_bytes,
                the_longest_message_names_are_kept_whole,
            }
            resources {
                a_completed_operation_is_found_by_its_resource,
                an_unknown_operation_is_found_by_its_resource,
                the_newest_creator_of_a_resource_is_found,
                a_resource_is_found_as_long_as_its_record,
                a_named_resource_survives_a_verdict_without_one,
                a_named_resource_survives_a_later_loss_without_one,
                a_late_completion_says_what_was_created,
            }
            standing {
                what_is_finished_does_not_stand,
                unfinished_operations_are_counted_by_command,
                what_ends_is_no_longer_counted,
            }
            out_of_band {
                sweep_loses_only_what_lapsed,
                claim_due_takes_only_what_is_due,
                resolve_decides_only_what_is_unknown,
                dead_letter_sets_aside_only_what_is_unknown,
                expire_buries_only_what_is_over,
                drop_bodies_takes_only_bodies_that_are_over,
                purge_removes_only_tombstones_that_are_over,
                a_late_owner_against_a_reconciler,
            }
        }
    };
}

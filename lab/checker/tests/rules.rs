//! A clean history has no violation, and each rule finds the one that is put in.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

#[path = "rules/story.rs"]
mod story;

use std::fs;

use semel_campaign_checker::history::{
    Call, Erasure, Leftover, Line, Message, Operation, Outcome, Run, Sent,
};
use semel_campaign_checker::{Error, Rule, check};
use serde_json::json;

use crate::story::{
    Story, call, charge, decision, end, execution, fault, operation, peek, refused, replay, twin,
};

#[test]
fn clean_histories_break_no_rule() {
    for seed in 0..200 {
        Story::clean(seed).breaks(&[]);
    }
    Story::paid().breaks(&[]);
    Story::paid_to_twins().breaks(&[]);
}

#[test]
fn the_report_of_a_clean_history_has_every_rule_at_zero() {
    let story = Story::clean(1);
    for kind in ["Execution", "Peek", "Decision", "Fault"] {
        let has = |line: &Line| format!("{line:?}").starts_with(kind);
        assert!(story.lines.iter().any(has), "{kind}");
    }
    let mut report = story.judged().unwrap();
    report.require("twins", 2);
    report.require("executions", 10);
    report.require("peeks", 10);
    let whole = serde_json::to_value(&report).unwrap();
    assert_eq!(whole["passed"], true, "{whole}");
    let zeroes = json!({
        "duplicate_effects": 0,
        "lost_acknowledgements": 0,
        "altered_replays": 0,
        "answers_across_tenants": 0,
        "erased_answers": 0,
        "stuck_keys": 0,
        "effects_never_surfaced": 0,
        "misuse_accepted": 0,
        "effects_of_refused_calls": 0,
        "executed_again": 0,
        "needless_decisions": 0,
        "lost_messages": 0,
        "wrong_messages": 0,
        "crashes": 0,
        "resources_held": 0,
    });
    assert_eq!(whole["violations"], zeroes);
    assert_eq!(whole["examples"], json!({}));
}

#[test]
fn a_second_charge_is_a_duplicate_effect() {
    let mut story = Story::paid();
    let mut second = charge(1, false);
    second["id"] = "ch_other".into();
    story.ledger.push(second);
    story.breaks(&[(Rule::DuplicateEffects, 1)]);
    // A third is the same mistake: the rule counts references.
    story.ledger.push(charge(1, false));
    story.breaks(&[(Rule::DuplicateEffects, 1)]);
    // No money moved the second time, and it was executed twice all the same.
    let mut story = Story::paid();
    let mut second = charge(1, true);
    second["id"] = "ch_other".into();
    story.ledger.push(second);
    story.breaks(&[(Rule::DuplicateEffects, 1)]);
}

#[test]
fn a_second_charge_is_found_across_ledgers() {
    let (directory, history, mut ledgers) = Story::paid().written();
    let other = directory.path().join("other.jsonl");
    fs::write(&other, format!("{}\n", charge(1, false))).unwrap();
    ledgers.push(other);
    let report = check(&history, &ledgers).unwrap();
    assert_eq!(report.violations[&Rule::DuplicateEffects], 1);
}

#[test]
fn an_answer_without_a_charge_is_a_lost_acknowledgement() {
    let mut story = Story::paid();
    story.ledger.clear();
    story.breaks(&[(Rule::LostAcknowledgements, 1)]);
    // A decline is not the answer it got.
    story.ledger.push(charge(1, true));
    story.breaks(&[(Rule::LostAcknowledgements, 1)]);
}

#[test]
fn a_charge_that_is_not_in_the_ledger_is_a_lost_acknowledgement() {
    let mut story = Story::paid();
    story.ledger[0]["id"] = "ch_other".into();
    story.breaks(&[(Rule::LostAcknowledgements, 1)]);
}

#[test]
fn a_message_has_its_effect_once_if_its_transaction_was_committed() {
    let breaks = |is_committed, deliveries, effects, wanted: &[(Rule, u64)]| {
        let mut story = Story::paid();
        story.lines.push(Line::Message(Message {
            id: "m-1".to_owned(),
            is_committed,
            deliveries,
            effects,
        }));
        story.breaks(wanted);
    };
    breaks(true, 1, 1, &[]);
    breaks(true, 3, 1, &[]);
    breaks(false, 0, 0, &[]);
    breaks(true, 0, 0, &[(Rule::LostMessages, 1)]);
    breaks(true, 1, 0, &[(Rule::LostMessages, 1)]);
    breaks(true, 2, 2, &[(Rule::WrongMessages, 1)]);
    breaks(false, 1, 0, &[(Rule::WrongMessages, 1)]);
    breaks(false, 1, 1, &[(Rule::WrongMessages, 1)]);
}

#[test]
fn an_erased_answer_is_not_given_again() {
    let erase = |acknowledged_ms| {
        Line::Erasure(Erasure {
            op: 1,
            acknowledged_ms,
        })
    };
    let not_stored = "idempotency_response_not_stored";
    let refusal = || Line::Call(refused(1, 90_000, Outcome::Failed, 410, not_stored));
    let mut story = Story::paid();
    story.lines.extend([erase(Some(50_000)), refusal()]);
    story.breaks(&[]);
    // Another process may not have learnt of it yet, or it was perhaps not erased.
    story.lines.push(Line::Call(replay(1, 60_000, false)));
    story.breaks(&[]);
    story.lines.push(Line::Call(replay(1, 60_001, false)));
    story.breaks(&[(Rule::ErasedAnswers, 1)]);
    let mut story = Story::paid();
    story.lines.extend([erase(None), refusal()]);
    story.lines.push(Line::Call(replay(1, 60_001, false)));
    story.breaks(&[]);
    // What was not erased is stored.
    let mut story = Story::paid();
    story.lines.push(refusal());
    story.breaks(&[(Rule::LostAcknowledgements, 1)]);
}

#[test]
fn an_end_that_is_denied_later_is_a_lost_acknowledgement() {
    for (status, code) in [
        (409, "idempotency_key_in_progress"),
        (409, "idempotency_outcome_unknown"),
        (410, "idempotency_key_expired"),
        (422, "idempotency_key_reused"),
        (502, "upstream_unreachable"),
        (503, "operation_not_executed"),
    ] {
        for outcome in [Outcome::Failed, Outcome::Indeterminate] {
            let mut story = Story::paid();
            let denial = refused(1, 16, outcome, status, code);
            // Wherever it stands: clients write when they come to it.
            story.lines.insert(2, Line::Call(denial));
            story.breaks(&[(Rule::LostAcknowledgements, 1)]);
            story.call_mut(2).began_ms = 15;
            story.breaks(&[]);
            // Before the end everything may be said, and does not hide what is said after it.
            let early = refused(1, 0, outcome, status, code);
            story.lines.insert(2, Line::Call(early));
            story.breaks(&[]);
            story.call_mut(3).began_ms = 16;
            story.breaks(&[(Rule::LostAcknowledgements, 1)]);
        }
    }
}

#[test]
fn a_success_of_nothing_is_a_lost_acknowledgement() {
    let mut story = Story::paid();
    for index in [2, 3] {
        story.call_mut(index).body = Some("{}".into());
    }
    story.breaks(&[(Rule::LostAcknowledgements, 1)]);
}

#[test]
fn an_answer_unlike_the_first_is_an_altered_replay() {
    let mut status = Story::paid();
    status.call_mut(3).status = Some(200);
    let mut body = Story::paid();
    let text = body.call_mut(3).body.take().unwrap();
    // The same JSON, and not the same bytes.
    body.call_mut(3).body = Some(format!("{text} "));
    let mut missing = Story::paid();
    missing.call_mut(3).headers.pop();
    let mut value = Story::paid();
    value.call_mut(3).headers[0].1 += "; charset=utf-8";
    // Lines of one name are distinguished by their order.
    let mut order = Story::paid();
    order.call_mut(3).headers.swap(2, 3);
    for story in [status, body, missing, value, order] {
        story.breaks(&[(Rule::AlteredReplays, 1)]);
    }
}

#[test]
fn an_answer_about_something_else_is_an_answer_across_tenants() {
    for (own, other) in [("ref-1", "ref-2"), ("1001", "1002")] {
        let mut story = Story::paid();
        for index in [2, 3] {
            let body = story.call_mut(index).body.take().unwrap();
            story.call_mut(index).body = Some(body.replace(own, other));
        }
        story.breaks(&[(Rule::AnswersAcrossTenants, 1)]);
    }
    // All of it, the charge as well.
    let mut story = Story::paid();
    story.lines.push(Line::Operation(operation(2)));
    story.lines.push(Line::Call(end(2, 30, false)));
    story.ledger.push(charge(2, false));
    for index in [2, 3] {
        story.call_mut(index).body = end(2, 0, false).body;
    }
    story.breaks(&[(Rule::AnswersAcrossTenants, 1)]);
}

#[test]
fn an_operation_without_an_end_is_a_stuck_key() {
    let mut story = Story::paid();
    story.lines.push(Line::Operation(operation(2)));
    story
        .lines
        .push(Line::Call(call(2, 30, Outcome::Indeterminate)));
    story.breaks(&[(Rule::StuckKeys, 1)]);
    story.lines.push(Line::Leftover(Leftover {
        id: "0198".into(),
        status: "unknown".into(),
    }));
    story.breaks(&[(Rule::StuckKeys, 2)]);
}

#[test]
fn a_charge_that_nobody_was_told_of_never_surfaced() {
    // Of an operation that was not requested.
    let mut story = Story::paid();
    story.ledger.push(charge(9, false));
    story.breaks(&[(Rule::EffectsNeverSurfaced, 1)]);
    // Of one that was answered with a decline.
    let mut story = Story::empty();
    story.lines.push(Line::Operation(operation(1)));
    story.lines.push(Line::Call(end(1, 10, true)));
    story.ledger.push(charge(1, false));
    story.breaks(&[(Rule::EffectsNeverSurfaced, 1)]);
    // Of one without an answer: its key is stuck as well.
    let mut story = Story::empty();
    story.lines.push(Line::Operation(operation(1)));
    story
        .lines
        .push(Line::Call(call(1, 10, Outcome::Indeterminate)));
    story.ledger.push(charge(1, false));
    story.breaks(&[(Rule::EffectsNeverSurfaced, 1), (Rule::StuckKeys, 1)]);
}

#[test]
fn a_decline_by_nobody_is_a_lost_acknowledgement() {
    let mut story = Story::empty();
    story.lines.push(Line::Operation(operation(1)));
    story.lines.push(Line::Call(end(1, 10, true)));
    story.breaks(&[(Rule::LostAcknowledgements, 1)]);
    // Also where it names no charge that could be looked for.
    story.call_mut(2).body = None;
    story.breaks(&[(Rule::LostAcknowledgements, 1)]);
    story.ledger.push(charge(1, true));
    story.breaks(&[]);
}

#[test]
fn an_answer_to_another_body_is_misuse_accepted() {
    for sent in [Sent::OtherBody, Sent::Malformed] {
        let mut story = Story::paid();
        let mut accepted = end(1, 30, false);
        accepted.sent = sent;
        story.lines.push(Line::Call(accepted));
        story.breaks(&[(Rule::MisuseAccepted, 1)]);
        // Whatever the client made of it, and also where it is a decline.
        story.call_mut(4).outcome = Outcome::Indeterminate;
        story.breaks(&[(Rule::MisuseAccepted, 1)]);
        story.call_mut(4).status = Some(402);
        story.breaks(&[]);
        story.call_mut(4).outcome = Outcome::Ok;
        story.breaks(&[(Rule::MisuseAccepted, 1)]);
    }
}

#[test]
fn a_charge_of_another_amount_is_misuse_accepted() {
    let mut story = Story::paid();
    story.ledger[0]["amount"] = 1.into();
    story.breaks(&[(Rule::MisuseAccepted, 1)]);
}

#[test]
fn a_charge_of_what_was_refused_is_found() {
    let mut story = Story::empty();
    story.refusable(1, 10);
    story.breaks(&[]);
    story.ledger.push(charge(1, false));
    story.breaks(&[(Rule::EffectsOfRefusedCalls, 1)]);
    // Also where it was not meant to be refused, and then its key is stuck as well.
    story.operation_mut().refusable = false;
    story.breaks(&[(Rule::EffectsOfRefusedCalls, 1), (Rule::StuckKeys, 1)]);
}

#[test]
fn an_answer_after_the_end_that_says_nothing_is_a_lost_acknowledgement() {
    for status in [200, 404, 500, 502] {
        for outcome in [Outcome::Failed, Outcome::Indeterminate] {
            let mut story = Story::paid();
            story.lines.push(Line::Call(Call {
                status: Some(status),
                body: Some(String::new()),
                ..call(1, 16, outcome)
            }));
            story.breaks(&[(Rule::LostAcknowledgements, 1)]);
            let report = story.judged().unwrap();
            let example = &report.examples[&Rule::LostAcknowledgements][0];
            assert!(example.what.contains(&status.to_string()), "{example:?}");
            story.call_mut(4).began_ms = 15;
            story.breaks(&[]);
        }
    }
    // Where the store is unreachable, or the request incomplete, the record was not read.
    for code in ["idempotency_store_unavailable", "request_incomplete"] {
        let mut story = Story::paid();
        let away = refused(1, 16, Outcome::Failed, 503, code);
        story.lines.push(Line::Call(away));
        story.breaks(&[]);
    }
}

#[test]
fn an_end_that_is_not_given_again_is_a_lost_acknowledgement() {
    let mut story = Story::paid();
    // The call of the index 3 is a replay, and not in the last phase.
    story.run_mut().all_replayed = true;
    story.breaks(&[(Rule::LostAcknowledgements, 1)]);
    story.call_mut(3).phase = "heal".into();
    story.breaks(&[]);
    // One that says that it is none is no replay, whatever else that is.
    story.call_mut(3).replayed = false;
    story.breaks(&[(Rule::LostAcknowledgements, 1), (Rule::ExecutedAgain, 1)]);
    story.lines.remove(3);
    story.breaks(&[(Rule::LostAcknowledgements, 1)]);
    story.run_mut().all_replayed = false;
    story.breaks(&[]);
    // Its first end may be there only then.
    story.run_mut().all_replayed = true;
    story.call_mut(2).phase = "heal".into();
    story.breaks(&[]);
}

#[test]
fn a_status_that_its_tenant_is_not_shown_is_a_lost_acknowledgement() {
    for status in [202, 404, 503] {
        let mut story = Story::paid();
        story.lines.push(peek(1, true, status));
        story.breaks(&[(Rule::LostAcknowledgements, 1)]);
    }
}

#[test]
fn a_status_that_another_tenant_is_shown_is_an_answer_across_tenants() {
    // Even a 403 would show another tenant that the operation exists.
    for status in [200, 403, 503] {
        let mut story = Story::paid();
        story.lines.push(peek(1, false, status));
        story.breaks(&[(Rule::AnswersAcrossTenants, 1)]);
    }
}

#[test]
fn twins_have_a_charge_each() {
    let twins = Story::paid_to_twins();
    // A third is one too many.
    let mut story = twins.clone();
    let mut third = charge(1, true);
    third["id"] = "ch_other".into();
    story.ledger.push(third);
    story.breaks(&[(Rule::DuplicateEffects, 1)]);
    // Both succeeded without naming a charge, and money moved once.
    let mut story = twins.clone();
    for index in [2, 4] {
        let body = json!({ "merchant_reference": "ref-1", "amount": 1_001 });
        story.call_mut(index).body = Some(body.to_string());
    }
    story.breaks(&[]);
    story.ledger[1]["status"] = "declined".into();
    story.breaks(&[(Rule::LostAcknowledgements, 1)]);
    story.ledger.pop();
    story.breaks(&[(Rule::LostAcknowledgements, 1)]);
    // The one whose answer names a missing charge is counted once.
    let mut story = twins.clone();
    story.ledger.pop();
    story.breaks(&[(Rule::LostAcknowledgements, 1)]);
    // One of them was declined, and the other succeeded.
    let mut story = twins.clone();
    story.ledger[1]["status"] = "declined".into();
    story.breaks(&[(Rule::LostAcknowledgements, 1)]);
    // Both were declined, and only one of them was asked for.
    let mut story = twins.clone();
    story.ledger = vec![charge(1, true)];
    for index in [2, 4] {
        story.call_mut(index).status = Some(402);
        story.call_mut(index).body = None;
    }
    story.breaks(&[(Rule::LostAcknowledgements, 1)]);
    // As many succeeded as there are charges, and one answer names the charge of the other.
    let mut story = twins.clone();
    story.ledger[0]["status"] = "declined".into();
    story.call_mut(4).status = Some(402);
    story.breaks(&[(Rule::LostAcknowledgements, 1)]);
    // Both were charged, and one was answered with a decline.
    let mut story = twins.clone();
    story.call_mut(4).status = Some(402);
    story.breaks(&[(Rule::EffectsNeverSurfaced, 1)]);
    // One was refused, and made all the same.
    let mut story = twins.clone();
    *story.call_mut(4) = refused(twin(1), 10, Outcome::Failed, 503, "operation_not_executed");
    story.breaks(&[(Rule::EffectsOfRefusedCalls, 1), (Rule::StuckKeys, 1)]);
    // The charge that is there is the other's.
    story.ledger.pop();
    story.breaks(&[(Rule::StuckKeys, 1)]);
    // A charge that neither of them wanted counts once.
    let mut story = twins;
    story.ledger[0]["amount"] = 1.into();
    story.breaks(&[(Rule::MisuseAccepted, 1)]);
}

#[test]
fn a_charge_that_two_are_told_of_is_an_answer_across_tenants() {
    let mut story = Story::paid_to_twins();
    story.call_mut(4).body = end(1, 0, false).body;
    story.breaks(&[(Rule::AnswersAcrossTenants, 1)]);
    // The ledger has fewer charges than there are successes, too.
    story.ledger.pop();
    story.breaks(&[
        (Rule::AnswersAcrossTenants, 1),
        (Rule::LostAcknowledgements, 1),
    ]);
}

#[test]
fn an_attempt_that_reaches_the_application_twice_is_executed_again() {
    let mut story = Story::paid();
    for attempt in [1, 2] {
        story.lines.push(Line::Execution(execution(1, attempt)));
    }
    story.breaks(&[]);
    story.lines.push(Line::Execution(execution(1, 2)));
    story.breaks(&[(Rule::ExecutedAgain, 1)]);
    // The rule counts operations.
    story.lines.push(Line::Execution(execution(1, 1)));
    story.breaks(&[(Rule::ExecutedAgain, 1)]);
    // Under the name of another tenant.
    let mut story = Story::paid_to_twins();
    story.lines.push(Line::Execution(execution(1, 1)));
    let mut other = execution(twin(1), 1);
    story.lines.push(Line::Execution(other.clone()));
    story.breaks(&[]);
    story.lines.pop();
    other.id = execution(1, 1).id;
    story.lines.push(Line::Execution(other));
    story.breaks(&[(Rule::ExecutedAgain, 1)]);
}

#[test]
fn an_operation_with_two_ids_is_executed_again() {
    let mut story = Story::paid();
    story.lines.push(Line::Execution(execution(1, 1)));
    let mut other = execution(1, 2);
    other.id = "id-other".into();
    story.lines.push(Line::Execution(other));
    story.breaks(&[(Rule::ExecutedAgain, 1)]);
}

#[test]
fn a_second_end_that_is_no_replay_is_executed_again() {
    // At the same time.
    let mut story = Story::paid();
    story.lines.pop();
    story.lines.push(Line::Call(end(1, 10, false)));
    story.breaks(&[(Rule::ExecutedAgain, 1)]);
    // The only one, and after a replay.
    let mut story = Story::paid();
    story
        .lines
        .insert(2, Line::Call(call(1, 0, Outcome::Indeterminate)));
    story.call_mut(3).replayed = true;
    story.call_mut(4).replayed = false;
    story.breaks(&[(Rule::ExecutedAgain, 1)]);
    story.call_mut(4).began_ms = 15;
    story.breaks(&[]);
}

#[test]
fn an_execution_that_nobody_asked_for_never_surfaced() {
    let mut story = Story::paid();
    story.lines.push(Line::Execution(execution(2, 1)));
    story.breaks(&[(Rule::EffectsNeverSurfaced, 1)]);
    story.lines.push(Line::Execution(execution(2, 2)));
    story.breaks(&[(Rule::EffectsNeverSurfaced, 2)]);
    // The key of another tenant, and another key of the same tenant.
    for spoil in [
        |it: &mut Operation| it.tenant = "tenant-2".into(),
        |it: &mut Operation| it.key = "key-2".into(),
    ] {
        let mut story = Story::paid();
        spoil(story.operation_mut());
        story.lines.push(Line::Execution(execution(1, 1)));
        story.breaks(&[(Rule::EffectsNeverSurfaced, 1)]);
    }
}

#[test]
fn what_only_the_application_refuses_may_reach_it() {
    let mut story = Story::empty();
    story.refusable(1, 10);
    story.lines.push(Line::Execution(execution(1, 1)));
    story.breaks(&[]);
}

#[test]
fn an_end_that_only_refused_calls_can_have_made_is_found() {
    let broken = [(Rule::EffectsOfRefusedCalls, 1)];
    let mut story = Story::paid();
    *story.call_mut(2) = refused(1, 10, Outcome::Failed, 502, "upstream_unreachable");
    story.breaks(&broken);
    // A doubt that came after the end did not make it.
    let doubt = Line::Call(call(1, 26, Outcome::Indeterminate));
    story.lines.push(doubt);
    story.breaks(&broken);
    story.call_mut(4).began_ms = 25;
    story.breaks(&[]);
    // Neither did a call for something else.
    story.call_mut(4).sent = Sent::OtherBody;
    story.breaks(&broken);
    // Nor no call at all.
    let mut story = Story::paid();
    story.lines.remove(2);
    story.breaks(&broken);
}

#[test]
fn a_decision_that_the_application_could_have_told_is_needless() {
    for (verdict, route) in [
        ("completed", "strict"),
        ("completed", "payments"),
        ("completed", ""),
        ("not_executed", "payments"),
    ] {
        let mut story = Story::paid();
        story.lines.push(decision(verdict, route));
        story.breaks(&[(Rule::NeedlessDecisions, 1)]);
    }
    for route in ["strict", ""] {
        let mut story = Story::paid();
        story.lines.push(decision("not_executed", route));
        story.breaks(&[]);
    }
}

#[test]
fn a_process_that_ends_by_itself_crashed() {
    let mut story = Story::paid();
    story.lines.push(fault("ended_by_itself", "disk_full"));
    story.lines.push(fault("kill", "kills"));
    story.breaks(&[]);
    for phase in ["kills", "heal"] {
        let mut story = story.clone();
        story.lines.push(fault("ended_by_itself", phase));
        story.breaks(&[(Rule::Crashes, 1)]);
    }
}

#[test]
fn a_process_that_holds_too_much_is_reported() {
    let mut story = Story::paid();
    story.lines.push(fault("resources_held", "hostile_clients"));
    story.breaks(&[(Rule::ResourcesHeld, 1)]);
}

#[test]
fn examples_are_few_and_counts_are_not() {
    let mut story = Story::empty();
    story
        .lines
        .extend((0..50).map(|op| Line::Operation(operation(op))));
    let report = story.judged().unwrap();
    assert_eq!(report.violations[&Rule::StuckKeys], 50);
    let examples = &report.examples[&Rule::StuckKeys];
    assert_eq!(examples.len(), 10);
    assert_eq!(examples[9].op, Some(9));
}

#[test]
fn everything_is_counted() {
    let mut story = Story::paid();
    story
        .lines
        .push(Line::Call(call(1, 12_000, Outcome::Indeterminate)));
    story
        .lines
        .push(Line::Call(call(1, 12_001, Outcome::Failed)));
    for name in ["kill", "stop", "cut_after_commit", "redis_flush"] {
        story.lines.push(fault(name, "phase-1"));
    }
    story.lines.push(decision("not_executed", ""));
    story.lines.push(Line::Execution(execution(1, 1)));
    story.lines.push(peek(1, true, 200));
    story.lines.push(peek(1, false, 404));
    let mut report = story.judged().unwrap();
    for (name, at_least) in [
        ("operations", 1),
        ("calls", 4),
        ("ok", 2),
        ("failed", 1),
        ("indeterminate", 1),
        ("replayed", 1),
        ("executions", 1),
        ("peeks", 2),
        ("twins", 0),
        ("kills", 1),
        ("stops", 1),
        ("ambiguous_commits", 1),
        ("redis_flush", 1),
    ] {
        report.require(name, at_least);
    }
    assert!(report.passed);
    let whole = serde_json::to_value(&report).unwrap();
    assert_eq!(whole["seed"], 7);
    assert_eq!(whole["violations"]["duplicate_effects"], 0);
    assert_eq!(whole["decisions"], json!({ "not_executed": 1 }));
    assert_eq!(
        whole["ledger"],
        json!({ "charges": 1, "declined": 0, "refunds": 0 })
    );
    assert_eq!(whole["timeline"].as_array().unwrap().len(), 13);
    assert_eq!(
        whole["timeline"][12],
        json!({ "second": 12, "ok": 0, "failed": 1, "indeterminate": 1, "phase": "phase-1" })
    );
    assert_eq!(whole["timeline"][11]["phase"], "phase-0");
    let phases = whole["phases"].as_array().unwrap();
    assert_eq!(phases[0]["operations"], 1);
    assert_eq!(phases[0]["seconds"], 11);
    assert_eq!(phases[1]["calls"], 2);
    assert_eq!(phases[1]["faults"]["kill"], 1);

    report.require("redis_kill", 1);
    assert!(!report.passed);
    let last = report.requirements.last().unwrap();
    assert_eq!((last.seen, last.met), (0, false));
    // A requirement that is met makes nothing good again.
    report.require("calls", 1);
    assert!(!report.passed);
}

#[test]
fn a_run_of_nothing_does_not_pass() {
    assert!(!Story::empty().judged().unwrap().passed);
}

#[test]
fn a_torn_line_is_said() {
    let (_directory, history, ledgers) = Story::paid().written();
    for path in [&history, &ledgers[0]] {
        let whole = fs::read(path).unwrap();
        fs::write(path, &whole[..whole.len() - 1]).unwrap();
        let error = check(&history, &ledgers).unwrap_err();
        assert!(matches!(error, Error::Torn { .. }), "{error}");
        assert!(error.to_string().contains("ends in the middle of line"));
        fs::write(path, whole).unwrap();
    }
    check(&history, &ledgers).unwrap();
}

#[test]
fn a_history_that_cannot_be_is_not_judged() {
    let wrong = |spoil: fn(&mut Story)| {
        let mut story = Story::paid();
        spoil(&mut story);
        let error = story.judged().unwrap_err();
        assert!(matches!(error, Error::Wrong { .. }), "{error}");
    };
    wrong(|story| drop(story.lines.remove(0)));
    wrong(|story| drop(story.lines.remove(1)));
    wrong(|story| story.lines.push(story.lines[0].clone()));
    wrong(|story| story.call_mut(2).ended_ms = 9);
    wrong(|story| story.call_mut(2).ended_ms = u64::MAX);
    wrong(|story| story.lines.push(peek(2, false, 404)));
    wrong(|story| {
        let nameless = json!({ "id": "x", "amount": 1, "status": "declined" });
        story.ledger.push(nameless);
    });

    let (_directory, history, ledgers) = Story::paid().written();
    fs::write(&ledgers[0], "{}\n").unwrap();
    let error = check(&history, &ledgers).unwrap_err();
    assert!(matches!(error, Error::Unknown { .. }), "{error}");
    fs::remove_file(&ledgers[0]).unwrap();
    let error = check(&history, &ledgers).unwrap_err();
    assert!(matches!(error, Error::Unreadable { .. }), "{error}");
}

#[test]
fn operations_that_cannot_be_told_apart_are_not_judged() {
    let (first, other) = (operation(1), operation(2));
    let number = Operation {
        op: 1,
        ..other.clone()
    };
    let key = Operation {
        tenant: first.tenant.clone(),
        key: first.key.clone(),
        ..other.clone()
    };
    let reference = Operation {
        tenant: first.tenant.clone(),
        key: "key-other".into(),
        reference: first.reference.clone(),
        ..other
    };
    for (shares, what) in [
        (number, "two operations share a number"),
        (key, "two operations of one tenant share a key"),
        (reference, "two operations of one tenant share a reference"),
    ] {
        let mut story = Story::paid();
        story.lines.push(Line::Operation(shares));
        let error = story.judged().unwrap_err();
        assert!(error.to_string().ends_with(what), "{error}");
    }
}

#[test]
fn what_an_older_history_does_not_have_is_optional() {
    let run: Line = serde_json::from_str(r#"{"kind":"run","seed":1,"short":true}"#).unwrap();
    let decision = r#"{"kind":"decision","id":"0198","verdict":"not_executed"}"#;
    let decision: Line = serde_json::from_str(decision).unwrap();
    let call = json!({
        "kind": "call", "op": 1, "began_ms": 1, "ended_ms": 2, "phase": "a", "gateway": "a",
        "sent": "same", "outcome": "indeterminate",
    });
    let call: Line = serde_json::from_value(call).unwrap();
    let expected = Run {
        seed: 1,
        short: true,
        all_replayed: false,
    };
    assert_eq!(run, Line::Run(expected));
    let mut story = Story::paid();
    story.lines.push(decision);
    story.lines.push(call);
    story.breaks(&[]);
}

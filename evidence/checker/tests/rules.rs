//! A clean history has no violation, and each rule finds the one that is put in.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use semel_campaign_checker::history::{
    Call, Decision, Fault, Leftover, Line, Operation, Outcome, Run, Sent,
};
use semel_campaign_checker::{Error, Report, Rule, check};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A history and its ledger, to be spoilt.
#[derive(Clone)]
struct Story {
    lines: Vec<Line>,
    ledger: Vec<Value>,
}

/// `SplitMix64`.
struct Dice(u64);

impl Dice {
    fn draw(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }
}

fn operation(op: u64) -> Operation {
    Operation {
        op,
        tenant: format!("tenant-{}", op % 3),
        key: format!("key-{}", op / 3),
        reference: format!("ref-{op}"),
        amount: 1_000 + i64::try_from(op).unwrap(),
        route: "payments".into(),
        refusable: false,
    }
}

fn call(op: u64, began_ms: u64, outcome: Outcome) -> Call {
    Call {
        op,
        began_ms,
        ended_ms: began_ms + 5,
        phase: format!("phase-{}", began_ms / 10_000),
        gateway: "a".into(),
        sent: Sent::Same,
        outcome,
        status: None,
        code: None,
        replayed: false,
        body: None,
        headers: BTreeMap::new(),
        why: None,
    }
}

/// The final answer that the example gives.
fn end(op: u64, began_ms: u64, declined: bool) -> Call {
    let wanted = operation(op);
    let body = json!({
        "id": format!("pay_{op}"),
        "status": if declined { "declined" } else { "succeeded" },
        "amount": wanted.amount,
        "merchant_reference": wanted.reference,
        "charge_id": format!("ch_{op}"),
    });
    Call {
        status: Some(if declined { 402 } else { 201 }),
        body: Some(body.to_string()),
        headers: BTreeMap::from([("location".into(), format!("/payments/pay_{op}"))]),
        ..call(op, began_ms, Outcome::Ok)
    }
}

fn refused(op: u64, began_ms: u64, outcome: Outcome, status: u16, code: &str) -> Call {
    Call {
        status: Some(status),
        code: Some(code.into()),
        ..call(op, began_ms, outcome)
    }
}

fn charge(op: u64, declined: bool) -> Value {
    let wanted = operation(op);
    json!({
        "id": format!("ch_{op}"),
        "idempotency_key": null,
        "amount": wanted.amount,
        "currency": "EUR",
        "reference": wanted.reference,
        "status": if declined { "declined" } else { "succeeded" },
    })
}

impl Story {
    fn empty() -> Self {
        Self {
            lines: vec![Line::Run(Run {
                seed: 7,
                short: true,
            })],
            ledger: Vec::new(),
        }
    }

    /// One operation that was made and answered twice.
    fn paid() -> Self {
        let mut story = Self::empty();
        story.lines.push(Line::Operation(operation(1)));
        story.lines.push(Line::Call(end(1, 10, false)));
        story.lines.push(Line::Call(end(1, 20, false)));
        story.ledger.push(charge(1, false));
        story
    }

    /// Whatever may happen to operations without anything being wrong.
    fn clean(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let mut story = Self::empty();
        let mut at = 0;
        for op in 0..40 {
            at += dice.draw(2_000);
            if dice.draw(10) == 0 {
                story.refusable(op, at);
            } else {
                let declined = dice.draw(8) == 0;
                at = story.ordinary(op, at, declined, &mut dice);
            }
        }
        story.ledger.push(json!({
            "id": "re_1", "idempotency_key": null, "charge_id": "ch_1", "amount": 1,
            "currency": "EUR", "status": "succeeded",
        }));
        for name in ["kill", "kill", "stop", "cut_after_commit", "redis_flush"] {
            story.lines.push(Line::Fault(Fault {
                at_ms: dice.draw(at.max(1)),
                phase: "phase-0".into(),
                name: name.into(),
                target: "a".into(),
            }));
        }
        story.lines.push(Line::Decision(Decision {
            id: "0198".into(),
            verdict: "completed".into(),
        }));
        story
    }

    fn refusable(&mut self, op: u64, at: u64) {
        self.lines.push(Line::Operation(Operation {
            refusable: true,
            ..operation(op)
        }));
        self.lines.push(Line::Call(Call {
            sent: Sent::Malformed,
            ..refused(op, at, Outcome::Failed, 400, "idempotency_key_missing")
        }));
    }

    /// Refusals and doubts, one end, and again refusals, replays and misuse.
    fn ordinary(&mut self, op: u64, from: u64, declined: bool, dice: &mut Dice) -> u64 {
        use Outcome::{Failed, Indeterminate};
        let mut at = from;
        self.lines.push(Line::Operation(operation(op)));
        let mut push = |call| self.lines.push(Line::Call(call));
        for _ in 0..dice.draw(4) {
            push(match dice.draw(5) {
                0 => call(op, at, Indeterminate),
                1 => refused(op, at, Indeterminate, 409, "idempotency_key_in_progress"),
                2 => refused(op, at, Indeterminate, 504, "idempotency_outcome_unknown"),
                3 => refused(op, at, Failed, 503, "operation_not_executed"),
                _ => refused(op, at, Failed, 503, "idempotency_store_unavailable"),
            });
            at += 10;
        }
        push(end(op, at, declined));
        // Began before the end was there, so it may not know it yet.
        push(refused(
            op,
            at,
            Indeterminate,
            409,
            "idempotency_key_in_progress",
        ));
        for _ in 0..dice.draw(4) {
            at += 10;
            push(match dice.draw(4) {
                0 => call(op, at, Indeterminate),
                1 => refused(op, at, Failed, 503, "idempotency_store_unavailable"),
                2 => Call {
                    sent: Sent::OtherBody,
                    ..refused(op, at, Failed, 422, "idempotency_key_reused")
                },
                _ => Call {
                    replayed: true,
                    ..end(op, at, declined)
                },
            });
        }
        self.ledger.push(charge(op, declined));
        at
    }

    fn call_mut(&mut self, index: usize) -> &mut Call {
        let Line::Call(call) = &mut self.lines[index] else {
            panic!("line {index} is no call");
        };
        call
    }

    fn operation_mut(&mut self) -> &mut Operation {
        let Line::Operation(operation) = &mut self.lines[1] else {
            panic!("line 1 is no operation");
        };
        operation
    }

    fn written(&self) -> (TempDir, PathBuf, Vec<PathBuf>) {
        let directory = tempfile::tempdir().unwrap();
        let history = directory.path().join("history.jsonl");
        let ledger = directory.path().join("ledger.jsonl");
        let lines = self
            .lines
            .iter()
            .map(|line| serde_json::to_string(line).unwrap() + "\n");
        fs::write(&history, lines.collect::<String>()).unwrap();
        let lines = self.ledger.iter().map(|line| format!("{line}\n"));
        fs::write(&ledger, lines.collect::<String>()).unwrap();
        (directory, history, vec![ledger])
    }

    fn judged(&self) -> Result<Report, Error> {
        let (_directory, history, ledgers) = self.written();
        check(&history, &ledgers)
    }

    /// That these rules were broken so often, and no other.
    #[track_caller]
    fn breaks(&self, expected: &[(Rule, u64)]) {
        let report = self.judged().unwrap();
        let expected: BTreeMap<Rule, u64> = Rule::ALL
            .into_iter()
            .map(|rule| {
                let count = expected.iter().find(|(broken, _)| *broken == rule);
                (rule, count.map_or(0, |(_, count)| *count))
            })
            .collect();
        assert_eq!(report.violations, expected, "{:?}", report.examples);
        let broken = expected.values().any(|count| *count > 0);
        assert_eq!(report.passed, !broken);
    }
}

#[test]
fn clean_histories_break_no_rule() {
    for seed in 0..200 {
        Story::clean(seed).breaks(&[]);
    }
    Story::paid().breaks(&[]);
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
    // A decline is not what it was told.
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
    let mut header = Story::paid();
    header.call_mut(3).headers.clear();
    for story in [status, body, header] {
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
    // Of an operation that nobody made.
    let mut story = Story::paid();
    story.ledger.push(charge(9, false));
    story.breaks(&[(Rule::EffectsNeverSurfaced, 1)]);
    // Of one that was told to be declined.
    let mut story = Story::empty();
    story.lines.push(Line::Operation(operation(1)));
    story.lines.push(Line::Call(end(1, 10, true)));
    story.ledger.push(charge(1, false));
    story.breaks(&[(Rule::EffectsNeverSurfaced, 1)]);
    // Of one that was told nothing: its key is stuck as well.
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
        story.lines.push(Line::Fault(Fault {
            at_ms: 11_500,
            phase: "phase-1".into(),
            name: name.into(),
            target: "a".into(),
        }));
    }
    story.lines.push(Line::Decision(Decision {
        id: "0198".into(),
        verdict: "not_executed".into(),
    }));
    let mut report = story.judged().unwrap();
    for (name, at_least) in [
        ("operations", 1),
        ("calls", 4),
        ("ok", 2),
        ("failed", 1),
        ("indeterminate", 1),
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
    wrong(|story| story.lines.push(story.lines[1].clone()));
    wrong(|story| story.call_mut(2).ended_ms = 9);
    wrong(|story| story.call_mut(2).ended_ms = u64::MAX);
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

//! Histories and their ledgers, whole and to be spoilt.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use semel_campaign_checker::history::{
    Call, Decision, Execution, Fault, Line, Operation, Outcome, Peek, Run, Sent, Transport,
};
use semel_campaign_checker::{Error, Report, Rule, check};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Operations from here on are twins of those that are so much less.
const TWINS: u64 = 1_000;

/// A history and its ledger, to be spoilt.
#[derive(Clone)]
pub(crate) struct Story {
    pub(crate) lines: Vec<Line>,
    pub(crate) ledger: Vec<Value>,
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

pub(crate) fn operation(op: u64) -> Operation {
    let (asked, who) = (op % TWINS, if op < TWINS { "tenant" } else { "twin" });
    Operation {
        op,
        tenant: format!("{who}-{}", asked % 3),
        key: format!("key-{}", asked / 3),
        reference: format!("ref-{asked}"),
        amount: 1_000 + i64::try_from(asked).unwrap(),
        route: "payments".into(),
        refusable: false,
    }
}

pub(crate) fn twin(op: u64) -> u64 {
    op + TWINS
}

pub(crate) fn call(op: u64, began_ms: u64, outcome: Outcome) -> Call {
    Call {
        op,
        began_ms,
        ended_ms: began_ms + 5,
        phase: format!("phase-{}", began_ms / 10_000),
        gateway: "a".into(),
        transport: Transport::Plain,
        sent: Sent::Same,
        outcome,
        status: None,
        code: None,
        replayed: false,
        body: None,
        headers: Vec::new(),
        why: None,
    }
}

/// The final answer that the example gives.
pub(crate) fn end(op: u64, began_ms: u64, declined: bool) -> Call {
    let wanted = operation(op);
    let body = json!({
        "id": format!("pay_{op}"),
        "status": if declined { "declined" } else { "succeeded" },
        "amount": wanted.amount,
        "merchant_reference": wanted.reference,
        "charge_id": format!("ch_{op}"),
    });
    let line = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    Call {
        status: Some(if declined { 402 } else { 201 }),
        body: Some(body.to_string()),
        headers: vec![
            line("content-type", "application/json"),
            line("location", &format!("/payments/pay_{op}")),
            line("link", "</payments>; rel=\"collection\""),
            line("link", "</accounts>; rel=\"related\""),
        ],
        ..call(op, began_ms, Outcome::Ok)
    }
}

/// The same, said to be a replay.
pub(crate) fn replay(op: u64, began_ms: u64, declined: bool) -> Call {
    Call {
        replayed: true,
        ..end(op, began_ms, declined)
    }
}

pub(crate) fn refused(op: u64, began_ms: u64, outcome: Outcome, status: u16, code: &str) -> Call {
    Call {
        status: Some(status),
        code: Some(code.into()),
        body: Some(json!({ "code": code }).to_string()),
        ..call(op, began_ms, outcome)
    }
}

pub(crate) fn execution(op: u64, attempt: u32) -> Execution {
    let Operation { tenant, key, .. } = operation(op);
    Execution {
        at_ms: 10,
        tenant,
        key,
        id: format!("id-{op}"),
        attempt,
    }
}

pub(crate) fn peek(op: u64, own: bool, status: u16) -> Line {
    Line::Peek(Peek {
        at_ms: 100,
        op,
        own,
        status,
    })
}

pub(crate) fn fault(name: &str, phase: &str) -> Line {
    Line::Fault(Fault {
        at_ms: 11_500,
        phase: phase.into(),
        name: name.into(),
        target: "a".into(),
    })
}

pub(crate) fn decision(verdict: &str, route: &str) -> Line {
    Line::Decision(Decision {
        id: "0198".into(),
        verdict: verdict.into(),
        route: route.into(),
    })
}

pub(crate) fn charge(op: u64, declined: bool) -> Value {
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
    pub(crate) fn empty() -> Self {
        let run = Run {
            seed: 7,
            short: true,
            all_replayed: false,
        };
        Self {
            lines: vec![Line::Run(run)],
            ledger: Vec::new(),
        }
    }

    /// One operation that was made and answered twice.
    pub(crate) fn paid() -> Self {
        let mut story = Self::empty();
        story.lines.push(Line::Operation(operation(1)));
        story.lines.push(Line::Call(end(1, 10, false)));
        story.lines.push(Line::Call(replay(1, 20, false)));
        story.ledger.push(charge(1, false));
        story
    }

    /// The same asked for by two tenants, and made for each of them.
    pub(crate) fn paid_to_twins() -> Self {
        let mut story = Self::empty();
        for op in [1, twin(1)] {
            story.lines.push(Line::Operation(operation(op)));
            story.lines.push(Line::Call(end(op, 10, false)));
            story.ledger.push(charge(op, false));
        }
        story
    }

    /// Whatever may happen to operations without anything being wrong.
    pub(crate) fn clean(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let mut story = Self::empty();
        story.run_mut().all_replayed = true;
        let mut at = 0;
        let mut ended = Vec::new();
        for op in 0..40 {
            at += dice.draw(2_000);
            if dice.draw(10) == 0 {
                story.refusable(op, at);
                // What only the application finds malformed reaches it.
                if dice.draw(2) == 0 {
                    story.lines.push(Line::Execution(execution(op, 1)));
                }
                continue;
            }
            let twins = dice.draw(4) == 0;
            for op in [Some(op), twins.then(|| twin(op))].into_iter().flatten() {
                let declined = dice.draw(8) == 0;
                at = story.ordinary(op, at, declined, &mut dice);
                ended.push((op, declined));
            }
        }
        story.ledger.push(json!({
            "id": "re_1", "idempotency_key": null, "charge_id": "ch_1", "amount": 1,
            "currency": "EUR", "status": "succeeded",
        }));
        for name in ["kill", "kill", "stop", "cut_after_commit", "redis_flush"] {
            story.lines.push(fault(name, "phase-0"));
        }
        story.lines.push(fault("ended_by_itself", "disk_full"));
        story.lines.push(decision("not_executed", "strict"));
        story.lines.push(decision("not_executed", ""));
        for (op, declined) in ended {
            at += 10;
            story.lines.push(Line::Call(Call {
                phase: "heal".into(),
                ..replay(op, at, declined)
            }));
            story.lines.push(peek(op, true, 200));
            story.lines.push(peek(op, false, 404));
        }
        story
    }

    pub(crate) fn refusable(&mut self, op: u64, at: u64) {
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
        let mut doubted = false;
        self.lines.push(Line::Operation(operation(op)));
        for _ in 0..dice.draw(4) {
            let before = match dice.draw(6) {
                0 => call(op, at, Indeterminate),
                1 => refused(op, at, Indeterminate, 409, "idempotency_key_in_progress"),
                2 => refused(op, at, Indeterminate, 504, "idempotency_outcome_unknown"),
                3 => refused(op, at, Failed, 503, "operation_not_executed"),
                // As a balancer says it, before there is an end.
                4 => Call {
                    status: Some(502),
                    body: Some(String::new()),
                    ..call(op, at, Indeterminate)
                },
                _ => refused(op, at, Failed, 503, "idempotency_store_unavailable"),
            };
            doubted |= before.outcome == Indeterminate;
            self.lines.push(Line::Call(before));
            at += 10;
        }
        // An attempt of which nothing came, and the next.
        for attempt in 1..=1 + u32::try_from(dice.draw(2)).unwrap() {
            self.lines.push(Line::Execution(execution(op, attempt)));
        }
        let mut push = |call| self.lines.push(Line::Call(call));
        // The effect of a call whose answer was lost is a replay for the first who
        // hears it.
        let unheard = doubted && dice.draw(2) == 0;
        push(Call {
            replayed: unheard,
            ..end(op, at, declined)
        });
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
            push(match dice.draw(5) {
                0 => call(op, at, Indeterminate),
                1 => refused(op, at, Failed, 503, "idempotency_store_unavailable"),
                2 => refused(op, at, Failed, 400, "request_incomplete"),
                3 => Call {
                    sent: Sent::OtherBody,
                    ..refused(op, at, Failed, 422, "idempotency_key_reused")
                },
                _ => replay(op, at, declined),
            });
        }
        self.ledger.push(charge(op, declined));
        at
    }

    pub(crate) fn run_mut(&mut self) -> &mut Run {
        let Line::Run(run) = &mut self.lines[0] else {
            panic!("line 0 is no run");
        };
        run
    }

    pub(crate) fn call_mut(&mut self, index: usize) -> &mut Call {
        let Line::Call(call) = &mut self.lines[index] else {
            panic!("line {index} is no call");
        };
        call
    }

    pub(crate) fn operation_mut(&mut self) -> &mut Operation {
        let Line::Operation(operation) = &mut self.lines[1] else {
            panic!("line 1 is no operation");
        };
        operation
    }

    pub(crate) fn written(&self) -> (TempDir, PathBuf, Vec<PathBuf>) {
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

    pub(crate) fn judged(&self) -> Result<Report, Error> {
        let (_directory, history, ledgers) = self.written();
        check(&history, &ledgers)
    }

    /// That these rules were broken so often, and no other.
    #[track_caller]
    pub(crate) fn breaks(&self, expected: &[(Rule, u64)]) {
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

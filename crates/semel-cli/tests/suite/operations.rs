//! `semel operations` against a scripted admin listener.

mod fake_admin;

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Command, Output, Stdio};

use fake_admin::FakeAdmin;
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::{Value, json};

const ID: &str = "0198a1b2-c3d4-7000-8000-00000000000a";
const OTHER: &str = "0198a1b2-c3d4-7000-8000-00000000000b";
const TENANT: &str = "auth:2bd806c97f0e00af1a1fc3328fa763a9";

fn command(admin: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command
        .env_clear()
        .env("SEMEL_ADMIN", admin)
        .arg("operations")
        .args(args)
        .stdin(Stdio::null());
    command
}

fn semel(fake: &FakeAdmin, args: &[&str]) -> Output {
    command(&fake.url(), args).output().unwrap()
}

/// Standard output and standard error of a success.
fn fine(fake: &FakeAdmin, args: &[&str]) -> (String, String) {
    let output = semel(fake, args);
    assert!(output.status.success(), "{args:?} {output:?}");
    (text(output.stdout), text(output.stderr))
}

/// Standard error of a failure; nothing else is printed.
fn failed(output: Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    text(output.stderr)
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

fn summary(id: &str, status: &str, dead: bool) -> Value {
    let error = (status == "unknown").then_some("upstream_broke_off");
    json!({
        "id": id, "tenant": TENANT, "operation": "create_payment", "key": "order-1003-attempts",
        "status": status, "attempt": 1, "last_error": error,
        "dead_lettered_at": dead.then_some("2026-11-16T06:57:01Z"),
        "created_at": "2026-11-16T06:57:00.25Z", "updated_at": "2026-11-16T06:57:01Z",
    })
}

fn page(operations: &[Value], next: Option<&str>) -> String {
    json!({"operations": operations, "next": next}).to_string()
}

fn with(mut base: Value, more: Value) -> Value {
    let Value::Object(more) = more else {
        panic!("{more} has no members");
    };
    base.as_object_mut().unwrap().extend(more);
    base
}

/// The full response for a dead letter.
fn dead_letter() -> Value {
    with(
        summary(ID, "unknown", true),
        json!({
            "fingerprint": "1:64b7", "resource": null, "resolved_by": null, "recovery_point": null,
            "reconcile_after": "2026-11-16T06:57:06Z", "reconcile_attempts": 2,
            "history": [
                {"seq": 1, "at": "2026-11-16T06:57:00.5Z", "attempt": 1, "what": "unknown",
                 "actor": "executor", "code": "upstream_broke_off", "reason": null,
                 "evidence": null, "hash": "aa"},
                {"seq": 2, "at": "2026-11-16T06:57:00.75Z", "attempt": 1, "what": "asked",
                 "actor": "reconciler", "code": "absence_is_not_proof", "reason": null,
                 "evidence": "HTTP 404\n{\"code\": \"not_found\"}", "hash": "bb"},
                {"seq": 3, "at": "2026-11-16T06:57:01Z", "attempt": 1, "what": "dead_lettered",
                 "actor": "worker", "code": "upstream_broke_off", "reason": null,
                 "evidence": null, "evidence_erased": true, "hash": "cc"},
            ],
            "history_intact": true,
        }),
    )
}

fn completed() -> Value {
    with(
        summary(ID, "completed", false),
        json!({
            "fingerprint": "1:64b7", "resource": {"type": "payment", "id": "pay_1"},
            "resolved_by": null, "recovery_point": null,
            "completed_at": "2026-11-16T06:57:01Z", "expires_at": "2026-12-16T06:57:01Z",
            "body_expires_at": "2026-11-17T06:57:01Z",
            "response": {"status": 201, "headers": [["content-type", "application/json"]],
                         "body_bytes": 14},
            "history": [], "history_intact": true,
        }),
    )
}

#[test]
fn list_prints_a_table() {
    let long = with(
        summary(OTHER, "completed", false),
        json!({"attempt": 12, "created_at": "2026-11-14T06:00:00Z", "tenant": "acme"}),
    );
    let fake = FakeAdmin::start().json(page(&[summary(ID, "unknown", true), long], Some(OTHER)));
    let (table, notes) = fine(&fake, &["list"]);
    assert_eq!(
        table,
        "\
ID                                    STATUS     OPERATION       TENANT          KEY                  ATTEMPT  AGE  LAST ERROR
0198a1b2-c3d4-7000-8000-00000000000a  unknown*   create_payment  auth:2bd806c9…  order-1003-attempts  1        3m   upstream_broke_off
0198a1b2-c3d4-7000-8000-00000000000b  completed  create_payment  acme            order-1003-attempts  12       2d
"
    );
    assert_eq!(
        notes,
        format!(
            "* dead letter: waits for an operator; see semel operations show ID\n\
             more results: repeat with --cursor {OTHER}, or use --all\n"
        )
    );
    assert_eq!(fake.lines(), ["GET /api/v1/operations"]);
}

#[test]
fn an_empty_list_prints_a_note() {
    let fake = FakeAdmin::start().json(page(&[], None));
    let (table, notes) = fine(&fake, &["list"]);
    assert_eq!((&*table, &*notes), ("", "no operation matches\n"));
}

#[test]
fn filters_are_sent_encoded() {
    let fake = FakeAdmin::start()
        .json(page(&[], None))
        .json(page(&[], None));
    let filters = [
        "list",
        "--status",
        "unknown",
        "--tenant",
        "a&b=c",
        "--operation",
        "POST /x?",
        "--key",
        "k 1",
        "--dead-lettered",
        "--limit",
        "7",
        "--cursor",
        ID,
    ];
    fine(&fake, &filters);
    fine(&fake, &["list", "--dead-lettered=false"]);
    let whole = format!(
        "GET /api/v1/operations?status=unknown&tenant=a%26b%3Dc&operation=POST+%2Fx%3F&key=k+1\
         &dead_lettered=true&limit=7&cursor={ID}"
    );
    assert_eq!(
        fake.lines(),
        [&*whole, "GET /api/v1/operations?dead_lettered=false"]
    );
}

#[test]
fn list_all_requests_every_page() {
    let pages = || {
        FakeAdmin::start()
            .json(page(&[summary(ID, "unknown", false)], Some(ID)))
            .json(page(&[], Some(OTHER)))
            .json(page(&[summary(OTHER, "unknown", true)], None))
    };
    let asked = [
        "GET /api/v1/operations?limit=1".to_owned(),
        format!("GET /api/v1/operations?limit=1&cursor={ID}"),
        format!("GET /api/v1/operations?limit=1&cursor={OTHER}"),
    ];
    let fake = pages();
    let (table, notes) = fine(&fake, &["list", "--all", "--limit=1"]);
    assert_eq!(fake.lines(), asked);
    let ids: Vec<_> = table
        .lines()
        .map(|line| line.split(' ').next().unwrap())
        .collect();
    assert_eq!(ids, ["ID", ID, OTHER]);
    assert!(!notes.contains("more results"), "{notes}");

    let fake = pages();
    let (printed, _) = fine(&fake, &["list", "--all", "--limit=1", "--json"]);
    assert_eq!(fake.lines(), asked);
    let merged: Value = serde_json::from_str(&printed).unwrap();
    let both = [
        summary(ID, "unknown", false),
        summary(OTHER, "unknown", true),
    ];
    assert_eq!(merged, json!({"operations": both, "next": null}));

    let (printed, _) = fine(
        &FakeAdmin::start().json(page(&[], None)),
        &["list", "--all", "--json"],
    );
    assert_eq!(printed, "{\"operations\":[],\"next\":null}\n");
}

#[test]
fn a_cursor_that_does_not_advance_is_an_error() {
    for json in [&[][..], &["--json"]] {
        let page = page(&[], Some(ID));
        let fake = FakeAdmin::start().json(page.clone()).json(page);
        let output = semel(&fake, &[&["list", "--all"], json].concat());
        assert!(failed(output).contains("the same cursor again"));
        assert_eq!(fake.lines().len(), 2);
    }
}

/// Numbers and the order of members included.
#[test]
fn json_output_is_the_gateways_response() {
    let response = format!(
        "{{\"next\":null,  \"operations\":[],\"newer\":9007199254740993.10, \"a\":\"{}\"}}",
        "\u{9b}31m\u{202e}é\\u001b"
    );
    let (printed, notes) = fine(&FakeAdmin::start().json(&*response), &["list", "--json"]);
    let harmless = response
        .replace('\u{9b}', "\\u009b")
        .replace('\u{202e}', "\\u202e");
    assert_eq!((printed, notes), (harmless + "\n", String::new()));
    let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    for (args, response) in [
        (&["show", ID, "--json"][..], dead_letter().to_string()),
        (
            &["reconcile", ID, "--json"],
            json!({"id": ID, "outcome": "completed"}).to_string(),
        ),
    ] {
        let (printed, notes) = fine(&FakeAdmin::start().json(&*response), args);
        assert_eq!((read(&printed), notes), (read(&response), String::new()));
    }
}

#[test]
fn show_prints_a_dead_letter_with_its_history() {
    let fake = FakeAdmin::start().json(dead_letter().to_string());
    let (printed, notes) = fine(&fake, &["show", ID]);
    assert_eq!(
        printed,
        "\
id               0198a1b2-c3d4-7000-8000-00000000000a
status           unknown, a dead letter since 2026-11-16T06:57:01Z (2m ago)
operation        create_payment
tenant           auth:2bd806c97f0e00af1a1fc3328fa763a9
key              order-1003-attempts
downstream key   DOWNSTREAM
attempt          1
last error       upstream_broke_off
created          2026-11-16T06:57:00.25Z (3m ago)
updated          2026-11-16T06:57:01Z (2m ago)
lookups          2
fingerprint      1:64b7

TIME                     ATTEMPT  WHAT           WHO         CODE                  REASON
2026-11-16T06:57:00.25Z  1        created        client
2026-11-16T06:57:00.5Z   1        unknown        executor    upstream_broke_off
2026-11-16T06:57:00.75Z  1        asked          reconciler  absence_is_not_proof
    evidence
      HTTP 404
      {\"code\": \"not_found\"}
2026-11-16T06:57:01Z     1        dead_lettered  worker      upstream_broke_off
    evidence
      (erased)

history: intact (3 entries)
"
        .replace(
            "DOWNSTREAM",
            &ID.parse::<semel_core::OperationId>()
                .unwrap()
                .downstream_key("")
        )
    );
    assert!(
        notes.contains(&format!("semel operations resolve {ID}")),
        "{notes}"
    );
    assert_eq!(fake.lines(), [format!("GET /api/v1/operations/{ID}")]);
}

#[test]
fn show_prints_creation_and_completion_without_history() {
    let fake = FakeAdmin::start().json(completed().to_string());
    let (printed, notes) = fine(&fake, &["show", ID]);
    let end = "\
resource         payment pay_1
completed        2026-11-16T06:57:01Z
replayed until   2026-12-16T06:57:01Z
body kept until  2026-11-17T06:57:01Z
fingerprint      1:64b7
response         201, body of 14 bytes (show it with --reveal)
    content-type: application/json

TIME                     ATTEMPT  WHAT       WHO       CODE  REASON
2026-11-16T06:57:00.25Z  1        created    client
2026-11-16T06:57:01Z     1        completed  executor

history: intact (no entries)
";
    assert!(printed.ends_with(end), "{printed}");
    assert_eq!(notes, "");
}

/// A completion comes before a later erasure; a resolution is not listed twice.
#[test]
fn the_completion_is_listed_once_and_in_order() {
    let entry = |at: &str, what: &str| {
        json!({"seq": 1, "at": at, "attempt": 1, "what": what, "actor": "operator:ann",
               "code": null, "reason": "asked for", "evidence": null, "hash": "aa"})
    };
    let whats = |history: Value| {
        let shown = with(completed(), json!({"history": history}));
        let (printed, _) = fine(&FakeAdmin::start().json(shown.to_string()), &["show", ID]);
        let (_, timeline) = printed.split_once("TIME ").unwrap();
        let lines = timeline.lines().skip(1).take_while(|line| !line.is_empty());
        let what = |line: &str| line.split_whitespace().nth(2).unwrap().to_owned();
        lines.map(what).collect::<Vec<_>>()
    };
    let fenced = entry("2026-11-16T06:57:00.5Z", "fenced");
    let erased = entry("2026-11-16T06:58:00Z", "erased");
    assert_eq!(
        whats(json!([fenced, erased])),
        ["created", "fenced", "completed", "erased"]
    );
    let resolved = entry("2026-11-16T06:57:01Z", "resolved_completed");
    assert_eq!(
        whats(json!([resolved, erased])),
        ["created", "resolved_completed", "erased"]
    );
}

#[test]
fn reveal_asks_for_the_body() {
    let response = json!({"response": {"status": 201, "headers": [], "body_bytes": 14,
                                       "body": "{\"a\": 1,\n\"b\":2}"}});
    let fake = FakeAdmin::start().json(with(completed(), response).to_string());
    let (printed, _) = fine(&fake, &["show", "--reveal", ID]);
    assert!(
        printed.contains("body of 14 bytes\n\n    {\"a\": 1,\n    \"b\":2}\n\nTIME"),
        "{printed}"
    );
    assert_eq!(
        fake.lines(),
        [format!("GET /api/v1/operations/{ID}?reveal=true")]
    );
}

#[test]
fn a_broken_history_is_reported() {
    let broken = json!({"history_intact": false, "history_problem": "entry 2 was altered"});
    let fake = FakeAdmin::start().json(with(dead_letter(), broken).to_string());
    let (printed, _) = fine(&fake, &["show", ID]);
    assert!(
        printed.contains("history: NOT INTACT: entry 2 was altered."),
        "{printed}"
    );
}

/// Titles, cursor movements, C1 controls, new lines, text that runs backwards.
#[test]
fn stored_control_characters_are_escaped() {
    let hostile = "a\u{1b}]0;fine\u{7}\u{1b}[2J\u{9b}31m\nZ\u{202e}c\u{2066}\r\u{200b}\u{85}\u{7f}";
    let entry = json!({
        "seq": 1, "at": hostile, "attempt": 1, "what": hostile, "actor": hostile, "code": hostile,
        "reason": hostile, "evidence": hostile, "hash": "aa",
    });
    let everywhere = json!({
        "tenant": hostile, "operation": hostile, "key": hostile, "last_error": hostile,
        "created_at": hostile, "updated_at": hostile, "dead_lettered_at": hostile,
        "fingerprint": hostile, "resource": {"type": hostile, "id": hostile},
        "resolved_by": hostile, "recovery_point": hostile, "owner": hostile,
        "locked_until": hostile, "reconcile_after": hostile, "completed_at": hostile,
        "expires_at": hostile, "body_expires_at": hostile, "purge_at": hostile,
        "response": {"status": 201, "headers": [[hostile, hostile]], "body_bytes": 9,
                     "body": hostile},
        "history": [entry], "history_intact": false, "history_problem": hostile,
    });
    let shown = with(completed(), everywhere);
    let wrong = |detail| FakeAdmin::start().problem(409, "admin_operation_conflict", detail);
    let decided = json!({"id": hostile, "status": hostile, "outcome": hostile, "code": hostile});
    let decided = || FakeAdmin::start().json(decided.to_string());
    let erase = ["erase", ID, "--reason=r", "--yes"];
    let outputs = [
        semel(&FakeAdmin::start().json(shown.to_string()), &["show", ID]),
        semel(
            &FakeAdmin::start().json(shown.to_string()),
            &["show", ID, "--json"],
        ),
        semel(
            &FakeAdmin::start().json(page(std::slice::from_ref(&shown), Some(hostile))),
            &["list"],
        ),
        semel(
            &FakeAdmin::start().json(page(&[shown], Some(hostile))),
            &["list", "--json"],
        ),
        semel(&wrong(hostile), &["reconcile", ID]),
        semel(&decided(), &["reconcile", ID]),
        semel(&decided(), &erase),
        semel(
            &FakeAdmin::start().json(format!("{{\"next\": \"{}\"}}", "\u{9b}")),
            &["list"],
        ),
    ];
    for output in outputs {
        let printed = text(output.stdout) + &text(output.stderr);
        let obeyed = |c: char| {
            c.is_control() && c != '\n' || ['\u{202e}', '\u{2066}', '\u{200b}'].contains(&c)
        };
        assert!(!printed.chars().any(obeyed), "{printed:?}");
        // Stored text must not start a line of its own in the table.
        let own = |line: &str| !line.starts_with('Z');
        assert!(printed.lines().all(own), "{printed}");
    }
}

#[test]
fn completed_is_sent_with_its_response() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("answer.json");
    // The number is passed on unchanged: as a double it would become another number.
    std::fs::write(&path, "{\"b\": 9007199254740993.10, \"a\": 1}\n").unwrap();
    let path = path.to_str().unwrap();
    let decided = json!({"id": ID, "status": "completed"}).to_string();
    let fake = FakeAdmin::start()
        .json(&*decided)
        .json(&*decided)
        .json(&*decided);
    let base = [
        "resolve",
        ID,
        "--completed",
        "--response-status=201",
        "--reason",
        " ledger: ch_1 ",
    ];
    let json = [
        "--json-body",
        path,
        "--by=ann",
        "--attempt=2",
        "--header",
        "Location: /p/1",
    ];
    let (message, _) = fine(&fake, &[&base[..], &json[..]].concat());
    assert_eq!(
        message,
        format!("{ID} is completed now: every retry gets the 201\n")
    );
    fine(&fake, &[&base[..], &["--body", path]].concat());
    fine(&fake, &base);
    let asked = fake.requests();
    assert_eq!(
        asked[0].line,
        format!("POST /api/v1/operations/{ID}/resolve")
    );
    assert_eq!(asked[0].content_type.as_deref(), Some("application/json"));
    assert_eq!(
        asked[0].json(),
        json!({
            "verdict": "completed", "reason": "ledger: ch_1", "by": "ann", "attempt": 2,
            "response": {
                "status": 201, "body": "{\"b\": 9007199254740993.10, \"a\": 1}",
                "headers": [["Location", "/p/1"], ["content-type", "application/json"]],
            },
        })
    );
    let as_text = "{\"b\": 9007199254740993.10, \"a\": 1}\n";
    let response = json!({"status": 201, "headers": [], "body": as_text});
    let base = json!({"verdict": "completed", "reason": "ledger: ch_1"});
    assert_eq!(
        asked[1].json(),
        with(base.clone(), json!({"response": response}))
    );
    let response = json!({"status": 201, "headers": []});
    assert_eq!(asked[2].json(), with(base, json!({"response": response})));
}

#[test]
fn a_body_may_come_from_standard_input() {
    let fake = FakeAdmin::start().json(json!({"id": ID, "status": "completed"}).to_string());
    let args = [
        "resolve",
        ID,
        "--completed",
        "--response-status=402",
        "--reason=r",
        "--json-body=-",
    ];
    let mut child = command(&fake.url(), &args)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"{\"status\":\"declined\"}")
        .unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(
        fake.requests()[0].json()["response"]["body"],
        "{\"status\":\"declined\"}"
    );
}

#[test]
fn a_body_that_cannot_be_sent_is_refused_before_anything_is_decided() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = directory.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let large = file("large", &vec![b'a'; (2 << 20) + 1]);
    for (option, path, why) in [
        ("--body", &*file("binary", b"\xff\xfe"), "is not UTF-8 text"),
        ("--json-body", &*file("text", b"{\"a\":"), "is not JSON"),
        ("--body", &*large, "more than"),
        ("--body", "no-such-file", "cannot open no-such-file"),
    ] {
        let fake = FakeAdmin::start();
        let base = [
            "resolve",
            ID,
            "--completed",
            "--response-status=201",
            "--reason=r",
        ];
        let message = failed(semel(&fake, &[&base[..], &[option, path]].concat()));
        assert!(message.contains(why), "{message}");
        assert!(fake.requests().is_empty());
    }
}

#[test]
fn not_executed_and_erase_need_confirmation() {
    for args in [
        &["resolve", ID, "--not-executed", "--reason=r"][..],
        &["erase", ID, "--reason=r"],
    ] {
        let fake = FakeAdmin::start();
        let output = semel(&fake, args);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let message = text(output.stderr);
        assert!(message.contains("--yes"), "{message}");
        assert_eq!(
            message.contains("it happens TWICE"),
            args[0] == "resolve",
            "{message}"
        );
        assert!(fake.requests().is_empty(), "nothing is sent");
    }
    let fake = FakeAdmin::start().json(json!({"id": ID, "status": "failed_retryable"}).to_string());
    let (message, _) = fine(
        &fake,
        &["resolve", ID, "--not-executed", "--reason=r", "--yes"],
    );
    let now = "is failed_retryable now: the next request with its key executes";
    assert_eq!(message, format!("{ID} {now}\n"));
    assert_eq!(
        fake.requests()[0].json(),
        json!({"verdict": "not_executed", "reason": "r"})
    );
}

/// Runs the command on a pseudo-terminal with `columns` columns and this input; returns the exit
/// code and the screen.
fn at_a_terminal(
    fake: &FakeAdmin,
    columns: u16,
    args: &[&str],
    typed: &str,
) -> (Option<i32>, String) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY;
    let terminal = || File::from(rustix::fs::open(&name, flags, Mode::empty()).unwrap());
    let size = Winsize {
        ws_row: 24,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let keep = terminal();
    tcsetwinsize(&keep, size).unwrap();
    let mut child = command(&fake.url(), args)
        .stdin(terminal())
        .stdout(terminal())
        .stderr(terminal())
        .spawn()
        .unwrap();
    drop(keep);
    let mut screen = File::from(master);
    screen.write_all(typed.as_bytes()).unwrap();
    let mut seen = Vec::new();
    // Linux returns an error when the last descriptor of the terminal is closed.
    let _ = screen.read_to_end(&mut seen);
    (
        child.wait().unwrap().code(),
        text(seen).replace("\r\n", "\n"),
    )
}

#[test]
fn last_characters_of_the_id_confirm_a_decision() {
    let resolve = [
        "resolve",
        ID,
        "--not-executed",
        "--reason=provider confirmed",
    ];
    let shown = with(dead_letter(), json!({"attempt": 3}));
    let fake = || FakeAdmin::start().json(shown.to_string());
    for wrong in ["y\n", "yes\n", "\n", "00000b\n", "\u{4}"] {
        let fake = fake();
        let (code, seen) = at_a_terminal(&fake, 80, &resolve, wrong);
        assert_eq!(code, Some(1), "{seen}");
        assert!(seen.contains("nothing was changed"), "{seen}");
        assert_eq!(fake.lines().len(), 1, "{seen}");
    }
    let fake = fake().json(json!({"id": ID, "status": "failed_retryable"}).to_string());
    let (code, seen) = at_a_terminal(&fake, 80, &resolve, "00000a\n");
    assert_eq!(code, Some(0), "{seen}");
    assert!(
        seen.contains("it happens TWICE") && seen.contains("order-1003-attempts"),
        "{seen}"
    );
    // The decision names the attempt that was shown.
    let decision = json!({"verdict": "not_executed", "reason": "provider confirmed", "attempt": 3});
    assert_eq!(fake.requests()[1].json(), decision);

    let fake = FakeAdmin::start().json(completed().to_string());
    let (code, seen) = at_a_terminal(&fake, 80, &resolve, "");
    assert_eq!(code, Some(1), "{seen}");
    assert!(
        seen.contains("this one is completed") && !seen.contains("DANGER"),
        "{seen}"
    );
}

#[test]
fn a_table_fits_the_terminal() {
    let long =
        json!({"operation": "POST /a/very/long/path/that/does/not/end", "key": "k".repeat(200)});
    for (columns, lines) in [(80, 4), (110, 2), (140, 2)] {
        let listed = page(&[with(summary(ID, "unknown", false), long.clone())], None);
        let fake = FakeAdmin::start().json(listed);
        let (code, seen) = at_a_terminal(&fake, columns, &["list"], "");
        assert_eq!(code, Some(0), "{seen}");
        assert_eq!(seen.lines().count(), lines, "{seen}");
        let fits = |line: &str| line.chars().count() <= usize::from(columns);
        assert!(seen.lines().all(fits), "{columns} {seen}");
        assert!(seen.contains(ID) && !seen.contains('\u{1b}'), "{seen}");
    }
}

#[test]
fn reconcile_prints_the_outcome() {
    for (outcome, code, words) in [
        ("completed", None, "is completed now"),
        ("not_executed", None, "is failed_retryable now"),
        (
            "still_unknown",
            Some("absence_is_not_proof"),
            "is still unknown: absence_is_not_proof\n",
        ),
    ] {
        let fake = FakeAdmin::start()
            .json(json!({"id": ID, "outcome": outcome, "code": code}).to_string());
        let (message, _) = fine(&fake, &["reconcile", ID]);
        assert!(message.starts_with(&format!("{ID} {words}")), "{message}");
        let asked = &fake.requests()[0];
        assert_eq!(
            asked.line,
            format!("POST /api/v1/operations/{ID}/reconcile")
        );
        assert_eq!(
            (asked.content_type.as_deref(), &*asked.body),
            (Some("application/json"), "{}")
        );
    }
}

#[test]
fn erase_is_sent_with_its_reason() {
    let fake = FakeAdmin::start().json(json!({"id": ID, "status": "completed"}).to_string());
    let (message, _) = fine(
        &fake,
        &["erase", ID, "--reason=GDPR 17", "--by=ann", "--yes"],
    );
    assert_eq!(
        message,
        format!("{ID} stays completed; its response is erased\n")
    );
    assert_eq!(
        fake.lines(),
        [format!("POST /api/v1/operations/{ID}/erase")]
    );
    assert_eq!(
        fake.requests()[0].json(),
        json!({"reason": "GDPR 17", "by": "ann"})
    );
}

#[test]
fn the_token_comes_from_the_file_or_the_environment() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("token");
    std::fs::write(&path, "from-the-file\n").unwrap();
    let fake = FakeAdmin::start();
    let fake = (0..4).fold(fake, |fake, _| fake.json(page(&[], None)));
    let run = |token: Option<&str>, args: &[&str]| {
        let mut command = command(&fake.url(), args);
        command.envs(token.map(|token| ("SEMEL_ADMIN_TOKEN", token)));
        assert!(command.output().unwrap().status.success());
    };
    let file = ["list", "--token-file", path.to_str().unwrap()];
    run(None, &["list"]);
    run(Some(""), &["list"]);
    run(Some("from-the-environment"), &["list"]);
    run(Some("from-the-environment"), &file);
    let sent: Vec<_> = fake
        .requests()
        .into_iter()
        .map(|asked| asked.authorization)
        .collect();
    let bearer = |token: &str| Some(format!("Bearer {token}"));
    assert_eq!(
        sent,
        [
            None,
            None,
            bearer("from-the-environment"),
            bearer("from-the-file")
        ]
    );

    for token in ["", "two words", "l\u{e9}"] {
        std::fs::write(&path, token).unwrap();
        let message = failed(semel(&fake, &file));
        assert!(message.contains("the token from"), "{message}");
        assert!(token.is_empty() || !message.contains(token), "{message}");
    }
}

#[test]
fn error_messages_name_the_next_step() {
    let wants = "send the admin token: Authorization: Bearer TOKEN\n";
    let local = "without an admin token only this machine is served; set SEMEL_ADMIN_TOKEN\n";
    let plain = |status, body: &str| FakeAdmin::start().reply(status, "text/plain", body);
    let problem = |status, code, detail| FakeAdmin::start().problem(status, code, detail);
    let cases = [
        (
            plain(401, wants),
            &["set SEMEL_ADMIN_TOKEN", "--token-file"][..],
        ),
        (plain(403, local), &["only its own machine"]),
        (
            problem(
                404,
                "admin_operation_not_found",
                "No operation has that id.",
            ),
            &["has no operation with this id", "No operation has that id."],
        ),
        (
            problem(
                409,
                "admin_operation_conflict",
                "another decision was faster: it is completed now",
            ),
            &["another decision was faster: it is completed now (admin_operation_conflict)"],
        ),
        (
            problem(503, "admin_store_unavailable", "the disk is full"),
            &[
                "its store failed: the disk is full",
                "semel operations show",
            ],
        ),
        (
            problem(422, "admin_decision_invalid", "`by` is a name"),
            &["`by` is a name"],
        ),
        (plain(413, "length limit exceeded"), &["2 MiB"]),
        (
            plain(404, "there is nothing here\n"),
            &["is not the admin listener", "it responded with 404"],
        ),
        (
            plain(200, "ok"),
            &["is not the admin listener", "SEMEL_ADMIN"],
        ),
        (plain(302, ""), &["is not the admin listener"]),
        (plain(502, "bad gateway"), &["it responded with 502"]),
        (
            problem(409, "idempotency_key_reused", "another"),
            &["is not the admin listener"],
        ),
        (
            FakeAdmin::start().json("[]"),
            &["is not the admin listener"],
        ),
        (
            FakeAdmin::start().json("{\"id\":"),
            &["is not the admin listener"],
        ),
    ];
    for (fake, words) in cases {
        let message = failed(semel(&fake, &["reconcile", ID]));
        for word in words {
            assert!(message.contains(word), "no {word:?} in {message}");
        }
        assert_eq!(
            fake.lines().len(),
            1,
            "asked once, and no redirect followed"
        );
    }

    let fake = plain(401, wants);
    let mut refused = command(&fake.url(), &["list"]);
    let message = failed(
        refused
            .env("SEMEL_ADMIN_TOKEN", "s3cret-token")
            .output()
            .unwrap(),
    );
    assert!(
        message.contains("refused the token from SEMEL_ADMIN_TOKEN"),
        "{message}"
    );
    assert!(!message.contains("s3cret"), "{message}");
}

#[test]
fn a_refused_connection_names_the_url() {
    // Bound and closed: the port is free now.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    let message = failed(command(&url, &["list"]).output().unwrap());
    for word in ["cannot connect to", &url, "--admin URL", "SEMEL_ADMIN"] {
        assert!(message.contains(word), "no {word:?} in {message}");
    }
}

/// A proxy would get the token.
#[test]
fn proxy_variables_are_ignored() {
    let (fake, proxy) = (FakeAdmin::start().json(page(&[], None)), FakeAdmin::start());
    let mut command = command(&fake.url(), &["list"]);
    for name in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
        command.env(name, proxy.url());
    }
    assert!(command.output().unwrap().status.success());
    assert!(proxy.requests().is_empty());
}

/// The decision may have been applied.
#[test]
fn a_lost_response_to_a_decision_is_reported_as_possibly_applied() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let hangs_up = std::thread::spawn(move || {
        let (mut caller, _) = listener.accept().unwrap();
        let _ = caller.read(&mut [0; 4096]);
    });
    let message = failed(command(&url, &["reconcile", ID]).output().unwrap());
    hangs_up.join().unwrap();
    assert!(
        message.contains("The decision may have been applied"),
        "{message}"
    );
    assert!(
        message.contains(&format!("semel operations show {ID}")),
        "{message}"
    );
}

#[test]
fn usage_errors_exit_with_2() {
    let resolve = ["resolve", ID, "--reason=r"];
    let completed = ["--completed", "--response-status=201"];
    let and = |more: &[&'static str]| [&resolve[..], more].concat();
    for args in [
        vec![],
        vec!["list", "--status=lost"],
        vec!["list", "--limit=0"],
        vec!["list", "--limit=1001"],
        vec!["list", "--dead-lettered=maybe"],
        vec!["show"],
        vec!["show", "../stats"],
        vec!["show", ID, OTHER],
        vec!["resolve", ID, "--completed", "--response-status=201"],
        vec![
            "resolve",
            ID,
            "--completed",
            "--response-status=201",
            "--reason= ",
        ],
        and(&[]),
        and(&["--completed"]),
        and(&["--completed", "--response-status=199"]),
        and(&["--completed", "--not-executed", "--response-status=201"]),
        and(&["--not-executed", "--response-status=201", "--yes"]),
        and(&["--not-executed", "--body=-", "--yes"]),
        [&resolve[..], &completed, &["--body=a", "--json-body=b"]].concat(),
        [&resolve[..], &completed, &["--header=nonsense"]].concat(),
        vec!["erase", ID, "--yes"],
        vec!["list", "--admin=localhost"],
        vec!["list", "--admin=https://localhost"],
        vec!["list", "--admin=ftp://localhost"],
        vec!["list", "--admin=http://ann:pw@localhost"],
    ] {
        let fake = FakeAdmin::start();
        let output = semel(&fake, &args);
        assert_eq!(output.status.code(), Some(2), "{args:?} {output:?}");
        assert!(
            output.stdout.is_empty() && !output.stderr.is_empty(),
            "{output:?}"
        );
        assert!(fake.requests().is_empty(), "{args:?}");
    }
}

#[test]
fn the_admin_option_may_come_before_or_after_and_have_a_path() {
    let fake = FakeAdmin::start()
        .json(page(&[], None))
        .json(page(&[], None));
    let admin = format!("{}/semel/?x#y", fake.url());
    for args in [["--admin", &admin, "list"], ["list", "--admin", &admin]] {
        assert!(
            command("http://127.0.0.1:1", &args)
                .output()
                .unwrap()
                .status
                .success()
        );
    }
    assert_eq!(fake.lines(), ["GET /semel/api/v1/operations"; 2]);
}

/// As `semel operations list --all | head -1`.
#[test]
fn a_closed_pipe_is_not_a_failure() {
    let many: Vec<_> = (0..1000).map(|_| summary(ID, "unknown", false)).collect();
    for json in [&[][..], &["--json"]] {
        let fake = FakeAdmin::start()
            .json(page(&many, Some(ID)))
            .json(page(&many, None));
        let mut child = command(&fake.url(), &[&["list", "--all"], json].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
    }
}

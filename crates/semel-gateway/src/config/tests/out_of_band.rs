//! `[route.reconcile]` and `[[webhook]]`: valid and invalid settings.

use super::*;

const SECRETS: [(&str, &str); 6] = [
    ("A", "whsec_MDEyMzQ1Njc4OWFiY2RlZg=="),
    ("B", "whsec_YTEyMzQ1Njc4OWFiY2RlZg=="),
    ("SHORT", "whsec_MDEyMw=="),
    ("EMPTY", ""),
    ("BLANK", "0123456789abcdef\n"),
    ("TOKEN", "Bearer s3cret-token"),
];

fn read(text: &str) -> Result<Config, Report> {
    let flags = Flags {
        upstream: Some("http://app".parse().unwrap()),
        ..Flags::default()
    };
    load_with(text, flags, &SECRETS)
}

/// A route that is reconciled, the rest of whose table follows.
fn reconcile(rest: &str) -> String {
    format!("[[route]]\nmatch = \"POST /a\"\noperation = \"a\"\n[route.reconcile]\n{rest}")
}

/// A webhook, the rest of whose table follows.
fn webhook(rest: &str) -> String {
    format!(
        "[[route]]\nmatch = \"POST /a\"\noperation = \"pay\"\n[[webhook]]\nsource = \"psp\"\n{rest}"
    )
}

#[test]
fn every_key_of_a_reconciled_route_is_read() {
    let text = reconcile(
        "poll = \"GET https://psp.example:8443/v1/charges?key={downstream_key}\"\n\
         completed = [200, \"402\", 409]\n\
         status_from = { \"200\" = 201, 409 = \"402\" }\n\
         not_executed = [404, 410]\n\
         every = \"1s\"\nmax_every = \"2s\"\nattempts = 3\ntimeout = \"4s\"\n\
         authorization_env = \"TOKEN\"",
    );
    let config = read(&text).unwrap();
    let rules = config.routes[0].reconcile.as_ref().unwrap();
    let (scheme, authority) = rules.poll.server().unwrap();
    assert_eq!(
        (scheme.as_str(), authority.as_str()),
        ("https", "psp.example:8443")
    );
    let completed: Vec<_> = rules
        .completed
        .iter()
        .map(|(from, to)| (from.as_u16(), to.as_u16()))
        .collect();
    assert_eq!(completed, [(200, 201), (402, 402), (409, 402)]);
    assert_eq!(
        rules.not_executed,
        [StatusCode::NOT_FOUND, StatusCode::GONE]
    );
    assert!(!rules.downstream_idempotent);
    let seconds = Duration::from_secs;
    assert_eq!((rules.every, rules.max_every), (seconds(1), seconds(2)));
    assert_eq!((rules.attempts, rules.timeout), (3, seconds(4)));
    assert_eq!(rules.authorization.as_ref().unwrap(), "Bearer s3cret-token");
    assert!(!format!("{config:?}").contains("s3cret"));
    // A key alone is enough if there is one tenant.
    let text = reconcile("poll = \"GET /by/{key}\"\ncompleted = 200");
    read(&format!("tenant.from = \"none\"\n{text}")).unwrap();
    read(&reconcile(
        "poll = \"GET /{tenant}/{key}\"\ncompleted = 200",
    ))
    .unwrap();
}

#[test]
fn every_key_of_a_webhook_is_read() {
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), "0123456789abcdef\n").unwrap();
    let path = secret.path().display();
    let config = read(&format!(
        "[[route]]\nmatch = \"POST /a\"\noperation = \"pay\"\n\
         [[route]]\nmatch = \"POST /b\"\noperation = \"refund\"\nschema = 3\n\
         [[route]]\nmatch = \"POST /c\"\noperation = \"pay\"\n\
         [[webhook]]\nsource = \"one\"\nscheme = \"hmac-sha256\"\nsecret_file = \"{path}\"\n\
         signature_header = \"X-Sig\"\ntimestamp_header = \"X-Time\"\nevent_id = \"/event/id\"\n\
         tolerance = \"1m\"\nremember = \"60d\"\noperation = \"refund\"\nresource_id = \"/r\"\n\
         completed = {{ pointer = \"/t\", equals = \"paid\" }}\nstatus = 201\n\
         statuses = {{ paid = \"202\" }}\n\
         [[webhook]]\nsource = \"two\"\nscheme = \"standard-webhooks\"\nsecret_env = [\"A\", \"B\"]\n\
         key = \"/k\"\ntenant = \"/t\"\nnot_executed = {{ pointer = \"/t\", equals = [\"no\"] }}"
    ))
    .unwrap();
    let [one, two] = &config.webhooks[..] else {
        panic!("{:?}", config.webhooks)
    };
    assert_eq!(one.operation.as_deref(), Some("refund"));
    let rules = one.source.rules();
    assert_eq!(
        (rules.status, &rules.statuses[..]),
        (201, &[("paid".into(), 202)][..])
    );
    assert_eq!(rules.schema_version, 3);
    assert_eq!(
        rules.selector,
        RecordSelector::Resource("/r".parse().unwrap())
    );
    let rules = two.source.rules();
    assert_eq!((&rules.completed, rules.status), (&None, 200));
    // Its operations have several.
    assert_eq!(rules.schema_version, 0);
    let find = RecordSelector::Key {
        key: "/k".parse().unwrap(),
        tenant: TenantSelector::At("/t".parse().unwrap()),
        operations: vec!["pay".into(), "refund".into()],
    };
    assert_eq!(rules.selector, find);
    let shown = format!("{config:?}");
    assert!(
        !shown.contains("0123456789abcdef") && !shown.contains("MDEy"),
        "{shown}"
    );

    let only = read(&format!(
        "tenant.from = \"none\"\n{}",
        webhook(
            "scheme = \"stripe\"\nsecret_env = \"A\"\nkey = \"/k\"\noperation = \"pay\"\n\
             completed = { pointer = \"/t\", equals = \"paid\" }"
        )
    ))
    .unwrap();
    let find = RecordSelector::Key {
        key: "/k".parse().unwrap(),
        tenant: TenantSelector::Fixed("default".into()),
        operations: vec!["pay".into()],
    };
    assert_eq!(only.webhooks[0].source.rules().selector, find);
}

/// The rest of a `[route.reconcile]` table, from line 5 on, and its problems.
const WRONG_RECONCILE: &[(&str, &[(&str, &str)])] = &[
    (
        "",
        &[("4:1", "has no `completed`"), ("4:1", "has no `poll`")],
    ),
    (
        "pol = \"GET /{operation_id}\"\ncompleted = 200",
        &[
            ("4:1", "has no `poll`"),
            (
                "5:1",
                "unknown key `pol` in [route.reconcile]; did you mean `poll`?",
            ),
        ],
    ),
    (
        "poll = \"/a/{operation_id}\"\ncompleted = 200",
        &[("5:8", "not a method")],
    ),
    (
        "poll = \"POST /a/{operation_id}\"\ncompleted = 200",
        &[("5:8", "the method must be GET")],
    ),
    (
        "poll = \"GET a/{operation_id}\"\ncompleted = 200",
        &[("5:8", "must begin with `/`")],
    ),
    (
        "poll = \"GET ftp://a/{operation_id}\"\ncompleted = 200",
        &[("5:8", "must begin with `/`")],
    ),
    (
        "poll = \"GET //a/{operation_id}\"\ncompleted = 200",
        &[("5:8", "has no path")],
    ),
    (
        "poll = \"GET http://a?{operation_id}\"\ncompleted = 200",
        &[("5:8", "has no path")],
    ),
    (
        "poll = \"GET http:///{operation_id}\"\ncompleted = 200",
        &[("5:8", "has no host")],
    ),
    (
        "poll = \"GET http://{tenant}.a/{operation_id}\"\ncompleted = 200",
        &[("5:8", "the host must not contain placeholders")],
    ),
    (
        "poll = \"GET http://u:p@a/{operation_id}\"\ncompleted = 200",
        &[("5:8", "user name")],
    ),
    (
        "poll = \"GET http://a:0/{operation_id}\"\ncompleted = 200",
        &[("5:8", "the port")],
    ),
    (
        "poll = \"GET http://a:99999/{operation_id}\"\ncompleted = 200",
        &[("5:8", "the port")],
    ),
    (
        "poll = \"GET /{id}/{operation_id}\"\ncompleted = 200",
        &[(
            "5:8",
            "unknown placeholder {id}; use one of {operation_id}, {key}, {downstream_key}, {tenant}",
        )],
    ),
    (
        "poll = \"GET /{operation_id\"\ncompleted = 200",
        &[("5:8", "brace")],
    ),
    (
        "poll = \"GET /a}/{operation_id}\"\ncompleted = 200",
        &[("5:8", "brace")],
    ),
    (
        "poll = \"GET /{operation_id}#a\"\ncompleted = 200",
        &[("5:8", "without `#`")],
    ),
    (
        "poll = \"GET /a b/{operation_id}\"\ncompleted = 200",
        &[("5:8", "visible ASCII")],
    ),
    (
        "poll = \"GET /latest\"\ncompleted = 200",
        &[("5:8", "the same request for all operations")],
    ),
    (
        "poll = \"GET /{tenant}\"\ncompleted = 200",
        &[("5:8", "the same request for all operations")],
    ),
    (
        "poll = \"GET /{key}\"\ncompleted = 200",
        &[("5:8", "several tenants")],
    ),
    (
        "poll = \"GET /{operation_id}\"\ncompleted = []",
        &[("6:13", "has no status")],
    ),
    (
        "poll = \"GET /{operation_id}\"\ncompleted = [\"20\", 600, true]",
        &[
            ("6:14", "invalid status"),
            ("6:20", "invalid status"),
            ("6:25", "not a boolean"),
        ],
    ),
    (
        "poll = \"GET /{operation_id}\"\ncompleted = [200, 503]\nnot_executed = 401",
        &[("6:19", "503 says nothing"), ("7:16", "401 says nothing")],
    ),
    (
        "poll = \"GET /{operation_id}\"\ncompleted = [200, 404]\nnot_executed = \"404\"",
        &[("7:16", "in both `completed` and `not_executed`")],
    ),
    (
        "poll = \"GET /{operation_id}\"\ncompleted = 200\nstatus_from = { 201 = 200, 200 = 99 }",
        &[
            ("7:17", "is not in `completed`"),
            ("7:34", "invalid status"),
        ],
    ),
    (
        "poll = \"GET /{operation_id}\"\ncompleted = 200\nstatus_from = [201]",
        &[("7:15", "not an array")],
    ),
    (
        "poll = \"GET /{operation_id}\"\ncompleted = 200\ndownstream_idempotent = true",
        &[("7:25", "no effect without `not_executed`")],
    ),
    (
        "poll = \"GET /{operation_id}\"\ncompleted = 200\nevery = \"1h\"",
        &[(
            "7:9",
            "`every` (1h) is longer than `max_every` (10m), the default",
        )],
    ),
    (
        "poll = \"GET /{operation_id}\"\ncompleted = 200\nevery = \"2s\"\nmax_every = \"1s\"",
        &[("8:13", "`every` (2s) is longer than `max_every` (1s)")],
    ),
    (
        "poll = \"GET /{operation_id}\"\ncompleted = 200\nattempts = 0\ntimeout = \"0s\"",
        &[("7:12", "from 1 to 1000"), ("8:11", "longer than zero")],
    ),
    (
        "poll = \"GET /{operation_id}\"\ncompleted = 200\ntimeout = \"6m\"",
        &[("7:11", "at most 5m")],
    ),
    (
        "poll = \"GET /{operation_id}\"\ncompleted = 200\nauthorization_env = \"NONE\"",
        &[("7:21", "NONE is not set")],
    ),
    (
        "poll = \"GET /{operation_id}\"\ncompleted = 200\nauthorization_env = \"EMPTY\"",
        &[("7:21", "EMPTY is empty")],
    ),
    (
        "poll = \"GET /{operation_id}\"\ncompleted = 200\nauthorization_env = \"BLANK\"",
        &[("7:21", "not a valid header value")],
    ),
    // An operation is reconciled by one route.
    (
        "poll = \"GET /{operation_id}\"\ncompleted = 200\n[[route]]\nmatch = \"POST /b\"\n\
         operation = \"a\"\nreconcile = { poll = \"GET /{operation_id}\", completed = 200 }",
        &[("10:1", "already reconciled by another route")],
    ),
    (
        "poll = \"GET /{operation_id}\"\ncompleted = 200\n[[route]]\nmatch = \"POST /b\"\n\
         reconcile = { poll = \"GET /{operation_id}\", completed = 200 }",
        &[("9:1", "needs a named operation")],
    ),
    (
        "poll = \"GET /{operation_id}\"\ncompleted = 200\n[[route]]\nmatch = \"POST /b\"\n\
         key = \"ignored\"\nreconcile = { poll = \"GET /{operation_id}\", completed = 200 }",
        &[("10:1", "`reconcile` has no effect")],
    ),
];

const FIND: &str = "operation_id = \"/o\"\n";
const PAID: &str = "completed = { pointer = \"/t\", equals = \"paid\" }\n";

/// The rest of a `[[webhook]]` table, from line 6 on, and its problems.
#[allow(clippy::too_many_lines, reason = "a table")]
fn wrong_webhooks() -> Vec<(String, Vec<(&'static str, &'static str)>)> {
    let standard = |rest: &str| format!("scheme = \"standard\"\nsecret_env = \"A\"\n{rest}");
    let right = format!("{FIND}{PAID}");
    let complete = |rest: &str| standard(&format!("{right}{rest}"));
    let hmac = |rest: &str| format!("scheme = \"hmac-sha256\"\nsecret_env = \"A\"\n{right}{rest}");
    vec![
        (
            String::new(),
            vec![
                ("4:1", "neither `completed` nor"),
                ("4:1", "no `scheme`"),
                ("4:1", "how to find the operation"),
                ("4:1", "no secret to verify"),
            ],
        ),
        (
            format!("scheme = \"standart\"\nsecret_env = \"A\"\n{right}"),
            vec![("6:10", "did you mean \"standard\"?")],
        ),
        (
            complete("opertion = \"a\""),
            vec![("10:1", "did you mean `operation`?")],
        ),
        // Secrets.
        (
            format!("scheme = \"standard\"\nsecret_env = \"NONE\"\n{right}"),
            vec![("7:14", "NONE is not set")],
        ),
        (
            format!("scheme = \"standard\"\nsecret_env = [\"A\", \"EMPTY\"]\n{right}"),
            vec![("7:20", "environment variable EMPTY: the secret is empty")],
        ),
        (
            format!("scheme = \"standard\"\nsecret_env = \"SHORT\"\n{right}"),
            vec![("7:14", "environment variable SHORT: the secret has 4 bytes")],
        ),
        (
            format!("scheme = \"stripe\"\nsecret_env = \"BLANK\"\n{right}"),
            vec![("7:14", "begins or ends with whitespace")],
        ),
        (
            format!("scheme = \"standard\"\nsecret_env = \"TOKEN\"\n{right}"),
            vec![("7:14", "`whsec_` and base64")],
        ),
        (
            format!("scheme = \"standard\"\nsecret_env = []\n{right}"),
            vec![("7:1", "1 to 8 secrets, found 0")],
        ),
        (
            format!("scheme = \"standard\"\nsecret_file = \"/nowhere\"\n{right}"),
            vec![("7:15", "cannot read /nowhere")],
        ),
        // Schemes and what belongs to them.
        (
            complete("signature_header = \"X\"\nevent_id = \"/id\""),
            vec![
                ("10:1", "\"hmac-sha256\"` only"),
                ("11:1", "\"hmac-sha256\"` only"),
            ],
        ),
        (hmac(""), vec![("4:1", "needs an `event_id`")]),
        (
            hmac("event_id = \"id\"\nsignature_header = \"a b\""),
            vec![
                ("10:12", "begin it with `/`"),
                ("11:20", "invalid header name"),
            ],
        ),
        (
            hmac("event_id = \"/id\"\ntolerance = \"1m\""),
            vec![("11:13", "no effect without `timestamp_header`")],
        ),
        (
            hmac("event_id = \"/id\"\ntimestamp_header = \"x-signature\""),
            vec![("11:20", "must differ")],
        ),
        (
            complete("tolerance = \"0s\""),
            vec![("10:13", "longer than zero")],
        ),
        // How the operation is found.
        (
            standard(&format!("{PAID}operation_id = \"\"")),
            vec![("9:16", "the whole event")],
        ),
        (
            complete("resource_id = \"/r\""),
            vec![("10:1", "use only one of")],
        ),
        (
            standard(&format!("{PAID}key = \"/k\"")),
            vec![("9:1", "several tenants may have used one key")],
        ),
        (
            complete("tenant = \"/t\""),
            vec![("10:10", "no effect without `key`")],
        ),
        (
            complete("operation = \"pai\""),
            vec![("10:13", "did you mean \"pay\"?")],
        ),
        // What events mean.
        (standard(FIND), vec![("4:1", "neither `completed` nor")]),
        (
            standard(&format!("{FIND}completed = {{ pointer = \"/t\" }}")),
            vec![("9:13", "`completed` has no `equals`")],
        ),
        (
            standard(&format!(
                "{FIND}completed = {{ pointer = \"\", equals = [] }}"
            )),
            vec![("9:25", "the whole event"), ("9:29", "1 to 64 values")],
        ),
        (
            complete("not_executed = { pointer = \"/t\", equals = [\"no\", \"paid\"] }"),
            vec![("10:50", "in both `completed` and `not_executed`")],
        ),
        (
            complete("statuses = { declined = 402, paid = 99 }"),
            vec![
                ("10:14", "is not a value of `completed`"),
                ("10:37", "invalid status"),
            ],
        ),
        (
            standard(&format!(
                "{FIND}not_executed = {{ pointer = \"/t\", equals = \"no\" }}\n\
                 response_body = \"/b\"\nstatus = 201"
            )),
            vec![
                ("10:1", "`response_body` has no effect"),
                ("11:1", "`status` has no effect"),
            ],
        ),
        // Names.
        (
            complete(&format!(
                "[[webhook]]\nsource = \"psp\"\nscheme = \"stripe\"\nsecret_env = \"A\"\n{right}"
            )),
            vec![("11:10", "duplicate source \"psp\"")],
        ),
        (
            complete(&format!(
                "[[webhook]]\nsource = \"a/b\"\nscheme = \"stripe\"\nsecret_env = \"A\"\n{right}"
            )),
            vec![("11:10", "invalid source name")],
        ),
    ]
}

fn check(text: &str, expected: &[(&str, &str)]) -> Option<String> {
    let mut found: Vec<String> = match read(text) {
        Ok(_) => vec![],
        Err(report) => report.problems().iter().map(ToString::to_string).collect(),
    };
    found.sort_by(|a, b| location(a).cmp(&location(b)).then_with(|| a.cmp(b)));
    let fits = found.len() == expected.len()
        && expected.iter().all(|(location, part)| {
            found.iter().any(|found| {
                found.starts_with(&format!("semel.toml:{location}: ")) && found.contains(part)
            })
        });
    let leaks = found
        .iter()
        .any(|found| found.contains("s3cret") || found.contains("MDEy"));
    (!fits || leaks).then(|| format!("{text}\n  expected {expected:?}\n  found {found:#?}"))
}

fn location(problem: &str) -> Vec<usize> {
    let parts = problem.split(':').skip(1).take(2);
    parts.filter_map(|part| part.parse().ok()).collect()
}

#[test]
fn each_problem_is_reported_at_its_location() {
    let reconciled = WRONG_RECONCILE
        .iter()
        .filter_map(|(rest, expected)| check(&reconcile(rest), expected));
    let failures: Vec<_> = reconciled
        .chain(
            wrong_webhooks()
                .iter()
                .filter_map(|(rest, expected)| check(&webhook(rest), expected)),
        )
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

#[test]
fn a_webhook_key_needs_a_named_operation() {
    let text = "[[webhook]]\nsource = \"a\"\nscheme = \"stripe\"\nsecret_env = \"A\"\nkey = \"/k\"\n\
                tenant = \"/t\"\ncompleted = { pointer = \"/t\", equals = \"paid\" }";
    let expected = [("5:1", "no route has an `operation`")];
    assert_eq!(check(text, &expected), None);
    let one = format!(
        "tenant.from = \"none\"\n{}",
        webhook(&format!(
            "scheme = \"stripe\"\nsecret_env = \"A\"\nkey = \"/k\"\ntenant = \"/t\"\n{PAID}"
        ))
    );
    assert_eq!(check(&one, &[("10:10", "has one tenant")]), None);
}

#[test]
fn encryption_keys_come_from_a_file_or_the_environment_only() {
    const FILE: &str = "file:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    const VARIABLE: &str = "variable:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("keys");
    std::fs::write(&path, format!("# newest first\n{FILE}\n")).unwrap();
    let text = format!("[encryption]\nkey_file = {:?}\n", path.to_str().unwrap());
    let load = |text: &str, variables: &[(&str, &str)]| {
        let flags = Flags {
            upstream: Some("http://app".parse().unwrap()),
            ..Flags::default()
        };
        load_with(text, flags, variables)
    };
    let named = |config: Config| format!("{:?}", config.encryption);
    let variable = [("SEMEL_ENCRYPTION_KEYS", VARIABLE)];
    assert_eq!(named(load("", &[]).unwrap()), "None");
    assert_eq!(named(load(&text, &[]).unwrap()), "Some([\"file\"])");
    assert_eq!(named(load("", &variable).unwrap()), "Some([\"variable\"])");
    assert_eq!(
        named(load(&text, &variable).unwrap()),
        "Some([\"variable\"])"
    );
    for (text, variables, part) in [
        ("[encryption]\n", &[][..], "key_file"),
        ("[encryption]\nkey = \"one:AAAA\"\n", &[], "key"),
        ("", &[("SEMEL_ENCRYPTION_KEYS", "")], "no key"),
        ("", &[("SEMEL_ENCRYPTION_KEYS", "one:c2hvcnQ=")], "32 bytes"),
    ] {
        let wrong = load(text, variables).unwrap_err().to_string();
        assert!(wrong.contains(part), "{wrong}");
        assert!(!wrong.contains("c2hvcnQ"), "{wrong}");
    }
}

#[test]
fn an_upstream_is_required_where_the_role_needs_it() {
    let load = |text: &str, role| {
        let source = Source {
            file: None,
            flags: Flags::default(),
            environment: Environment::from_pairs([] as [(&str, &str); 0]),
        };
        source.load_text(role, Problems::new("semel.toml", text.to_owned()))
    };
    let roles = [
        Role::Gateway,
        Role::GatewayOnly,
        Role::Worker,
        Role::Console,
    ];
    let relative = reconcile("poll = \"GET /by/{operation_id}\"\ncompleted = \"200\"");
    let absolute = reconcile("poll = \"GET http://psp/by/{operation_id}\"\ncompleted = \"200\"");
    for (text, accepted) in [
        ("", [false, false, true, true]),
        (&*relative, [false, false, false, true]),
        (&*absolute, [false, false, true, true]),
    ] {
        for (role, accepted) in roles.into_iter().zip(accepted) {
            let loaded = load(text, role);
            assert_eq!(loaded.is_ok(), accepted, "{role:?} of {text}: {loaded:?}");
        }
    }
    let message = load(&relative, Role::Worker).unwrap_err().to_string();
    assert!(
        message.contains("[route.reconcile] of \"POST /a\" polls the upstream"),
        "{message}"
    );
    // A console cannot ask an upstream that it does not know.
    let console = load(&relative, Role::Console).unwrap();
    assert_eq!(console.routes[0].reconcile, None);
    let console = load(&absolute, Role::Console).unwrap();
    assert!(console.routes[0].reconcile.is_some());
}

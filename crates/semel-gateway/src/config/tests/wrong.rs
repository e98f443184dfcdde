//! Invalid configurations: the location and text of each problem.

use super::*;

/// Files, and all their problems: location and a part of the message.
const WRONG: &[(&str, &[(&str, &str)])] = &[
    // Syntax: all of it, and nothing else.
    ("listen = ", &[("1:10", "invalid TOML")]),
    (
        "a = 'x\nb = \"y",
        &[("1:7", "invalid TOML"), ("2:7", "invalid TOML")],
    ),
    (
        "drain = \"1s\"\ndrain = \"1s\"",
        &[("2:1", "duplicate key")],
    ),
    // Unknown keys, with advice.
    (
        "listne = \"127.0.0.1:1\"",
        &[(
            "1:1",
            "unknown key `listne` in the top level; did you mean `listen`?",
        )],
    ),
    (
        "xyzzy = 1",
        &[("1:1", "unknown key `xyzzy` in the top level")],
    ),
    (
        "[polcy]\nlease = \"1s\"",
        &[("1:2", "did you mean `policy`?")],
    ),
    (
        "[policy]\nretenton = \"1h\"",
        &[(
            "2:1",
            "unknown key `retenton` in [policy]; did you mean `retention`?",
        )],
    ),
    (
        "[[route]]\nmatch = \"POST /a\"\nfingerprint = { header = [] }",
        &[("3:17", "did you mean `headers`?")],
    ),
    (
        "[admin]\ntoken = \"x\"",
        &[("2:1", "did you mean `token_file`?")],
    ),
    (
        "[[route]]\nmatch = \"POST /a\"\nstale = \"unknown\"",
        &[("3:1", "unknown key `stale` in [[route]]")],
    ),
    // Names in the records.
    (
        "[[route]]\nmatch = \"POST /a\"\nwas = \"pay\"",
        &[("3:7", "add the current one, `operation = \"…\"`")],
    ),
    (
        "[[route]]\nmatch = \"POST /a\"\noperation = \"pay\"\n[[route]]\nmatch = \"POST /b\"\noperation = \"charge\"\nwas = \"pay\"",
        &[(
            "5:9",
            "`was` of \"POST /b\" or of \"POST /a\": operation \"pay\" uses the name \"pay\" too",
        )],
    ),
    (
        "[[route]]\nmatch = \"POST /a\"\noperation = \"pay\"\n[[route]]\nmatch = \"POST /b\"\noperation = \"pay\"\nwas = \"charge\"",
        &[(
            "5:9",
            "the records of operation \"pay\" would have two names, \"charge\" and \"pay\"",
        )],
    ),
    (
        "[[route]]\nmatch = \"POST /a\"\n[[route]]\nmatch = \"POST /b\"\noperation = \"pay\"\nwas = \"POST /a\"",
        &[("4:9", "operation \"POST /a\" uses the name \"POST /a\" too")],
    ),
    (
        "[worker]\ndead_letter_unreconcild = \"1h\"",
        &[("2:1", "did you mean `dead_letter_unreconciled`?")],
    ),
    (
        "[worker]\ndead_letter_unreconciled = \"0s\"",
        &[("2:28", "must be longer than zero")],
    ),
    (
        "[policy]\ndead_letter_retry_after = \"10ms\"",
        &[("2:27", "`dead_letter_retry_after` must be at least 1s")],
    ),
    ("error_base = \"\"", &[("1:14", "invalid error_base")]),
    (
        "error_base = \"https://a b/\"",
        &[("1:14", "write the beginning of a URL")],
    ),
    // Types.
    (
        "listen = 8080",
        &[("1:10", "`listen` must be a string, not an integer")],
    ),
    (
        "lenient = \"yes\"",
        &[("1:11", "`lenient` must be true or false, not a string")],
    ),
    ("policy = 1", &[("1:10", "`policy` must be a table")]),
    (
        "[route]\nmatch = \"POST /a\"",
        &[("1:1", "double brackets")],
    ),
    (
        "[policy]\nlease = 30",
        &[("2:9", "`lease` must be a string, not an integer")],
    ),
    (
        "[limits]\nmax_connections = 1.5",
        &[("2:19", "an integer, not a float")],
    ),
    ("[limits]\nmax_connections = 0", &[("2:19", "from 1 to")]),
    ("[limits]\nmax_connections = -1", &[("2:19", "from 1 to")]),
    (
        "[[route]]\nmatch = \"POST /a\"\nstore_headers = \"X\"",
        &[("3:17", "an array of strings")],
    ),
    (
        "[[route]]\nmatch = \"POST /a\"\nstore_headers = [1, \"X Y\"]",
        &[
            ("3:18", "an array of strings"),
            ("3:21", "invalid header name"),
        ],
    ),
    // Durations and sizes.
    (
        "[policy]\nlease = \"30\"",
        &[(
            "2:9",
            "invalid duration \"30\": add a unit, for example \"30s\"",
        )],
    ),
    (
        "[policy]\nlease = \"-30s\"",
        &[("2:9", "begin with a number")],
    ),
    (
        "[policy]\nretention = \"1 week\"",
        &[("2:13", "unknown unit \" week\"")],
    ),
    (
        "[policy]\nlease = \"0s\"",
        &[("2:9", "`lease` must be longer than zero")],
    ),
    (
        "[policy]\nupstream_timeout = \"0s\"",
        &[("2:20", "longer than zero")],
    ),
    (
        "[policy]\ntombstone = \"0s\"",
        &[("2:13", "expiry = \"delete\"")],
    ),
    (
        "[policy]\nmax_request = \"8M\"",
        &[("2:15", "invalid size \"8M\": unknown unit")],
    ),
    (
        "[policy]\nmax_request = \"1GiB\"",
        &[("2:15", "at most 268435456 bytes")],
    ),
    (
        "trusted_proxies = [\"10.0.0.1/8\", \"proxy\"]",
        &[
            ("1:20", "write \"10.0.0.0/8\""),
            ("1:34", "invalid network"),
        ],
    ),
    (
        "[limits]\nmax_buffered = \"1MiB\"",
        &[("2:16", "`max_response` (8388608 bytes)")],
    ),
    (
        "[limits]\nupstream_idle = \"5s\"",
        &[("2:17", "at most 4s")],
    ),
    (
        "[limits]\nheader_timeout = \"0s\"",
        &[("2:18", "longer than zero")],
    ),
    // Names.
    ("dialect = \"itef\"", &[("1:11", "did you mean \"ietf\"?")]),
    (
        "[policy]\nexpiry = \"keep\"",
        &[("2:10", "use one of \"tombstone\", \"delete\"")],
    ),
    (
        "[policy]\nstale = \"resume\"",
        &[("2:9", "no recovery points")],
    ),
    (
        "[[route]]\nmatch = \"POST /a\"\nkey = \"require\"",
        &[("3:7", "did you mean \"required\"?")],
    ),
    // Addresses and stores.
    (
        "listen = \"localhost:8080\"",
        &[("1:10", "invalid listen address")],
    ),
    (
        "upstream = \"ftp://a\"",
        &[("1:12", "the scheme must be http or https")],
    ),
    ("store = \"postgres:\"", &[("1:9", "no host and database")]),
    (
        "cache = \"redis://a\"",
        &[("1:9", "needs a PostgreSQL store")],
    ),
    (
        "store = \"postgres://a/b\"\ncache = \"a\"",
        &[("2:9", "invalid cache URL")],
    ),
    (
        "durability = \"replicated\"",
        &[("1:14", "only with PostgreSQL")],
    ),
    (
        "store = \"postgres://a/b\"\ndurability = \"both\"",
        &[("2:14", "\"local\" or \"replicated\"")],
    ),
    (
        "store = \"postgres://a/b?durability=local\"\ndurability = \"local\"",
        &[("2:14", "remove one of them")],
    ),
    ("store = \"memory:\"", &[("1:9", "loses all records")]),
    // Gateways on one port with a store each would execute twice.
    ("reuse_port = true", &[("1:14", "write an absolute path")]),
    (
        "store = \"memory:\"\nreuse_port = true",
        &[("1:9", "loses all records"), ("2:14", "`memory:` is not")],
    ),
    (
        "[admin]\nlisten = \"0.0.0.0:1\"",
        &[("2:10", "set SEMEL_ADMIN_TOKEN or `[admin] token_file`")],
    ),
    (
        "[admin]\ntoken_file = \"/nowhere\"",
        &[("2:14", "cannot read /nowhere")],
    ),
    (
        "[admin]\ntoken_file = \"/nowhere\"\nsecure_cookie = true",
        &[("2:14", "cannot read /nowhere")],
    ),
    (
        "[admin]\nviewer_token_file = \"/nowhere\"",
        &[("2:21", "cannot read /nowhere")],
    ),
    (
        "[admin]\nviewer_token = \"x\"",
        &[("2:1", "did you mean `viewer_token_file`?")],
    ),
    (
        "[admin]\nsecure_cookie = true",
        &[("2:17", "no effect without an admin token")],
    ),
    (
        "[admin]\nsecure_cookie = 1",
        &[("2:17", "`secure_cookie` must be true or false")],
    ),
    // Headers.
    (
        "header = \"Idempotency Key\"",
        &[("1:10", "invalid header name")],
    ),
    ("header = \"Authorization\"", &[("1:10", "is reserved")]),
    (
        "header = \"Idempotent-Replayed\"",
        &[("1:10", "must differ")],
    ),
    (
        "dialect = \"stripe\"\nlenient = true",
        &[("2:11", "`lenient` applies to `dialect = \"ietf\"`")],
    ),
    (
        "[[route]]\nmatch = \"POST /a\"\nstore_headers = [\"Date\", \"Set-Cookie\", \"Proxy-X\", \"ETag\"]",
        &[
            ("3:18", "never stored"),
            ("3:26", "store_set_cookie"),
            ("3:40", "never stored"),
        ],
    ),
    // TLS.
    (
        "[tls]\ncertificate = \"/nowhere.pem\"",
        &[
            ("2:1", "needs a `key`"),
            ("2:15", "cannot read /nowhere.pem"),
        ],
    ),
    (
        "[tls]",
        &[("1:1", "needs a `certificate`"), ("1:1", "needs a `key`")],
    ),
    // Tenants.
    (
        "[tenant]\nfrom = \"cookie\"",
        &[("2:8", "invalid tenant rule")],
    ),
    (
        "[tenant]\nfrom = \"header:\"",
        &[("2:8", "invalid header name")],
    ),
    (
        "[tenant]\nfrom = \"header:Authorization\"",
        &[("2:8", "a secret")],
    ),
    (
        "[tenant]\nfrom = \"jwt:\"",
        &[("2:8", "invalid tenant rule")],
    ),
    (
        "[tenant]\nfrom = \"jwt:sub\"",
        &[("2:8", "no keys to verify")],
    ),
    (
        "[tenant]\nfrom = \"jwt:sub\"\nsecret_env = \"NONE\"",
        &[("3:14", "NONE is not set")],
    ),
    (
        "[tenant]\nfrom = \"jwt:sub\"\nsecret_env = \"EMPTY\"",
        &[("3:14", "EMPTY is empty")],
    ),
    (
        "[tenant]\nfrom = \"jwt:sub\"\njwks_file = \"/nowhere\"",
        &[("3:13", "cannot read /nowhere")],
    ),
    (
        "[tenant]\nfrom = \"jwt:sub\"\njwks_file = \"a\"\nsecret_env = \"b\"",
        &[(
            "4:14",
            "set one of `jwks_url`, `jwks_file` and `secret_env`",
        )],
    ),
    (
        "[tenant]\nfrom = \"jwt:sub\"\njwks_file = \"a\"\njwks_url = \"http://localhost/\"",
        &[("4:12", "set one of")],
    ),
    (
        "[tenant]\nfrom = \"header:X-Account-Id\"\nrotating = true",
        &[("3:12", "`rotating` applies to `from = \"authorization\"`")],
    ),
    (
        "[tenant]\nfrom = \"none\"\nissuer = \"a\"",
        &[("3:10", "has no effect here")],
    ),
    (
        "[tenant]\nfrom = \"authorization\"\naudience = \"a\"",
        &[("3:12", "has no effect here")],
    ),
    (
        "[tenant]\nfrom = \"none\"\naudience = \"\"",
        &[("3:12", "must not be empty")],
    ),
    // Combinations.
    (
        "[policy]\nretention = \"1h\"\nbody_retention = \"2h\"",
        &[(
            "3:18",
            "`body_retention` (2h) is longer than `retention` (1h)",
        )],
    ),
    (
        "[policy]\nbody_retention = \"2d\"",
        &[("2:18", "longer than `retention` (1d)")],
    ),
    (
        "[policy]\nlease = \"2h\"\nretention = \"1h\"",
        &[("3:13", "`retention` (1h) is shorter than `lease` (2h)")],
    ),
    (
        "[policy]\nlease = \"2d\"",
        &[("2:9", "is shorter than `lease` (2d)")],
    ),
    (
        "[policy]\nexpiry = \"delete\"\ntombstone = \"1d\"",
        &[("3:13", "keeps no tombstone")],
    ),
    (
        "[policy]\nexpiry = \"delete\"\non_expired = \"reject\"",
        &[("3:14", "nothing that could reject")],
    ),
    (
        "[policy]\nexpiry = \"delete\"\n[[route]]\nmatch = \"POST /a\"\ntombstone = \"1d\"",
        &[("5:13", "`[policy] expiry = \"delete\"`")],
    ),
    (
        "[[route]]\nmatch = \"POST /a\"\nwait_max = \"1s\"",
        &[("3:12", "without `in_flight = \"wait\"`")],
    ),
    (
        "[[route]]\nmatch = \"POST /a\"\nin_flight = \"accept\"\nwait_max = \"1s\"",
        &[("4:12", "without `in_flight = \"wait\"`")],
    ),
    (
        "[[route]]\nmatch = \"POST /a\"\nin_flight = \"wait\"\nwait_max = \"1h\"",
        &[("4:12", "at most 10m")],
    ),
    (
        "[[route]]\nmatch = \"POST /a\"\nkey = \"ignored\"\nretention = \"1h\"\noutcome = {}",
        &[
            ("4:1", "`retention` has no effect"),
            ("5:1", "`outcome` has no effect"),
        ],
    ),
    (
        "[[route]]\nmatch = \"POST /a\"\nmin_length = 256",
        &[("3:14", "from 1 to 255")],
    ),
    (
        "[[route]]\nmatch = \"POST /a\"\noperation = \"\"",
        &[("3:13", "invalid operation name")],
    ),
    // Patterns.
    (
        "[[route]]\noperation = \"a\"",
        &[("1:1", "[[route]] has no `match`")],
    ),
    (
        "[[route]]\nmatch = \"/a\"",
        &[("2:9", "write a method, a space and a path")],
    ),
    ("[[route]]\nmatch = \"GET /a\"", &[("2:9", "never guarded")]),
    (
        "[[route]]\nmatch = \"post /a\"",
        &[("2:9", "must be POST, PATCH, PUT or DELETE")],
    ),
    (
        "[[route]]\nmatch = \"POST a\"",
        &[("2:9", "must begin with `/`")],
    ),
    (
        "[[route]]\nmatch = \"POST /a?b\"",
        &[("2:9", "must not contain `?`, `#`")],
    ),
    (
        "[[route]]\nmatch = \"POST /a/{\"",
        &[("2:9", "write parameters as `{name}`")],
    ),
    (
        "[[route]]\nmatch = \"POST /{*a}/b\"",
        &[("2:9", "Catch-all")],
    ),
    (
        "[[route]]\nmatch = \"POST /.semel/x\"",
        &[("2:9", "the gateway answers paths")],
    ),
    (
        "[[route]]\nmatch = \"POST /a\"\n[[route]]\nmatch = \"POST /a\"",
        &[("4:9", "matches the same requests as \"POST /a\"")],
    ),
    (
        "[[route]]\nmatch = \"POST /{a}\"\n[[route]]\nmatch = \"POST /{b}\"",
        &[(
            "4:9",
            "\"POST /{b}\" matches the same requests as \"POST /{a}\"",
        )],
    ),
    // Spellings of one path.
    (
        "[[route]]\nmatch = \"POST /Payments/{a}\"\n[[route]]\nmatch = \"POST /payments/{b}/\"",
        &[(
            "4:9",
            "\"POST /payments/{b}/\" matches the same requests as \"POST /Payments/{a}\"",
        )],
    ),
    (
        "[[route]]\nmatch = \"POST /a\"\n[[route]]\nmatch = \"POST /a\"\nmatch_exactly = true",
        &[("4:9", "matches the same requests as \"POST /a\"")],
    ),
    (
        "[[route]]\nmatch = \"POST /a%2Fb;c\"\nxyzzy = 1",
        &[
            ("2:9", "applications may read it in more than one way"),
            ("3:1", "unknown key `xyzzy`"),
        ],
    ),
    (
        "[[route]]\nmatch = \"POST /.Semel/x\"",
        &[("2:9", "the gateway answers paths")],
    ),
    (
        "[[route]]\nmatch = \"POST /a\"\nmatch_exactly = 1",
        &[("3:17", "true or false")],
    ),
    // Hosts.
    (
        "hosts = \"all\"",
        &[("1:9", "`hosts` must be \"any\", or groups")],
    ),
    (
        "hosts = 1",
        &[("1:9", "`hosts` must be \"any\", or groups")],
    ),
    ("hosts = []", &[("1:9", "`hosts` is empty")]),
    (
        "hosts = [[]]",
        &[("1:9", "`hosts` must be \"any\", or groups")],
    ),
    (
        "hosts = [\"a\", \"b\"]",
        &[("1:9", "`hosts` must be \"any\", or groups")],
    ),
    (
        "hosts = [[\"a\"]]",
        &[("1:9", "host \"a\": it is alone in its group")],
    ),
    (
        "hosts = [[\"a\", \"http://b\"]]",
        &[("1:9", "host \"http://b\": write a host")],
    ),
    (
        "hosts = [[\"a\", \"b\"], [\"B\", \"c\"]]",
        &[("1:9", "host \"B\": it is listed twice")],
    ),
    (
        "[[route]]\nmatch = \"POST /a\"\nkey_format = \"ulid\"\nweak_keys = \"reject\"",
        &[
            ("3:14", "use one of \"any\", \"uuid\", \"token\""),
            ("4:13", "use one of \"warn\", \"refuse\""),
        ],
    ),
    (
        "[[route]]\nmatch = \"POST /a\"\nkey = \"ignored\"\nkey_format = \"any\"\nweak_keys = \"warn\"",
        &[
            ("4:1", "`key_format` has no effect"),
            ("5:1", "`weak_keys` has no effect"),
        ],
    ),
    // Statuses.
    (
        "[[route]]\nmatch = \"POST /a\"\noutcome = { 1xx = \"forget\", 4XX = \"forget\", 6xx = \"forget\" }",
        &[
            ("3:13", "or a class, for example \"4xx\""),
            ("3:29", "invalid status"),
            ("3:45", "invalid status"),
        ],
    ),
    (
        "[[route]]\nmatch = \"POST /a\"\noutcome = { \"50\" = \"unknown\", 103 = \"unknown\", 600 = \"unknown\", 500 = \"done\", 501 = 1 }",
        &[
            ("3:13", "invalid status"),
            ("3:31", "invalid status"),
            ("3:48", "invalid status"),
            ("3:71", "use one of \"completed\""),
            ("3:85", "must be a string"),
        ],
    ),
    // Fingerprints.
    (
        "[[route]]\nmatch = \"POST /a\"\nfingerprint = { ignore = [\"a\", \"/b\", \"\"] }",
        &[("3:27", "begin it with `/`"), ("3:38", "whole body")],
    ),
    (
        "[[route]]\nmatch = \"POST /a\"\nfingerprint = { headers = [\"a b\", \"Cookie\", \"Idempotency-Key\"] }",
        &[
            ("3:28", "not a header name"),
            ("3:35", "a credential"),
            ("3:45", "never part of a fingerprint"),
        ],
    ),
    (
        "[[route]]\nmatch = \"POST /a\"\nfingerprint = { ignore = [\"/a\"], defaults = { \"/a/b\" = 1 } }",
        &[("3:47", "overlap")],
    ),
    (
        "[[route]]\nmatch = \"POST /a\"\nfingerprint = { defaults = { \"/a\" = 1979-05-27, \"/b\" = nan, \"c\" = 1 } }",
        &[
            ("3:37", "write it as a string"),
            ("3:56", "cannot represent this number"),
            ("3:61", "begin it with `/`"),
        ],
    ),
    (
        "[[route]]\nmatch = \"POST /a\"\nfingerprint = { fields = [\"/a\"], ignore = [\"/b\"] }",
        &[("3:44", "contradicts")],
    ),
    (
        "[[route]]\nmatch = \"POST /a\"\nfingerprint = { fields = [\"/a\"], enums = [\"/b\"] }",
        &[("3:43", "no effect")],
    ),
    (
        "[[route]]\nmatch = \"POST /a\"\nfingerprint = { fields = [] }",
        &[("3:17", "every body would be the same")],
    ),
    (
        "[[route]]\nmatch = \"POST /a\"\nfingerprint = { timestamps = { \"/a\" = \"day\", \"/b\" = 1, \"c\" = \"second\" }, enums = [\"\\u0000\"] }",
        &[
            ("3:39", "use one of \"minute\", \"second\""),
            ("3:53", "for example \"second\""),
            ("3:56", "begin it with `/`"),
            ("3:83", "begin it with `/`"),
        ],
    ),
    (
        "[[route]]\nmatch = \"POST /a\"\nfingerprint = { decimals = [\"/a\"], timestamps = { \"/a\" = \"second\" } }",
        &[("3:51", "overlap")],
    ),
    // Replays.
    (
        "[[route]]\nmatch = \"POST /a\"\nreplay = \"reconstruct\"",
        &[(
            "3:1",
            "`replay = \"reconstruct\"` needs a request: add `[route.reconstruct]`",
        )],
    ),
    (
        "[[route]]\nmatch = \"POST /a\"\nschema = 2\non_schema_change = \"reconstruct\"",
        &[(
            "4:1",
            "`on_schema_change = \"reconstruct\"` needs a request",
        )],
    ),
    (
        "[[route]]\nmatch = \"POST /a\"\non_revoked = \"ask\"",
        &[("3:1", "add `[route.authorize]`")],
    ),
    (
        "[[route]]\nmatch = \"POST /a\"\non_schema_change = \"refuse\"",
        &[("3:20", "add `schema = 1`")],
    ),
    (
        "[[route]]\nmatch = \"POST /a\"\nreconstruct.get = \"GET /a/{resource_id}\"\nauthorize.get = \"GET /me\"",
        &[
            ("3:1", "`reconstruct` has no effect"),
            (
                "4:1",
                "`authorize` has no effect without `on_revoked = \"ask\"`",
            ),
        ],
    ),
    (
        "[[route]]\nmatch = \"POST /a\"\nschema = 0\nreplay = \"store\"\non_revoked = \"refuse\"",
        &[
            ("3:10", "from 1 to 65535"),
            ("4:10", "use one of \"stored\", \"reconstruct\""),
            ("5:14", "use one of \"replay\", \"ask\""),
        ],
    ),
    (
        "[[route]]\nmatch = \"POST /a\"\non_revoked = \"ask\"\nauthorize = { get = \"POST /me\", authorization_env = \"A\" }",
        &[
            ("4:21", "the method must be GET"),
            ("4:33", "unknown key `authorization_env`"),
        ],
    ),
    (
        "[[route]]\nmatch = \"POST /a\"\nreplay = \"reconstruct\"\nreconstruct = { }",
        &[("4:15", "[route.reconstruct] has no `get`")],
    ),
    (
        "[[route]]\nmatch = \"POST /a\"\noperation = \"a\"\nreconcile = { poll = \"GET /a/{resource_id}\", completed = 200 }",
        &[("4:22", "not known while the outcome is unknown")],
    ),
    (
        "[[route]]\nmatch = \"POST /a\"\nkey = \"ignored\"\nschema = 1",
        &[("4:1", "has no effect here")],
    ),
    // Several at once, in the order of the file, columns in characters.
    (
        "listen = 1\nx = \"ä\"\n[policy]\nlease = \"1\"\n[[route]]\nmatch = \"POST /a\"\n\"ä\" = 1",
        &[
            ("1:10", "a string"),
            ("2:1", "unknown"),
            ("4:9", "add a unit"),
            ("7:1", "unknown"),
        ],
    ),
    (
        "tls = { \"ä\" = 1, b = 1, certificate = 1, key = 1 }",
        &[
            ("1:9", "unknown"),
            ("1:18", "unknown"),
            ("1:39", "a string"),
            ("1:48", "a string"),
        ],
    ),
];

#[test]
fn each_problem_is_reported_at_its_location() {
    let flags = Flags {
        upstream: Some("http://app".parse().unwrap()),
        ..Flags::default()
    };
    let mut failures = Vec::new();
    for (text, expected) in WRONG {
        let found: Vec<String> = match load_with(text, flags.clone(), &[("EMPTY", "")]) {
            Ok(_) => vec![],
            Err(report) => report.problems().iter().map(ToString::to_string).collect(),
        };
        let fits = found.len() == expected.len()
            && found
                .iter()
                .zip(*expected)
                .all(|(found, (location, part))| {
                    found.starts_with(&format!("semel.toml:{location}: ")) && found.contains(part)
                });
        if !fits {
            failures.push(format!(
                "{text}\n  expected {expected:?}\n  found {found:#?}"
            ));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

#[test]
fn problems_in_variables_name_the_variable() {
    for (variable, value, part) in [
        ("SEMEL_LISTEN", "8080", "invalid listen address"),
        ("SEMEL_LISTEN", "", "invalid listen address"),
        ("SEMEL_UPSTREAM", "app", "no scheme"),
        ("SEMEL_STORE", "postgresql:secret", "no host and database"),
        ("SEMEL_STORE", "memory:", "--allow-volatile"),
        ("SEMEL_ADMIN_LISTEN", "0.0.0.0:1", "SEMEL_ADMIN_TOKEN"),
        ("SEMEL_DIALECT", "strip", "did you mean \"stripe\"?"),
        ("SEMEL_ADMIN_TOKEN", "", "is empty"),
        ("SEMEL_ADMIN_TOKEN", "secret token", "visible ASCII"),
        ("SEMEL_VIEWER_TOKEN", "", "is empty"),
        ("SEMEL_VIEWER_TOKEN", "s", "operators have none"),
    ] {
        let mut variables = vec![("SEMEL_UPSTREAM", "http://app")];
        variables.push((variable, value));
        let report = load_with("", Flags::default(), &variables).unwrap_err();
        let text = report.to_string();
        assert!(
            text.starts_with(&format!("{variable}: ")) && text.contains(part),
            "{text}"
        );
        assert!(
            !text.contains("secret") && report.problems().len() == 1,
            "{text}"
        );
    }
}

#[test]
fn problems_in_flags_name_the_flag() {
    let upstream = Some("http://app".parse().unwrap());
    let memory = Flags {
        store: Some(StoreUrl::Memory),
        upstream: upstream.clone(),
        ..Flags::default()
    };
    let open = Flags {
        admin_listen: Some("[::]:1".parse().unwrap()),
        upstream,
        ..Flags::default()
    };
    for (flags, name) in [(memory, "--store: "), (open, "--admin-listen: ")] {
        let text = load_with("", flags, &[]).unwrap_err().to_string();
        assert!(text.starts_with(name), "{text}");
    }
}

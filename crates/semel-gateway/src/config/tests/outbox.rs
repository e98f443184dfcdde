//! `[outbox]`: valid and invalid settings.

use super::*;

const VARIABLES: [(&str, &str); 5] = [
    ("SECRET", "whsec_MDEyMzQ1Njc4OWFiY2RlZg=="),
    ("NEXT", "whsec_YTEyMzQ1Njc4OWFiY2RlZg=="),
    ("SHORT", "whsec_MDEyMw=="),
    ("BROKER", "nats://user:s3cret@broker:4222"),
    ("NOT_A_BROKER", "s3cret"),
];

fn read(text: &str) -> Result<Config, Report> {
    let flags = Flags {
        upstream: Some("http://app".parse().unwrap()),
        ..Flags::default()
    };
    load_with(text, flags, &VARIABLES)
}

fn outbox(rest: &str) -> OutboxConfig {
    let text = format!("[outbox]\n{rest}");
    read(&text).unwrap().outbox.unwrap()
}

#[test]
fn without_the_table_there_is_no_outbox() {
    assert_eq!(read("").unwrap().outbox, None);
}

#[test]
fn each_broker_has_keys_of_its_own() {
    let text =
        "to = \"nats://broker:4222\"\nsubject = \"shop.{kind}.{aggregate}\"\nstream = \"SHOP\"";
    let config = outbox(text);
    assert_eq!((config.max_tries, config.in_flight), (20, 256));
    let Destination::Nats {
        url,
        subject,
        stream,
    } = config.to
    else {
        panic!("{config:?}");
    };
    assert_eq!(url.expose(), "nats://broker:4222");
    assert_eq!(subject.as_deref(), Some("shop.{kind}.{aggregate}"));
    assert_eq!(stream.as_deref(), Some("SHOP"));

    let text = "to = \"amqps://u:p@broker/%2f\"\nexchange = \"events\"\nrouting_key = \"{kind}\"\n\
                max_tries = 3\nin_flight = 8";
    let config = outbox(text);
    assert_eq!((config.max_tries, config.in_flight), (3, 8));
    assert!(!format!("{config:?}").contains(":p@"), "{config:?}");
    let Destination::RabbitMq {
        exchange,
        routing_key,
        ..
    } = config.to
    else {
        panic!("{config:?}");
    };
    assert_eq!(
        (&*exchange, routing_key.as_deref()),
        ("events", Some("{kind}"))
    );

    let text = "to = \"https://shop.example/events\"\nsecret_env = [\"NEXT\", \"SECRET\"]";
    let config = outbox(text);
    assert_eq!(config.in_flight, 32);
    assert!(!format!("{config:?}").contains("whsec"), "{config:?}");
    let Destination::Http { secrets, .. } = config.to else {
        panic!("{config:?}");
    };
    let secrets: Vec<_> = secrets.iter().map(SigningSecret::expose).collect();
    assert_eq!(secrets, [VARIABLES[1].1, VARIABLES[0].1]);

    let config = outbox("to_env = \"BROKER\"");
    assert!(!format!("{config:?}").contains("s3cret"), "{config:?}");
    assert!(matches!(config.to, Destination::Nats { .. }), "{config:?}");
}

/// The rest of the table, and all its problems: location and a part of the message.
const WRONG: &[(&str, &[(&str, &str)])] = &[
    ("", &[("1:1", "has no destination")]),
    ("max_tries = 3", &[("1:1", "has no destination")]),
    (
        "to = \"kafka://b\"",
        &[("2:6", "unknown broker scheme `kafka://`")],
    ),
    ("to = \"broker\"", &[("2:6", "invalid broker address")]),
    ("to = \"nats://\"", &[("2:6", "has no host")]),
    ("to = 1", &[("2:6", "`to` must be a string")]),
    (
        "to = \"nats://b\"\nto_env = \"BROKER\"",
        &[("3:1", "`to` or `to_env`, not both")],
    ),
    (
        "to_env = \"MISSING\"",
        &[("2:10", "environment variable MISSING is not set")],
    ),
    (
        "to_env = \"NOT_A_BROKER\"",
        &[(
            "2:10",
            "environment variable NOT_A_BROKER: invalid broker address",
        )],
    ),
    (
        "to = \"nats://b\"\nexchange = \"e\"\nsecret_env = \"SECRET\"",
        &[
            ("3:1", "`exchange` applies to `to = \"amqp://…\"`"),
            ("4:1", "`secret_env` applies to `to = \"https://…\"`"),
        ],
    ),
    (
        "to = \"nats://b\"\nsubjct = \"a\"",
        &[(
            "3:1",
            "unknown key `subjct` in [outbox]; did you mean `subject`?",
        )],
    ),
    (
        "to = \"nats://b\"\nsubject = \"{kind}\"",
        &[("3:11", "the first level must be literal")],
    ),
    (
        "to = \"nats://b\"\nsubject = \"$JS.{kind}\"",
        &[("3:11", "the first level must be literal")],
    ),
    (
        "to = \"nats://b\"\nsubject = \"a.*\"",
        &[("3:11", "wildcards")],
    ),
    (
        "to = \"nats://b\"\nsubject = \"a..b\"",
        &[("3:11", "a level is empty")],
    ),
    (
        "to = \"nats://b\"\nsubject = \"a.{king}\"",
        &[("3:11", "only {kind} and {aggregate}")],
    ),
    (
        "to = \"nats://b\"\nstream = \"a.b\"",
        &[("3:10", "invalid stream name")],
    ),
    (
        "to = \"amqp://b\"",
        &[("1:1", "RabbitMQ needs an `exchange`")],
    ),
    (
        "to = \"amqp://b\"\nexchange = \"\"",
        &[("3:12", "invalid exchange name")],
    ),
    ("to = \"http://h\"", &[("1:1", "no secret to sign")]),
    (
        "to = \"http://u@h\"\nsecret_env = \"SECRET\"",
        &[("2:6", "remove the user")],
    ),
    (
        "to = \"http://h\"\nsecret_env = \"MISSING\"",
        &[("3:14", "environment variable MISSING is not set")],
    ),
    (
        "to = \"http://h\"\nsecret_env = \"SHORT\"",
        &[("3:14", "environment variable SHORT")],
    ),
    (
        "to = \"nats://b\"\nmax_tries = 0",
        &[("3:13", "from 1 to 1000")],
    ),
    (
        "to = \"nats://b\"\nin_flight = 0",
        &[("3:13", "from 1 to 4096")],
    ),
];

#[test]
fn each_problem_is_reported_at_its_location() {
    for (rest, expected) in WRONG {
        let report = read(&format!("[outbox]\n{rest}")).unwrap_err();
        let shown = report.to_string();
        let found: Vec<_> = report
            .problems()
            .iter()
            .map(|problem| {
                let (line, column) = problem.line_and_column().unwrap();
                (format!("{line}:{column}"), problem.message().to_owned())
            })
            .collect();
        assert_eq!(found.len(), expected.len(), "{rest:?}: {shown}");
        for ((found_at, message), (location, part)) in found.iter().zip(*expected) {
            assert!(
                found_at == location && message.contains(part),
                "{rest:?}: {shown}"
            );
        }
        assert!(!shown.contains("s3cret"), "{shown}");
    }
}

#[test]
fn the_memory_store_has_no_outbox() {
    let flags = Flags {
        upstream: Some("http://app".parse().unwrap()),
        store: Some(StoreUrl::Memory),
        allow_volatile: true,
        ..Flags::default()
    };
    let text = "[outbox]\nto = \"nats://broker\"";
    let report = load_with(text, flags, &[]).unwrap_err();
    assert!(
        report.to_string().contains("instead of `memory:`"),
        "{report}"
    );
}

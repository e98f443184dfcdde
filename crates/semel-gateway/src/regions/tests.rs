//! Who may send requests in the name of a region.

use semel_core::Key;

use super::*;

pub(super) const SECRET: &str = "0123456789abcdef0123456789abcdef";

pub(super) fn regions(name: &str, names: &[&str], version: u32, secrets: &[&str]) -> Regions {
    let table = RegionTable {
        version,
        regions: names
            .iter()
            .map(|name| (Arc::from(*name), "http://127.0.0.1:1".parse().unwrap()))
            .collect(),
        tenant_homes: Vec::new(),
    };
    let secrets: Vec<_> = secrets.iter().map(ToString::to_string).collect();
    let timeout = Duration::from_secs(1);
    Regions::new(name.into(), table, &["none"], &secrets, timeout)
}

fn eu() -> Regions {
    regions("eu", &["eu", "us"], 7, &[SECRET])
}

fn us() -> Regions {
    regions("us", &["eu", "us"], 7, &[SECRET])
}

fn sent_by(sender: &Regions, home: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    sender.sign(&mut headers, home, Some(IdentityHash([7; 16])));
    headers
}

#[test]
fn a_request_of_another_region_is_taken_and_its_headers_are_removed() {
    let mut headers = sent_by(&us(), "eu");
    headers.insert("idempotency-key", "k".parse().unwrap());
    let Sender::Region(from) = eu().sender(&mut headers) else {
        panic!("it is refused");
    };
    assert_eq!(from.identity, Some(IdentityHash([7; 16])));
    assert_eq!(headers.len(), 1);
    assert!(matches!(eu().sender(&mut headers), Sender::Client));
}

#[test]
fn a_request_is_refused_unless_all_of_its_claims_are_right() {
    let own = || sent_by(&us(), "eu");
    let with = |name: HeaderName, value: &str| {
        let mut headers = own();
        headers.insert(name, value.parse().unwrap());
        headers
    };
    let without = |name: HeaderName| {
        let mut headers = own();
        headers.remove(name);
        headers
    };
    let twice = |name: HeaderName| {
        let mut headers = own();
        let value = headers[&name].clone();
        headers.append(name, value);
        headers
    };
    let newer = sent_by(&regions("us", &["eu", "us"], 8, &[SECRET]), "eu");
    let longer = sent_by(&regions("us", &["ap", "eu", "us"], 7, &[SECRET]), "eu");
    let other_rule = {
        let table = us().table.clone();
        let tokens = [SECRET.to_owned()];
        let sender = Regions::new("us".into(), table, &["jwt:sub"], &tokens, Duration::ZERO);
        sent_by(&sender, "eu")
    };
    for (mut headers, expects_token) in [
        (with(TOKEN, "another secret of the same length"), false),
        (without(TOKEN), false),
        (twice(TOKEN), false),
        (without(FROM), true),
        (with(FROM, "eu"), true),
        (with(FROM, "ap"), true),
        (with(TO, "us"), true),
        (without(TO), true),
        (without(LIST), true),
        (with(IDENTITY, "0g"), true),
        (newer, true),
        (longer, true),
        (other_rule, true),
    ] {
        let shown = format!("{headers:?}");
        let Sender::Refused { has_token, .. } = eu().sender(&mut headers) else {
            panic!("{shown}");
        };
        assert_eq!(has_token, expects_token, "{shown}");
        assert!(headers.is_empty(), "{shown}");
    }
}

/// A client that names a region gets nothing for it, whatever else it knows.
#[test]
fn one_forged_header_is_enough_for_a_refusal() {
    for name in [
        FROM,
        TO,
        LIST,
        IDENTITY,
        HeaderName::from_static("semel-region-hops"),
    ] {
        let mut headers = HeaderMap::new();
        headers.insert(name, "us".parse().unwrap());
        let sender = eu().sender(&mut headers);
        assert!(matches!(
            sender,
            Sender::Refused {
                has_token: false,
                ..
            }
        ));
    }
}

#[test]
fn a_secret_is_rotated_in_two_steps_and_never_shown() {
    let new = "fedcba9876543210fedcba9876543210";
    let both = regions("eu", &["eu", "us"], 7, &[SECRET, new]);
    for secret in [SECRET, new] {
        let sender = regions("us", &["eu", "us"], 7, &[secret]);
        let mut headers = sent_by(&sender, "eu");
        assert!(matches!(both.sender(&mut headers), Sender::Region(_)));
    }
    let shown = format!("{both:?} {:?}", sent_by(&us(), "eu"));
    assert!(!shown.contains(SECRET) && !shown.contains(new), "{shown}");
}

#[tokio::test(start_paused = true)]
async fn nothing_has_a_home_unless_the_list_is_confirmed() {
    let regions = eu();
    let identity = |key: usize| {
        let key = Key::new(format!("key-{key}")).unwrap();
        Identity::new("acme", "pay", key).unwrap()
    };
    let is_undecided = || {
        let mut homes = (0..20).map(|key| regions.find(&identity(key)));
        homes.all(|home| matches!(home, Home::Undecided(_)))
    };
    assert!(is_undecided());
    regions.set_standing(Standing::Superseded);
    assert!(is_undecided());
    let until = Instant::now() + Duration::from_secs(5);
    regions.set_standing(Standing::Confirmed(until));
    let homes: Vec<_> = (0..20).map(|key| regions.find(&identity(key))).collect();
    assert!(homes.contains(&Home::Here));
    assert!(homes.contains(&Home::Elsewhere("us".into())));
    tokio::time::advance(Duration::from_secs(5)).await;
    assert!(is_undecided());
}

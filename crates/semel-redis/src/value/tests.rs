use proptest::prelude::*;

use semel_core::Fingerprints;

use super::*;

const NOW: Timestamp = Timestamp::from_micros(1_000);
const EPOCH: Option<Epoch> = Some(Epoch(7));

fn identity(tenant: &str, operation: &str, key: &str) -> Identity {
    Identity::new(tenant, operation, Key::new(key).unwrap()).unwrap()
}

fn entry() -> Entry {
    Entry {
        epoch: Epoch(7),
        identity: identity("t", "op", "k"),
        fingerprint: Fingerprint::from_parts(1, [9; 32]),
        replay: Replay {
            id: OperationId::from_bytes([3; 16]),
            response: Response {
                status: 201,
                headers: vec![("link".into(), Bytes::from_static(b"\xff"))],
                body: Some(Bytes::from_static(b"paid")),
                schema_version: 2,
            },
            resource: Some(Resource {
                kind: "payment".into(),
                id: "pay_1".into(),
            }),
            expires_at: Timestamp::from_micros(3_000),
            body_expires_at: Some(Timestamp::from_micros(2_000)),
        },
    }
}

fn request() -> Reserve {
    Reserve {
        id: OperationId::generate(),
        identity: entry().identity,
        fingerprints: entry().fingerprint.into(),
        owner: "host-1/42".into(),
        policy: semel_core::Policy::default(),
    }
}

/// A kept form, and what somebody makes of it who knows the checksum.
fn forged(change: impl FnOnce(&mut Vec<u8>)) -> Option<Entry> {
    let mut kept = entry().encode().unwrap().to_vec();
    kept.truncate(kept.len() - CHECKSUM_BYTES);
    change(&mut kept);
    kept.extend(&Sha256::digest(&kept)[..]);
    Entry::decode(kept.into())
}

#[test]
fn an_entry_leads_back() {
    assert_eq!(Entry::decode(entry().encode().unwrap()), Some(entry()));
    assert_eq!(forged(|_| {}), Some(entry()));
}

/// The layout is a contract with values that are kept already: a change needs a new number.
#[test]
fn the_form_of_version_1_stays() {
    let kept = entry().encode().unwrap();
    let hex = kept
        .iter()
        .fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
    let digest = "0909090909090909090909090909090909090909090909090909090909090909";
    let expected = [
        "73656d656c00",                       // magic
        "0001",                               // format
        "0000000000000007",                   // epoch
        "00",                                 // scope
        "0000000174",                         // tenant
        "000000026f70",                       // operation
        "000000016b",                         // key
        "0001",                               // fingerprint version
        digest,                               //
        "03030303030303030303030303030303",   // id
        "00c9",                               // status
        "0002",                               // schema version
        "0000000000000bb8",                   // expires at
        "01",                                 //
        "00000000000007d0",                   // body expires at
        "01",                                 //
        "000000077061796d656e74",             // kind
        "000000057061795f31",                 // id
        "0000000d000000046c696e6b00000001ff", // headers
        "0000000470616964",                   // body
    ]
    .concat();
    assert_eq!(hex[..hex.len() - 64], expected);
}

#[test]
fn every_truncation_is_refused() {
    let kept = entry().encode().unwrap();
    for end in 0..kept.len() {
        assert_eq!(Entry::decode(kept.slice(..end)), None, "{end}");
        assert_eq!(Entry::decode(kept.slice(end + 1..)), None, "from {end}");
    }
    // Also by one who knows the checksum.
    let content = kept.len() - CHECKSUM_BYTES;
    for end in 0..content {
        assert_eq!(forged(|kept| kept.truncate(end)), None, "{end}");
    }
}

#[test]
fn every_flipped_bit_is_refused() {
    let kept = entry().encode().unwrap();
    for bit in 0..kept.len() * 8 {
        let mut flipped = kept.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(Entry::decode(flipped.into()), None, "{bit}");
    }
}

type Forgery<'a> = &'a dyn Fn(&mut Vec<u8>);

#[test]
fn what_encode_does_not_write_is_refused() {
    let place = |part: &[u8]| {
        let kept = entry().encode().unwrap();
        let found = kept.windows(part.len()).position(|window| window == part);
        found.unwrap()
    };
    let (tenant, key, link) = (
        place(b"\0\0\0\x01t") + 4,
        place(b"\x01k") + 1,
        place(b"link"),
    );
    let body_flag = place(&2_000i64.to_be_bytes()) - 1;
    let resource_flag = place(b"\0\0\0\x07payment") - 1;
    let wrong: [(&str, Forgery<'_>); 10] = [
        ("magic", &|kept| kept[0] = b'S'),
        ("older format", &|kept| kept[7] = 0),
        ("newer format", &|kept| kept[7] = 2),
        ("scope", &|kept| kept[16] = 2),
        ("tenant that is no text", &|kept| kept[tenant] = 0xff),
        ("impossible key", &|kept| kept[key] = b'\n'),
        ("body's flag", &|kept| kept[body_flag] = 2),
        ("resource's flag", &|kept| kept[resource_flag] = 2),
        ("header that is no text", &|kept| kept[link] = 0xff),
        ("something behind it", &|kept| kept.push(0)),
    ];
    for (what, change) in wrong {
        assert_eq!(forged(change), None, "{what}");
    }
}

#[test]
fn without_a_body_or_too_large_it_is_not_kept() {
    let with = |body| {
        let mut entry = entry();
        entry.replay.response.body = body;
        entry.encode()
    };
    assert_eq!(with(None), None);
    assert!(with(Some(Bytes::new())).is_some());
    let around = entry().encode().unwrap().len() - b"paid".len();
    let largest = with(Some(vec![7; MAX_BYTES - around].into())).unwrap();
    assert_eq!(largest.len(), MAX_BYTES);
    assert!(Entry::decode(largest).is_some());
    assert_eq!(with(Some(vec![7; MAX_BYTES - around + 1].into())), None);
    assert_eq!(with(Some(vec![7; MAX_BYTES + 1].into())), None);
    let oversized = forged(|kept| {
        let length = u32::try_from(MAX_BYTES).unwrap();
        kept.truncate(kept.len() - 8);
        kept.extend(length.to_be_bytes());
        kept.resize(kept.len() + MAX_BYTES, 7);
    });
    assert_eq!(oversized, None);
}

#[test]
fn it_answers_the_same_request_only() {
    let answer = |request: &Reserve| entry().answer(request, EPOCH, NOW);
    assert_eq!(answer(&request()), Ok(entry().replay));
    let others = [
        identity("u", "op", "k"),
        identity("t", "other", "k"),
        identity("t", "op", "K"),
        identity("t", "op", "k").scoped(KeyScope::Tenant),
    ];
    for identity in others {
        let other = Reserve {
            identity,
            ..request()
        };
        assert_eq!(answer(&other), Err(Unfit::Foreign), "{:?}", other.identity);
    }
}

#[test]
fn it_answers_any_version_of_the_fingerprint_and_no_other() {
    let answer = |fingerprints: Fingerprints| {
        let request = Reserve {
            fingerprints,
            ..request()
        };
        entry().answer(&request, EPOCH, NOW)
    };
    let newer = Fingerprint::from_parts(2, [9; 32]);
    assert_eq!(answer(newer.into()), Err(Unfit::Misused));
    assert!(answer(Fingerprints::from(newer).with_older(entry().fingerprint)).is_ok());
    let other = Fingerprint::from_parts(1, [8; 32]);
    assert_eq!(answer(other.into()), Err(Unfit::Misused));
    // A misuser is told nothing, not even that there is something that is over.
    let late = entry().answer(
        &Reserve {
            fingerprints: other.into(),
            ..request()
        },
        None,
        Timestamp::from_micros(i64::MAX),
    );
    assert_eq!(late, Err(Unfit::Misused));
}

#[test]
fn it_answers_in_its_epoch_only() {
    let answer = |epoch| entry().answer(&request(), epoch, NOW);
    assert_eq!(answer(Some(Epoch(6))), Err(Unfit::Outdated));
    assert_eq!(answer(Some(Epoch(8))), Err(Unfit::Outdated));
    assert_eq!(answer(None), Err(Unfit::Outdated));
}

#[test]
fn it_is_over_at_its_instant() {
    let answer = |entry: Entry, now| entry.answer(&request(), EPOCH, Timestamp::from_micros(now));
    assert!(answer(entry(), 1_999).is_ok());
    assert_eq!(answer(entry(), 2_000), Err(Unfit::Over));
    let mut whole = entry();
    whole.replay.body_expires_at = None;
    assert!(answer(whole.clone(), 2_999).is_ok());
    assert_eq!(answer(whole.clone(), 3_000), Err(Unfit::Over));
    // A body's time beyond the window prolongs nothing.
    whole.replay.body_expires_at = Some(Timestamp::from_micros(9_000));
    assert_eq!(answer(whole, 3_000), Err(Unfit::Over));
}

fn any_entry() -> impl Strategy<Value = Entry> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..64).prop_map(Bytes::from);
    let text = || ".{0,16}".prop_map(String::into_boxed_str);
    let identity = ("(?s).{1,20}", "(?s).{1,20}", "[!-~]{1,32}", any::<bool>()).prop_map(
        |(tenant, operation, key, tenant_scope)| {
            identity(&tenant, &operation, &key).scoped(if tenant_scope {
                KeyScope::Tenant
            } else {
                KeyScope::Operation
            })
        },
    );
    let response = (
        any::<u16>(),
        prop::collection::vec((text(), bytes()), 0..4),
        bytes(),
        any::<u16>(),
    );
    let resource = prop::option::of((text(), text()).prop_map(|(kind, id)| Resource { kind, id }));
    (
        (
            any::<u64>(),
            identity,
            any::<(u16, [u8; 32])>(),
            any::<[u8; 16]>(),
        ),
        response,
        (resource, any::<i64>(), any::<Option<i64>>()),
    )
        .prop_map(|((epoch, identity, fingerprint, id), response, rest)| {
            let (status, headers, body, schema_version) = response;
            let (resource, expires_at, body_expires_at) = rest;
            Entry {
                epoch: Epoch(epoch),
                identity,
                fingerprint: Fingerprint::from_parts(fingerprint.0, fingerprint.1),
                replay: Replay {
                    id: OperationId::from_bytes(id),
                    response: Response {
                        status,
                        headers,
                        body: Some(body),
                        schema_version,
                    },
                    resource,
                    expires_at: Timestamp::from_micros(expires_at),
                    body_expires_at: body_expires_at.map(Timestamp::from_micros),
                },
            }
        })
}

proptest! {
    #[test]
    fn any_entry_leads_back(entry in any_entry()) {
        prop_assert_eq!(Entry::decode(entry.encode().unwrap()), Some(entry));
    }

    /// What decodes is exactly what encode writes, whatever was done to it by one who knows
    /// the checksum.
    #[test]
    fn there_is_one_form(entry in any_entry(), at in any::<prop::sample::Index>(), byte: u8) {
        let mut kept = entry.encode().unwrap().to_vec();
        kept.truncate(kept.len() - CHECKSUM_BYTES);
        let at = at.index(kept.len());
        kept[at] = byte;
        kept.extend(&Sha256::digest(&kept)[..]);
        let kept = Bytes::from(kept);
        if let Some(entry) = Entry::decode(kept.clone()) {
            prop_assert_eq!(entry.encode(), Some(kept));
        }
    }
}

use proptest::prelude::*;

use semel_core::Fingerprints;

use super::*;

const NOW: Timestamp = Timestamp::from_micros(1_000);
const EPOCH: Option<ErasureEpoch> = Some(ErasureEpoch(7));

fn identity(tenant: &str, operation: &str, key: &str) -> Identity {
    Identity::new(tenant, operation, Key::new(key).unwrap()).unwrap()
}

fn entry() -> Entry {
    Entry {
        epoch: ErasureEpoch(7),
        identity: identity("t", "op", "k"),
        fingerprint: Fingerprint::from_parts(1, [9; 32]).under(RulesId(5)),
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

/// Decodes an entry that was altered and has a correct checksum.
fn forged(change: impl FnOnce(&mut Vec<u8>)) -> Option<Entry> {
    let mut value = entry().encode().unwrap().to_vec();
    value.truncate(value.len() - CHECKSUM_BYTES);
    change(&mut value);
    value.extend(&Sha256::digest(&value)[..]);
    Entry::decode(value.into())
}

#[test]
fn decoding_an_encoded_entry_returns_it() {
    assert_eq!(Entry::decode(entry().encode().unwrap()), Some(entry()));
    assert_eq!(forged(|_| {}), Some(entry()));
}

/// The layout is a contract with values that are already stored: a change needs a new number.
#[test]
fn format_2_is_unchanged() {
    let value = entry().encode().unwrap();
    let hex = value
        .iter()
        .fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
    let digest = "0909090909090909090909090909090909090909090909090909090909090909";
    let expected = [
        "73656d656c00",                       // magic
        "0002",                               // format
        "0000000000000007",                   // epoch
        "00",                                 // scope
        "0000000174",                         // tenant
        "000000026f70",                       // operation
        "000000016b",                         // key
        "0001",                               // fingerprint version
        "0000000000000005",                   // rules
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
fn truncated_values_are_refused() {
    let value = entry().encode().unwrap();
    for end in 0..value.len() {
        assert_eq!(Entry::decode(value.slice(..end)), None, "{end}");
        assert_eq!(Entry::decode(value.slice(end + 1..)), None, "from {end}");
    }
    // Also with a correct checksum.
    let content = value.len() - CHECKSUM_BYTES;
    for end in 0..content {
        assert_eq!(forged(|value| value.truncate(end)), None, "{end}");
    }
}

#[test]
fn values_with_a_flipped_bit_are_refused() {
    let value = entry().encode().unwrap();
    for bit in 0..value.len() * 8 {
        let mut flipped = value.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(Entry::decode(flipped.into()), None, "{bit}");
    }
}

type Forgery<'a> = &'a dyn Fn(&mut Vec<u8>);

#[test]
fn values_that_encode_never_writes_are_refused() {
    let position_of = |part: &[u8]| {
        let value = entry().encode().unwrap();
        let found = value.windows(part.len()).position(|window| window == part);
        found.unwrap()
    };
    let (tenant, key, link) = (
        position_of(b"\0\0\0\x01t") + 4,
        position_of(b"\x01k") + 1,
        position_of(b"link"),
    );
    let body_flag = position_of(&2_000i64.to_be_bytes()) - 1;
    let resource_flag = position_of(b"\0\0\0\x07payment") - 1;
    let forgeries: [(&str, Forgery<'_>); 10] = [
        ("magic", &|value| value[0] = b'S'),
        ("older format", &|value| value[7] = 1),
        ("newer format", &|value| value[7] = 3),
        ("scope", &|value| value[16] = 2),
        ("tenant that is not UTF-8", &|value| value[tenant] = 0xff),
        ("invalid key", &|value| value[key] = b'\n'),
        ("body's flag", &|value| value[body_flag] = 2),
        ("resource's flag", &|value| value[resource_flag] = 2),
        ("header that is not UTF-8", &|value| value[link] = 0xff),
        ("trailing byte", &|value| value.push(0)),
    ];
    for (case, change) in forgeries {
        assert_eq!(forged(change), None, "{case}");
    }
}

#[test]
fn entries_without_a_body_or_too_large_are_not_encoded() {
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
    let oversized = forged(|value| {
        let length = u32::try_from(MAX_BYTES).unwrap();
        value.truncate(value.len() - 8);
        value.extend(length.to_be_bytes());
        value.resize(value.len() + MAX_BYTES, 7);
    });
    assert_eq!(oversized, None);
}

#[test]
fn another_identity_is_rejected() {
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
        assert_eq!(
            answer(&other),
            Err(Rejection::WrongIdentity),
            "{:?}",
            other.identity
        );
    }
}

#[test]
fn another_fingerprint_is_rejected_and_an_older_version_accepted() {
    let answer = |fingerprints: Fingerprints| {
        let request = Reserve {
            fingerprints,
            ..request()
        };
        entry().answer(&request, EPOCH, NOW)
    };
    let newer = Fingerprint::from_parts(2, [9; 32]);
    assert_eq!(answer(newer.into()), Err(Rejection::FingerprintMismatch));
    assert!(answer(Fingerprints::from(newer).with_older(entry().fingerprint)).is_ok());
    let other = Fingerprint::from_parts(1, [8; 32]);
    assert_eq!(answer(other.into()), Err(Rejection::FingerprintMismatch));
    // A misuse gets no information, not even that an expired entry exists.
    let late = entry().answer(
        &Reserve {
            fingerprints: other.into(),
            ..request()
        },
        None,
        Timestamp::from_micros(i64::MAX),
    );
    assert_eq!(late, Err(Rejection::FingerprintMismatch));
}

#[test]
fn another_epoch_is_rejected() {
    let answer = |epoch| entry().answer(&request(), epoch, NOW);
    assert_eq!(answer(Some(ErasureEpoch(6))), Err(Rejection::StaleEpoch));
    assert_eq!(answer(Some(ErasureEpoch(8))), Err(Rejection::StaleEpoch));
    assert_eq!(answer(None), Err(Rejection::StaleEpoch));
}

#[test]
fn entry_is_rejected_from_its_expiry_on() {
    let answer = |entry: Entry, now| entry.answer(&request(), EPOCH, Timestamp::from_micros(now));
    assert!(answer(entry(), 1_999).is_ok());
    assert_eq!(answer(entry(), 2_000), Err(Rejection::Expired));
    let mut without_body_window = entry();
    without_body_window.replay.body_expires_at = None;
    assert!(answer(without_body_window.clone(), 2_999).is_ok());
    assert_eq!(
        answer(without_body_window.clone(), 3_000),
        Err(Rejection::Expired)
    );
    // A body window that ends after the replay window does not extend it.
    without_body_window.replay.body_expires_at = Some(Timestamp::from_micros(9_000));
    assert_eq!(answer(without_body_window, 3_000), Err(Rejection::Expired));
}

fn any_entry() -> impl Strategy<Value = Entry> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..64).prop_map(Bytes::from);
    let text = || ".{0,16}".prop_map(String::into_boxed_str);
    let identity = (
        "[^\\x00]{1,20}",
        "(?s).{1,20}",
        "[!-~]{1,32}",
        any::<bool>(),
    )
        .prop_map(|(tenant, operation, key, tenant_scope)| {
            identity(&tenant, &operation, &key).scoped(if tenant_scope {
                KeyScope::Tenant
            } else {
                KeyScope::Operation
            })
        });
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
            any::<(u16, i64, [u8; 32])>(),
            any::<[u8; 16]>(),
        ),
        response,
        (resource, any::<i64>(), any::<Option<i64>>()),
    )
        .prop_map(|((epoch, identity, fingerprint, id), response, rest)| {
            let (status, headers, body, schema_version) = response;
            let (resource, expires_at, body_expires_at) = rest;
            Entry {
                epoch: ErasureEpoch(epoch),
                identity,
                fingerprint: Fingerprint::from_parts(fingerprint.0, fingerprint.2)
                    .under(RulesId(fingerprint.1)),
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
    fn decoding_any_encoded_entry_returns_it(entry in any_entry()) {
        prop_assert_eq!(Entry::decode(entry.encode().unwrap()), Some(entry));
    }

    /// A value that decodes is exactly what `encode` writes, even after a change with a correct
    /// checksum.
    #[test]
    fn a_value_that_decodes_encodes_to_itself(
        entry in any_entry(),
        at in any::<prop::sample::Index>(),
        byte: u8,
    ) {
        let mut value = entry.encode().unwrap().to_vec();
        value.truncate(value.len() - CHECKSUM_BYTES);
        let at = at.index(value.len());
        value[at] = byte;
        value.extend(&Sha256::digest(&value)[..]);
        let value = Bytes::from(value);
        if let Some(entry) = Entry::decode(value.clone()) {
            prop_assert_eq!(entry.encode(), Some(value));
        }
    }
}

use super::*;

const MAX_LINE: usize = 1024;

/// Every way of cutting the bytes in two, and byte by byte, must give the same verdict.
fn accepts(bytes: &[u8]) -> bool {
    let whole = Scanner::new(MAX_LINE).scan(bytes).is_ok();
    for cut in 1..bytes.len() {
        let mut scanner = Scanner::new(MAX_LINE);
        let halves = scanner.scan(&bytes[..cut]).is_ok() && scanner.scan(&bytes[cut..]).is_ok();
        assert_eq!(
            whole,
            halves,
            "cut at {cut} of {:?}",
            bytes.escape_ascii().to_string()
        );
    }
    let mut scanner = Scanner::new(MAX_LINE);
    let single = bytes.chunks(1).all(|byte| scanner.scan(byte).is_ok());
    assert_eq!(
        whole,
        single,
        "byte by byte {:?}",
        bytes.escape_ascii().to_string()
    );
    whole
}

#[test]
fn the_strict_form_passes() {
    for good in [
        &b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..],
        b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\na\nbGET / HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-LENGTH:\t0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n3\r\na\nb\r\nA;x=\"y\"\r\n0123456789\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: b\r\n\r\nGET / HTTP/1.1\r\n\r\n",
    ] {
        assert!(accepts(good), "{:?}", good.escape_ascii().to_string());
    }
}

#[test]
fn every_other_form_is_refused() {
    for bad in [
        &b"GET / HTTP/1.1\nHost: a\r\n\r\n"[..],
        b"GET / HTTP/1.1\r\nHost: a\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n\n",
        b"\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\rb\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\r\n\r\n",
        b"GET /#b HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n",
        b"GET / HTTP/1.1\r\n Host: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost\r\n\r\n",
        b"GET / HTTP/1.1\r\n: a\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"POST / HTTP/1.1\r\nContent-Length: 1, 1\r\n\r\na",
        b"POST / HTTP/1.1\r\nContent-Length: +1\r\n\r\na",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\na",
        b"POST / HTTP/1.1\r\nContent-Length: 0x1\r\n\r\na",
        b"POST / HTTP/1.1\r\nContent-Length:\r\n\r\na",
        b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\na",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: identity\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\na\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1 \r\na\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n+1\r\na\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;a\nb\r\na\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n11111111111111111\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: b\nC: d\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n A: b\r\n\r\n",
    ] {
        assert!(!accepts(bad), "{:?}", bad.escape_ascii().to_string());
    }
}

#[test]
fn the_bytes_before_the_offending_line_are_kept() {
    let mut scanner = Scanner::new(MAX_LINE);
    let first = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut bytes = first.to_vec();
    bytes.extend_from_slice(b"GET / HTTP/1.1\n");
    let refused = Refused {
        keep: first.len(),
        request: 2,
        kind: RefusedPart::Head,
    };
    assert_eq!(scanner.scan(&bytes), Err(refused));
}

#[test]
fn a_line_without_an_end_is_bounded() {
    let mut scanner = Scanner::new(16);
    assert!(scanner.scan(b"GET /0123456789").is_ok());
    assert!(scanner.in_head());
    assert!(scanner.scan(b"0123456789").is_err());
}

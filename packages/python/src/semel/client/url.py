"""The URL of a request as the URL Standard serialises it, so that clients in all languages store one spelling.

`httpx.URL` spells some differently, and its versions differ. Only `http` and `https`.
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

import idna

_URL = re.compile(
    r"(?P<scheme>https?):[/\\]+(?P<host>[^/\\?#]*)(?P<path>[^?#]*)(?:\?(?P<query>[^#]*))?(?:#(?P<fragment>.*))?",
    re.IGNORECASE | re.DOTALL,
)
_DEFAULT_PORTS = {"http": 80, "https": 443}
# The characters that each part escapes, besides controls and what is not ASCII.
_QUERY = frozenset(" \"#<>'")
_FRAGMENT = frozenset(' "<>`')
_PATH = frozenset(' "#<>?`{}^')
_FORBIDDEN_IN_HOST = re.compile(r"[\x00-\x20#/:<>?@\[\\\]^|%\x7f]")
_SINGLE_DOT = re.compile(r"\.|%2e", re.IGNORECASE)
_DOUBLE_DOT = re.compile(r"(?:\.|%2e){2}", re.IGNORECASE)


def serialize_url(url: str) -> str:
    """Raises `ValueError` for what is not the address of a server."""
    # The Standard removes tabs and line feeds, and white space around the URL.
    text = re.sub(r"[\t\n\r]", "", url.strip("".join(map(chr, range(0x21)))))
    match = _URL.fullmatch(text)
    if match is None:
        raise ValueError(f"not a URL of a server: {url!r}")
    scheme = match["scheme"].lower()
    if "@" in match["host"]:
        raise ValueError("the URL has credentials, and the journal keeps none: send them in a header")
    host, port = _split_port(match["host"])
    authority = _host(host)
    if port is not None and port != _DEFAULT_PORTS[scheme]:
        authority += f":{port}"
    parts = [f"{scheme}://{authority}{_path(match['path'])}"]
    if match["query"] is not None:
        parts.append("?" + _escape(match["query"], _QUERY))
    if match["fragment"] is not None:
        parts.append("#" + _escape(match["fragment"], _FRAGMENT))
    return "".join(parts)


def origin_of(url: str) -> str:
    """Of a URL that is serialised."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _split_port(host: str) -> tuple[str, int | None]:
    name, colon, port = host.rpartition(":")
    if not colon or port.endswith("]"):
        return host, None
    if port == "":
        return name, None
    if not (port.isascii() and port.isdigit()) or int(port) > 0xFFFF:
        raise ValueError(f"not a port: {port!r}")
    return name, int(port)


def _host(host: str) -> str:
    if host.startswith("[") and host.endswith("]"):
        return f"[{_ipv6(host[1:-1])}]"
    if not host.isascii():
        host = idna.encode(host, uts46=True).decode("ascii")
    host = host.lower()
    if not host or _FORBIDDEN_IN_HOST.search(host):
        raise ValueError(f"not a host: {host!r}")
    last = host.rstrip(".").rpartition(".")[2]
    if re.fullmatch(r"[0-9]+|0x[0-9a-f]*", last):
        # The Standard reads other spellings too (127.1, octal numbers): they are refused here.
        return str(ipaddress.IPv4Address(host))
    return host


def _ipv6(text: str) -> str:
    groups = ipaddress.IPv6Address(text).exploded.split(":")
    short = ":".join(f"{int(group, 16):x}" for group in groups)
    # The longest run of two or more zeros, and the first of several.
    runs: list[str] = re.findall(r"(?:(?<=:)|^)0(?::0)+(?=:|$)", short)
    if not runs:
        return short
    longest = max(runs, key=len)
    before, _, after = f":{short}:".partition(f":{longest}:")
    return f"{before[1:]}::{after[:-1]}"


def _path(path: str) -> str:
    segments: list[str] = []
    pieces = path.replace("\\", "/").split("/")[1:] or [""]
    for nth, piece in enumerate(pieces):
        is_last = nth == len(pieces) - 1
        if _DOUBLE_DOT.fullmatch(piece):
            del segments[-1:]
            if is_last:
                segments.append("")
        elif _SINGLE_DOT.fullmatch(piece):
            if is_last:
                segments.append("")
        else:
            segments.append(_escape(piece, _PATH))
    return "/" + "/".join(segments)


def _escape(text: str, escaped: frozenset[str]) -> str:
    """With what is escaped already as it is."""
    return "".join(
        character
        if " " <= character <= "~" and character not in escaped
        else "".join(f"%{byte:02X}" for byte in character.encode())
        for character in text
    )

"""Requests and responses as the core sees them: bytes, without a library."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

# Names in lower case; a character for each byte of a value (ISO 8859-1).
Headers = tuple[tuple[str, str], ...]

# Another version is another fingerprint. The clients in all languages compute the same.
_FINGERPRINT = b"semel-intent-1"


def header(headers: Headers, name: str) -> str | None:
    """The first header of this name."""
    for found, value in headers:
        if found == name:
            return value.strip()
    return None


def has_header(headers: Headers, name: str) -> bool:
    return header(headers, name) is not None


def without_headers(headers: Headers, names: Iterable[str]) -> Headers:
    left_out = frozenset(names)
    return tuple(pair for pair in headers if pair[0] not in left_out)


def mask_headers(headers: Headers, names: Iterable[str]) -> Headers:
    """Headers as they are stored: credentials without their values. Without them it is another request."""
    # The content type identifies the request, and is no credential.
    secret = frozenset(names) - {"content-type"}
    return tuple((name, "" if name in secret else value) for name, value in headers)


@dataclass(frozen=True)
class Request:
    """A request with a complete body, so that every attempt sends the same bytes."""

    method: str
    url: str
    headers: Headers = ()
    body: bytes = b""

    @property
    def fingerprint(self) -> bytes:
        """What makes it the same request under an intent. Other headers may change: credentials are rotated."""
        content_type = next((value for name, value in self.headers if name == "content-type"), "")
        digest = hashlib.sha256()
        for field in (
            _FINGERPRINT,
            self.method.encode(),
            self.url.encode(),
            content_type.encode("latin-1"),
            self.body,
        ):
            # Each after its length: two requests cannot yield the same bytes.
            digest.update(len(field).to_bytes(8, "big") + field)
        return digest.digest()


@dataclass(frozen=True)
class Response:
    """A complete response. The body is decoded: without its content encoding."""

    status: int
    headers: Headers = ()
    body: bytes = b""

    @property
    def media_type(self) -> str:
        content_type = header(self.headers, "content-type") or ""
        return content_type.partition(";")[0].strip().lower()

    def json_object(self) -> dict[str, object]:
        """The body of a JSON response; an empty object where it is none."""
        media_type = self.media_type
        if media_type != "application/json" and not media_type.endswith("+json"):
            return {}
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}


@dataclass(frozen=True)
class Failure:
    """No complete response: the connection failed, timed out, or ended within the response."""

    cause: Exception
    # False: there was no connection, so the server did not receive the request.
    is_sent: bool = True

    def __str__(self) -> str:
        return f"{type(self.cause).__name__}: {self.cause}"


Answer = Response | Failure

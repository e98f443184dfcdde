"""A client for requests that must take effect once.

It stores the idempotency key before it sends, sends the same key on every attempt, and returns the
stored response when the same intent is called again, in whatever process.
"""

from .attempts import Note, QuotaOptions
from .client import AsyncClient, Client, Resumed
from .decision import Decision, Verdict, decide, decide_poll
from .engine import Options
from .errors import (
    CallError,
    CredentialsMissing,
    Error,
    Failed,
    ForeignOrigin,
    Forgotten,
    GaveUp,
    IntentConflict,
    JournalError,
    JournalFull,
    KeyExpired,
    KeyReused,
    OutcomeUnknown,
    Rejected,
    ResponseNotStored,
)
from .exchange import CallResponse
from .journal import Entry, Journal, MemoryJournal, OpenIntent, StoredResponse
from .messages import Failure, Request, Response
from .profile import IETF, STRIPE, Backoff, Profile, RetryAfter
from .sqlite import SqliteJournal
from .transport import AsyncTransport, Transport

__all__ = [
    "IETF",
    "STRIPE",
    "AsyncClient",
    "AsyncTransport",
    "Backoff",
    "CallError",
    "CallResponse",
    "Client",
    "CredentialsMissing",
    "Decision",
    "Entry",
    "Error",
    "Failed",
    "Failure",
    "ForeignOrigin",
    "Forgotten",
    "GaveUp",
    "IntentConflict",
    "Journal",
    "JournalError",
    "JournalFull",
    "KeyExpired",
    "KeyReused",
    "MemoryJournal",
    "Note",
    "OpenIntent",
    "Options",
    "OutcomeUnknown",
    "Profile",
    "QuotaOptions",
    "Rejected",
    "Request",
    "Response",
    "ResponseNotStored",
    "Resumed",
    "RetryAfter",
    "SqliteJournal",
    "StoredResponse",
    "Transport",
    "Verdict",
    "decide",
    "decide_poll",
]

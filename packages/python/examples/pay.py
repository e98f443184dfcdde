"""One payment: `pay.py URL INTENT JOURNAL BODY`.

Run it again after any failure, a SIGKILL included: the same key is sent, and the response is the
same. Prints the body. Exit codes: 0 final success, 3 final rejection, 4 unknown, 5 gave up.
"""

from __future__ import annotations

import sys

from semel.client import Client, GaveUp, OutcomeUnknown, Rejected, SqliteJournal


def main(url: str, intent: str, journal: str, body: str) -> int:
    headers = {"content-type": "application/json"}
    with Client(SqliteJournal(journal)) as client:
        try:
            response = client.call(intent, "POST", url, content=body, headers=headers)
        except OutcomeUnknown as error:
            print(error, file=sys.stderr)
            return 4
        except GaveUp as error:
            print(error, file=sys.stderr)
            return 5
        except Rejected as error:
            print(error, file=sys.stderr)
            return 3
    print(response.text)
    return 0 if response.is_success else 3


if __name__ == "__main__":
    if len(sys.argv) != 5:
        print("usage: pay.py URL INTENT JOURNAL BODY", file=sys.stderr)
        sys.exit(2)
    sys.exit(main(*sys.argv[1:]))

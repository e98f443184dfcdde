"""Sends requests that the gateway refuses before it has read them, and counts the responses that
arrive: refused MODULE URL STATUS TRIES [KEY]"""

import importlib
import sys

module, url, status, tries, *key = sys.argv[1:]
library = importlib.import_module(module)
client = library.Client(verify=False) if module == "httpx" else library.Session()
headers = {"X-Account": "a", **{"Idempotency-Key": value for value in key}}
received = 0
for _ in range(int(tries)):
    try:
        content = {"content" if module == "httpx" else "data": b"x" * (4 << 20)}
        response = client.post(url, headers=headers, **content)
        received += response.status_code == int(status)
    except Exception as error:
        print(repr(error), file=sys.stderr)
print(received)

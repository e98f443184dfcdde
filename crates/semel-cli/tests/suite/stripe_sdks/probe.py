"""Creates payment intents with the stripe SDK, and prints what the SDK returned or raised.

Argument: the address of the API. Reads one JSON object per line and prints one per line. A proxy
records how often the SDK sends a request.
"""

import json
import sys

import stripe


def create(address, order):
    client = stripe.StripeClient(
        order["api_key"],
        base_addresses={"api": address},
        max_network_retries=order["retries"],
    )
    params = {"amount": order["amount"], "currency": "eur"}
    options = {"idempotency_key": order["key"], "stripe_account": order["account"]}
    options = {name: value for name, value in options.items() if value is not None}
    try:
        intent = client.v1.payment_intents.create(params, options)
    except stripe.StripeError as error:
        return {
            "class": public_name(error),
            "code": error.error.code,
            "status": error.http_status,
            "headers": lowercase(error.headers),
        }
    return {
        "id": intent.id,
        "status": intent.last_response.code,
        "headers": lowercase(intent.last_response.headers),
    }


def public_name(error):
    """The name of the error class that an application catches."""
    name = type(error).__name__
    assert getattr(stripe, name) is type(error), name
    return name


def lowercase(headers):
    return {name.lower(): value for name, value in headers.items()}


for line in sys.stdin:
    print(json.dumps(create(sys.argv[1], json.loads(line))), flush=True)

"""Uvicorn, which closes idle connections after a second. Prints its port; every payment is an effect."""

import socket

import uvicorn

effects = 0


async def app(scope, receive, send):
    global effects
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    body, status = b"paid", 201
    if scope["method"] == "POST":
        effects += 1
    else:
        body, status = str(effects).encode(), 200
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


listener = socket.socket()
listener.bind(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
config = uvicorn.Config(app, log_level="error", timeout_keep_alive=1)
uvicorn.Server(config).run(sockets=[listener])

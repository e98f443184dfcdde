"""Gunicorn with threads, which closes idle connections after a second. Prints its port; every payment
is an effect."""

from gunicorn.app.base import BaseApplication

effects = 0


def app(environ, start_response):
    global effects
    environ["wsgi.input"].read()
    if environ["REQUEST_METHOD"] == "POST":
        effects += 1
        start_response("201 Created", [("Content-Length", "4")])
        return [b"paid"]
    count = str(effects).encode()
    start_response("200 OK", [("Content-Length", str(len(count)))])
    return [count]


class Server(BaseApplication):
    def load_config(self):
        self.cfg.set("bind", "127.0.0.1:0")
        self.cfg.set("worker_class", "gthread")
        self.cfg.set("threads", 32)
        self.cfg.set("keepalive", 1)
        self.cfg.set(
            "when_ready",
            lambda server: print(server.LISTENERS[0].getsockname()[1], flush=True),
        )

    def load(self):
        return app


Server().run()

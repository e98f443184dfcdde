"""A stock Flask application. Prints its port; every payment is an effect."""

from flask import Flask
from werkzeug.serving import make_server

app = Flask(__name__)
effects = 0


@app.post("/payments")
def pay():
    global effects
    effects += 1
    return "paid", 201


@app.get("/effects")
def count():
    return str(effects)


server = make_server("127.0.0.1", 0, app)
print(server.port, flush=True)
server.serve_forever()

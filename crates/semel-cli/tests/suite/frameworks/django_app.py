"""A stock Django application. Prints its port; every payment is an effect."""

from django.conf import settings

settings.configure(
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    MIDDLEWARE=["django.middleware.common.CommonMiddleware"],
)

from django.core.servers.basehttp import WSGIRequestHandler, WSGIServer
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path

effects = 0


def pay(request):
    global effects
    if request.method == "POST":
        effects += 1
        return HttpResponse("paid", status=201)
    return HttpResponse(status=405)


def count(request):
    return HttpResponse(str(effects))


urlpatterns = [path("payments", pay), path("effects", count)]

server = WSGIServer(("127.0.0.1", 0), WSGIRequestHandler)
server.set_app(get_wsgi_application())
print(server.server_port, flush=True)
server.serve_forever()

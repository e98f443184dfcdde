"""A person on call at the console, in a real browser.

Told by the environment where everything is. Ends with 0 where each step showed what it should;
writes a picture of every page into the directory SHOTS, light and dark.
"""

import json
import os
import re
import threading
import urllib.error
import urllib.request
from pathlib import Path

from playwright.sync_api import expect, sync_playwright

ADMIN = os.environ["ADMIN"]
GATEWAY = os.environ["GATEWAY"]
OPERATOR = os.environ["OPERATOR"]
VIEWER = os.environ["VIEWER"]
CHROMIUM = os.environ["CHROMIUM"]
SHOTS = Path(os.environ["SHOTS"])
# Keys of operations that are there when this starts.
LOST = os.environ["LOST"]
HOSTILE = os.environ["HOSTILE"]

PATIENCE_MS = 30_000


def pay(key, reference="order"):
    """One request of a client; the status, the headers and the body."""
    body = json.dumps({"reference": reference}).encode()
    headers = {"Content-Type": "application/json", "Idempotency-Key": f'"{key}"'}
    request = urllib.request.Request(f"{GATEWAY}/payments", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as answer:
        return answer.code, answer.headers, answer.read().decode()


class Load:
    """Clients that make new payments and repeat them, until they are stopped."""

    def __init__(self):
        self.stopped = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(n,)) for n in range(2)]

    def run(self, number):
        count = 0
        while not self.stopped.is_set():
            count += 1
            for _ in range(2):
                pay(f"load-{number}-{count}")
            if count % 5 == 0:
                pay(f"load-{number}-{count}", "another order")

    def __enter__(self):
        for thread in self.threads:
            thread.start()

    def __exit__(self, *_):
        self.stopped.set()
        for thread in self.threads:
            thread.join()


def log_in(page, token, name):
    page.goto(f"{ADMIN}/")
    page.get_by_label("Token").fill(token)
    page.get_by_label("Your name").fill(name)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()


def picture(page, name, whole=True):
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.screenshot(path=SHOTS / f"console-{name}-{scheme}.png", full_page=whole)
    page.emulate_media(color_scheme="light")


def refuses_who_does_not_know_the_token(page):
    answer = page.goto(f"{ADMIN}/operations")
    assert answer.status == 401, answer.status
    page.get_by_label("Token").fill("guessed")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_be_visible()
    picture(page, "login")
    assert not page.context.cookies(), "a wrong token made a session"


def charts_move_under_load(page):
    page.goto(f"{ADMIN}/")
    shown = page.locator(".chart.created .total strong")
    before = int(shown.inner_text().replace(",", ""))
    drawn = page.locator(".chart.created path.bars").last
    shape = drawn.get_attribute("d") if drawn.count() else ""
    with Load():
        # Nothing is reloaded: the page itself is to move.
        page.wait_for_function(
            """before => Number(document.querySelector('.chart.created .total strong')
                .innerText.replaceAll(',', '')) > before + 20""",
            arg=before,
            timeout=PATIENCE_MS,
        )
        page.wait_for_function(
            """shape => document.querySelector('.chart.created svg path.bars:last-of-type')
                ?.getAttribute('d') !== shape""",
            arg=shape,
            timeout=PATIENCE_MS,
        )
    for told in ("replayed", "misuse"):
        total = page.locator(f".chart.{told} .total strong")
        expect(total).not_to_have_text("0", timeout=PATIENCE_MS)
    expect(page.locator("#counts + p, section[aria-labelledby=counts] .muted").first).to_contain_text(
        "counted", timeout=PATIENCE_MS
    )
    picture(page, "overview")


def finds_an_operation_by_its_key(page):
    page.get_by_role("link", name="Operations").click()
    picture(page, "operations", whole=False)
    # By the keyboard alone.
    page.get_by_label("Key", exact=True).focus()
    page.keyboard.type(HOSTILE)
    page.keyboard.press("Enter")
    rows = page.locator("table.list tbody tr")
    expect(rows).to_have_count(1)
    rows.first.get_by_role("link").click()
    expect(page.get_by_role("heading", name="create_payment")).to_be_visible()


def shows_a_stored_response_as_text(page):
    content = page.content()
    assert "alert(" not in content, "the body is shown before anybody asked"
    picture(page, "operation")
    page.get_by_role("button", name=re.compile("^Reveal")).click()
    body = page.locator("pre.body")
    expect(body).to_contain_text("<script>alert('stored')</script>")
    assert "\x1b" not in body.inner_text(), "an escape sequence reached the page"
    expect(page.locator(".timeline")).to_contain_text("operator:Ada")
    picture(page, "operation-revealed")


def decides_a_dead_letter(page):
    page.goto(f"{ADMIN}/dead-letters")
    letter = page.locator("li.letter", has_text=LOST)
    expect(letter).to_be_visible(timeout=PATIENCE_MS)
    picture(page, "dead-letters")
    letter.get_by_role("link", name="Decide").click()
    picture(page, "decide")
    form = page.locator("form", has=page.get_by_role("button", name="Record the outcome"))
    typed = form.locator("label[for=confirm-c] code").inner_text()
    form.get_by_label("Status").fill("201")
    form.get_by_label("Content type").fill("application/json")
    form.get_by_label("Body").fill('{"id":"pay_found"}')
    form.get_by_label("Reason").fill("the provider's dashboard shows the charge")
    # Without the right confirmation nothing is decided.
    form.get_by_label(re.compile("^Type")).fill("nope00")
    form.get_by_role("button", name="Record the outcome").click()
    expect(page.get_by_role("alert")).to_be_visible()
    status, headers, _ = pay(LOST, "lost")
    assert status == 409, f"decided without a confirmation: {status}"
    form.get_by_label(re.compile("^Type")).fill(typed)
    form.get_by_role("button", name="Record the outcome").click()
    expect(page.locator(".notice.good")).to_be_visible()
    picture(page, "decided")
    status, headers, body = pay(LOST, "lost")
    assert (status, body) == (201, '{"id":"pay_found"}'), (status, body)
    assert headers["Idempotent-Replayed"] == "true", dict(headers)


def sees_who_misuses_keys(page):
    page.goto(f"{ADMIN}/misuse")
    expect(page.locator("table.list tbody tr").first).to_contain_text("create_payment")
    picture(page, "misuse")


def lets_a_viewer_only_look(page):
    log_in(page, VIEWER, "Grace")
    page.goto(f"{ADMIN}/operations?key={LOST}")
    page.locator("table.list tbody tr").first.get_by_role("link").click()
    expect(page.get_by_role("button", name=re.compile("^Reveal"))).to_have_count(0)
    answer = page.goto(page.url + "/decide")
    assert answer.status == 403, answer.status


def refuses_a_form_of_another_site(context, page):
    operation = page.url
    attacker = context.new_page()
    attacker.route(
        "http://attacker.test/**",
        lambda route: route.fulfill(
            content_type="text/html",
            body=f'<form method="post" action="{operation}/reveal"><button>Win</button></form>',
        ),
    )
    attacker.goto("http://attacker.test/")
    with attacker.expect_navigation() as navigation:
        attacker.get_by_role("button", name="Win").click()
    answer = navigation.value
    assert answer.status in (401, 403), answer.status
    attacker.close()


def works_in_a_narrow_window(page):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{ADMIN}/")
    wide = page.evaluate("document.documentElement.scrollWidth > window.innerWidth")
    assert not wide, "the page is wider than the window"
    picture(page, "overview-narrow")


def main():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        complaints = []

        def person():
            context = browser.new_context(viewport={"width": 1280, "height": 860})
            context.set_default_timeout(PATIENCE_MS)
            page = context.new_page()
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("dialog", lambda dialog: complaints.append(f"a dialog: {dialog.message}"))
            page.on(
                "console",
                lambda said: complaints.append(said.text)
                if said.type == "error" and "status of 4" not in said.text
                else None,
            )
            return context, page

        stranger = person()[1]
        refuses_who_does_not_know_the_token(stranger)
        context, page = person()
        log_in(page, OPERATOR, "Ada")
        session = context.cookies()[0]
        assert session["httpOnly"] and session["sameSite"] == "Strict", session
        charts_move_under_load(page)
        finds_an_operation_by_its_key(page)
        shows_a_stored_response_as_text(page)
        refuses_a_form_of_another_site(context, page)
        decides_a_dead_letter(page)
        sees_who_misuses_keys(page)
        works_in_a_narrow_window(page)
        lets_a_viewer_only_look(person()[1])
        page.get_by_role("button", name="Log out").click()
        assert page.goto(f"{ADMIN}/").status == 401, "the session outlived its end"
        browser.close()
        assert not complaints, complaints


main()

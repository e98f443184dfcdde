"""Drives the console in a real browser, as an on-call engineer would.

The environment has all addresses and tokens. Exits with 0 if every step showed what it should, and
writes a screenshot of every page to the directory SHOTS, light and dark.
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
# Keys of records that exist at the start.
LOST = os.environ["LOST"]
HOSTILE = os.environ["HOSTILE"]

PATIENCE_MS = 30_000


def pay(key, reference="order"):
    """Sends a payment; returns status, headers and body."""
    body = json.dumps({"reference": reference}).encode()
    headers = {"Content-Type": "application/json", "Idempotency-Key": f'"{key}"'}
    request = urllib.request.Request(f"{GATEWAY}/payments", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as answer:
        return answer.code, answer.headers, answer.read().decode()


class Load:
    """Clients that send new payments and retries until they are stopped."""

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


def refuses_a_wrong_token(page):
    answer = page.goto(f"{ADMIN}/operations")
    assert answer.status == 401, answer.status
    page.get_by_label("Token").fill("guessed")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_be_visible()
    picture(page, "login")
    assert not page.context.cookies(), "a wrong token created a session"


def charts_move_under_load(page):
    page.goto(f"{ADMIN}/")
    shown = page.locator(".chart.created .total strong")
    before = int(shown.inner_text().replace(",", ""))
    drawn = page.locator(".chart.created path.bars").last
    shape = drawn.get_attribute("d") if drawn.count() else ""
    with Load():
        # Without a reload: the page updates itself.
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
    for response in ("replayed", "misuse"):
        total = page.locator(f".chart.{response} .total strong")
        expect(total).not_to_have_text("0", timeout=PATIENCE_MS)
    expect(page.locator("#counts + p, section[aria-labelledby=counts] .muted").first).to_contain_text(
        "counted", timeout=PATIENCE_MS
    )
    picture(page, "overview")


def finds_a_record_by_its_key(page):
    page.get_by_role("link", name="Records").click()
    picture(page, "operations", whole=False)
    # With the keyboard only.
    page.get_by_label("Key", exact=True).focus()
    page.keyboard.type(HOSTILE)
    page.keyboard.press("Enter")
    rows = page.locator("table.list tbody tr")
    expect(rows).to_have_count(1)
    rows.first.get_by_role("link").click()
    expect(page.get_by_role("heading", name="create_payment")).to_be_visible()


def shows_a_stored_response_as_text(page):
    content = page.content()
    assert "alert(" not in content, "the body is shown before it is revealed"
    picture(page, "operation")
    page.get_by_role("button", name=re.compile("^Reveal")).click()
    body = page.locator("pre.body")
    expect(body).to_contain_text("<script>alert('stored')</script>")
    assert "\x1b" not in body.inner_text(), "an escape sequence reached the page"
    expect(page.locator(".timeline")).to_contain_text("operator:Ada")
    picture(page, "operation-revealed")


def resolves_a_dead_letter(page):
    page.goto(f"{ADMIN}/dead-letters")
    letter = page.locator("li.letter", has_text=LOST)
    expect(letter).to_be_visible(timeout=PATIENCE_MS)
    picture(page, "dead-letters")
    letter.get_by_role("link", name="Resolve").click()
    picture(page, "decide")
    form = page.locator("form", has=page.get_by_role("button", name="Record the outcome"))
    typed = form.locator("label[for=confirm-c] code").inner_text()
    form.get_by_label("Status").fill("201")
    form.get_by_label("Content type").fill("application/json")
    form.get_by_label("Body").fill('{"id":"pay_found"}')
    form.get_by_label("Reason").fill("the provider's dashboard shows the charge")
    # Without the right confirmation nothing is resolved.
    form.get_by_label(re.compile("^Type")).fill("nope00")
    form.get_by_role("button", name="Record the outcome").click()
    expect(page.get_by_role("alert")).to_be_visible()
    status, headers, _ = pay(LOST, "lost")
    assert status == 409, f"resolved without a confirmation: {status}"
    form.get_by_label(re.compile("^Type")).fill(typed)
    form.get_by_role("button", name="Record the outcome").click()
    expect(page.locator(".notice.good")).to_be_visible()
    picture(page, "decided")
    status, headers, body = pay(LOST, "lost")
    assert (status, body) == (201, '{"id":"pay_found"}'), (status, body)
    assert headers["Idempotent-Replayed"] == "true", dict(headers)


def shows_key_misuse(page):
    page.goto(f"{ADMIN}/misuse")
    expect(page.locator("table.list tbody tr").first).to_contain_text("create_payment")
    picture(page, "misuse")


def gives_a_viewer_no_actions(page):
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
        errors = []

        def new_browser():
            context = browser.new_context(viewport={"width": 1280, "height": 860})
            context.set_default_timeout(PATIENCE_MS)
            page = context.new_page()
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("dialog", lambda dialog: errors.append(f"a dialog: {dialog.message}"))
            page.on(
                "console",
                lambda said: errors.append(said.text)
                if said.type == "error" and "status of 4" not in said.text
                else None,
            )
            return context, page

        stranger = new_browser()[1]
        refuses_a_wrong_token(stranger)
        context, page = new_browser()
        log_in(page, OPERATOR, "Ada")
        session = context.cookies()[0]
        assert session["httpOnly"] and session["sameSite"] == "Strict", session
        charts_move_under_load(page)
        finds_a_record_by_its_key(page)
        shows_a_stored_response_as_text(page)
        refuses_a_form_of_another_site(context, page)
        resolves_a_dead_letter(page)
        shows_key_misuse(page)
        works_in_a_narrow_window(page)
        gives_a_viewer_no_actions(new_browser()[1])
        page.get_by_role("button", name="Log out").click()
        assert page.goto(f"{ADMIN}/").status == 401, "the session still works after the logout"
        browser.close()
        assert not errors, errors


main()

#!/usr/bin/env python3
"""Uses the page of `djinn serve` in headless Chromium, as somebody at a desk and at a telephone would.

    scripts/page.py [--if-available] [--quick] [--djinn target/debug/djinn] [--pictures DIR] [--chromium /usr/bin/chromium]

Chats, sees the session parked and its pages on the host while others need them, compares what is shown with /metrics, stops
an answer, stops a session at a layer, looks through the logit lens and goes on, takes a trace, changes the theme and the
tab with the keyboard, and gives a key where one is needed. Fails on an error in the console and on a request to another
host. Writes a picture of each width to DIR. With SmolLM2, or with --quick with a tiny model that says nothing of sense.

Needs Debian's `chromium`. What drives it comes from the package that PACKAGE names, in a folder below target/. With
--if-available, either of them that cannot be had is told and is no failure.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

from served import ROOT, Served

PACKAGE = "playwright==1.65.2"
PLACE = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "page-env"
DESK, TELEPHONE = {"width": 1360, "height": 900}, {"width": 390, "height": 844}
PATIENCE_MS = 60_000


# Part of the weights streams, and pages are so few that sessions that wait leave for the host.
FULL = {
    "model": "smollm2", "name": "smollm2", "text": "The ship sails on. " * 100, "others": 6, "tokens": 48,
    "flags": ["--vram=136MiB", "--ctx=1024", "--kv-cache=72MiB", "--swap-space=128MiB", "--max-num-seqs=4"],
}
# The same shape with fewer layers and words, and a character for a token.
QUICK = {
    "model": "synthetic:smollm2-135m?layers=4&vocab=512", "name": "quick", "text": "The ship sails on. " * 14, "others": 3, "tokens": 24,
    "flags": ["--vram=26MiB", "--ctx=512", "--kv-cache=3MiB", "--swap-space=16MiB", "--max-num-seqs=4"],
}


def install():
    """What drives the browser, installed where it is not yet."""
    stamp = PLACE / "installed"
    if not stamp.exists() or stamp.read_text() != PACKAGE:
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--only-binary", ":all:", "--upgrade",
               "--root-user-action", "ignore"]
        subprocess.run([*pip, "--target", PLACE, PACKAGE], check=True)
        stamp.write_text(PACKAGE)
    sys.path.insert(0, str(PLACE))


class Watched:
    """A tab of the browser whose console and requests are noted."""

    def __init__(self, browser, port, size, allowed=()):
        self.page = browser.new_page(viewport=size, accept_downloads=True)
        self.origin, self.troubles = f"http://127.0.0.1:{port}", []
        self.page.set_default_timeout(PATIENCE_MS)

        def said(message):
            if message.type in ("error", "warning") and not any(one in message.text for one in allowed):
                self.troubles.append(f"console: {message.text}")

        def asked(request):
            if not request.url.startswith((self.origin, "data:", "blob:")):
                self.troubles.append(f"a request to {request.url}")

        self.page.on("console", said)
        self.page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        self.page.on("request", asked)
        self.page.goto(self.origin)

    def close(self):
        self.page.close()
        if self.troubles:
            sys.exit("\n".join(self.troubles))


def ask(page, text, more=()):
    """Asks and waits for the end of the answer; its note."""
    notes = page.locator(".turn.assistant .note")
    before = notes.count()
    page.locator("#text").fill(text)
    page.keyboard.press("Enter")
    expect(notes).to_have_count(before + 1)
    for step in more:
        step()
    expect(notes.last).not_to_be_empty(timeout=PATIENCE_MS)
    return notes.last.inner_text()


def shown(page, name):
    """A number of the first card."""
    return page.locator(f'#numbers [data-name="{name}"] dd span').inner_text()


def press_others(served, model):
    """Requests that want the pages of those that wait."""
    def one(number):
        body = {"model": served.name, "prompt": f"Number {number}. {model['text']}", "max_tokens": model["tokens"],
                "ignore_eos": True, "session_id": f"agent-{number}"}
        served.ask("POST", "/v1/completions", body, timeout=300)
    threads = [threading.Thread(target=one, args=(number,)) for number in range(model["others"])]
    for thread in threads:
        thread.start()
    return threads


def at_a_desk(browser, served, model, pictures):
    watched = Watched(browser, served.port, DESK)
    page = watched.page
    expect(page.locator("#state")).to_have_text("serving")
    page.keyboard.press("/")
    expect(page.locator("#text")).to_be_focused()
    page.locator("#more").click()
    page.locator("#temperature").fill("0")
    page.locator("#max_tokens").fill(str(model["tokens"]))
    page.locator("#more").click()
    note = ask(page, "Write one sentence about the sea.")
    assert "tokens" in note and "first after" in note, note
    assert page.locator(".turn.assistant .text").last.inner_text().strip(), "the answer is empty"

    # The session is parked; its pages go to the host where others need them, and come back with its next turn.
    row = page.locator("#sessions tr", has_text="page-")
    expect(row.locator(".tag")).to_have_text("parked")
    expect(row).to_contain_text("on the device")
    threads = press_others(served, model)
    expect(row).to_contain_text("on the host", timeout=5 * PATIENCE_MS)
    if pictures:
        expect(page.locator(".tag", has_text="decode").nth(1)).to_be_visible(timeout=5 * PATIENCE_MS)
        page.evaluate("document.activeElement.blur()")
        page.mouse.move(1, 1)
        page.wait_for_timeout(3000)
        page.screenshot(path=pictures / "page-desk.png")
    for thread in threads:
        thread.join()
    ask(page, "And one about the wind.")

    # Numbers are those of /metrics.
    expect(row.locator(".tag")).to_have_text("parked")
    expect(page.locator('#numbers [data-name="running"] dd span')).to_have_text("0")
    page.wait_for_timeout(1200)
    metrics, label = served.metrics(), f'{{model_name="{served.name}"}}'
    for name, sample in [("running", "num_requests_running"), ("waiting for pages", "num_requests_waiting"),
                         ("parked", "num_sessions_parked")]:
        assert float(shown(page, name)) == metrics[f"djinn_{sample}{label}"], (name, shown(page, name), metrics)
    told = json.loads(served.ask("GET", "/v1/live")[1])["models"][0]
    pages = page.locator("#pages-name").inner_text()
    held = told["pages"]["device"] - told["pages"]["device_free"]
    assert f"{held:,} of {told['pages']['device']:,} held" in pages, (pages, told["pages"])
    assert told["tokens"]["generated"] == metrics[f"djinn_generation_tokens_total{label}"]

    # Esc stops an answer.
    page.locator("#more").click()
    page.locator("#max_tokens").fill("400")
    stops = lambda: (page.wait_for_timeout(700), page.keyboard.press("Escape"))
    assert ask(page, "Count to a thousand.", [stops]) == "stopped"

    # A session stops at a layer, is looked at, goes on a layer and then to its end.
    page.locator("#stop_at").select_option(index=told["layers"] // 2)
    page.locator("#max_tokens").fill("12")
    page.locator("#more").click()

    def looks():
        stop = page.locator("#stopped .stop")
        expect(stop).to_contain_text(".hook_out")
        expect(row.locator(".tag")).to_have_text("paused")
        before = stop.locator("div").first.inner_text()
        stop.get_by_role("button", name="Logit lens").click()
        expect(page.locator("#lens tbody tr")).to_have_count(told["layers"], timeout=5 * PATIENCE_MS)
        assert page.locator("#lens tbody tr").first.locator("td.t").count() == 5
        page.locator("#stops").scroll_into_view_if_needed()
        if pictures:
            page.wait_for_timeout(800)
            page.screenshot(path=pictures / "page-lens.png")
        stop.get_by_role("button", name="Next layer").click()
        expect(stop).not_to_contain_text(re.search(r"blocks\.\d+", before)[0] + ".hook_out")
        stop.get_by_role("button", name="Go on").click()
        expect(page.locator("#stops")).to_be_hidden()

    ask(page, "What is the capital of France?", [looks])
    page.locator("#more").click()
    page.locator("#stop_at").select_option(index=0)
    page.locator("#more").click()

    # A trace of an answer.
    page.get_by_role("button", name="Start a trace").click()
    expect(page.get_by_role("button", name="Stop the trace")).to_be_visible()
    ask(page, "And of Italy?")
    with page.expect_download() as download:
        page.get_by_role("button", name="Stop the trace").click()
    trace = json.loads(Path(download.value.path()).read_text())
    assert trace["otherData"]["passes"] >= 2, trace["otherData"]

    # A session is held, goes on, and is ended.
    row.get_by_role("button", name="Hold").click()
    expect(row.locator(".tag")).to_have_text("paused")
    row.get_by_role("button", name="Resume").click()
    expect(row.locator(".tag")).to_have_text("parked")
    row.get_by_role("button", name="End").click()
    expect(row).to_have_count(0)
    watched.close()


def at_a_telephone(browser, served, pictures):
    watched = Watched(browser, served.port, TELEPHONE)
    page = watched.page
    expect(page.locator("#state")).to_have_attribute("data-is", "good")
    for theme in ["light", "dark"]:
        page.locator("#theme").click()
        expect(page.locator("#theme")).to_have_text(f"Theme: {theme}")
    page.locator("#more").click()
    page.locator("#max_tokens").fill("16")
    page.locator("#more").click()
    ask(page, "Say hello.")
    page.get_by_role("tab", name="Chat").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Machine")).to_be_focused()
    expect(page.locator("#time")).to_be_visible()
    expect(page.locator("#chat")).to_be_hidden()
    if pictures:
        page.evaluate("document.activeElement.blur()")
        page.mouse.move(200, 800)
        page.wait_for_timeout(1000)
        page.screenshot(path=pictures / "page-telephone.png")
        page.get_by_role("tab", name="Machine").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#sessions tr", has_text="page-")).to_be_visible()
    # Nothing is wider than the screen.
    assert page.evaluate("document.documentElement.scrollWidth") <= TELEPHONE["width"]
    watched.close()


def with_a_key(browser, djinn):
    with Served(djinn, "--api-key=secret") as served:
        # The browser itself tells of an answer with status 401.
        watched = Watched(browser, served.port, DESK, allowed=["401"])
        page = watched.page
        expect(page.locator("#keys")).to_be_visible()
        page.locator("#key-text").fill("secret")
        page.keyboard.press("Enter")
        expect(page.locator("#state")).to_have_text("serving")
        ask(page, "Hello")
        watched.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--if-available", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--djinn", type=Path, default=Path("target/debug/djinn"))
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--pictures", type=Path)
    args = parser.parse_args()
    if not Path(args.chromium).exists():
        print(f"the page: {args.chromium} is not there; --chromium names another one")
        sys.exit(not args.if_available)
    try:
        install()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"the page: {PACKAGE} cannot be had: {error}")
        sys.exit(not args.if_available)
    global expect
    from playwright.sync_api import expect, sync_playwright
    expect.set_options(timeout=PATIENCE_MS)
    model = QUICK if args.quick else FULL
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=args.chromium, args=["--no-sandbox"])
        with Served(args.djinn, *model["flags"], model=model["model"], name=model["name"], patience=300) as served:
            at_a_desk(browser, served, model, args.pictures)
            at_a_telephone(browser, served, args.pictures)
            assert not served.complaints(), served.complaints()
        with_a_key(browser, args.djinn)
        browser.close()
    print("the page works")


if __name__ == "__main__":
    main()

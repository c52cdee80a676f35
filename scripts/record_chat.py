#!/usr/bin/env python3
"""Records a chat with `djinn run` in a pseudo-terminal, as an asciicast (version 2) that `asciinema play` shows.

    python3 scripts/record_chat.py --djinn target/release/djinn --out docs/chat.cast [-- run smollm2 --ctx 512 --seed 3]

The script types what a person would, waits for each answer, and writes what the terminal showed and when.
"""

import argparse
import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time

COLUMNS, ROWS = 100, 30
PROMPT = b"> "
CTRL_C = "\x03"
# What is typed, line by line; the prompt is waited for after each. A number is a pause in seconds.
SESSION = [
    "/help",
    "What is the capital of France?",
    "And of Italy? Answer in one word.",
    "/set temperature 0.3",
    '"""Name two rivers of these countries.\nOne line for each."""',
    ["Tell me a very long story about a lighthouse.", 1.5, CTRL_C],
    "Write a short poem about rivers.",
    "And one about the sea.",
    "/sytem",
    "/stats",
    "/exit",
]


class Recorder:
    def __init__(self, command):
        self.parent, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color"}
        self.process = subprocess.Popen(command, stdin=child, stdout=child, stderr=child, env=environment, start_new_session=True,
                                        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(child)
        self.start = time.monotonic()
        self.events, self.seen = [], b""

    def read(self, seconds):
        """Takes what the terminal shows within `seconds`; false at its end."""
        ready, _, _ = select.select([self.parent], [], [], seconds)
        if not ready:
            return True
        try:
            data = os.read(self.parent, 65536)
        except OSError:
            data = b""
        if data:
            self.seen += data
            self.events.append((time.monotonic() - self.start, data))
        return bool(data)

    def until_prompt(self, limit=120):
        """Waits until the prompt is shown and nothing has come for a while."""
        end = time.monotonic() + limit
        while time.monotonic() < end:
            before = len(self.seen)
            if not self.read(0.7):
                return
            if len(self.seen) == before and PROMPT in self.seen[-40:]:
                self.seen = b""
                return
        sys.exit(f"the chat showed no prompt within {limit} s: {self.seen[-200:]!r}")

    def type(self, text):
        for character in text:
            os.write(self.parent, character.encode())
            self.read(0.04)

    def write(self, path):
        header = {"version": 2, "width": COLUMNS, "height": ROWS, "title": "djinn run", "env": {"TERM": "xterm-256color"}}
        with open(path, "w") as out:
            out.write(json.dumps(header) + "\n")
            # A character may be split over two reads.
            rest = b""
            for at, data in self.events:
                data = rest + data
                text = data.decode(errors="ignore")
                rest = data[len(text.encode()):]
                out.write(json.dumps([round(at, 3), "o", text]) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--djinn", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("arguments", nargs="*")
    args = parser.parse_args()
    recorder = Recorder([args.djinn, *(args.arguments or ["run", "smollm2", "--ctx", "512", "--seed", "3"])])
    recorder.until_prompt()
    for line in SESSION:
        for part in line if isinstance(line, list) else [line]:
            if isinstance(part, float):
                end = time.monotonic() + part
                while time.monotonic() < end:
                    recorder.read(0.05)
            elif part == CTRL_C:
                recorder.type(part)
            else:
                recorder.type(part + "\r")
        recorder.until_prompt()
    recorder.process.wait(timeout=10)
    recorder.write(args.out)


if __name__ == "__main__":
    main()

"""Standard streams that are closed, full, broken or not UTF-8, words that are not UTF-8, progress, and Ctrl-C at any time."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from command_line import CONVERT, TEST, Command

from onespike.cli import output
from onespike.tasks import Classification

posix = pytest.mark.skipif(sys.platform == "win32", reason="streams, signals and names of POSIX")
ONESPIKE = f"'{sys.executable}' -m onespike"


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, env={**os.environ, **environment}, stdin=subprocess.DEVNULL
    )  # fmt: skip


STREAMS = {
    f"{ONESPIKE} list presets <&- >&- 2>&-": (0, b""),
    f"{ONESPIKE} list presets >/dev/full": (
        2,
        b"onespike: No space left on device. Check the path, its permissions and the disk.\n",
    ),
    f"PYTHONUNBUFFERED=1 {ONESPIKE} --help >/dev/full": (
        2,
        b"onespike: standard output: No space left on device. Check where it goes.\n",
    ),
    f"({ONESPIKE} list presets; echo $? >&2) | true": (0, b"2\n"),
}


@posix
@pytest.mark.parametrize("command", STREAMS, ids=lambda c: c.removeprefix(ONESPIKE))
def test_streams_that_are_no_use(command):
    if "/dev/full" in command and not Path("/dev/full").is_char_device():
        pytest.skip("there is no /dev/full")
    done = shell(command)
    assert (done.returncode, done.stderr) == STREAMS[command]


NOTICES = """
import logging, sys, warnings

class Loud:
    \"\"\"Say what torchao and others say while they are imported.\"\"\"

    def find_spec(self, name, path, target=None):
        if name == "onespike.energy.profiles":
            logging.getLogger("torch.utils._pytree").warning("<enum 'KernelPreference'> is an Enum subclass")
            for kind in (UserWarning, FutureWarning, DeprecationWarning):
                warnings.warn_explicit("is deprecated", kind, "torchao/__init__.py", 1)

sys.meta_path.insert(0, Loud())
"""


@posix
def test_notices_of_other_packages_stay_out_of_the_output(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(NOTICES)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = shell(f"{ONESPIKE} list profiles", PYTHONPATH=path, PYTHONWARNINGS="")
    assert done.returncode == 0 and b"horowitz-45nm" in done.stdout
    assert b"Enum subclass" not in done.stdout + done.stderr and b"torchao" not in done.stderr


@posix
def test_an_output_that_is_not_utf8():
    done = shell(f"{ONESPIKE} list neurons", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr.count(b"\n")) == (0, 1)
    assert done.stderr.startswith(b"next: onespike convert ")
    assert b"\\u03b8" in done.stdout or b"\\u03bb" in done.stdout


@posix
def test_words_that_are_not_utf8():
    done = shell(f"{ONESPIKE} inspect 'caf\udce9'")
    message = b"onespike: the argument 'caf\\xe9' is not UTF-8. Rename the file, or give a link to it.\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, b"", message)


def test_a_message_is_one_line(cli: Command, tmp_path: Path):
    missing = tmp_path / "line\nbreak\x1b[31m"
    place = str(missing).replace("\n", "\\n").replace("\x1b", "\\x1b")
    assert cli("inspect", missing).message().startswith(f"{place}: no run here")


INTERRUPTED = """
import os, runpy, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "MODULE":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
sys.argv = ["onespike", "reproduce", "theorems", "--trials", "1"]
runpy.run_module("onespike", run_name="__main__")
"""


@posix
@pytest.mark.parametrize(("module", "what"), [
    ("torch", "nothing was written. Run the same command again."),
    ("rich.console", "finished rows are kept. Run the same command again to go on."),
])  # fmt: skip
def test_an_interrupt_while_modules_are_imported(module, what):
    done = subprocess.run([sys.executable, "-c", INTERRUPTED.replace("MODULE", module)], capture_output=True)
    said = f"onespike: interrupted, {what}\n"
    assert (done.returncode, done.stdout, done.stderr.decode()) == (2, b"", said)


@posix
def test_ctrl_c_while_calibrating(cli, monkeypatch, tmp_path):
    signals, read = [signal.SIGINT], Classification.load

    def interrupted(self, item):
        if signals:
            signal.raise_signal(signals.pop())
        return read(self, item)

    monkeypatch.setattr(Classification, "load", interrupted)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
    try:
        message = cli(f"{CONVERT} --weights random --out {tmp_path / 'new' / 'run'}").message()
    finally:
        signal.signal(signal.SIGINT, handler)
    assert message == "interrupted, nothing was written. Run the same command again."
    assert list(tmp_path.iterdir()) == []


def test_the_package_imports_its_names_when_they_are_used():
    code = """
import sys, onespike
assert "torch" not in sys.modules and "preset" in dir(onespike) and not hasattr(onespike, "nothing")
from onespike import Recipe
assert onespike.Recipe is Recipe and callable(onespike.convert)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_too_little_memory_of_a_gpu(cli, monkeypatch, vit_run):
    def refuse(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 20 GiB.")

    monkeypatch.setattr("onespike.runs.pipeline.evaluate", refuse)
    message = "the device has too little memory. Give a smaller --batch-size."
    assert cli("evaluate", vit_run, "--data", TEST).message() == message


# The first evaluation brings all that threads and libraries keep, so that a batch is what meets the limit of the second.
SMALL = """
import resource, sys
from onespike.cli import main

words = list(sys.argv)
try:
    sys.argv = [*words, "--limit", "10"]
    main()
except SystemExit as end:
    assert not end.code
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**27,) * 2)
sys.argv = [*words, "--batch-size", "1000"]
main()
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="there is no /proc")
def test_memory_that_really_ends(vit_run, tmp_path):
    run = shutil.copytree(vit_run, tmp_path / "run")
    words = ("evaluate", str(run), "--data", TEST)
    done = subprocess.run([sys.executable, "-c", SMALL, *words], capture_output=True, text=True)
    message = "onespike: the device has too little memory. Give a smaller --batch-size.\n"
    assert (done.returncode, done.stderr.endswith(message)) == (2, True), done.stderr


def test_plain_lines(monkeypatch, capsys):
    monkeypatch.setattr(output, "SECONDS_BETWEEN_LINES", 10.0)
    clock = iter([0.0, 4.0, 12.0, 13.0, 20.0])
    monkeypatch.setattr(output.time, "monotonic", lambda: next(clock))
    assert list(output.progress("calibrating", 4)("abcd")) == list("abcd")
    assert capsys.readouterr().err == "calibrating: 2/4, 12 s left\ncalibrating: 4/4, 0 s left\n"


@posix
def test_a_bar_on_a_terminal(monkeypatch):
    parent, child = os.openpty()
    with os.fdopen(child, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "100")
        assert list(output.progress("evaluating", 3)("abc")) == list("abc")
        terminal.flush()
        written = ""
        while "3/3" not in written:  # what was written arrives in parts
            written += os.read(parent, 100_000).decode(errors="replace")
    os.close(parent)
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written)
    assert re.search(r"evaluating ━+ 3/3", plain)


def ask_on_and_on(port: int, answered: threading.Event) -> None:
    """One question after another, until nobody answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        while True:
            connection.request("POST", "/answer?sample=0&scale=0.5", b"", {"X-Onespike": "live"})
            connection.getresponse().read()
            answered.set()
    except (OSError, http.client.HTTPException):
        connection.close()


@pytest.mark.processes
def test_a_live_page_ends_while_requests_run(vit_run: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "onespike", "serve", str(vit_run), "--address", "0"]
    settings = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        words, env=settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # a job in the background ignores the signal, and so would its children
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as page:  # fmt: skip
        assert page.stdout is not None and page.stderr is not None
        port = int(page.stdout.readline().partition("127.0.0.1:")[2].partition("/")[0])
        answered = threading.Event()
        clients = [threading.Thread(target=ask_on_and_on, args=(port, answered)) for _ in range(3)]
        for client in clients:
            client.start()
        assert answered.wait(60)
        page.send_signal(signal.SIGINT)
        code = page.wait(60)  # it takes a third of a second where nothing else runs
        for client in clients:
            client.join()
        said = page.stderr.read()
    assert (code, said) == (0, f"the page is closed\nnext: onespike report {vit_run}\n")
    assert not list(tmp_path.iterdir())

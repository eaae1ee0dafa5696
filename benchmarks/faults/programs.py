"""What the campaign runs besides plain commands: readers without a command, and commands with somebody at the other end."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import runpy
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parents[2] / "examples" / "replay_integers.py"
REQUEST, ANSWERS, STORED = Path("asked/request.http"), Path("hub/answers.json"), Path("hub/stored.json")


def main() -> None:
    """The command or reader of `sys.argv`."""
    from onespike.cli import main as onespike

    READERS.get(sys.argv[1], onespike)()


def _refused(read: Callable[[], Any]) -> None:
    """Print what a function of the library returns, or its error as the command line would."""
    from onespike.cli import refuse
    from onespike.cli.commands import _message

    try:
        print(read())
    except Exception as error:
        if (message := _message(error)) is None:
            raise
        refuse(message)


def replay() -> None:
    """`replay FOLDER`: the script that runs an exported folder in NumPy."""
    sys.argv[:2] = [str(SCRIPT)]
    runpy.run_path(str(SCRIPT), run_name="__main__")


def integers() -> None:
    """`integers FOLDER`: the library's reader of the same folder."""

    def read() -> str:
        from safetensors.torch import load_file

        from onespike.deploy.exports.integers import Replay

        replay = Replay.read(Path(sys.argv[2]))
        golden = load_file(Path(sys.argv[2]) / "golden.safetensors")
        answer = replay(next(tensor for name, tensor in golden.items() if name.startswith("input.")))
        parts = (*answer.outputs, *(counts for _, counts in answer.counts))
        return hashlib.sha256(b"".join(part.contiguous().numpy().tobytes() for part in parts)).hexdigest()

    _refused(read)


def load() -> None:
    """`load RUN`: the reader that every command on a run begins with."""
    from onespike.runs import storage

    def read() -> str:
        run = storage.load(Path(sys.argv[2]))
        parts = (t for site in run.thresholds.values() for t in (site.positive, site.negative))
        digest = hashlib.sha256(b"".join(part.contiguous().numpy().tobytes() for part in parts)).hexdigest()
        return f"{run.network} {run.recipe!r} {run.data} {digest}"

    _refused(read)


def recipe() -> None:
    """`recipe FILE`: the reader of `--recipe`."""
    from onespike.runs.recipe_text import read_recipe

    _refused(lambda: read_recipe(Path(sys.argv[2])))


def follow() -> None:
    """`follow FOLDER`: the workflow again, in a folder where it has begun."""
    from onespike.cli import main

    words = json.loads(Path("planned/words.json").read_text(encoding="utf-8"))
    os.chdir(sys.argv[2])
    sys.argv[1:] = words
    main()


def serve() -> None:
    """`serve RUN …`, one request as soon as it listens, its answer in out.json, and Ctrl-C."""
    from onespike.cli import main
    from onespike.reports.live import LiveServer

    def visit(server: LiveServer) -> None:
        try:
            with socket.create_connection(server.server_address[:2], timeout=30) as connection:
                connection.sendall(REQUEST.read_bytes())
                connection.shutdown(socket.SHUT_WR)
                reply = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        except OSError as error:
            reply = repr(error).encode()
        head, _, body = reply.partition(b"\r\n\r\n")
        answer = {"status": head.partition(b"\r\n")[0].decode("latin-1"), "body": body.decode("latin-1")}
        partial = Path("out.json.partial")  # a kill may come between opening and writing
        partial.write_text(json.dumps(answer), encoding="utf-8")
        partial.replace("out.json")
        os.kill(os.getpid(), signal.SIGINT)

    listen = LiveServer.serve_forever

    def serve_forever(self: LiveServer, poll_interval: float = 0.02) -> None:
        threading.Thread(target=visit, args=(self,), daemon=True).start()
        listen(self, poll_interval)

    LiveServer.serve_forever = serve_forever  # type: ignore[method-assign]
    main()


class Hub(BaseHTTPRequestHandler):
    """A stand-in for the Hub: what it answers stands in a file, and what it takes is stored whole."""

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else self._chunks()
        kind = next((k for k in ("create", "preupload", "commit") if k in self.path), "other")
        try:
            status, answer = json.loads(ANSWERS.read_text(encoding="utf-8"))[kind]
            if kind == "preupload" and answer == "all":
                files = json.loads(body)["files"]
                answer = {
                    "files": [
                        {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files
                    ]
                }
            data = json.dumps(answer).encode()
            if kind == "commit" and status == 200:
                self._store(body)
            self.send_response(int(status))
        except Exception:  # noqa: BLE001 - an answer that is none: the connection ends
            self.close_connection = True
            return
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST  # noqa: N815

    def _chunks(self) -> bytes:
        parts = b""
        while self.headers.get("Transfer-Encoding") == "chunked" and (size := int(self.rfile.readline(), 16)):
            parts += self.rfile.read(size)
            self.rfile.readline()
        return parts

    def _store(self, body: bytes) -> None:
        rows = [json.loads(line) for line in body.splitlines()]
        files = {row["value"]["path"]: row["value"]["content"] for row in rows if row["key"] == "file"}
        digests = {n: hashlib.sha256(base64.b64decode(c)).hexdigest() for n, c in sorted(files.items())}
        partial = STORED.with_name("stored.new")
        partial.write_text(json.dumps(digests), encoding="utf-8")
        partial.replace(STORED)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def push() -> None:
    """`push RUN OWNER/NAME …` to the stand-in on this machine."""
    import huggingface_hub
    from huggingface_hub import constants

    from onespike.cli import main

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    constants.HF_HUB_OFFLINE = False
    time.sleep = lambda seconds: None  # the client waits before it asks again
    plain = huggingface_hub.HfApi
    huggingface_hub.HfApi = lambda: plain(endpoint=address, token="hf_none")  # type: ignore[assignment,misc]  # noqa: S106
    main()


READERS: dict[str, Callable[[], None]] = {
    "replay": replay,
    "integers": integers,
    "recipe": recipe,
    "load": load,
    "follow": follow,
    "serve": serve,
    "push": push,
}
QUICK = ("replay", "integers", "recipe", "load")
"""Readers that write nothing and start nothing: they need no process of their own."""

if __name__ == "__main__":
    main()

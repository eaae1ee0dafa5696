"""A small web server for one user: the live page of a run, on this machine unless another address is given."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, urlsplit

from onespike.errors import OnespikeError, UsageError
from onespike.reports.live import Session
from onespike.reports.pages import live

LARGEST = 64 * 2**20
"""The largest size of an input in bytes."""
IN_FLIGHT = 2 * LARGEST
"""The largest size of all inputs together that are being sent or answered, in bytes."""
HERE = ("127.0.0.1", "localhost", "::1")


class BusyError(UsageError):
    """More inputs at once than there is room for."""


class LiveServer(ThreadingHTTPServer):
    """Serves one session.

    Requests must name this machine (or the served address) as their host, and only the page itself gets answers,
    so that no other page open in a browser can ask.
    """

    daemon_threads = True

    def __init__(self, session: Session, host: str = "127.0.0.1", port: int = 0) -> None:
        self.sizes: list[int] = []  # of the inputs that are being sent or answered
        self.lock, self.most = Lock(), IN_FLIGHT
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            raise UsageError(
                f"{host}:{port}: {error.strerror or error}. Choose another port, or 0 for any."
            ) from error
        self.session, self.samples = session, session.samples()
        self.names = {*HERE, host} if host not in ("0.0.0.0", "::") else None  # noqa: S104 - asked for
        self.page = live(session, 0 if self.samples is None else len(self.samples)).encode()

    @contextmanager
    def room(self, size: int) -> Iterator[None]:
        """Hold room for an input: other requests are refused before their bytes are read."""
        with self.lock:
            if sum(self.sizes) + size > self.most:
                raise BusyError(f"inputs of over {IN_FLIGHT // 2**20} MB are on their way. Try again later.")
            self.sizes.append(size)
        try:
            yield
        finally:
            with self.lock:
                self.sizes.remove(size)

    def server_close(self) -> None:
        with self.lock:
            self.most = -1  # connections that are still open get no further answer
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report in one line what went wrong with a request; nothing if its page was closed."""
        error = sys.exception()
        if not isinstance(error, ConnectionError):
            print(f"onespike: a request failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)  # noqa: T201

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://{host if isinstance(host, str) else host.decode()}:{port}/"


class Handler(BaseHTTPRequestHandler):
    """GET / returns the page, POST /answer returns an answer about the posted input."""

    server: LiveServer
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        if not self._is_meant():
            return
        if self.path.partition("?")[0] == "/":
            self._send(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")
        else:
            self._send(HTTPStatus.NOT_FOUND, b"not found", "text/plain")

    def do_POST(self) -> None:
        if not self._is_meant():
            return
        try:
            status, answer = HTTPStatus.OK, self._answer()
        except (OnespikeError, ValueError) as error:
            busy = isinstance(error, BusyError)
            status = HTTPStatus.SERVICE_UNAVAILABLE if busy else HTTPStatus.BAD_REQUEST
            answer = {"error": str(error)}
        except (RuntimeError, MemoryError, OSError) as error:  # too little memory; the page stays open
            reason = str(error).partition("\n")[0] or type(error).__name__
            status, answer = HTTPStatus.INTERNAL_SERVER_ERROR, {"error": f"the networks cannot run: {reason}"}
        self._json(status, answer)

    def _answer(self) -> dict[str, Any]:
        asked = urlsplit(self.path)
        options = {name: values[-1] for name, values in parse_qs(asked.query).items()}
        self.close_connection = True  # unless the whole request body is read
        length = int(self.headers.get("Content-Length") or 0)
        if asked.path != "/answer" or not 0 <= length <= LARGEST:
            raise UsageError(f"an input has at most {LARGEST // 2**20} MB.")
        with self.server.room(length):
            contents = self.rfile.read(length)
            self.close_connection = len(contents) < length
            scale = float(options["scale"]) if "scale" in options else None
            session, samples = self.server.session, self.server.samples
            if "sample" in options:
                if samples is None:
                    raise UsageError("the inputs that calibrated this run are gone. Drop one of your own.")
                return session.answer(samples, int(options["sample"]), scale)
            return session.dropped(contents, options.get("suffix", "").lower(), scale)

    def _is_meant(self) -> bool:
        """Return whether the host is this machine and a question comes from our page: other sites can send neither."""
        try:
            name = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        except ValueError:
            name = None
        ours = self.command == "GET" or self.headers.get("X-Onespike") == "live"
        if ours and name is not None and (self.server.names is None or name in self.server.names):
            return True
        self.close_connection = True
        self._json(
            HTTPStatus.FORBIDDEN, {"error": "this address is not served. Use the one that was printed."}
        )
        return False

    def _json(self, status: HTTPStatus, record: dict[str, Any]) -> None:
        self._send(status, json.dumps(record).encode(), "application/json")

    def _send(self, status: HTTPStatus, contents: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(contents)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(contents)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: standard error is for errors."""

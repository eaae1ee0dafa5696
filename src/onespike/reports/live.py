"""The live page of a run: one input through both networks, and a web server for one user, on this machine by default."""

import base64
import dataclasses
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock, Semaphore
from typing import Any
from urllib.parse import parse_qs, urlsplit

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from onespike import runs
from onespike.energy.columns import reading_of
from onespike.energy.ledger import Ledger, or_none
from onespike.energy.metering import metered
from onespike.energy.profiles import Profile, profile
from onespike.errors import OnespikeError, UsageError
from onespike.evaluation.pairwise import pairwise
from onespike.evaluation.side_by_side import at_scale, scale_if_any
from onespike.neurons import Neuron
from onespike.reports.pages import live
from onespike.reports.record import block_of
from onespike.runs import NetworkPair
from onespike.sites import Operand
from onespike.tasks import Items

SIDE = 24  # the largest number of pixels in a site's picture
SAMPLES = 6
SUFFIX = re.compile(r"\.[a-z0-9]{1,5}")
LARGEST = 64 * 2**20  # the largest size of an input in bytes
AT_ONCE = 4  # how many inputs may be on their way or answered at the same time
HERE = ("127.0.0.1", "localhost", "::1")


@dataclass
class Watched(Ledger):
    """A ledger that keeps a small picture of each site's spikes."""

    blockwise = False
    pictures: dict[str, Tensor] = field(default_factory=dict)

    def observe(self, operand: Operand, neuron: Neuron, x: Tensor, fired: Tensor, output: Tensor) -> None:
        self.pictures[str(operand.site)] = picture(fired)


def picture(fired: Tensor, side: int = SIDE) -> Tensor:
    """Return mean spike sizes over the last two axes, at most `side` wide and high, from 0 to 255."""
    sizes = torch.atleast_2d(fired.abs().float())
    sizes = sizes.reshape(-1, *sizes.shape[-2:]).mean(0)
    small = adaptive_avg_pool2d(sizes[None], (min(side, sizes.shape[0]), min(side, sizes.shape[1])))[0]
    return (255 * (small / small.max().clamp_min(1e-9)).sqrt()).round().to(torch.uint8)


@dataclass
class Session:
    """A run that answers, one input at a time; `folder` is where inputs are written to be read."""

    run: Path
    pair: NetworkPair
    prices: Profile = field(default_factory=profile)
    folder: str | None = None
    lock: Lock = field(default_factory=Lock)

    @property
    def scale(self) -> float | None:
        """Return the run's λ, or None for neurons without one."""
        return scale_if_any(self.pair.snn)

    def samples(self) -> Items | None:
        """Return a few of the run's calibration inputs, if they still exist."""
        try:
            return runs.choose(self.pair.data["source"], SAMPLES, self.pair.loaded.task)
        except OnespikeError:
            return None

    def dropped(self, contents: bytes, suffix: str, scale: float | None = None) -> dict[str, Any]:
        """Return the answer for the contents of a file."""
        if SUFFIX.fullmatch(suffix) is None:
            raise UsageError(f"{suffix!r} is not the end of a file's name. Drop an image, such as a .png.")
        with TemporaryDirectory(dir=self.folder) as folder:
            (Path(folder) / f"input{suffix}").write_bytes(contents)
            try:
                task = self.pair.loaded.task  # a task may read typed text differently from a source
                read = getattr(task, "typed", task.inputs)
                return self.answer(read(folder), 0, scale)
            except OnespikeError as error:  # the user who dropped the file does not know this folder
                raise UsageError(str(error).replace(f"{folder}/", "").replace(folder, "the input")) from error

    def answer(self, items: Items, index: int, scale: float | None = None) -> dict[str, Any]:
        """Run both networks on one of these inputs, with another λ if given."""
        if not 0 <= index < len(items):
            raise UsageError(f"there are {len(items)} inputs, and none with the number {index}.")
        task, loaded = self.pair.loaded.task, self.pair.loaded
        one = dataclasses.replace(items, items=(items[index],))
        ann, snn = self.pair.ann, self.pair.snn
        ledger = Watched()
        with self.lock, at_scale(snn, scale), metered(snn, ledger):
            [(_, _, (expected, actual))] = pairwise((ann, snn), loaded.batches(one, 1))
            example = task.example(one[0], expected, actual, one)
            return {
                "scale": self.scale,
                "answer": {key: example[key] for key in ("label", "pictures", "agree", "text")},
                **spent(ledger, self.pair.recipe.energy, self.prices),
            }


def spent(ledger: Watched, column: str, prices: Profile) -> dict[str, Any]:
    """Return the cost of one input: per site in execution order, and the costs besides spikes."""
    reading, total = reading_of(column).name, ledger.accumulates(column) or 1.0
    parts = ledger.parts(column, prices)
    of_spikes = parts.pop("spikes", 0.0)
    sites = []
    for row in ledger.table():
        if row["site"] in ledger.pictures:
            small = ledger.pictures[row["site"]].cpu().numpy()
            share = of_spikes * row[reading] / total if row["drives"] else 0.0
            facts = {"site": row["site"], "block": block_of(row["site"]), "spikes": row["spikes per neuron"]}
            pixels = base64.b64encode(small.tobytes()).decode()
            image = {"width": small.shape[1], "height": len(small), "bytes": pixels}
            sites.append({**facts, "share": share, "picture": image})
    return {
        "sites": sites,
        "column": column,
        "ratio": or_none(ledger.ratio(column, prices=prices)),
        "others": parts,
        "original_pj": ledger.original_pj(prices),
        "profile": prices.name,
    }


class BusyError(UsageError):
    """More inputs at once than there is room for."""


class LiveServer(ThreadingHTTPServer):
    """Serves one session.

    Requests must name this machine (or the served address) as their host, and only the page itself gets answers,
    so that no other page open in a browser can ask.
    """

    daemon_threads = True

    def __init__(self, session: Session, host: str = "127.0.0.1", port: int = 0) -> None:
        self.room = Semaphore(AT_ONCE)
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            raise UsageError(f"{host}:{port}: {error.strerror or error}. Choose another port.") from error
        self.session, self.samples = session, session.samples()
        self.names = {*HERE, host} if host not in ("0.0.0.0", "::") else None  # noqa: S104 - asked for
        self.page = live(session, 0 if self.samples is None else len(self.samples)).encode()

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Hold room for an input: requests beyond are refused before their bytes are read."""
        room = self.room
        if not room.acquire(blocking=False):
            raise BusyError(f"{AT_ONCE} inputs are on their way. Try again later.")
        try:
            yield
        finally:
            room.release()

    def server_close(self) -> None:
        self.room = Semaphore(0)  # connections that are still open get no further answer
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
        with self.server.admitted():
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

"""The live page: what the server answers, to whom, and the page in a real browser."""

from __future__ import annotations

import base64
import http.client
import io
import json
import resource
import socket
import struct
import threading
import time
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import torch
from PIL import Image

from onespike import runs
from onespike.adapters import load_model
from onespike.errors import OnespikeError
from onespike.recipe import preset
from onespike.reports.live import LARGEST, LiveServer, Session


@pytest.fixture(scope="module")
def session() -> Session:
    items = runs.choose("bundled:cifar10-calibration", 8)
    pair = runs.convert_network(load_model("bundled:cifar10-vit"), items, preset("sformer"))
    return Session(Path("run"), pair)


@contextmanager
def serving(session):
    with LiveServer(session) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        try:
            yield made
        finally:
            made.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def server(session):
    with serving(session) as made:
        yield made


@pytest.fixture(scope="module")
def png() -> bytes:
    torch.manual_seed(0)
    file = io.BytesIO()
    Image.fromarray((torch.rand(40, 30, 3) * 255).byte().numpy()).save(file, "PNG")
    return file.getvalue()


def ask(server, query: str, body: bytes = b"", **headers: str):
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=60)
    connection.request("POST", f"/answer?{query}", body, {"X-Onespike": "live", **headers})
    with closing(connection):
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())


def test_an_answer_is_that_of_the_run(session, png, tmp_path):
    reply = session.dropped(png, ".png")
    (tmp_path / "a.png").write_bytes(png)
    items = runs.choose(str(tmp_path), None)
    result = runs.evaluate_pair(session.pair, items)
    assert reply["ratio"] == pytest.approx(result.ledger.ratio("counts"), rel=1e-9)
    assert sum(site["share"] for site in reply["sites"]) == pytest.approx(reply["ratio"], rel=1e-6)
    assert reply["original_pj"] == pytest.approx(4.6 * result.ledger.macs)
    assert [line[:3] for line in reply["answer"]["text"]] == ["ANN", "SNN"]
    assert len(reply["sites"]) == 51
    for site in reply["sites"]:
        shape = site["picture"]["width"], site["picture"]["height"]
        assert len(base64.b64decode(site["picture"]["bytes"])) == shape[0] * shape[1] and max(shape) <= 24


def test_another_scale_for_one_answer_only(session):
    items = session.samples()
    plain = session.answer(items, 0)
    finer = session.answer(items, 0, scale=0.1)
    assert finer["scale"] == pytest.approx(0.1) and finer["ratio"] > 1.5 * plain["ratio"]
    assert session.answer(items, 0) == plain
    with pytest.raises(OnespikeError, match="scale must be in"):
        session.answer(items, 0, scale=3.0)
    assert session.scale == pytest.approx(0.25)


def test_it_answers_its_own_page_only(server, png):
    status, reply = ask(server, "suffix=.png", png)
    assert status == 200 and reply["ratio"] > 0
    for headers in ({"Host": "elsewhere.example"}, {"X-Onespike": "no"}):
        status, reply = ask(server, "suffix=.png", png, **headers)
        assert (status, reply["error"]) == (403, "this address is not served. Use the one that was printed.")


BAD = {
    "no image": ("suffix=.png", b"no image", "input.png"),
    "a foreign suffix": ("suffix=.exe", b"x", "no images in it"),
    "a path": ("suffix=/../x.png", b"x", "is not the end of a file's name"),
    "a scale beyond": ("sample=0&scale=7", b"", "scale must be in (0, 1]"),
    "no number": ("sample=x", b"", "invalid literal"),
    "no such sample": ("sample=99", b"", "none with the number 99"),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD)
def test_bad_input_is_one_message(server, case):
    query, body, words = case
    status, reply = ask(server, query, body)
    assert status == 400 and words in reply["error"] and "/tmp" not in reply["error"]


def test_too_much_is_not_read(server):
    status, reply = ask(server, "suffix=.png", b"", **{"Content-Length": str(LARGEST + 1)})
    assert status == 400 and "at most 64 MB" in reply["error"]


def test_bytes_on_their_way_are_bounded(server, png):
    """Twelve uploads of 63 MB that stop before their end: four have room, and the others are refused at once."""
    size, replies, open_connections = 63 * 2**20, [], []
    part = bytes(size - 1)
    before = resident()
    for _ in range(12):
        connection = socket.create_connection(server.server_address[:2], timeout=2)
        open_connections.append(connection)
        length = f"Content-Length: {size}\r\n\r\n".encode()
        connection.sendall(b"POST /answer?suffix=.png HTTP/1.1\r\n" + LIVE + length)
        try:
            replies.append(b"".join(iter(lambda: connection.recv(1 << 16), b"")))  # noqa: B023
        except TimeoutError:  # it has room
            connection.settimeout(60)
            connection.sendall(part)
    refused = b'{"error": "4 inputs are on their way. Try again later."}'
    assert len(replies) == 8 and all(b" 503 " in reply and reply.endswith(refused) for reply in replies)
    assert resident() - before < 5 * size
    for connection in open_connections:
        connection.close()
    while ask(server, "suffix=.png", png)[0] != 200:
        time.sleep(0.01)


def resident() -> int:
    """The bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


LIVE = b"Host: localhost\r\nX-Onespike: live\r\n"
RAW = {
    "a broken host": (b"GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", b"403"),
    "a broken path": (b"GET //[ HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404"),
    "a broken question": (b"POST //[ HTTP/1.1\r\n" + LIVE + b"\r\n", b"400"),
    "a length that is none": (b"POST /answer HTTP/1.1\r\n" + LIVE + b"Content-Length: x\r\n\r\n", b"400"),
    "too short": (b"POST /answer?suffix=.png HTTP/1.1\r\n" + LIVE + b"Content-Length: 99\r\n\r\nx", b"400"),
    "no HTTP": (b"\x16\x03\x01\x02\x00\r\n\r\n", b"400"),
}


def _join_requests() -> None:
    for thread in threading.enumerate():
        if "process_request_thread" in thread.name:
            while not thread.is_alive() and thread.ident is None:  # listed before it has started
                time.sleep(0.01)
            time.sleep(0.01)
            thread.join(60)


@pytest.mark.parametrize("case", RAW.values(), ids=RAW)
def test_broken_requests_are_refused_without_a_word_on_the_terminal(server, case, capfd):
    request, status = case
    with socket.create_connection(server.server_address[:2], timeout=60) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile("rb") as reply:
            assert status in reply.read()
    _join_requests()
    assert capfd.readouterr().err == ""


def test_a_page_that_is_closed_while_networks_run(server, session, png, capfd):
    """The answer finds nobody: that is no error of the server."""
    with session.lock, socket.create_connection(server.server_address[:2]) as connection:
        length = f"Content-Length: {len(png)}\r\n\r\n".encode()
        connection.sendall(b"POST /answer?suffix=.png HTTP/1.1\r\n" + LIVE + length + png)
        reset = struct.pack("ii", 1, 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
    _join_requests()
    assert capfd.readouterr().err == ""


def test_a_place_that_is_taken(server, session):
    with pytest.raises(OnespikeError, match="Choose another port"):
        LiveServer(session, port=server.server_address[1])


def until(browser, condition) -> None:
    from selenium.webdriver.support.wait import WebDriverWait

    WebDriverWait(browser, 60).until(lambda _: condition())


def test_the_page_in_a_browser(browser, screen, server, png, tmp_path):
    browser.get_log("browser"), browser.get_log("performance")
    browser.get(server.url)

    def text(name: str) -> str:
        return browser.find_element("id", name).text

    def done(count: int) -> None:
        until(browser, lambda: text("count").startswith(f"{count} input"))
        until(browser, lambda: text("status").startswith("Done"))
        until(browser, lambda: float(text("ratio")) == round(float(text("ratio")), 3) > 0)

    (tmp_path / "photo.png").write_bytes(png)
    browser.find_element("id", "file").send_keys(str(tmp_path / "photo.png"))
    done(1)
    assert "ANN " in text("words") and "SNN " in text("words")
    drawn = "return [...document.querySelectorAll('#spikes canvas')].filter(c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v < 200)).length"
    assert browser.execute_script(drawn) > 40
    browser.find_element("css selector", "[data-sample='2']").click()
    done(2)
    until(browser, lambda: browser.execute_script("return drawing") > 0)
    before = text("saved")
    browser.execute_script(
        "const s = document.getElementById('scale'); s.value = -60; s.dispatchEvent(new Event('input'))"
    )
    done(3)
    assert float(text("scale-shown")) == pytest.approx(0.25 * 4**-0.6, rel=0.01)
    assert text("saved") != before
    assert screen(390) <= 390 and screen(1280) <= 1280
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert asked and all(url.startswith((server.url, "data:")) for url in asked)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:FutureWarning")
def test_a_text_that_somebody_types(tmp_path, browser):
    """A network that reads: a text shorter than a window, answered in the browser."""
    pytest.importorskip("transformers")
    from language_folders import llama, text

    loaded = load_model(f"transformers:{llama(tmp_path / 'llama')}", pretrained=True).with_length(16)
    items = runs.choose(str(text(tmp_path / "story.txt", 0, 63)), None, loaded.task)
    session = Session(Path("run"), runs.convert_network(loaded, items, preset("sformer"), batch_size=4))
    reply = session.dropped(b"once upon the time there was", ".txt")
    assert "of 7 next tokens are the same" in reply["answer"]["text"][0] and reply["ratio"] > 0
    assert reply["answer"]["label"].startswith("“<s>")  # nothing stands before it
    with pytest.raises(OnespikeError):
        session.dropped(b"", ".txt")
    with serving(session) as made:
        browser.get(made.url)
        browser.find_element("id", "text").send_keys("the cat sat on the mat")
        browser.find_element("id", "send").click()
        status = browser.find_element("id", "status")
        until(browser, lambda: status.text.startswith("Done"))
        assert "next tokens are the same" in browser.find_element("id", "words").text

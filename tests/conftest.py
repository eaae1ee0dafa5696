"""What all tests share: one thread (or OMP_NUM_THREADS), no network, and the larger files where they are present."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

# Before any hub client is imported: a test that reaches for the network must fail, not wait.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait leave the core to the others
# torch takes compiled code from its cache without asking for which instructions it was made: one cache for each.
os.environ.setdefault(
    "TORCHINDUCTOR_CACHE_DIR",
    f"{Path(__file__).resolve().parents[1]}/.pytest_cache/inductor-{os.environ.get('ATEN_CPU_CAPABILITY', 'own')}",
)

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
settings.register_profile("onespike", deadline=None)  # no test fails by the clock
settings.load_profile("onespike")


@pytest.fixture(scope="session")
def assets() -> Path:
    """Trained networks and real images that are too large for the repository."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "assets"
    folder = Path(os.environ.get("ONESPIKE_ASSETS", beside))
    if not folder.is_dir():
        pytest.skip("the larger test files are absent: name their folder in ONESPIKE_ASSETS")
    return folder


@pytest.fixture(scope="session")
def browser():
    """A real browser without a window, for pages; it keeps what it has asked for and said."""
    chromium, driver_path = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver_path):
        pytest.skip("no browser here: apt-get install chromium chromium-driver")
    webdriver = pytest.importorskip("selenium.webdriver", reason="the browser test needs selenium")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(driver_path))
    yield driver
    driver.quit()


@pytest.fixture
def screen(browser):
    """Give the browser a screen of some width, and return the width that the page needs there."""

    def needed(width: int) -> int:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        return browser.execute_script("return document.documentElement.scrollWidth")

    yield needed
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

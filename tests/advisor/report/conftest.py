"""A real browser for pages, and the pages that its tests look at, made once a session."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from advisor.cli import advisor

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# A name that is text everywhere, or the page is broken into.
HOSTILE = (
    """</script><script>hacked=1</script><img src=x onerror="hacked=2">'`${hacked=3}`&lt;\u2028é漢"""
    "<!--<script>"
)


class Browser:
    """Chromium with a page open: sizes, themes, and everything that the page complained about or asked for."""

    LAPTOP, PHONE = (1366, 900), (390, 844)

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def view(self, size: tuple[int, int] = LAPTOP, dark: bool = False) -> None:
        """Width and height of the screen in pixels, and the theme that the system asks for."""
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def open(self, path: Path, size: tuple[int, int] = LAPTOP, dark: bool = False) -> None:
        """Open a file from disk; what was complained about before is forgotten."""
        self.view(size, dark)
        self.complaints()
        self.driver.get(path.as_uri())

    def run(self, script: str, *arguments: Any) -> Any:
        """What a piece of JavaScript returns."""
        return self.driver.execute_script(script, *arguments)

    def wait(self, script: str, seconds: float = 30.0) -> Any:
        """What a piece of JavaScript returns once that is true."""
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.driver, seconds).until(lambda driver: driver.execute_script(script))

    def draw(self) -> None:
        """Draw every chart now instead of when it comes into view."""
        self.driver.execute_async_script("advisorPage.draw().then(arguments[0])")

    def complaints(self) -> list[str]:
        """Errors and warnings of the console since last asked, refused requests among them."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Addresses that the page asked for beside itself."""
        script = "return performance.getEntriesByType('resource').map(entry => entry.name)"
        return [str(name) for name in self.run(script)]


@dataclass(frozen=True)
class Made:
    """A page and what `--json` said with it."""

    path: Path
    said: dict[str, Any]

    @cached_property
    def html(self) -> str:
        """The file's text."""
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def data(self) -> dict[str, Any]:
        """The numbers that the page holds."""
        found = re.search(r'<script type="application/json" id="data">(.*?)</script>', self.html, re.DOTALL)
        assert found is not None
        return json.loads(found[1])  # type: ignore[no-any-return]


def advise(*arguments: str, code: int = 0) -> str:
    """What a command of advisor prints."""
    done = CliRunner().invoke(advisor, list(arguments), catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """`explain --html` of 405B on 512 GPUs; the pins keep its search short."""
    path = tmp_path_factory.mktemp("large") / "plan.html"
    asked = ["--model", "405b", "--gpus", "512", "--gpu", "h100", "--precision", "bf16"]
    said = advise("explain", *asked, "--pin", "tp=8", "--pin", "cp=1", "--html", str(path), "--json")
    return Made(path, json.loads(said))


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """`report` of a plan whose model and folder have names made to break out of a page, with the record of a run."""
    folder = tmp_path_factory.mktemp("hostile") / "<b onmouseover=hacked(4)>\"'`${5}é"
    folder.mkdir()
    known = resources.files("costmodel").joinpath("models", "llama3-8b.toml").read_text(encoding="utf-8")
    model, plan = folder / "model.toml", folder / "plan.toml"
    model.write_text(known.replace('name = "llama3-8b"', f"name = {json.dumps(HOSTILE)}"), encoding="utf-8")
    asked = [
        "--model",
        str(model),
        "--gpus",
        "8",
        "--gpu",
        "h100",
        "--tp",
        "2",
        "--pp",
        "2",
        "--sequence-parallel",
    ]
    said = json.loads(advise("predict", *asked, "--global-batch", "32", "--save", str(plan), "--json"))
    run = folder / "run <i>"
    run.mkdir()
    (run / "prediction.json").write_text(json.dumps(said))
    phases = {"forward": 0.3, "backward": 0.6, "communication": 0.1, "optimizer": 0.05}
    steps = [
        {"step": number, "seconds": second, "warmup": second > 2, "loss": 1.0, "phases": phases}
        for number, second in enumerate((3.0, 1.1, 1.2))
    ]
    (run / "steps.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    path = folder / "plan.html"
    told = json.loads(advise("report", str(plan), "--record", str(run), "-o", str(path), "--json"))
    assert told["file"] == str(path)
    assert told["bytes"] == path.stat().st_size
    return Made(path, said)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Debian's Chromium without a window."""
    chromium, driver_path = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver_path is None:
        missing = "Chromium and its driver are not here (apt-get install chromium chromium-driver)"
        if os.environ.get("CI") and os.geteuid() == 0 and shutil.which("apt-get"):
            pytest.fail(f"{missing}, and this machine could install them: scripts/environment.sh dev")
        pytest.skip(missing)
    webdriver = pytest.importorskip("selenium.webdriver", reason="pip install 'advisor[test]'")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(driver_path)
    driver = webdriver.Chrome(options=options, service=service)
    driver.set_script_timeout(60)
    try:
        yield Browser(driver)
    finally:
        driver.quit()

"""The page in headless Chromium: a picture goes in, boxes come out, the controls work."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.serving import CLASSES, jpeg, served, small_model
from yolo.deploy import load_detector
from yolo.serve.app import LOOPBACK, create_app

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Any]:
    """The page of a service with a small model, loaded."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright (Apache-2.0) is not installed")
    browser = next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    app = create_app(load_detector(small_model(tmp_path / "small.ckpt"), device="cpu"), hosts=LOOPBACK)
    with served(app) as port, sync_api.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        try:
            one = chromium.new_page(viewport={"width": 1300, "height": 1000})
            one.set_default_timeout(60_000)
            one.goto(f"http://127.0.0.1:{port}/")
            one.wait_for_selector("#classes input")
            yield one
        finally:
            chromium.close()


def test_a_picture_goes_in_and_boxes_come_out(page: Any, tmp_path: Path) -> None:
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda one: errors.append(one.text) if one.type == "error" else None)
    assert page.locator("#classes label").all_inner_texts() == CLASSES
    page.evaluate("document.querySelector('#score').min = 0")  # the small model is never sure of anything
    page.evaluate("document.querySelector('#score').value = 0")
    page.route(
        "**/v1/detect**", lambda route: route.continue_(url=route.request.url.replace("0.01", "0.0005"))
    )
    page.set_input_files("#file", {"name": "scene.jpg", "mimeType": "image/jpeg", "buffer": jpeg()[0]})
    page.wait_for_selector("#canvas:not([hidden])")
    found = page.locator("#found tr").count()
    assert page.inner_text("#foundTitle") == f"Found: {found}"
    assert found > 5
    assert {"decode", "preprocess", "queue", "network", "suppression", "total"} <= set(
        page.locator("#times td:first-child").all_inner_texts()
    )

    page.locator("#nms").fill("0.05")  # asks again
    page.locator("#nms").dispatch_event("change")
    for _ in range(400):  # the page's policy forbids the waiting functions that evaluate code in it
        if page.locator("#found tr").count() < found:
            break
        page.wait_for_timeout(50)
    fewer = page.locator("#found tr").count()
    page.locator("#classes input").nth(0).uncheck()
    names = page.locator("#found td:first-child").all_inner_texts()
    assert CLASSES[0] not in names
    assert len(names) < fewer

    with page.expect_download() as download:
        page.click("#save")
    content = json.loads(Path(download.value.path()).read_text())
    assert (content["name"], content["width"], len(content["detections"])) == ("scene.jpg", 160, len(names))
    assert download.value.suggested_filename == "scene.json"
    page.locator("#score").fill("0.5")
    assert page.inner_text("#foundTitle") == "Found: 0"
    assert errors == []
    page.screenshot(path=tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 10_000


def test_a_file_that_is_no_picture_is_refused_in_words(page: Any) -> None:
    page.set_input_files("#file", {"name": "x.jpg", "mimeType": "image/jpeg", "buffer": b"nothing"})
    page.wait_for_selector("#error:not([hidden])")
    assert "not a picture" in page.inner_text("#error")

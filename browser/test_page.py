"""The page in a real browser: ``make browser`` (needs Chromium; Debian: apt install chromium).

Screenshots of each step are in ``outputs/browser``, to be looked at.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

PICTURES = Path("outputs/browser")
PATIENCE = 90_000  # milliseconds for an action on a slow machine
THREE = [(95, 60), (140, 40), (180, 70), (145, 135), (185, 190), (140, 245), (90, 215)]


@pytest.fixture(scope="module")
def page(address: str) -> Iterator[Page]:
    """A window with the page in it; whatever is not of this machine is out of reach."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    browser_path = shutil.which("chromium") or shutil.which("chromium-browser")
    assert browser_path, "no Chromium: apt install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        window = browser.new_page(viewport={"width": 1200, "height": 1250})
        away = re.compile(r"^https?://(?!127\.0\.0\.1)")
        window.route(away, lambda route: route.abort())
        window.goto(address)
        window.wait_for_selector("#canvas canvas", timeout=PATIENCE)
        window.wait_for_timeout(2000)  # until the pen is taken
        yield window
        browser.close()


def draw(page: Page, points: list[tuple[int, int]]) -> None:
    """A stroke on the canvas, with the mouse."""
    canvas = page.locator("#canvas canvas").first
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    across, down = box["width"] / 280.0, box["height"] / 280.0
    page.mouse.move(box["x"] + points[0][0] * across, box["y"] + points[0][1] * down)
    page.mouse.down()
    for x, y in points[1:]:
        page.mouse.move(box["x"] + x * across, box["y"] + y * down, steps=12)
    page.mouse.up()


def give(page: Page, file: Path) -> None:
    """A file to the page, as if chosen in the window that opens."""
    with page.expect_file_chooser() as chooser:
        page.click("#file")
    chooser.value.set_files(file)


def test_draw_click_and_read_the_prediction(page: Page) -> None:
    draw(page, THREE)
    page.screenshot(path=PICTURES / "drawn.png")
    page.click("#recognise")
    words = page.locator("#words textarea")
    expect(words).to_have_value(re.compile(r"log p\(x\) = -?\d"), timeout=PATIENCE)
    expect(page.locator("#classes h2")).to_have_text("3")
    expect(page.locator("#blocks")).to_contain_text(re.compile(r"\d"))
    expect(page.locator("#others img")).to_be_visible(timeout=PATIENCE)
    page.screenshot(path=PICTURES / "recognised.png", full_page=True)


def test_samples_of_a_class(page: Page) -> None:
    page.get_by_role("tab", name="Samples").click()
    page.click("#make")
    expect(page.locator("#samples img")).to_be_visible(timeout=PATIENCE)
    page.screenshot(path=PICTURES / "samples.png")


def test_a_walk(page: Page) -> None:
    page.get_by_role("tab", name="Walk").click()
    page.click("#walk")
    expect(page.locator("#path img")).to_be_visible(timeout=PATIENCE)
    page.screenshot(path=PICTURES / "walk.png")


def test_a_bad_upload_gets_a_message_and_a_good_one_an_answer(page: Page, tmp_path: Path) -> None:
    page.get_by_role("tab", name="Draw").click()
    wrong, good = tmp_path / "not-an-image.png", tmp_path / "one.png"
    wrong.write_bytes(b"hello")
    stroke = Image.new("L", (8, 8))
    stroke.paste(255, (3, 0, 5, 8))
    stroke.save(good)
    for time in ("first", "second"):  # a file may be given again
        give(page, wrong)
        expect(page.locator("#said")).to_contain_text("This file is no image", timeout=PATIENCE)
        expect(page.get_by_text("Error")).to_have_count(0)
        page.screenshot(path=PICTURES / f"refused-{time}.png", full_page=True)

        give(page, good)
        expect(page.locator("#classes h2")).to_have_text("1", timeout=PATIENCE)
        expect(page.locator("#said")).to_have_text("")
        page.screenshot(path=PICTURES / f"file-{time}.png", full_page=True)

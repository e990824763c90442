"""What the page does, without a browser; browser/ has the page itself."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from infocnf.app.actions import DemoSession, arc
from infocnf.data.inputs import read_inputs
from infocnf.errors import InputError
from infocnf.runs import Run
from infocnf.training import begin
from tests.runs.tiny import tiny


@pytest.fixture(scope="module")
def player(tmp_path_factory: pytest.TempPathFactory) -> DemoSession:
    run = begin(tiny(), tmp_path_factory.mktemp("runs") / "run")
    return DemoSession(run, tolerance=1e-2)


def is_png(content: bytes | None) -> bool:
    return content is not None and Image.open(io.BytesIO(content)).format == "PNG"


def test_a_drawing_is_cut_out_centred_and_as_bright_as_the_data(player: DemoSession) -> None:
    strokes = np.zeros((280, 280, 4), dtype=np.uint8)
    strokes[200:260, 20:40, 3] = 200  # a bar in a corner
    image = player.from_drawing(strokes)
    assert image.shape == (1, 1, 8, 8) and image.max() == 16 and image.min() == 0
    columns = image[0, 0].double().sum(0)
    middle = float((columns * torch.arange(8)).sum() / columns.sum())
    assert middle == pytest.approx(3.5, abs=0.3)
    with pytest.raises(InputError, match="nothing drawn yet"):
        player.from_drawing(np.zeros_like(strokes))


def test_files_that_are_no_images_or_too_large_are_refused(player: DemoSession) -> None:
    for content in (b"", b"GIF89a", b"<svg/>", b"\x89PNG\r\n\x1a\n" + b"0" * 100):
        with pytest.raises(InputError, match="no image"):
            player.from_upload(content)
    buffer = io.BytesIO()
    Image.new("1", (5000, 5000)).save(buffer, "PNG")
    with pytest.raises(InputError, match="5000x5000 pixels"):
        player.from_upload(buffer.getvalue())
    buffer = io.BytesIO()
    Image.new("RGBA", (30, 20), (255, 0, 0, 255)).save(buffer, "PNG")
    assert player.from_upload(buffer.getvalue()).shape == (1, 1, 8, 8)


@pytest.mark.parametrize("mode", ["L", "LA", "I;16"])
def test_an_upload_is_read_as_predict_reads_it(
    player: DemoSession, mode: str, tmp_path: Path
) -> None:
    grey = np.arange(64).reshape(8, 8)  # dark: at most 63 of 255
    if mode == "LA":
        alpha = np.where(np.arange(8) < 4, 255, 0) + np.zeros((8, 8))
        image = Image.fromarray(np.stack([grey, alpha], 2).astype(np.uint8), "LA")
    else:
        image = Image.fromarray(
            (grey * 257).astype(np.uint16) if mode == "I;16" else grey.astype(np.uint8)
        )
    image.save(tmp_path / "image.png")
    _, expected = read_inputs(tmp_path / "image.png", player.run.facts)
    found = player.from_upload((tmp_path / "image.png").read_bytes())
    np.testing.assert_array_equal(found, expected)
    assert (expected[0, 0, :, 4:] == 16).all() if mode == "LA" else expected.max() <= 4


def test_an_answer_is_that_of_the_model(player: DemoSession) -> None:
    image = player.run.data().examples("test")[0][:1].long()
    answer = player.recognise(image)
    prepared = player.preparation(image, player.model.dtype)
    found = player.model.predict_proba(prepared, tolerance=1e-2)
    assert isinstance(found, torch.Tensor)
    np.testing.assert_allclose(list(answer.probabilities.values()), found[0].detach(), atol=1e-6)
    likelihood, error = player.model.log_prob(prepared, tolerance=1e-2, error=True)
    bound = float(error.total)
    assert answer.words.startswith("log p(x) = ") and answer.picture is None
    assert answer.words.endswith(f" ± {bound:.1g} nats")
    assert float(answer.words.split()[3]) == pytest.approx(float(likelihood), abs=bound)
    assert len(answer.blocks) == len(player.model.blocks) and is_png(answer.seen)


def test_pictures(player: DemoSession) -> None:
    assert is_png(player.samples("3", 0.7, 0, count=4)) and is_png(player.samples("all", 0.7, 0))
    assert player.samples("3", 0.7, 0, count=4) == player.samples("3", 0.7, 0, count=4)
    assert is_png(player.walk("3", 1, 2, steps=3))
    assert is_png(player.counterfactuals(player.run.data().examples("test")[0][:1]))
    with pytest.raises(InputError, match="temperature"):
        player.samples("3", -1.0, 0)


def test_a_walk_begins_and_ends_where_it_should() -> None:
    one, two = torch.randn(1, 9, dtype=torch.float64), torch.randn(1, 9, dtype=torch.float64)
    torch.testing.assert_close(arc(one, two, torch.tensor(0.0)), one)
    torch.testing.assert_close(arc(one, two, torch.tensor(1.0)), two)
    norms = [
        float(arc(one / one.norm(), two / two.norm(), torch.tensor(s)).norm()) for s in (0.3, 0.5)
    ]
    np.testing.assert_allclose(norms, 1.0)


def test_a_model_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(
        "a,b,label\n" + "".join(f"{i},{i % 5},{i % 2}\n" for i in range(120))
    )
    given = [
        "data.name=own",
        f"data.path='{tmp_path / 'x.csv'}'",
        "data.limit=none",
        "data.test=20",
    ]
    run = begin(tiny(*given, "model.architecture=auto"), tmp_path / "run")
    with pytest.raises(InputError, match="no model of images"):
        DemoSession(Run.open(run.folder))

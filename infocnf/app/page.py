"""The page itself: Gradio's parts around the actions, nothing else."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np
from PIL import Image

from infocnf.app.actions import DemoSession, Reading
from infocnf.errors import InputError
from infocnf.ode import SolveError

__all__ = ["build", "serve"]

LARGEST_FILE = "5mb"
CANVAS = 280
EVERY = "all classes"
# the pen is in the hand as soon as there is one
PEN = """() => {
  const take = () => {
    const pen = document.querySelector('#canvas button[aria-label="Brush"]');
    pen ? pen.click() : setTimeout(take, 200);
  };
  take();
}"""


def told(action: Callable[..., tuple[Any, ...]], parts: int) -> Callable[..., tuple[Any, ...]]:
    """What an action shows in so many parts of the page, after a message that is empty; or what is
    wrong with its input as the message, and nothing in the parts.
    """

    @wraps(action)
    def safe(*arguments: Any) -> tuple[Any, ...]:  # noqa: ANN401
        try:
            return "", *action(*arguments)
        except (InputError, SolveError, ValueError) as error:
            words = str(error)
            return f"**{words[:1].upper()}{words[1:]}.**", *[None] * parts

    return safe


def picture(content: bytes | None) -> Image.Image | None:
    """A PNG as Gradio shows it."""
    return None if content is None else Image.open(io.BytesIO(content))


def strokes_of(drawing: Any) -> np.ndarray:  # noqa: ANN401
    """The layers of a drawing as one."""
    layers = (drawing or {}).get("layers") or []
    if not layers:
        raise InputError("there is nothing drawn yet: draw first")
    return np.max([np.asarray(layer) for layer in layers], axis=0)


def shown(reading: Reading) -> tuple[Any, ...]:
    """A reading in the order of the page's parts."""
    return (
        reading.probabilities,
        reading.words,
        picture(reading.seen),
        picture(reading.picture),
        reading.blocks,
    )


def build(session: DemoSession) -> gr.Blocks:
    """The page of a model."""

    def read_drawing(drawing: Any) -> tuple[Any, ...]:  # noqa: ANN401
        image = session.from_drawing(strokes_of(drawing))
        return *shown(session.recognise(image)), picture(change(image))

    def read_file(path: str | None) -> tuple[Any, ...]:
        if path is None:
            raise InputError("choose a file first")
        image = session.from_upload(Path(path).read_bytes())
        return *shown(session.recognise(image)), picture(change(image))

    def change(image: Any) -> bytes | None:  # noqa: ANN401
        return session.counterfactuals(image) if session.label else None

    def draw(label: str, temperature: float, seed: float | None) -> tuple[Any, ...]:
        return (picture(session.samples(label, temperature, int(seed or 0))),)

    def walk(label: str, first: float | None, second: float | None) -> tuple[Any, ...]:
        return (picture(session.walk(label, int(first or 0), int(second or 0))),)

    def on(button: gr.Button, action: Callable[..., Any], given: list[Any], *parts: Any) -> None:  # noqa: ANN401
        button.click(told(action, len(parts) - 1), given, list(parts))

    _, height, width = session.model.shape
    with gr.Blocks(title="infocnf", analytics_enabled=False) as page:
        gr.Markdown(
            f"# infocnf\nA model of {width}x{height} images, {session.run.folder.name}. "
            "Everything is computed on this machine."
        )
        with gr.Tab("Draw"):
            with gr.Row():
                with gr.Column():
                    canvas = gr.Sketchpad(
                        label="draw",
                        type="numpy",
                        canvas_size=(CANVAS, CANVAS),
                        brush=gr.Brush(default_size=20, colors=["#000000"], color_mode="fixed"),
                        layers=False,
                        placeholder="take the pen on the left, and draw",
                        elem_id="canvas",
                    )
                    go = gr.Button("Recognise", variant="primary", elem_id="recognise")
                    file = gr.File(label="or give an image file", type="filepath", elem_id="file")
                    read = gr.Button("Recognise the file", elem_id="recognise-file")
                with gr.Column():
                    said = gr.Markdown(elem_id="said")
                    classes = gr.Label(label="class", num_top_classes=5, elem_id="classes")
                    words = gr.Textbox(label="likelihood", elem_id="words")
                    among = gr.Image(show_label=False)
                    seen = gr.Image(label="what the model sees", height=140, elem_id="seen")
                    blocks = gr.Dataframe(
                        headers=["block", "evaluations", "tolerance"],
                        label="solver",
                        elem_id="blocks",
                    )
            gr.Markdown("The same with every label: z_u is kept.", visible=bool(session.label))
            others = gr.Image(show_label=False, elem_id="others", visible=bool(session.label))
        with gr.Tab("Samples"):
            label = gr.Dropdown([EVERY, *session.classes], value=EVERY, label="class")
            temperature = gr.Slider(0.0, 1.2, 0.8, step=0.05, label="temperature")
            seed = gr.Number(0, label="seed", precision=0)
            make = gr.Button("Draw samples", variant="primary", elem_id="make")
            why = gr.Markdown()
            drawn = gr.Image(show_label=False, elem_id="samples")
        with gr.Tab("Walk"):
            along = gr.Dropdown(session.classes or [EVERY], label="class", elem_id="along")
            first = gr.Number(1, label="from", precision=0)
            second = gr.Number(2, label="to", precision=0)
            step = gr.Button("Walk", variant="primary", elem_id="walk")
            gr.Markdown("One class, from one z_u to another.")
            stumbled = gr.Markdown()
            path = gr.Image(show_label=False, elem_id="path")

        page.load(None, js=PEN)
        parts = (said, classes, words, seen, among, blocks, others)
        on(go, read_drawing, [canvas], *parts)
        on(read, read_file, [file], *parts)
        on(make, draw, [label, temperature, seed], why, drawn)
        on(step, walk, [along, first, second], stumbled, path)
    return page


def serve(session: DemoSession, host: str, port: int) -> None:
    """Serve the page until Ctrl-C, at this port or the next that is free."""
    build(session).queue(max_size=16).launch(
        server_name=host,
        server_port=free_port(host, port),
        max_file_size=LARGEST_FILE,
        share=False,
        show_error=True,
        quiet=False,
    )


def free_port(host: str, port: int) -> int:
    """The first port from this one that nobody has."""
    import socket

    for candidate in range(port, min(port + 100, 65536)):
        with socket.socket() as probe:
            try:
                probe.bind((host, candidate))
                return candidate
            except OSError:
                continue
    raise InputError(f"no port from {port} on is free: choose another --port")

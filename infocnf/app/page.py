"""The page itself: Gradio's parts around the actions, nothing else."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import time
from base64 import b64encode
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np

from infocnf.app.actions import DemoSession, Reading
from infocnf.app.guard import Guard, Refusal, sweep
from infocnf.errors import InputError
from infocnf.ode import SolveError

__all__ = ["build", "serve"]

Action = Callable[..., tuple[Any, ...]]

LARGEST_FILE = "5mb"
LONGEST_QUEUE = 16
SESSIONS = 64  # windows whose last answer Gradio remembers, pictures and all
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


def told(action: Action, parts: int) -> Action:
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


def picture(content: bytes | None, style: str = "max-width: 100%") -> str | None:
    """A PNG inside the page: of an image as such, Gradio would leave a file."""
    if content is None:
        return None
    return f'<img alt="" style="{style}" src="data:image/png;base64,{b64encode(content).decode()}">'


def content_of(upload: dict[str, Any] | None) -> bytes:
    """The bytes of a file that was given to the page. Gradio has made sure that it is one."""
    try:
        return Path(upload["path"]).read_bytes() if upload else b""
    except FileNotFoundError:
        raise InputError("this file is gone: choose it again") from None


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
        picture(reading.seen, "height: 140px; margin: 1.5em auto 0"),
        picture(reading.picture),
        reading.blocks,
    )


def build(session: DemoSession) -> gr.Blocks:
    """The page of a model."""

    def read_drawing(drawing: Any) -> tuple[Any, ...]:  # noqa: ANN401
        image = session.from_drawing(strokes_of(drawing))
        return *shown(session.recognise(image)), picture(change(image))

    def read_file(upload: dict[str, Any] | None) -> tuple[Any, ...]:
        image = session.from_upload(content_of(upload))
        return *shown(session.recognise(image)), picture(change(image))

    def change(image: Any) -> bytes | None:  # noqa: ANN401
        return session.counterfactuals(image) if session.label else None

    def draw(label: str, temperature: float, seed: float | None) -> tuple[Any, ...]:
        return (picture(session.samples(label, temperature, int(seed or 0))),)

    def walk(label: str, first: float | None, second: float | None) -> tuple[Any, ...]:
        return (picture(session.walk(label, int(first or 0), int(second or 0))),)

    def on(event: Callable[..., Any], action: Action, given: list[Any], filled: list[Any]) -> None:
        # of a file that Gradio passes on by its name, it leaves another, empty one
        event(told(action, len(filled) - 1), given, filled, preprocess=action != read_file)

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
                    file = gr.UploadButton("Recognise an image file", elem_id="file")
                with gr.Column():
                    said = gr.Markdown(elem_id="said")
                    classes = gr.Label(label="class", num_top_classes=5, elem_id="classes")
                    words = gr.Textbox(label="likelihood", elem_id="words")
                    among = gr.HTML()
                    seen = gr.HTML(
                        label="what the model sees", show_label=True, container=True, elem_id="seen"
                    )
                    blocks = gr.Dataframe(
                        headers=["block", "evaluations", "tolerance"],
                        label="solver",
                        elem_id="blocks",
                    )
            gr.Markdown("The same with every label: z_u is kept.", visible=bool(session.label))
            others = gr.HTML(elem_id="others", visible=bool(session.label))
        with gr.Tab("Samples"):
            label = gr.Dropdown([EVERY, *session.classes], value=EVERY, label="class")
            temperature = gr.Slider(0.0, 1.2, 0.8, step=0.05, label="temperature")
            seed = gr.Number(0, label="seed", precision=0)
            make = gr.Button("Draw samples", variant="primary", elem_id="make")
            why = gr.Markdown()
            drawn = gr.HTML(elem_id="samples")
        with gr.Tab("Walk"):
            along = gr.Dropdown(session.classes or [EVERY], label="class", elem_id="along")
            first = gr.Number(1, label="from", precision=0)
            second = gr.Number(2, label="to", precision=0)
            step = gr.Button("Walk", variant="primary", elem_id="walk")
            gr.Markdown("One class, from one z_u to another.")
            stumbled = gr.Markdown()
            path = gr.HTML(elem_id="path")

        page.load(None, js=PEN)
        parts = [said, classes, words, seen, among, blocks, others]
        on(go.click, read_drawing, [canvas], parts)
        on(file.upload, read_file, [file], parts)
        on(make.click, draw, [label, temperature, seed], [why, drawn])
        on(step.click, walk, [along, first, second], [stumbled, path])
    return page


async def busy(*_: object) -> Refusal:
    """What those are told who find the queue full."""
    return Refusal(503, "The page is busy: try again in a moment.")


def serve(session: DemoSession, host: str, port: int) -> None:
    """Serve the page until Ctrl-C, at this port or the next that is free, and leave no files."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as tidy an end as Ctrl-C
    with tempfile.TemporaryDirectory(prefix="infocnf-") as name:
        os.environ["GRADIO_TEMP_DIR"] = tempfile.tempdir = name
        page = build(session)
        try:
            launch(page, host, free_port(host, port))
            while True:
                time.sleep(1.0)
                sweep(Path(name))
        except KeyboardInterrupt:
            page.close()


def launch(page: gr.Blocks, host: str, port: int) -> None:
    """Open the page to those who may use it."""
    page.queue(max_size=LONGEST_QUEUE, api_open=False).launch(
        server_name=f"[{host}]" if ":" in host else host,
        server_port=port,
        max_file_size=LARGEST_FILE,
        state_session_capacity=SESSIONS,
        app_kwargs={
            "middleware": [(Guard, (), {"host": host})],
            "exception_handlers": {503: busy},
        },
        enable_monitoring=False,
        share=False,
        show_error=True,
        prevent_thread_lock=True,
    )


def free_port(host: str, port: int) -> int:
    """The first port from this one that nobody has."""
    for candidate in range(port, min(port + 100, 65536)):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            try:
                probe.bind((host, candidate))
                return candidate
            except OSError:
                continue
    raise InputError(f"no port from {port} on is free: choose another --port")

"""The suite of benchmarks: that peers do the same work, that comparisons are at equal error, and
how many evaluations this package needs. Times are not tested.
"""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch

from benchmarks.peers import peers, stiff
from benchmarks.peers.contenders import density, gradients, iteration
from benchmarks.peers.curves import Outcome, Point, cells, cheapest, seconds_at, sweep, table
from benchmarks.peers.flows import FLOWS, prepare
from benchmarks.peers.measure import NOTES, allocated, publish_part
from benchmarks.peers.solver import SYSTEMS
from benchmarks.peers.suite import PARTS
from infocnf.cli.app import run as command
from infocnf.models import InfoCNF
from infocnf.ode import solve

pytestmark = pytest.mark.slow


def small_flow(size: int = 8, hidden: int = 8, strength: float = 2.0) -> torch.nn.Module:
    flow = InfoCNF((1, size, size), blocks=1, hidden=(hidden, hidden), trace="hutchinson").flow
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.mul_(strength)
    return flow


@pytest.mark.parametrize("name", [peers.FFJORD, "torchdiffeq, backprop"])
def test_a_peer_computes_the_same_density_and_gradient(name: str) -> None:
    flow, x = small_flow(), torch.rand(3, 1, 8, 8) * 0.9 + 0.05
    other = peers.with_peer(flow, name)
    ours, theirs = density(flow, x)(1e-9), density(other, x)(1e-9)
    torch.testing.assert_close(ours.values, theirs.values, rtol=1e-6, atol=1e-6)

    mine, found = iteration(flow, x, "checkpoint")(1e-9), iteration(other, x, "adjoint")(1e-9)
    torch.testing.assert_close(mine.values, found.values, rtol=1e-5, atol=1e-7)
    assert mine.forward > 0 and mine.backward > 0 and found.forward > 0


def test_all_ways_to_a_gradient_agree_and_account_for_their_evaluations() -> None:
    flow, x = small_flow(), torch.rand(2, 1, 8, 8) * 0.9 + 0.05
    said: list[str] = []
    found = {name: run(1e-8) for name, run in gradients(flow, x, said.append).items()}
    truth = found["infocnf, checkpoint"].values
    for name, outcome in found.items():
        # torchdiffeq interpolates its last step, and bosh3 is of low order
        assert (outcome.values - truth).norm() < 1e-4 * truth.norm(), name
        assert (outcome.backward == 0) == ("backprop" in name), name


def test_a_peer_that_is_not_installed_is_left_out_and_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers, "find_spec", lambda _: None)
    said: list[str] = []
    made = gradients(small_flow(), torch.rand(2, 1, 8, 8), said.append)
    assert all(name.startswith("infocnf") for name in made)
    assert any("zuko is not installed" in line and "infocnf[bench]" in line for line in said)


def curve(*points: tuple[float, float]) -> list[Point]:
    return [Point(1e-3, error, seconds, 10.0, 0.0) for error, seconds in points]


def test_times_are_compared_at_the_same_error() -> None:
    exact, rough = curve((1e-2, 1.0), (1e-4, 4.0)), curve((1e-1, 1.0), (1e-3, 8.0), (1e-5, 9.0))
    assert seconds_at(exact, 1e-3) == pytest.approx(2.0)  # half way between, by logarithms
    assert seconds_at(rough, 1e-3) == 8.0
    assert seconds_at(exact, 1e-1) == 1.0  # no tolerance looser than the loosest is made up
    assert seconds_at(exact, 1e-5) is None and cheapest(exact, 1e-5) is None
    ratios = cells({"ours": exact, "rough": rough, "poor": curve((1.0, 1.0))}, "ours", 1e-3)
    assert ratios["rough"] == pytest.approx(4.0) and ratios["poor"] is None
    assert "not reached" in table({"ours": exact, "poor": curve((1.0, 1.0))}, "ours", 1e-3, "error")


def test_a_contender_that_fails_is_out_and_the_others_go_on() -> None:
    def fails(tolerance: float) -> Outcome:
        if tolerance < 1e-3:
            raise RuntimeError("underflow in dt\nand more")
        return Outcome(torch.ones(1), 1.0)

    said: list[str] = []
    works = {"fails": fails, "works": lambda tolerance: Outcome(torch.full((1,), tolerance), 2.0)}
    curves = sweep(works, (1e-2, 1e-4), lambda values: float(values), 1, said.append)
    assert [len(curves[name]) for name in works] == [1, 2]
    assert any("fails failed at tolerance 0.0001: underflow in dt" in line for line in said)


def test_a_part_takes_its_place_in_the_page_and_notes_are_kept(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    publish_part(page, "# Head", "b", "second", ("a", "b"))
    page.write_text(page.read_text().replace(NOTES, NOTES + "\n\nmine"))
    publish_part(page, "# Head", "a", "first", ("a", "b"))
    publish_part(page, "# Head", "b", "again", ("a", "b"))
    text = page.read_text()
    assert text.index("first") < text.index("again") < text.index("mine") and "second" not in text


def test_the_command_measures_a_part_and_refuses_an_unknown_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.set_default_dtype(torch.float32)
    options = ["--quick", "--threads", "1", "--out", str(tmp_path), "--work", str(tmp_path)]
    assert command(["bench", "stiff", *options]) == 0
    page = (tmp_path / "results" / "benchmarks.md").read_text()
    assert "## A few stiff samples" in page and "infocnf, individual steps" in page
    assert (tmp_path / "images" / "bench-stiff.png").stat().st_size > 10_000
    capsys.readouterr()
    assert command(["bench", "speed", *options]) == 2
    message = capsys.readouterr().err
    assert "'speed'" in message and all(part in message for part in PARTS)


def test_trained_flows_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_default_dtype(torch.float32)
    recipe = FLOWS["2-D"]
    short = type(recipe)(recipe.data, {"blocks": 1, "hidden": (8,)}, 2, 16)
    monkeypatch.setitem(FLOWS, "2-D", short)
    said: list[str] = []
    first = prepare("2-D", tmp_path, said.append)
    count = len(said)
    second = prepare("2-D", tmp_path, said.append)
    assert count and len(said) == count
    for one, other in zip(first.flow.parameters(), second.flow.parameters(), strict=True):
        assert torch.equal(one, other)


# the guard: evaluations are deterministic, so that a change that makes more of them is seen
COUNTS = {"spiral": (620, 593.9), "Lorenz": (320, 320.3)}


@pytest.mark.parametrize("name", SYSTEMS)
def test_small_systems_need_no_more_evaluations_than_they_did(name: str) -> None:
    system, (shared, individual) = SYSTEMS[name], COUNTS[name]
    start, span = system.start(20), (0.0, SYSTEMS[name].span)
    found = solve(system.field, start, span, tolerance=1e-6)
    assert found.stats.forward <= shared
    found = solve(system.field, start, span, tolerance=1e-6, stepping="individual")
    assert found.stats.forward.double().mean() <= individual


def test_an_iteration_needs_no_more_evaluations_than_it_did() -> None:
    run = iteration(small_flow(), torch.rand(4, 1, 8, 8) * 0.9 + 0.05, "checkpoint")
    run(1e-5)  # the second one starts with the steps of the first
    outcome = run(1e-5)
    assert outcome.forward <= 45
    assert outcome.backward == outcome.forward - 3  # no stage twice but the first of each block


def test_individual_steps_need_a_third_of_the_evaluations_where_few_samples_are_stiff() -> None:
    flow, x = stiff.stiff_flow(), stiff.stiff_samples(100)
    for tolerance in (1e-3, 1e-5):
        own, shared = (density(flow, x, stepping=s)(tolerance) for s in ("individual", "shared"))
        assert own.forward < shared.forward / 3


def test_evaluations_per_sample_do_not_depend_on_how_many_there_are() -> None:
    flow, x = stiff.stiff_flow(), stiff.stiff_samples(100)
    ten = density(flow, x.repeat(10, 1), stepping="individual")(1e-4)
    one = density(flow, x, stepping="individual")(1e-4)
    assert math.isclose(one.forward, ten.forward, rel_tol=0.05)  # probes differ by row


def test_the_checkpointed_gradient_holds_little_more_than_the_adjoint() -> None:
    flow, x = small_flow(28, hidden=16, strength=2.5), torch.rand(2, 1, 28, 28) * 0.9 + 0.05
    peak = {}
    for gradient in ("checkpoint", "adjoint"):
        run = iteration(copy.deepcopy(flow), x, gradient, keep=0)
        run(1e-5)
        _, peak[gradient] = allocated(lambda run=run: run(1e-5))
    assert peak["checkpoint"] < 1.3 * peak["adjoint"]

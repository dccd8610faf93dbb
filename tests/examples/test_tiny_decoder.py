"""The tiny decoder: two ranks compute one process's gradients, and training through fmcore ops lowers the loss."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from fmcore_conformance.distributed import run_world, values

FOLDER = str(Path(__file__).parents[2] / "examples" / "tiny_decoder")


def gradients(group: Any) -> dict[str, torch.Tensor]:
    """One backward on this rank's half of four sequences (all four without a group), averaged as the example does."""
    sys.path.insert(0, FOLDER)
    import model
    import train

    import fmcore as fm

    rank, ranks = (0, 1) if group is None else (group.rank(), group.size())
    shape = model.Shape(sequence=32, layers=1)
    decoder = model.Decoder(shape, group)
    packed = train.sequences(32)[rank * 4 // ranks : (rank + 1) * 4 // ranks]
    hot = model.one_hot(torch.stack([p[0] for p in packed]), shape.vocabulary)
    loss = model.cross_entropy(decoder(hot[:, :-1], fm.masks.causal_document([p[1] for p in packed])), hot[:, 1:])
    loss.backward()
    train.mean_gradients(decoder, ranks)
    return {name: p.grad for name, p in decoder.named_parameters()}


def few_steps(group: Any, trace: str) -> tuple[list[float], dict[str, set[str]]]:
    sys.path.insert(0, FOLDER)
    import train

    losses = train.train(group.rank(), group.size(), 16, group, "cpu", trace)
    return losses, train.served(trace)


def test_two_ranks_compute_the_gradients_of_one() -> None:
    alone = values(run_world(gradients_alone, 1))[0]
    halves = values(run_world(gradients, 2, timeout=90.0))
    for name, want in alone.items():
        got = torch.cat([h[name] for h in halves]) if name.endswith((".gate", ".up", ".down")) else halves[1][name]
        error = float((got - want).abs().max() / want.abs().max().clamp(min=1e-8))
        assert error < 1e-4, f"{name}: relative error {error}"


def gradients_alone(group: Any) -> dict[str, torch.Tensor]:
    del group
    return gradients(None)


def test_training_lowers_the_loss_and_names_every_op(tmp_path: Path) -> None:
    trace = str(tmp_path / "trace.jsonl")
    outcomes = values(run_world(few_steps, 2, trace, timeout=120.0))
    losses, served = outcomes[0]
    assert losses[0] > 4.5
    assert sum(losses[-4:]) / 4 < 0.7 * losses[0]
    assert served["moe.dispatch"] == served["moe.combine"] == {"torch/collective"}
    for op in (
        "flashmask_attention",
        "math.rms_norm",
        "math.rotary",
        "math.swiglu",
        "math.grouped_matmul",
        "math.topk_gate",
    ):
        assert op in served
    assert not any("reference" in impl for impls in served.values() for impl in impls)

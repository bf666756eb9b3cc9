"""Decoding with a Llama-like transformer of random weights, token by token: one step is
one pipeline.

    python -m examples.decode [--tokens 24] [--seed 1] [--layers 2] [--hidden 64] ...
    python -m examples.decode --shape llama-1b   the sizes of Llama 3.2 1B, in bfloat16
    python -m examples.decode --explain --trace steps.json
                                     also the plan of a step, and a timeline of two

No step waits for the host: the next token is chosen on the device and passed directly
to the next step, and keys and values are written in place, in a cache that is lent to
each step. Only the token's address and its position, a number, change from step to
step. So all steps run by one plan, and on a GPU as one CUDA graph. Ends with an error
unless plain runs, the pipeline and a model in NumPy choose the same tokens.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from dagpu import (
    Borrowed,
    DeviceOp,
    ListSchedule,
    SharedTensor,
    Tensor,
    TensorMut,
    bf16,
    current_device,
    f32,
    from_host,
    i32,
    pipeline,
    trace,
)
from examples.decode.model import (
    Model,
    Step,
    Weights,
    costs_of,
    empty_cache,
    random_model,
    step,
)
from examples.decode.parts import EPSILON, Sizes, W

LLAMA_1B = Sizes(
    layers=16,
    hidden=2048,
    heads=32,
    kv_heads=8,
    head=64,
    ffn=8192,
    vocabulary=128_256,
    positions=1024,
    splits=8,
    theta=500_000.0,
)
"""Llama 3.2 1B with a cache of 1,024 positions, but without its scaling of low
frequencies."""
PROMPT = (1, 7, 5, 3)
# steps that are not measured: the first traces and compiles, the second makes the graph
WARM_UP = 2

Doubles = NDArray[np.float64]


@final
@dataclass(frozen=True)
class Options:
    """The options of the command line.

    `check` is the number of tokens that are compared with NumPy.
    """

    sizes: Sizes
    element: type[f32] | type[bf16]
    tokens: int
    check: int
    seed: int
    explain: bool
    trace: Path | None


# ---- decoding ---------------------------------------------------------------


class Decoded(NamedTuple):
    """The tokens after the prompt, and the number of tokens a second."""

    tokens: list[int]
    rate: float


def pipeline_of(model: Model[W]) -> Step[W]:
    """Return one step as a pipeline.

    The weights belong to its plans. The cache is lent to each call.
    """

    @pipeline
    def decode(
        token: SharedTensor[i32], cache: TensorMut[W], position: int
    ) -> DeviceOp[Tensor[i32], Borrowed]:
        return step(model, token, cache, position)

    return decode


def plain(model: Model[W]) -> Step[W]:
    """Return one step without a pipeline: every step is a new op."""
    return lambda token, cache, position: step(model, token, cache, position)


def decoded(model: Model[W], following: Step[W], count: int) -> Decoded:
    """Return `count` tokens after the prompt, from an empty cache.

    Tokens are tensors on the device, each the output of one step and the input of the
    next. They are copied to the host at the end.
    """
    cache = empty_cache(model)
    prompt = [from_host(np.array([token], np.int32)).sync().share() for token in PROMPT]
    chosen: list[SharedTensor[i32]] = []
    start = time.perf_counter()
    for position in range(len(prompt) + count - 1):
        if position == WARM_UP:
            start = time.perf_counter()
        token = prompt[position] if position < len(prompt) else chosen[-1]
        chosen.append(following(token, cache.borrow_mut(), position).sync().share())
    seconds = time.perf_counter() - start
    tokens = [int(token.to_host().sync()[0]) for token in chosen[len(prompt) - 1 :]]
    return Decoded(tokens, (len(chosen) - WARM_UP) / seconds)


def show(model: Model[W], options: Options) -> None:
    """Print the plan of a step, and write a timeline of two steps for ui.perfetto.dev,
    as the options request."""
    following, cache = pipeline_of(model), empty_cache(model)
    token = from_host(np.array(PROMPT[:1], np.int32)).sync().share()
    if options.explain:
        planned = following(token, cache.borrow_mut(), 0).schedule(
            ListSchedule(1, costs_of(model))
        )
        print(planned.explain())
    if options.trace is not None:
        # this compiles the kernels
        token = following(token, cache.borrow_mut(), 0).sync().share()
        with trace(options.trace):
            for position in (1, 2):
                token = following(token, cache.borrow_mut(), position).sync().share()
        print(f"wrote {options.trace}")


# ---- the same in NumPy ------------------------------------------------------


def on_host(weights: Weights[Any]) -> dict[str, Doubles]:
    """Return a copy of the weights on the host."""
    return {
        name: tensor.to_host().sync().astype(np.float64)
        for name, tensor in weights._asdict().items()
    }


def norm(x: Doubles, gain: Doubles) -> Doubles:
    return np.asarray(
        x * gain / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPSILON)
    )


def logits_of(model: Model[W], w: dict[str, Doubles], tokens: Sequence[int]) -> Doubles:
    """Return the logits (vocabulary,) of the token after these tokens.

    It has no state between tokens: it computes all positions at once, with a causal
    mask. Only keys and values are rounded, like in the cache.
    """
    s, count = model.sizes, len(tokens)
    # pairs are complex numbers
    turn = np.exp(1j * np.outer(np.arange(count), w["frequencies"]))[:, None, None]
    mask = np.triu(np.full((count, count), -np.inf), 1)
    x = w["table"][list(tokens)]
    for layer in range(s.layers):
        rows = np.einsum(
            "th,kgdh->tkgd", norm(x, w["attention_gains"][layer]), w["qkv"][layer]
        )
        turned = (np.ascontiguousarray(rows).view(np.complex128) * turn).view(
            np.float64
        )
        q, k, v = (
            turned[:, :, : s.group],
            turned[:, :, s.group],
            rows[:, :, s.group + 1],
        )
        k, v = (cached.astype(model.element).astype(np.float64) for cached in (k, v))
        scores = np.einsum("tkgd,skd->kgts", q, k) / np.sqrt(s.head) + mask
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        found = np.einsum(
            "kgts,skd->tkgd", shares / shares.sum(axis=-1, keepdims=True), v
        )
        x = x + found.reshape(count, -1) @ w["output"][layer].T
        gate, up = np.einsum(
            "th,frh->rtf", norm(x, w["ffn_gains"][layer]), w["gate_up"][layer]
        )
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w["down"][layer].T
    return np.asarray(norm(x[-1], w["last_gain"][0]) @ w["table"].T)


def reference(model: Model[W], count: int) -> list[int]:
    """Return `count` tokens after the prompt, computed by NumPy.

    Raises:
        AssertionError: the two largest logits are so close that rounding could decide
        which token is chosen.
    """
    w, tokens = on_host(model.weights), list(PROMPT)
    closest = 1e-3 if np.dtype(model.element) == np.float32 else 1e-2
    for _ in range(count):
        logits = logits_of(model, w, tokens)
        second, first = np.sort(logits)[-2:]
        apart = (first - second) / logits.std()
        assert apart > closest, (
            f"two logits are {apart:.1e} standard deviations apart: choose another "
            "--seed"
        )
        tokens.append(int(logits.argmax()))
    return tokens[len(PROMPT) :]


# ---- the job ----------------------------------------------------------------


def parsed(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m examples.decode",
        description="Decode with a transformer of random weights.",
    )
    parser.add_argument(
        "--shape",
        choices=["tiny", "llama-1b"],
        default="tiny",
        help="sizes to begin with (tiny)",
    )
    parser.add_argument(
        "--dtype",
        choices=["f32", "bf16"],
        help="of weights and cache (f32; llama-1b: bf16)",
    )
    parser.add_argument(
        "--tokens", type=int, default=24, help="how many to decode (24)"
    )
    parser.add_argument(
        "--check", type=int, help="how many to hold against NumPy (all; llama-1b: 0)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the weights (1)")
    parser.add_argument(
        "--explain", action="store_true", help="print the plan of a step"
    )
    parser.add_argument(
        "--trace", type=Path, help="write a timeline of two steps, for ui.perfetto.dev"
    )
    for field in fields(Sizes):
        kind = float if field.name == "theta" else int
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=kind,
            help=f"(tiny: {field.default})",
        )
    given = parser.parse_args(arguments)
    large = given.shape == "llama-1b"
    changed = {
        field.name: value
        for field in fields(Sizes)
        if (value := getattr(given, field.name)) is not None
    }
    sizes = replace(LLAMA_1B if large else Sizes(), **changed)
    try:
        sizes.check(len(PROMPT) + given.tokens)
    except ValueError as error:
        parser.error(str(error))
    element = bf16 if given.dtype == "bf16" or (large and given.dtype is None) else f32
    check = given.check if given.check is not None else 0 if large else given.tokens
    return Options(
        sizes,
        element,
        given.tokens,
        min(check, given.tokens),
        given.seed,
        given.explain,
        given.trace,
    )


def main(arguments: Sequence[str]) -> None:
    options = parsed(arguments)
    model: Model[Any] = random_model(options.sizes, options.element, options.seed)
    size = sum(tensor.nbytes for tensor in model.weights)
    print(
        f"layers: {options.sizes.layers}, weights: {size / 1e6:,.1f} MB, on "
        f"{current_device().name}"
    )
    by_plain = decoded(model, plain(model), options.tokens)
    by_pipeline = decoded(model, pipeline_of(model), options.tokens)
    print(f"plain runs:   {by_plain.rate:8,.0f} tokens/s")
    print(f"the pipeline: {by_pipeline.rate:8,.0f} tokens/s")
    print("tokens:", *by_pipeline.tokens[:16], "..." if options.tokens > 16 else "")

    assert by_pipeline.tokens == by_plain.tokens
    if options.check:
        expected = reference(model, options.check)
        assert by_pipeline.tokens[: options.check] == expected, (
            f"NumPy's tokens are {expected}"
        )
        print(f"NumPy chooses the same {options.check} tokens")
    show(model, options)

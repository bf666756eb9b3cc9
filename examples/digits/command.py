"""The command line of the example: options, the table and the picture."""

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

from dagpu import current_device
from examples.digits.batches import SIDE, Options, load
from examples.digits.report import accuracy_table, picture, plan_table
from examples.digits.training import accuracy, probabilities, time_numpy, train

ABOUT_THE_HOST = (
    "NumPy is quicker here: the network is tiny, and the host backend is for tests "
    "and development. On an H200 the step of 128 hidden units takes 179 us, and 138 "
    "us as a CUDA graph of PyTorch's (measured on 2026-11-24)."
)
"""What explains the two times of a step. Its numbers are those of
benchmarks/results/digits.md, and a test compares them."""


def job(options: Options) -> int:
    """Train, print the results, write the picture.

    Return 0 if the accuracy on held-out images suffices, else 1.
    """
    digits, console = load(), Console()
    if options.batch > len(digits.train):
        return complain(
            f"--batch {options.batch} is more than the {len(digits.train)} images "
            "to train on",
            2,
        )
    if not options.out.absolute().parent.is_dir():
        return complain(
            f"--out {options.out}: there is no folder {options.out.parent} to "
            "write it to",
            2,
        )
    with Progress(
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4f}, held out {task.fields[test]:.2%}"),
        TimeElapsedColumn(),
        console=console,
    ) as progress:
        trained = train(digits, options, progress)
    on_train = accuracy(
        trained.model, digits.normalised(digits.train), digits.train_labels
    )
    answers = probabilities(trained.model, digits.normalised(digits.test)).sync()
    on_test = float(np.mean(answers.argmax(axis=1) == digits.test_labels))
    right = {
        "trained on": (len(digits.train), on_train),
        "held out": (len(digits.test), on_test),
    }
    step = statistics.median(trained.seconds)
    costs = {
        "a step, with upload and loss": f"{1e6 * step:,.0f} us",
        "the same step in NumPy": f"{1e6 * time_numpy(digits, options):,.0f} us",
    }
    console.print(
        accuracy_table(right), plan_table(trained.plan, trained.run | costs), sep="\n"
    )
    if current_device().kind == "host":
        console.print(ABOUT_THE_HOST)
    picture(digits.test.reshape(-1, SIDE, SIDE), digits.test_labels, answers).save(
        options.out, format="PNG"
    )
    console.print(f"wrote {options.out}")
    if on_test < options.bar:
        return complain(
            f"{on_test:.2%} of the held-out images are right, under the bar of "
            f"{options.bar:.0%}: "
            "train for longer (--epochs) or with a wider hidden layer (--hidden)",
            1,
        )
    return 0


def complain(what: str, code: int) -> int:
    print(f"digits: {what}", file=sys.stderr)
    return code


def at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return int(text)

    return number


def parsed(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m examples.digits",
        description="Train on handwritten digits with dagpu kernels.",
    )
    parser.add_argument(
        "--quick", action="store_true", help="6 epochs, 32 hidden units, a bar of 90 %%"
    )
    parser.add_argument(
        "--epochs", type=at_least(1), help="passes over the training images (40)"
    )
    parser.add_argument(
        "--hidden", type=at_least(1), help="units of the hidden layer (128)"
    )
    parser.add_argument(
        "--batch", type=at_least(1), default=64, help="images in a batch (64)"
    )
    parser.add_argument(
        "--seed",
        type=at_least(0),
        default=0,
        help="of the weights, the shuffles and the shifts (0)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("digits.png"),
        help="picture to write (digits.png)",
    )
    given = parser.parse_args(arguments)
    return Options(
        epochs=given.epochs or (6 if given.quick else 40),
        hidden=given.hidden or (32 if given.quick else 128),
        batch=given.batch,
        seed=given.seed,
        bar=0.90 if given.quick else 0.95,
        out=given.out,
    )


def main(arguments: Sequence[str]) -> int:
    return job(parsed(arguments))

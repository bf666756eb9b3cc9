"""The report of examples/digits: two tables and a picture."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from rich.table import Table

from dagpu import current_device
from dagpu.plans.prediction import forecast
from dagpu.testing import Execute, Launch, Plan, Record, Wait


def critical_path(plan: Plan) -> int:
    """Return the length of the longest chain of instructions that the plan runs one
    after the other.

    Each lane has a clock. An instruction is one tick, and a wait advances the clock to
    that of its record.
    """
    clock = dict.fromkeys(range(len(plan.lanes)), 0)
    happened: dict[int, int] = {}
    for at in plan.steps:
        match at:
            case Execute(_, lane):
                clock[lane] += 1
            case Record(event, lane):
                happened[event] = clock[lane]
            case Wait(event, lane):
                clock[lane] = max(clock[lane], happened[event])
            case _:
                pass
    return max(clock.values())


def plan_table(plan: Plan, run: dict[str, str]) -> Table:
    """Return a table of the plan of an op, with the rows of `run` below."""
    executed = [at.instruction for at in plan.steps if isinstance(at, Execute)]
    path = critical_path(plan)
    table = Table("one training step", title="the plan", title_justify="left")
    table.add_column("", justify="right")
    table.add_row("device", current_device().name)
    table.add_row("instructions", str(len(executed)))
    table.add_row(
        "of them kernel launches", str(sum(isinstance(one, Launch) for one in executed))
    )
    table.add_row("streams", str(len(plan.lanes)))
    table.add_row(
        "waits between streams", str(sum(isinstance(at, Wait) for at in plan.steps))
    )
    table.add_row("longest chain", f"{path} instructions")
    table.add_row("overlap, predicted", f"{forecast(plan).overlap:.0%} of the work")
    table.add_row("peak memory", f"{plan.peak_bytes / 1024:.1f} KiB")
    for what, much in run.items():
        table.add_row(what, much)
    return table


def accuracy_table(right: dict[str, tuple[int, float]]) -> Table:
    """Return a table of accuracies.

    `right` has the number of images of each kind, and the recognised fraction.
    """
    table = Table("images", title="accuracy", title_justify="left")
    table.add_column("number", justify="right")
    table.add_column("right", justify="right")
    for what, (number, part) in right.items():
        table.add_row(what, str(number), f"{part:.2%}")
    return table


def picture(
    images: NDArray[np.float32], labels: NDArray[np.int32], answers: NDArray[np.float32]
) -> Image.Image:
    """Draw 24 of the images (n, 8, 8) with the answers of the network: first its
    mistakes (red, at most 6).

    `answers` (n, 10) has the probability of each digit.
    """
    guesses = answers.argmax(axis=1)
    wrong = guesses != labels
    shown = np.concatenate([np.flatnonzero(wrong)[:6], np.flatnonzero(~wrong)])[:24]
    columns, cell, margin, caption = 8, 88, 10, 22
    rows = -(-len(shown) // columns)
    size = (
        margin + columns * (cell + margin),
        margin + rows * (cell + caption + margin),
    )
    sheet = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(15)
    for place, which in enumerate(shown):
        x = margin + place % columns * (cell + margin)
        y = margin + place // columns * (cell + caption + margin)
        ink = Image.fromarray((255 * (1 - images[which])).astype(np.uint8))
        sheet.paste(
            ink.resize((cell, cell), Image.Resampling.NEAREST).convert("RGB"), (x, y)
        )
        note = (
            f", is {labels[which]}" if wrong[which] else f"  {answers[which].max():.0%}"
        )
        colour = "#c00000" if wrong[which] else "#007000"
        draw.rectangle((x - 1, y - 1, x + cell, y + cell), outline=colour)
        draw.text((x, y + cell + 3), f"{guesses[which]}{note}", fill=colour, font=font)
    return sheet

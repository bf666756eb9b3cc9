"""The pictures of the gallery: of what an example runs, and those that it writes. The examples run on the host:

python -m tests.project.docs.made.gallery_pictures EXAMPLE PICTURE
"""

import contextlib
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, final

from dagpu import DeviceOp, StreamInterpreter, use_interpreter
from dagpu.testing import Execute, Plan
from tests.support.example_scripts import EXAMPLES, LONG, SCRIPTS, environment


@final
@dataclass(frozen=True)
class Shown:
    """What the picture of an example shows."""

    draws: Literal["largest plan", "last plan", "DAG", "nothing"] = "largest plan"
    """The lanes of a plan that the example runs; or the DAG of the op of the largest plan."""
    says: str = ""
    """A sentence below the picture, or in its place."""
    arguments: tuple[str, ...] = ()
    """Arguments of the command that make the example smaller."""
    constants: Mapping[str, object] = field(default_factory=dict)
    """Other values of constants of the example, a file, that make it smaller."""


LARGEST: Final = Shown()

SHOWN: Final = {
    "overlap_spawn": Shown(
        "nothing", "There is no picture: two runs overlap here, and a picture of lanes shows the plan of one."
    ),
    "video": Shown(
        "nothing",
        "There is no picture: the frames in flight are three runs, and a picture of lanes shows the plan of one.",
    ),
    "slider": Shown("DAG", "The DAG with its sources: a slider sets one of them, and what is below that runs again."),
    "heat": Shown(says="One step on four devices; the example has twenty in one op.", constants={"STEPS": 1}),
    "mlp_data_parallel": Shown(
        says="A step on two devices; the example runs on four.", constants={"DEVICES": ("host:0", "host:1")}
    ),
    "cholesky": Shown(
        says="The factorisation of 3 by 3 tiles; by default the example has 8 by 8.", arguments=("--tiles", "3")
    ),
    "server": Shown("last plan", "The plan of the pipeline that answers one batch of requests."),
}
"""The examples whose largest plan would not show what they teach, by the names of their files without suffix."""


def written_name(script: Path, name: str) -> str:
    """Return the name in the documentation of a picture that an example writes."""
    return f"written-{script.stem}-{name}"


def draw_all(folder: Path) -> set[str]:
    """Write the pictures of all examples to a folder: of what they run, and those that they write themselves. Return
    the names of the files.

    An example whose packages are not installed runs no op, and has no picture.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in [*folder.glob("example-*.svg"), *folder.glob("written-*")]:
        old.unlink()

    def draw(script: Path) -> list[str]:
        picture = folder / f"example-{script.stem}.svg"
        command = [sys.executable, "-m", __name__, script.name, str(picture.resolve())]
        with tempfile.TemporaryDirectory() as here:
            subprocess.run(
                command, cwd=here, env=environment({"DAGPU_DEVICE": "host"}), check=False, capture_output=True
            )
            made = [file for file in Path(here).iterdir() if file.suffix in (".png", ".gif")]
            for file in made:
                shutil.copy(file, folder / written_name(script, file.name))
        return [*([picture.name] if picture.exists() else []), *[written_name(script, file.name) for file in made]]

    with ThreadPoolExecutor(2) as pool:
        return {name for names in pool.map(draw, SCRIPTS) for name in names}


def drawn(script: Path, shown: Shown) -> str | None:
    """Run an example, in its short form if it is long, and return a picture of what it runs; None if that is nothing,
    or nothing is to be drawn."""
    found: list[tuple[Plan, str]] = []

    def keep(op: DeviceOp[Any, Any, Any], plan: Plan) -> None:
        # an op that is kept would hold its tensors
        found.append((plan, op.to_svg() if shown.draws == "DAG" else ""))

    sys.argv = [str(script), *(["--quick"] if script.stem in LONG else []), *shown.arguments]
    with use_interpreter(StreamInterpreter(on_plan=keep)), contextlib.suppress(SystemExit):
        if script.is_dir():
            runpy.run_module(f"examples.{script.name}", run_name="__main__")
        elif shown.constants:
            main = runpy.run_path(str(script), run_name="drawn")["main"]
            main.__globals__.update(shown.constants)
            main()
        else:
            runpy.run_path(str(script), run_name="__main__")
    if not found or shown.draws == "nothing":
        return None
    plan, dag = found[-1] if shown.draws == "last plan" else max(found, key=lambda each: instructions(each[0]))
    return dag or plan.to_svg()


def instructions(plan: Plan) -> int:
    """Return the number of instructions that a plan runs."""
    return sum(isinstance(step, Execute) for step in plan.steps)


if __name__ == "__main__":
    _, example, written = sys.argv
    script = EXAMPLES / example
    picture = drawn(script, SHOWN.get(script.stem, LARGEST))
    if picture is not None:
        Path(written).write_text(picture, encoding="utf-8")

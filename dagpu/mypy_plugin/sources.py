"""The fingerprint of the plugin's sources. mypy discards its cache when the fingerprint changes."""

import hashlib
from functools import cache
from pathlib import Path
from typing import Final

from dagpu.common import facts

ROOT: Final = Path(__file__).resolve().parent


@cache
def fingerprint(root: Path = ROOT) -> str:
    """Return a hash of all sources of the plugin, of their file names, and of the facts that they read."""
    digest = hashlib.sha256(Path(facts.__file__).read_bytes())
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()

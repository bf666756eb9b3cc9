"""The types that users see hold in mypy --strict with no plugin; `make types` holds them in pyright too."""

from mypy import api

from tests.support.paths import ROOT


def test_user_code_has_the_types_it_claims() -> None:
    """Every `assert_type` in tests/typing holds, and every error that a comment there expects is reported.

    An expected error that is gone fails as an unused `type: ignore`, which strict mode reports.
    """
    files = sorted(str(path) for path in (ROOT / "tests" / "typing").glob("*.py"))
    assert files
    report, crash, status = api.run(["--config-file", str(ROOT / "tests" / "typing" / "mypy.ini"), *files])
    assert (crash, status) == ("", 0), report

"""Random arguments: right results or a clear exception, whatever is passed."""

from __future__ import annotations

from pathlib import Path

from isolation import run

# Enough that each argument has met each oddity; the same ones each time.
EXAMPLES = 300


def test_random_arguments_give_right_results_or_a_clear_exception(scratch_folder: Path):
    last = scratch_folder / "last_example.txt"
    program = f"""
        from pathlib import Path

        import fuzz

        fuzz.main({EXAMPLES}, Path({str(last)!r}))
    """
    try:
        run(program)
    except AssertionError as error:
        example = last.read_text() if last.exists() else "none"
        raise AssertionError(f"{error}\n--- the last example was\n{example}") from None

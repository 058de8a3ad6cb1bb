"""Programs by eager PyTorch and within a plan, side by side: the same bits, or a refusal."""

import importlib
from pathlib import Path

import pytest
import sides

for path in sorted(Path(__file__).parent.glob("train_*.py")):
    importlib.import_module(path.stem)


def cases():
    for program in sides.PROGRAMS:
        marks = [pytest.mark.short] if program.is_short else []
        yield pytest.param(program, id=program.name, marks=marks)


@pytest.mark.parametrize("program", list(cases()))
@pytest.mark.parametrize("budget", [sides.ROOMY, sides.TIGHT])
def test_a_program_gives_the_same_bits_or_is_refused(program, budget):
    print(f"seed {program.seed}")
    sides.check(program, budget)


@pytest.mark.parametrize("program", list(cases()))
def test_the_usual_loop_gives_the_same_bits_or_is_refused(program):
    print(f"seed {program.seed}")
    sides.check_loop(program)


def test_there_are_sixty_programs():
    assert len(sides.PROGRAMS) >= 60
    assert len({program.name for program in sides.PROGRAMS}) == len(sides.PROGRAMS)

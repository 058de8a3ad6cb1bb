"""Plans are for a machine of the tests, so that the speed of this one need not be measured."""

import pytest

from spillway.torch import capturing


@pytest.fixture(autouse=True)
def unmeasured_copies(monkeypatch):
    monkeypatch.setattr(capturing, "measure_copies", lambda: 10**9)

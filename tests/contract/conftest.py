"""The fixture of the jobs of `jobs.py`."""

from __future__ import annotations

import pytest
from tests.contract.jobs import CONFIGS, Job, get_job, with_long_ones_thorough


# Of the whole session, so that pytest keeps the tests of a job together and few workers compile the same programs.
@pytest.fixture(scope="session", params=with_long_ones_thorough(CONFIGS))
def job(request: pytest.FixtureRequest) -> Job:
    """Each of the jobs in turn; `jobs.only` chooses among them."""
    return get_job(request.param)

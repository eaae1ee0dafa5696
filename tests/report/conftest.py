"""A record that all tests of pages read."""

import pytest
from report_record import make_record


@pytest.fixture(scope="session")
def record():
    return make_record()

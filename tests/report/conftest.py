"""A sweep on disk for every test that wants one."""

import shutil

import pytest

from report_folders import make_sweep


@pytest.fixture(scope="session")
def written_once(tmp_path_factory):
    return make_sweep(tmp_path_factory.mktemp("sweep") / "runs")


@pytest.fixture
def sweep(written_once, tmp_path):
    return shutil.copytree(written_once, tmp_path / "runs")

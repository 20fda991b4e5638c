import subprocess
import sys
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import numpy as np
import pytest

from lightning_rlvr.hashing import problem_hash

ROWS = [
    {"a": date(2024, 2, 1), "b": datetime(2024, 2, 1, 12, tzinfo=UTC), "c": time(12), "d": timedelta(1)},
    {"answer": Decimal("1.50"), "raw": b"\x00"},
    {"answer": np.float32(0.1), "choices": np.array(["a", "b"]), "names": [np.str_("c")]},
    {"meta": [{"unit": None}, (1, True, float("nan")), {3: "x", 1: "y"}]},
]
ELSEWHERE = """
import datetime
import numpy as np
from decimal import Decimal
from lightning_rlvr.hashing import problem_hash

array, nan = np.array, float("nan")
print(*[problem_hash("i", "p", columns) for columns in {}])
"""


def test_equal_rows_have_equal_hashes_in_every_process():
    command = [sys.executable, "-c", ELSEWHERE.format(ROWS)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert shown.split() == [problem_hash("i", "p", columns) for columns in ROWS]


def test_whatever_changes_changes_the_hash():
    rows = [("i", "p", columns) for columns in [*ROWS, {}, {"answer": Decimal("1.5"), "raw": b"\x00"}]]
    rows += [("j", "p", {}), ("i", "q", {}), ("ip", "", {})]
    assert len({problem_hash(*row) for row in rows}) == len(rows)


def test_numpy_values_count_as_their_python_values_in_any_order_of_names():
    arrays = {"name": np.str_("c"), "choices": np.array([1, 2]), "answer": np.float64(0.5), "sure": np.bool_(True)}
    plain = {"answer": 0.5, "choices": [1, 2], "name": "c", "sure": True}
    assert problem_hash("i", "p", arrays) == problem_hash("i", "p", plain)


@pytest.mark.parametrize(
    ("value", "said"), [(object(), "got object"), ({"x"}, "got set"), ({(1,): 2}, "keys must be .*, not tuple")]
)
def test_what_has_no_text_of_its_own_is_refused(value, said):
    with pytest.raises(TypeError, match=rf"columns of problem mine/7 must be plain values .*{said}"):
        problem_hash("mine/7", "p", {"answer": value})

"""Golden trajectories: ten losses and gradient norms of seeded runs, read back from TensorBoard.

A change here needs its reason in the commit message. The numbers were produced by this code on one CPU; other CPUs
differ by rounding only, as long as no sampled token flips.
"""

import pytest

from lightning_rlvr.calibration.ot_normal import OTNormalCalibrator
from lightning_rlvr.calibration.zscore import ZScoreCalibrator
from lightning_rlvr.credit.evidence_contrast import EvidenceContrastCredit
from lightning_rlvr.credit.margin import MarginCredit
from runs import fit, make_data, make_module, scalars

METHODS = {
    "mcpo": lambda: (ZScoreCalibrator(), MarginCredit(lo=0.0, hi=0.05)),
    "tace": lambda: (OTNormalCalibrator(), EvidenceContrastCredit()),
}
GOLDEN = {
    "mcpo": {
        "loss/total": [
            -0.0524023,
            -0.0535282,
            -0.0272024,
            -0.046657,
            -0.052308,
            -0.0377696,
            -0.0399811,
            -0.0388435,
            -0.0269398,
            -0.024113,
        ],
        "policy/grad_norm": [4.16867, 3.18956, 1.18026, 2.26933, 1.94628, 1.55248, 1.79777, 1.81364, 1.63538, 1.644],
    },
    "tace": {
        "loss/total": [
            -0.0417802,
            -0.0457241,
            -0.0401082,
            -0.0336333,
            -0.039024,
            -0.0311789,
            -0.0280377,
            -0.0181888,
            -0.0147944,
            -0.0135316,
        ],
        "policy/grad_norm": [3.75862, 3.06589, 1.5937, 1.6107, 1.88128, 1.80837, 1.72091, 1.55954, 1.45019, 1.61443],
    },
}


def trajectory(folder, method):
    calibrator, credit = METHODS[method]()
    module = make_module(loss={"num_iterations": 2, "beta": 0.05})  # the second iteration has ratios other than 1
    _, _, run = fit(folder, module=module, data=make_data(), calibrator=calibrator, credit=credit, max_steps=20)
    logged = scalars(run)
    return {tag: list(logged[tag].values()) for tag in ("loss/total", "policy/grad_norm")}


@pytest.mark.parametrize("method", METHODS)
def test_trajectory_is_the_recorded_one(tmp_path, method):
    for tag, values in trajectory(tmp_path, method).items():
        assert values == pytest.approx(GOLDEN[method][tag], rel=1e-3, abs=1e-5), tag

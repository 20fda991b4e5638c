from itertools import combinations

from lightning_rlvr.report.plots import style


def test_sixteen_arms_look_different_by_markers_and_by_lines():
    for one, other in combinations(map(style, range(16)), 2):
        for names in (("color", "marker"), ("color", "linestyle")):
            assert [one[name] for name in names] != [other[name] for name in names]

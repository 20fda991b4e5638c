"""Token statistics: functions of the next-token distribution that assigners may declare."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from lightning_rlvr.registry import Registry

TokenStatistic = Callable[[Tensor], Tensor]
"""``[n, V]`` float32 log-probs of the temperature-scaled next-token distribution -> ``[n]`` float32."""

TOKEN_STATISTICS: Registry[TokenStatistic] = Registry("token statistic", "lightning_rlvr.token_statistics")

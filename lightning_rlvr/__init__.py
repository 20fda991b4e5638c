"""Token-level credit for reinforcement learning with verifiable rewards, as Lightning callbacks."""

__version__ = "0.1.0"

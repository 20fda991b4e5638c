"""The policy: loading, adapters, scoring."""

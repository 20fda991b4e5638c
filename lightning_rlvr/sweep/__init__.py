"""One YAML as paired runs: expansion into commands, and launchers that run them."""

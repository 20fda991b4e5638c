"""Credit assigners: advantages of completions to advantages of tokens."""

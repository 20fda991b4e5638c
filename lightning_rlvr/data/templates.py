"""From a problem to the prompt that the policy sees: text, token ids, and which tokens carry the problem."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from lightning_rlvr.checks import require_choice

Chat = Literal["auto", "chat", "plain"]

_SENTINEL = "\ue000problem\ue000"
"""Stands in for the problem to find where a template puts it; private-use characters survive every template."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EncodedPrompt:
    """A rendered prompt and its P tokens."""

    text: str
    """As rendered; special tokens that the tokenizer itself adds are not part of it."""
    ids: Tensor
    """int64 ``[P]``."""
    evidence: Tensor
    """bool ``[P]``: tokens that overlap the problem's own text."""


@dataclass(frozen=True, kw_only=True)
class PromptTemplate:
    r"""How a problem becomes a prompt. Literal braces in `user` and `system` are doubled, as in `\boxed{{}}`.

    Args:
        user: The user's turn; names in braces are `problem` and other columns of the data.
        system: The system turn, with the same names; none by default.
        chat: `chat` renders with the tokenizer's chat template, `plain` writes system and user text with an empty line
            between, `auto` is `chat` where the tokenizer has a chat template and `plain` where not.

    Raises:
        ValueError: `chat` is not one of the choices, a brace is not closed, or a name in braces is not a plain name.

    Example:
        >>> PromptTemplate(user=r"{problem} Answer in \boxed{{}}.").fill({"problem": "|{1, 2}| = ?"})
        (None, '|{1, 2}| = ? Answer in \\boxed{}.')
    """

    user: str = "{problem}"
    system: str | None = None
    chat: Chat = "auto"

    def __post_init__(self) -> None:
        require_choice("chat", get_args(Chat), self.chat)
        if "problem" not in {name for text in self._texts() for name in _placeholders(text)}:
            raise ValueError(f"`user` or `system` must contain {{problem}}, got {self.user!r}")

    def fill(self, columns: Mapping[str, Any]) -> tuple[str | None, str]:
        """System and user text of a problem; braces in the values are left alone.

        Args:
            columns: Values by name, `problem` among them.

        Raises:
            ValueError: The template names a column that the data lack.
        """
        unknown = sorted({name for text in self._texts() for name in _placeholders(text)} - set(columns))
        if unknown:
            raise ValueError(f"the template names unknown columns {', '.join(unknown)}; choices: {', '.join(columns)}")
        return None if self.system is None else self.system.format_map(columns), self.user.format_map(columns)

    def render(self, tokenizer: PreTrainedTokenizerBase, columns: Mapping[str, Any]) -> str:
        """The prompt as text, up to where the answer begins.

        Raises:
            ValueError: `chat` is `chat` and the tokenizer has no chat template, which may also refuse the turns or be
                broken; or a column is unknown.
        """
        system, user = self.fill(columns)
        if not self._is_chat(tokenizer):
            return user if system is None else f"{system}\n\n{user}"
        turns = [] if system is None else [{"role": "system", "content": system}]
        turns.append({"role": "user", "content": user})
        try:
            return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
        except Exception as error:  # a template is a program: it raises what it likes
            remedy = "" if system is None else ", or do without `template.system` if it takes no system turn"
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise ValueError(
                f"the chat template cannot render the prompt ({reason}); "
                f"give another one as `policy.chat_template`{remedy}"
            ) from error

    def encode(self, tokenizer: PreTrainedTokenizerBase, columns: Mapping[str, Any]) -> EncodedPrompt:
        """The rendered prompt with its tokens.

        The ids are those of the rendered text and nothing else: a chat template brings its own special tokens, plain
        text gets those that the tokenizer puts in front (BOS), and no prompt ends with an end token that the tokenizer
        added.

        Raises:
            ValueError: As `render`; or the tokenizer has no offsets (a slow one), the chat template rewrites the
                problem so that it cannot be found again, or the text is not Unicode.
        """
        if not tokenizer.is_fast:
            raise ValueError(
                f"`tokenizer` must be a fast one (it tells where tokens are), got {type(tokenizer).__name__}"
            )
        text = self.render(tokenizer, columns)
        if lone := re.search("[\ud800-\udfff]", text):
            raise ValueError(f"the prompt must be Unicode, but holds half of a surrogate pair: {lone[0]!r}")
        spans = _spans(text, self.render(tokenizer, {**columns, "problem": _SENTINEL}), str(columns["problem"]))
        encoding = tokenizer(
            text, add_special_tokens=not self._is_chat(tokenizer), return_offsets_mapping=True, verbose=False
        )
        ids, offsets = list(encoding["input_ids"]), list(encoding["offset_mapping"])
        eos = tokenizer.eos_token
        while ids and ids[-1] == tokenizer.eos_token_id and not (eos and text.endswith(eos)):
            ids.pop()
            offsets.pop()
        evidence = [any(first < end and start < last for start, end in spans) for first, last in offsets]
        return EncodedPrompt(text=text, ids=torch.tensor(ids, dtype=torch.int64), evidence=torch.tensor(evidence))

    def _texts(self) -> tuple[str, ...]:
        return (self.user,) if self.system is None else (self.user, self.system)

    def _is_chat(self, tokenizer: PreTrainedTokenizerBase) -> bool:
        if self.chat == "chat" and not tokenizer.chat_template:
            raise ValueError(
                "`chat` is 'chat', but the tokenizer has no chat template; set `chat` to 'plain' for a plain text "
                "prompt, or give the tokenizer a chat_template"
            )
        return self.chat != "plain" and bool(tokenizer.chat_template)


def _placeholders(text: str) -> Iterator[str]:
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(text) if name is not None]
    except ValueError as error:
        raise ValueError(f"the template must double its literal braces, as in \\boxed{{{{}}}}: {error}") from error
    for name in names:
        if not name.isidentifier():
            raise ValueError(
                f"the template must name columns in its braces and double literal ones, as in \\boxed{{{{}}}}; "
                f"got {{{name}}} in {text!r}"
            )
        yield name


def _spans(text: str, with_sentinel: str, problem: str) -> list[tuple[int, int]]:
    """Where the problem stands in a rendered text, given the same text with a sentinel in place of the problem."""
    pieces = with_sentinel.split(_SENTINEL)
    length, rest = divmod(len(text) - sum(map(len, pieces)), len(pieces) - 1) if len(pieces) > 1 else (0, 1)
    spans = []
    position = len(pieces[0])
    for piece in pieces[1:]:
        spans.append((position, position + length))
        position += length + len(piece)
    if rest == 0 and length > 0 and _agrees(text, pieces, spans):
        return spans
    start = text.rfind(problem.strip())
    if start < 0 or not problem.strip():
        raise ValueError(f"the chat template must keep the problem as it is, but rewrote {problem!r}")
    return [(start, start + len(problem.strip()))]


def _agrees(text: str, pieces: list[str], spans: list[tuple[int, int]]) -> bool:
    starts = [0, *(end for _, end in spans)]
    return all(text.startswith(piece, start) for piece, start in zip(pieces, starts, strict=True))

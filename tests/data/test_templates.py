import pytest
import torch

from lightning_rlvr.data.templates import PromptTemplate


def shown(tokenizer, prompt, mask=None):
    ids = prompt.ids if mask is None else prompt.ids[mask]
    return "".join(tokenizer.convert_ids_to_tokens(ids.tolist()))


def test_plain_format_works_without_chat_template(plain_tokenizer):  # CT-01
    template = PromptTemplate(user="Q: {problem}\nA:", system="Be brief.")
    prompt = template.encode(plain_tokenizer, {"problem": "1 + 1"})
    assert prompt.text == "Be brief.\n\nQ: 1 + 1\nA:"
    assert shown(plain_tokenizer, prompt) == prompt.text
    assert shown(plain_tokenizer, prompt, prompt.evidence) == "1 + 1"


def test_demanding_a_missing_chat_template_says_what_to_do(plain_tokenizer):  # CT-01
    with pytest.raises(ValueError, match="tokenizer has no chat template; set `chat` to 'plain'"):
        PromptTemplate(chat="chat").encode(plain_tokenizer, {"problem": "1"})


@pytest.mark.parametrize("processor", ["$A <eos>", "<bos> $A <eos>"])
def test_prompt_never_ends_with_an_added_end_token(build_tokenizer, processor):  # CT-03
    tokenizer = build_tokenizer(processor=processor)
    assert tokenizer("1+1=").input_ids[-1] == tokenizer.eos_token_id
    prompt = PromptTemplate().encode(tokenizer, {"problem": "1+1="})
    assert shown(tokenizer, prompt) == ("<bos>" if "<bos>" in processor else "") + "1+1="
    assert shown(tokenizer, prompt, prompt.evidence) == "1+1="


def test_chat_ids_are_those_of_the_template(chat_tokenizer):  # CT-05
    prompt = PromptTemplate(system="Hi").encode(chat_tokenizer, {"problem": "1+1"})
    turns = [{"role": "system", "content": "Hi"}, {"role": "user", "content": "1+1"}]
    direct = chat_tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert prompt.ids.tolist() == direct
    assert prompt.text == "<bos><system>Hi<eos><user>1+1<eos><assistant>"
    assert int((prompt.ids == chat_tokenizer.bos_token_id).sum()) == 1


@pytest.mark.parametrize("processor", [None, "<bos> $A", "$A <eos>", "<bos> $A <eos>"])
@pytest.mark.parametrize("system", [None, "Hi"])
def test_no_token_comes_twice_whatever_the_tokenizer_adds(
    build_tokenizer, chat_tokenizer, processor, system
):  # CT-03, CT-05
    chat = build_tokenizer(chat_tokenizer.chat_template, processor)
    prompt = PromptTemplate(system=system).encode(chat, {"problem": "1+1"})
    assert shown(chat, prompt) == prompt.text
    assert shown(chat, prompt).startswith("<bos><system>Hi" if system else "<bos><user>1+1")
    assert shown(chat, prompt).endswith("<user>1+1<eos><assistant>")
    base = build_tokenizer(processor=processor)
    added = "<bos>" if "<bos>" in (processor or "") else ""
    prompt = PromptTemplate(system=system).encode(base, {"problem": "1+1"})
    assert shown(base, prompt) == added + ("Hi\n\n1+1" if system else "1+1")
    assert shown(base, prompt, prompt.evidence) == "1+1"


def test_plain_overrides_a_chat_template(chat_tokenizer):
    prompt = PromptTemplate(chat="plain").encode(chat_tokenizer, {"problem": "1+1"})
    assert shown(chat_tokenizer, prompt) == "<bos>1+1"  # the tokenizer's own BOS stays


@pytest.mark.parametrize("problem", ["1+1", "  1+1 \n", "{1, 2}", "{problem}", "{}", r"\frac{1}{2}", "Q", "<user>"])
@pytest.mark.parametrize("user", ["{problem}", "Q: {problem} Q", r"{problem} in \boxed{{}}"])
def test_evidence_is_the_problem_whatever_it_contains(chat_tokenizer, user, problem):
    prompt = PromptTemplate(user=user).encode(chat_tokenizer, {"problem": problem})
    assert problem.strip() in prompt.text
    assert shown(chat_tokenizer, prompt, prompt.evidence).strip() == problem.strip()
    assert prompt.evidence.dtype == torch.bool
    assert prompt.evidence.shape == prompt.ids.shape


def test_evidence_covers_every_occurrence(plain_tokenizer):
    prompt = PromptTemplate(user="{problem}? Again: {problem}!").encode(plain_tokenizer, {"problem": "1+1"})
    assert prompt.evidence.nonzero().flatten().tolist() == [0, 1, 2, 12, 13, 14]


def test_evidence_survives_a_template_that_looks_at_its_content(build_tokenizer):
    rewriting = (
        "{% for turn in messages %}<user>{{ 'short: ' if turn.content | length < 5 else 'long: ' }}"
        "{{ turn.content }}{% endfor %}"
    )
    tokenizer = build_tokenizer(rewriting)
    prompt = PromptTemplate().encode(tokenizer, {"problem": "1+1"})
    assert shown(tokenizer, prompt, prompt.evidence) == "1+1"


def test_template_that_loses_the_problem_is_an_error(build_tokenizer):
    tokenizer = build_tokenizer("{% for turn in messages %}<user>{{ turn.content | upper }}{% endfor %}")
    with pytest.raises(ValueError, match="the chat template must keep the problem as it is, but rewrote 'add 1'"):
        PromptTemplate().encode(tokenizer, {"problem": "add 1"})


@pytest.mark.parametrize(
    ("chat_template", "reason"),
    [
        ("{{ raise_exception('System role not supported') }}", "TemplateError: System role not supported"),
        ("{% for turn in messages %}", "TemplateSyntaxError: Unexpected end of template"),
        ("{{ messages[0].content + 1 }}", "TypeError: can only concatenate str"),
    ],
)
def test_chat_template_that_fails_is_one_sentence(build_tokenizer, chat_template, reason):
    tokenizer = build_tokenizer(chat_template)
    message = rf"the chat template cannot render the prompt \({reason}.*\); give another one as `policy.chat_template`"
    with pytest.raises(ValueError, match=f"^{message}$"):
        PromptTemplate().encode(tokenizer, {"problem": "1"})
    with pytest.raises(ValueError, match=f"^{message}, or do without `template.system` if it takes no system turn$"):
        PromptTemplate(system="Be brief.").encode(tokenizer, {"problem": "1"})


def test_half_a_surrogate_pair_is_no_text(plain_tokenizer):
    with pytest.raises(ValueError, match=r"the prompt must be Unicode, but holds half of a surrogate pair: '\\ud83d'"):
        PromptTemplate().encode(plain_tokenizer, {"problem": "1 \ud83d 1"})


def test_tokens_that_touch_the_problem_are_evidence(plain_tokenizer):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({"<unk>": 0, "Q:1": 1, "+": 2, "1=": 3, "so": 4}, unk_token="<unk>"))
    words.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")
    prompt = PromptTemplate(user="so Q:{problem}= so").encode(tokenizer, {"problem": "1 + 1"})
    assert prompt.ids.tolist() == [4, 1, 2, 3, 4]
    assert prompt.evidence.tolist() == [False, True, True, True, False]


def test_other_columns_may_be_shown():
    template = PromptTemplate(user="{hint}: {problem}", system="{hint}")
    assert template.fill({"problem": "1+1", "hint": "{add}"}) == ("{add}", "{add}: 1+1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"user": r"\boxed{}: {problem}"}, r"must name columns in its braces and double literal ones, .*got \{\}"),
        ({"user": "{problem.x} {problem}"}, r"got \{problem.x\}"),
        ({"user": "{problem"}, "must double its literal braces"),
        ({"user": "Hello"}, r"must contain \{problem\}, got 'Hello'"),
        ({"chat": "chatty"}, "`chat` must be one of auto, chat, plain, got 'chatty'"),
    ],
)
def test_bad_templates_are_refused_when_made(options, message):
    with pytest.raises(ValueError, match=message):
        PromptTemplate(**options)


def test_unknown_column_names_the_choices():
    with pytest.raises(ValueError, match="names unknown columns question; choices: problem, answer"):
        PromptTemplate(user="{problem} {question}").fill({"problem": "1", "answer": "2"})

"""What users of other libraries fed in and were surprised by: prompts, stops, streams, templates, folders.

Each test names the public report whose kind of failure it guards against.
"""

import json

import numpy as np
import pytest
import torch
from engine.models import byte_tokenizer, save_model, text_target
from safetensors.torch import load_file, save_file
from tokenizers import processors

from companion import FixedDepth, generate, load_drafter, load_target, stream
from companion.drafters.lookup import LookupDrafter
from companion.exact.tables import TableDrafter, TableTarget, script_law

OPTIONS = {"max_new_tokens": 4, "stop_token_ids": ()}


@pytest.fixture(scope="module")
def target():
    return text_target()


def plain(target, prompts, **options):
    return generate(target, None, prompts, **(OPTIONS | options))


@pytest.mark.parametrize(
    "prompts",
    [
        byte_tokenizer()(["hello", "hi"]),  # ids under the key input_ids
        byte_tokenizer().apply_chat_template([{"role": "user", "content": "hi"}], add_generation_prompt=True),
        {"role": "user", "content": "hi"},
        [{"role": "user", "content": "hi"}],
        b"hi",
        [b"hi"],
        7,
        torch.tensor(7),
        [None],
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_neither_text_nor_ids_is_refused(target, prompts):
    """ed-donner/llm_engineering#1307, SearchSavior/OpenArc#95: the dict that a tokenizer returns is passed as it is."""
    with pytest.raises(ValueError, match=r"a prompt is a message or a list of token ids, got .*pass the 'input_ids'"):
        plain(target, prompts)


@pytest.mark.parametrize("wrong", [-1, 10**6, 70.0, "a", None])
def test_ids_that_no_tokenizer_makes_are_refused(target, wrong):
    """vllm-project/vllm#51795: a negative id passed the check and became an index."""
    for prompts in ([70, wrong], [[70], [71, wrong]]):
        with pytest.raises(ValueError, match=r"outside the vocabulary|a prompt is a message"):
            plain(target, prompts)


def test_ids_come_in_every_container(target):
    """ed-donner/llm_engineering#1307: lists, tuples, arrays, tensors of any integer type, generators, lists of them."""
    expected = plain(target, [70, 71]).tokens
    one = [(70, 71), np.array([70, 71], np.uint8), torch.tensor([70, 71], dtype=torch.int32), iter([70, 71])]
    one.append([torch.tensor(70), torch.tensor(71)])
    assert [plain(target, ids).tokens for ids in one] == [expected] * len(one)
    many = [[torch.tensor([70, 71])], ([70, 71] for _ in range(1)), {"a": [70, 71]}.values(), torch.tensor([[70, 71]])]
    assert [[r.tokens for r in plain(target, ids)] for ids in many] == [[expected]] * len(many)


def test_stop_tokens_come_in_every_form(target):
    """Blaizzy/mlx-audio#964, huggingface/transformers#31362: an int is no set, a tensor in a set never matches."""
    free = plain(target, [70, 71]).tokens
    for stops in (free[1], [free[1]], torch.tensor(free[1]), [torch.tensor(free[1])], np.array([free[1]]), {free[1]}):
        assert plain(target, [70, 71], stop_token_ids=stops).tokens == free[:2]


@pytest.mark.parametrize("stops", [[-1], [10**6], [None], "<|im_end|>", ["<|im_end|>"], [1.5]])
def test_stop_tokens_that_never_come_are_refused(target, stops):
    """sgl-project/sglang#27398, #22175: ids beyond the vocabulary, null and text were taken, and stopped nothing."""
    with pytest.raises(ValueError, match="outside the vocabulary"):
        plain(target, [70, 71], stop_token_ids=stops)


def test_no_stop_strings_may_be_said_with_none(target):
    """NovaSky-AI/SkyRL#541: None is the other libraries' default."""
    assert plain(target, [70, 71], stop_strings=None).tokens == plain(target, [70, 71]).tokens
    with pytest.raises(ValueError, match=r"stop_strings must be text, got .* token ids go into stop_token_ids"):
        plain(target, [70, 71], stop_strings=[5])


def scripted(target, monkeypatch, script, depth=3):
    """Let ``target`` answer "? " with ``script`` (text or ids); the drafter knows it."""
    prompt, tokens = target.encode("? "), target.encode(script) if isinstance(script, str) else script
    law = script_law(target.vocab_size, len(prompt), tokens)
    table = TableTarget(target.vocab_size, law)
    monkeypatch.setattr(target, "new_cache", table.new_cache, raising=False)
    monkeypatch.setattr(target, "forward", table.forward, raising=False)
    return prompt, TableDrafter(target.vocab_size, law, "greedy", max_depth=depth)


@pytest.mark.parametrize("depth", [1, 6])
def test_a_stop_string_that_is_a_special_token_stops(monkeypatch, depth):
    """vllm-project/vllm#2123, LostRuins/koboldcpp#791: the decoded text has no special tokens, so nothing matched."""
    target = text_target()
    prompt, drafter = scripted(target, monkeypatch, "ab<|im_start|>cdefgh", depth)
    result = generate(target, drafter, prompt, max_new_tokens=9, stop_token_ids=(), stop_strings="<|im_start|>")
    assert (result.text, result.finish_reason) == ("ab", "stop")
    assert result.tokens == target.encode("ab<|im_start|>")


def test_an_empty_list_of_stop_tokens_ignores_the_models_own():
    """vllm-project/vllm#4589: stop tokens of generation_config.json interfered with ignore_eos."""
    target = text_target()
    free = plain(target, [70, 71]).tokens
    target.eos_token_ids = frozenset([free[0]])
    assert plain(target, [70, 71]).tokens == free
    assert plain(target, [70, 71], stop_token_ids=None).tokens == free[:1]


@pytest.mark.parametrize("length", [40, 400])
def test_streaming_decodes_each_token_a_few_times_at_most(monkeypatch, length):
    """peonist-ai/halogen-flash-server#13, ai-dynamo/dynamo#2413: every event decoded the whole response again."""
    target = text_target()
    script = target.encode("añ🙂 " * length)[:length]
    prompt, drafter = scripted(target, monkeypatch, script)
    decoded = []
    monkeypatch.setattr(target, "decode", lambda ids: decoded.append(len(ids)) or type(target).decode(target, ids))
    events = list(stream(target, drafter, prompt, max_new_tokens=length, stop_token_ids=()))
    assert "".join(event.text for event in events) == events[-1].result.text
    assert events[-1].result.tokens == script
    assert sum(decoded) <= 5 * length


def test_streamed_text_keeps_its_spaces(monkeypatch):
    """ml-explore/mlx-examples#1024, ml-explore/mlx-lm#1754: clean-up of spaces made a stream drop and shift text."""
    target = text_target()
    target.tokenizer.clean_up_tokenization_spaces = True
    text = " x != y , isn 't it ?  \n .  end"
    prompt, drafter = scripted(target, monkeypatch, text, depth=2)
    options = {"max_new_tokens": len(text), "stop_token_ids": ()}
    assert "".join(event.text for event in stream(target, drafter, prompt, **options)) == text
    assert generate(target, drafter, prompt, **options).text == text


def test_half_a_surrogate_pair_is_refused(target):
    """huggingface/transformers#8886, HKUDS/nanobot#3697: text cut inside an emoji crashed the tokenizer."""
    for text in ("a\ud83d", "caf\udce9"):
        with pytest.raises(ValueError, match=r"half of a surrogate pair, which is no character: it was decoded"):
            plain(target, text)
    assert "a🙂" in target.decode(plain(target, "a🙂").prompt_tokens)


def test_a_tokenizer_that_adds_its_own_start_token_adds_none_to_the_template():
    """deepseek-ai/DeepSeek-R1#151, sgl-project/sglang#888: template and tokenizer each put a start token in front."""
    target = text_target()
    expected = target.render("hi")
    first = ("<|endoftext|>", target.tokenizer.get_vocab()["<|endoftext|>"])
    target.tokenizer._tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[first]
    )
    assert target.tokenizer("hi").input_ids[0] == first[1], "the tokenizer would add it"
    assert target.render("hi") == expected


def test_braces_in_a_prompt_are_text(target):
    """A prompt is data to the chat template, not part of it."""
    for text in ("{{ 7 * 7 }}", "{% raise %}", "{# gone #} \\n ${x}"):
        assert text in target.decode(target.render(text))


@pytest.mark.parametrize(("start", "phase"), [("<think>\\n", "think"), ("", "output")])
def test_a_template_that_cannot_switch_thinking_says_so(start, phase):
    """jundot/omlx#2367, kekzl/imp#563: models that always or never think ignore the flag, and were labelled by it."""
    target = text_target()
    target.tokenizer.chat_template = "{{ '<|im_start|>' + messages[0].content + '" + start + "' }}"
    with pytest.raises(ValueError, match="has no enable_thinking, so thinking cannot be turned off"):
        plain(target, "hi", thinking=False)
    result = generate(target, LookupDrafter(target.vocab_size), "hi", max_new_tokens=4, stop_token_ids=())
    assert set(result.phases) == {phase}
    assert {row.mode for row in result.rounds} == {None}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": None}, "temperature must be a number, got None"),
        ({"temperature": "0.7"}, "temperature must be a number, got '0.7'"),
        ({"top_p": None}, "top_p must be a number"),
        ({"seed": None}, "seed must be an integer of less than 128 bits, got None"),
        ({"seed": 1.5}, "seed must be an integer"),
        ({"seed": "3"}, "seed must be an integer"),
        ({"seed": 2**127}, "seed must be an integer of less than 128 bits"),
        ({"labels": [{"promptid": "a"}]}, "no label 'promptid'; rounds are labelled with prompt_id, domain and mode"),
        ({"labels": [{"tokens": []}]}, "no label 'tokens'"),
        ({"policy": 4}, r"policy must say how deep to draft, such as FixedDepth\(4\), got 4"),
    ],
)
def test_settings_of_the_wrong_kind_are_refused_before_anything_is_decoded(target, monkeypatch, options, words):
    """vllm-project/vllm#57018, sgl-project/sglang#28960: seeds and numbers of the wrong kind failed inside a worker."""
    monkeypatch.setattr(target, "forward", lambda *args: pytest.fail("the model ran"), raising=False)
    with pytest.raises(ValueError, match=words):
        plain(target, [70, 71], **options)


@pytest.mark.parametrize("seed", [0, -1, 2**63, 2**64, -(2**63), np.int64(5), True])
def test_every_integer_is_a_seed(target, seed):
    """vllm-project/vllm#57018: 2**63 to 2**64 overflowed in the worker, larger ones on the way to it."""
    one, same, other = (plain(target, [70, 71], seed=s).tokens for s in (seed, int(seed), int(seed) + 1))
    assert one == same != other


def test_a_name_is_not_a_model(target):
    """The name of a target or a drafter, given where the loaded one belongs."""
    with pytest.raises(ValueError, match="target must be a loaded model, got 'tiny-qwen3'; load it with load_target"):
        generate("tiny-qwen3", None, "hi")
    with pytest.raises(ValueError, match="drafter must be None or a loaded drafter, got 'lookup'"):
        generate(target, "lookup", "hi")


@pytest.mark.parametrize("device", ["gpu", "cpu:x", "mps:99", ""], ids=["name", "index", "absent", "empty"])
def test_a_device_that_is_none_is_refused(device):
    """huggingface/transformers#35099's kind: a device by a wrong name."""
    with pytest.raises(ValueError, match=r"device '.*' cannot be used here .* give 'cpu', or 'cuda' on a GPU"):
        load_target("tiny-qwen3", device=device)


@pytest.mark.parametrize("depth", [2.5, "3"])
def test_depths_are_integers(target, depth):
    with pytest.raises(ValueError, match="depth must be an integer"):
        FixedDepth(depth)
    with pytest.raises(ValueError, match="max_depth must be an integer"):
        load_drafter("lookup", target, max_depth=depth)


@pytest.mark.parametrize("stray", ["adapter_model.safetensors", "zz-consolidated.safetensors"])
def test_weights_beside_the_model_are_not_mixed_in(tmp_path, stray):
    """vllm-project/vllm#40765, Blaizzy/mlx-vlm#1464: every *.safetensors of the folder was loaded, the last one won."""
    save_model(tmp_path)
    expected = load_target(str(tmp_path)).logits([1, 2, 3])
    weights = load_file(tmp_path / "model.safetensors")
    save_file({name: weight + 1 for name, weight in weights.items()}, tmp_path / stray)
    target = load_target(str(tmp_path))
    assert torch.equal(target.logits([1, 2, 3]), expected)
    assert list(target.source["weights_sha256"]) == ["model.safetensors"]


def test_an_index_that_outlived_its_shards_is_named(tmp_path):
    """Neph0s/CoSER#3: the index still asks for shards of an earlier split."""
    save_model(tmp_path)
    index = {"weight_map": {"lm_head.weight": "model-00015-of-00030.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(
        ValueError, match=r"lacks the weight file model-00015-of-00030.safetensors that its index names"
    ):
        load_target(str(tmp_path))


def test_a_pointer_instead_of_weights_is_said_so(tmp_path):
    """huggingface/transformers#27923: a clone without git-lfs holds a text file where the weights belong."""
    save_model(tmp_path)
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(ValueError, match=r"model.safetensors is not a whole safetensors file .*; fetch or train it"):
        load_target(str(tmp_path))

"""A config.json whose numbers are none is refused by name, before anything is built from them."""

import pytest

from companion.engine.numbers import positive, rope_theta, whole
from companion.engine.target import Qwen3Shape

CONFIG = {
    "model_type": "qwen3",
    "vocab_size": 503,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "rope_theta": 5e5,
}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"num_attention_heads": 0}, "no number 'num_attention_heads': expected a whole number >= 1, found 0"),
        ({"hidden_size": True}, "no number 'hidden_size': .* found True"),
        ({"num_hidden_layers": 2.0}, "no number 'num_hidden_layers': .* found 2.0"),
        ({"vocab_size": None}, "no number 'vocab_size': .* found None"),
        ({"num_key_value_heads": "2"}, "no number 'num_key_value_heads': .* found '2'"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3 key/value heads evenly"),
        ({"head_dim": 31}, "head_dim is 31, and the rotary embedding turns pairs: it must be even"),
        ({"rms_norm_eps": "x"}, "rms_norm_eps of the configuration must be a finite number above 0, found 'x'"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps .* found nan"),
        ({"rope_parameters": "x"}, "rope_parameters of the configuration must be an object with rope_theta, found 'x'"),
        ({"rope_parameters": {"rope_theta": -1.0}}, "rope_theta of the configuration must be .* found -1.0"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_type 'yarn' is not supported"),
    ],
)
def test_a_number_that_is_none_is_refused_by_name(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        Qwen3Shape.from_config(CONFIG | change)


def test_missing_and_null_numbers_take_transformers_defaults():
    bare = {key: value for key, value in CONFIG.items() if key not in ("num_key_value_heads", "head_dim", "rope_theta")}
    for config in (
        bare,
        bare | {"num_key_value_heads": None, "head_dim": None, "rope_theta": None, "rms_norm_eps": None},
    ):
        shape = Qwen3Shape.from_config(config)
        assert (shape.kv_heads, shape.head_dim, shape.eps, shape.rope_theta) == (4, 16, 1e-6, 1e4)
    assert Qwen3Shape.from_config(CONFIG).rope_theta == 5e5
    assert rope_theta({"rope_theta": 5e5, "rope_parameters": {"rope_theta": 1e6}}) == 1e6


def test_the_bounds_are_the_callers():
    assert whole({"a": -3}, "a", least=None) == -3
    assert whole({}, "a", default=7) == 7
    assert positive({"a": 2}, "a", 1.0) == 2.0
    with pytest.raises(ValueError, match="found 0"):
        positive({"a": 0}, "a", 1.0)

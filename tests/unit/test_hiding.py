"""What is handed on in a report or shown on the board holds nobody's keys (spec/hiding.py)."""

from __future__ import annotations

import json

import pytest

from tasuki.spec.hiding import HIDDEN, hide, hide_in_texts, is_secret

SECRET = [
    "key", "keys", "api_key", "api_keys", "apiKey", "APIKey", "OPENAI_API_KEY", "apikey",
    "test_api_key", "private_key", "wandb_key", "--wandb-key", "ssh_key_path", "access_key_id",
    "AWS_SECRET_ACCESS_KEY", "license_key", "hf_token", "HFTOKEN", "token", "--token",
    "access_token", "user_tokens", "api_tokens", "new_access_token", "secret", "client_secret",
    "passwd", "password", "DB_PASSWORD", "passphrase", "pwd", "MYSQL_PWD", "auth",
    "auth_header", "Authorization", "oauth2", "bearer", "credentials", "cookie",
    "slack_webhook", "jwt", "logger.wandb.key", "storage_account_key", "openai_key_2",
]  # fmt: skip
HARMLESS = [
    "key_dim", "num_key_value_heads", "key_value", "key_padding_mask", "keyframe", "monkey",
    "turkey", "keyboard", "sort_key", "public_key", "tokenizer", "num_tokens", "tokens",
    "max_new_tokens", "train_tokens", "pad_token", "eos_token_id", "token_dropout",
    "tokens_per_batch", "cost_per_token", "special_tokens", "author", "authors", "authentic",
    "passes", "bypass_weight", "forward_pass", "pass_through", "grid_tokens_max", "lr", "name",
    "hidden", "loss", "robot_tokens", "secs_per_step", "monitor_key",
]  # fmt: skip


def test_a_value_is_hidden_whatever_it_is_when_its_name_says_that_it_is_a_secret():
    assert [name for name in SECRET if not is_secret(name)] == []
    for value in ("s3", ["s3"], {"a": "s3"}, [["s3"]], 53):
        assert hide({"token": value}) == {"token": HIDDEN}
    assert hide({"token": False, "key": None}) == {"token": False, "key": None}


def test_names_that_training_uses_every_day_are_shown():
    assert [name for name in HARMLESS if is_secret(name)] == []
    value = {"tokens": ["a", 3, {"b": "c"}]}
    assert hide(value) == value


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["t.py", "--wandb-key", "s3", "--lr", "3e-4"], ["--wandb-key", HIDDEN, "--lr", "3e-4"]),
        (["t.py", "--password=s3"], [f"--password={HIDDEN}"]),
        (["--use-auth", "--lr", "1"], ["--use-auth", "--lr", "1"]),
        (["--max-tokens", "9", "--tokenizer", "bpe"], ["--max-tokens", "9", "--tokenizer", "bpe"]),
        (["sh", "-c", "WANDB_API_KEY=s3 python t.py --lr 1"], ["python t.py --lr 1"]),
        (["python t.py --wandb-key s3 --lr 1"], ["python t.py --wandb-key", "--lr 1"]),
        (["curl", "-H", "Authorization: Basic s3"], ["curl", "-H", "Authorization"]),
        (["curl -H 'X-Api-Key: s3' https://host/x"], ["https://host/x"]),
        (["+logger.wandb.key=s3", "--set=wandb.key=s3"], ["logger.wandb.key"]),
        (["https://user:s3@host/x?y=1"], ["https://host/x?y=1"]),
        (["https://user:p@s3@host:80/x"], ["https://host:80/x"]),
        (["https://host/x?token=s3"], ["https://host/x"]),
        (['{"api_key": "s3 s3", "lr": 1}'], ["api_key", "lr"]),
        (["send it as Bearer s3"], ["send it as Bearer"]),
        (["sk-abcdefghijklmnops3"], []),
        (["data/s-3/a@b.h5", "s-3://bucket/a@v2"], ["data/s-3/a@b.h5", "s-3://bucket/a@v2"]),
        (["12:30", "a: b", "key"], ["12:30", "a: b", "key"]),
        (["Command '['false', '--token', 's3', '-k', 'x']' died"], ["'--token', ", "'-k', 'x'"]),
        (["token=s3; nothing saved"], ["; nothing saved"]),
    ],
)
def test_in_commands_addresses_and_headers_the_secret_alone_is_hidden(words, shown):
    told = json.dumps(hide(words), ensure_ascii=False)
    assert "s3" not in told
    for part in shown:
        assert part in told
    assert "s3" not in json.dumps(hide({"nested": [{"deep": words}]}))


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: Missing key: encoder.weight",
        "AuthenticationError: out of quota",
        "auth.py:33 failed",
        "unexpected token: }",
    ],
)
def test_a_sentence_that_names_no_secret_stays_as_it_is(text):
    assert hide_in_texts({"reason": text}) == {"reason": text}


def test_what_people_have_called_their_runs_and_stages_is_shown_whatever_it_looks_like():
    named = {"experiment": "sk-learning-rate-sweep-1", "stages": ["hf_abcdefghijklmnopqrstu"]}
    assert hide_in_texts(named) == named
    assert hide_in_texts({"why": [{"reason": "token=s3"}]}) == {
        "why": [{"reason": f"token={HIDDEN}"}]
    }

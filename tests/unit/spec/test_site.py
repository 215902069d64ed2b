"""The site file: what holds on a cluster is written once, and a spec always wins over it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasuki.errors import SpecError
from tasuki.spec import site as site_module
from tasuki.spec.load import load_cluster, load_spec
from tasuki.spec.site import POLL_S, Site, SiteGpu, SitePartition, load_site

SPEC = "recipe: r:R\nexperiments: {e: {data: a.h5}}\n"
WHOLE = """
cluster: {account: lab, partition: preempt, price_per_gpu_hour: 1.5, extra: {nice: 5}}
gpus:
  a100-40gb: {gres: "gpu:a100", constraint: a100}
partitions:
  preempt: {grace: 20s, kill_wait: 30s, longest: 1-00:00:00, preempt_mode: REQUEUE}
queue: {max_jobs: 100}
poll: 30s
"""


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def load(tmp_path: Path, text: str, *settings: str, cluster: str = "", **environ: str):
    own = put(tmp_path / "site" / "site.yaml", text)
    spec = put(tmp_path / "p" / "tasuki.yaml", SPEC + (f"cluster: {cluster}\n" if cluster else ""))
    environ = {"TASUKI_SITE": str(own), **environ}
    return load_spec(str(spec), settings=settings, environ=environ)


def refuse(tmp_path: Path, text: str) -> SpecError:
    with pytest.raises(SpecError) as caught:
        load(tmp_path, text)
    assert caught.value.hint
    return caught.value


def test_a_spec_begins_with_what_the_site_says_and_wins_key_by_key(tmp_path):
    mine = "{account: mine, extra: {exclusive: true}}"
    cluster = load(tmp_path, WHOLE, "cluster.partition=long", cluster=mine).cluster
    assert (cluster.account, cluster.partition, cluster.price_per_gpu_hour) == ("mine", "long", 1.5)
    assert cluster.extra == {"nice": 5, "exclusive": True}
    assert load(tmp_path, WHOLE, cluster="{partition: null}").cluster.partition is None
    assert load(tmp_path, WHOLE, cluster="").cluster.account == "lab"


def test_a_run_that_goes_on_has_the_same_site(tmp_path):
    load(tmp_path, WHOLE)
    environ = {"TASUKI_SITE": str(tmp_path / "site" / "site.yaml")}
    cluster = load_cluster(str(tmp_path / "p" / "tasuki.yaml"), environ=environ)
    assert (cluster.account, cluster.grace_s) == ("lab", 50.0)


def test_the_grace_is_what_is_known_of_the_partition_unless_somebody_says_another(tmp_path):
    assert load(tmp_path, WHOLE).cluster.grace_s == 50.0
    assert load(tmp_path, WHOLE, cluster="{grace: 5s}").cluster.grace_s == 5.0
    assert load(tmp_path, WHOLE, "cluster.grace=7s").cluster.grace_s == 7.0
    assert load(tmp_path, WHOLE, cluster="{partition: other}").cluster.grace_s == 60.0


def test_everything_that_a_site_file_says_becomes_a_value(tmp_path):
    path = put(tmp_path / "site.yaml", WHOLE)
    site = load_site(environ={"TASUKI_SITE": str(path)})
    assert site.files == (str(path),)
    assert site.gpus == {"a100-40gb": SiteGpu(gres="gpu:a100", constraint="a100")}
    known = site.partitions["preempt"]
    assert known == SitePartition(
        grace_s=20.0, kill_wait_s=30.0, longest_s=86400.0, preempt_mode="REQUEUE"
    )
    assert known.save_s == 50.0
    assert (site.max_jobs, site.poll_s) == (100, 30.0)


def test_a_site_file_may_say_what_a_card_can_do(tmp_path):
    text = """
gpus:
  big: {memory: 94GB, bandwidth: 3.9TB/s, tflops: {fp32: 60, bf16: 835.5, tf32: null}}
  same: {memory: 39.4GiB, bandwidth: 1555000000000}
"""
    path = put(tmp_path / "site.yaml", text)
    gpus = load_site(environ={"TASUKI_SITE": str(path)}).gpus
    assert gpus["big"] == SiteGpu(
        memory_bytes=94 * 10**9, bandwidth=3900 * 10**9, tflops={"fp32": 60.0, "bf16": 835.5}
    )
    assert gpus["same"].memory_bytes == round(39.4 * 2**30)
    assert gpus["same"].bandwidth == 1555 * 10**9
    assert not gpus["same"].is_named, "what it can do does not tell how to ask for it"
    assert SiteGpu(gres="gpu:a").is_named and SiteGpu(constraint="a").is_named


def test_a_users_file_wins_over_everybodys_and_both_may_be_missing(tmp_path, monkeypatch):
    everybodys = tmp_path / "etc" / "site.yaml"
    monkeypatch.setattr(site_module, "EVERYBODYS", everybodys)
    home = {"HOME": str(tmp_path / "home")}
    assert load_site(environ=home) == Site() and Site().poll_s == POLL_S
    put(everybodys, "cluster: {account: all, qos: normal}\npartitions: {p: {grace: 1s}}\n")
    own = put(tmp_path / "home" / ".config" / "tasuki" / "site.yaml", "cluster: {account: me}\n")
    site = load_site(environ=home)
    assert site.files == (str(everybodys), str(own))
    assert site.cluster.plain() == {"account": "me", "qos": "normal"}
    assert load_site(environ={}).cluster.plain() == {"account": "all", "qos": "normal"}
    other = put(tmp_path / "xdg" / "tasuki" / "site.yaml", "cluster: {account: x}\n")
    assert load_site(environ={**home, "XDG_CONFIG_HOME": str(tmp_path / "xdg")}).files[1:] == (
        str(other),
    )
    assert load_site(environ={**home, "TASUKI_SITE": ""}) == Site()


def test_a_setup_of_a_site_file_is_relative_to_that_file(tmp_path):
    spec = load(tmp_path, "cluster: {setup: env.sh}\n")
    assert spec.cluster.setup == str(tmp_path / "site" / "env.sh")
    assert load(tmp_path, "cluster: {setup: ~/e.sh}", HOME="/h").cluster.setup == "/h/e.sh"
    ours = load(tmp_path, "cluster: {setup: env.sh}", cluster="{setup: mine.sh}")
    assert ours.cluster.setup == "mine.sh"


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        ("partition: {}\n", "1: unknown key `partition` in a site file", "`partitions`"),
        ("\naccount: lab\n", "2: unknown key `account` in a site file", "belongs in `cluster`"),
        ("cluster:\n  acount: lab\n", "2: unknown key `acount` in `cluster`", "`account`"),
        ("partitions:\n  p: {gracee: 1s}\n", "2: unknown key `gracee` in partition `p`", "`grace`"),
        ("gpus:\n  a100: {gre: x}\n", "2: unknown key `gre` in GPU `a100`", "`gres`"),
        ("gpus: {a100: gpu}\n", "1: GPU `a100` must be a mapping, not `gpu`", "key: value"),
        ("gpus: {x: {memory: 40}}\n", "1: `memory`: `40` is 40 bytes, too few", "40GB"),
        ("gpus: {x: {bandwidth: 900}}\n", "`bandwidth`: `900` is 900 bytes, too", "1555GB/s"),
        ("gpus: {x: {bandwidth: fast}}\n", "`fast` is not a bandwidth", "1555GB/s"),
        ("gpus:\n  x:\n    tflops: {fp3: 9}\n", "3: unknown key `fp3` in `tflops`", "`fp32`?"),
        ("gpus: {x: {tflops: {fp32: 0}}}\n", "`fp32` must be larger than 0", "fp32: 19.5"),
        ("poll: 0s\n", "1: `poll`: `0s` is no time at all", "8h"),
        ("queue: {max_jobs: 0}\n", "1: `max_jobs` must be at least 1", "max_jobs: 20"),
        ("[1, 2]\n", "1: a site file must be a mapping, not a list", "key: value"),
        ("a: [\n", "this is not YAML", "bracket"),
    ],
)
def test_a_broken_site_file_is_an_error_with_file_line_and_what_to_write(
    tmp_path, text, words, hint
):
    error = refuse(tmp_path, text)
    assert words in error.message and str(tmp_path / "site" / "site.yaml") in error.message
    assert hint in error.hint, error.hint


def test_an_empty_site_file_says_nothing(tmp_path):
    assert load(tmp_path, "# nothing yet\n").cluster.account is None
    assert load(tmp_path, "cluster:\ngpus:\nqueue:\npoll:\n").cluster.account is None


def test_a_site_file_that_is_named_must_be_there(tmp_path):
    with pytest.raises(SpecError, match=r"TASUKI_SITE names .*/none\.yaml") as caught:
        load_site(environ={"TASUKI_SITE": str(tmp_path / "none.yaml")})
    assert "--save" in caught.value.hint

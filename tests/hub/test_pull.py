"""`misod pull` against a hub of our own: what it fetches, checks, makes and says, when all goes well."""

import json
import re

import pytest
from double import Repo, sha256
from pulling import Home, hub_of, kitten_files

from misod.weights import sources
from misod.weights.check import read_header
from protocol import errors

MISO, CODEC, TOKENIZER = sources.WEIGHTS[0], sources.CODEC, sources.TOKENIZER


def manifest(home, name="miso") -> dict:
    return json.loads((home.models / name / "manifest.json").read_text())


@pytest.fixture(scope="module")
def pulled(tmp_path_factory, files):
    """A home in which miso was pulled, the hub it came from, and what the pull said: to look at, not to change."""
    hub = hub_of(files)
    home = Home(tmp_path_factory.mktemp("pulled") / "home", hub)
    home.hub, home.done = hub, home.pull("--json", AI_AGENT="test")
    hub.close()
    return home


def test_a_pull_makes_a_model_that_is_listed_and_whole(pulled):
    home = pulled
    assert home.done.returncode == 0, home.done.stderr
    receipt = json.loads(home.done.stdout)
    assert (receipt["name"], receipt["precision"], receipt["pulled"], receipt["default"]) == ("miso", "q8", True, True)
    made = manifest(home)
    assert made["source"]["repo"] == MISO.repo and made["source"]["revision"] == MISO.revision
    assert made["source"]["licence"] == MISO.licence and CODEC.repo in made["source"]["codec"]
    header = read_header(home.models / "miso" / "model.safetensors")
    assert "backbone.layers.0.attn.q_proj.scales" in header
    assert "Modified MIT, as a test has it" in (home.models / "miso" / "MODEL_CARD.md").read_text()
    assert home.misod("verify", "miso").returncode == 0
    assert [m["name"] for m in json.loads(home.misod("list", "--json").stdout)] == ["nano", "miso"]


def test_only_what_is_wanted_is_fetched_and_only_once(pulled, files):
    hub = pulled.hub
    names = [request.path.rpartition("/")[2] for request in hub.bodies()]
    wanted = ["model.safetensors", "config.json", "LICENSE", sources.CODEC_FILE, "config.json", "tokenizer.json"]
    assert sorted(names) == sorted(wanted)
    assert hub.sent() == sum(
        len(files[source.repo][name]) for source in (MISO, CODEC, TOKENIZER) for name in files[source.repo]
        if name in wanted and (source, name) != (CODEC, "model.safetensors")
    )  # fmt: skip


def test_it_says_the_size_the_room_and_the_precision_before_the_first_large_file(pulled):
    lines = pulled.done.stderr.splitlines()
    said = [i for words in ("precision q8", "tokenizer: ", "disk: ") for i, line in enumerate(lines) if words in line]
    assert len(said) == 3 and said == sorted(said)
    assert said[-1] < next(i for i, line in enumerate(lines) if line.startswith("fetching"))
    assert "misoctl load miso" in lines[-1] and "misoctl say" in lines[-1]


def test_on_a_pipe_progress_is_a_line_each_tenth_of_the_way(pulled):
    lines = [line for line in pulled.done.stderr.splitlines() if line.startswith("fetching")]
    assert 1 <= len(lines) <= 10
    assert "100%" in lines[-1] and not any("\r" in line or "\x1b" in line for line in lines)


def test_quiet_says_nothing(home):
    done = home.pull("-q")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_was_downloaded_is_removed_unless_it_is_to_be_kept(home):
    home.pull("-q", "--keep")
    assert list(home.downloads.rglob("model.safetensors"))
    home.misod("rm", "miso", "-q")
    home.pull("-q")
    assert not home.downloads.exists()


def test_a_model_that_is_here_is_not_pulled_again_and_asks_nobody(home, hub):
    home.pull("-q")
    hub.requests.clear()
    again = home.pull("--json")
    assert again.returncode == 0 and json.loads(again.stdout)["pulled"] is False
    assert "is here already" in again.stderr and not hub.requests
    assert home.pull("-q", "--precision", "q4").returncode == 0
    assert manifest(home)["precision"] == "q4"


def test_without_precision_memory_decides_and_why_is_said(home):
    done = home.misod("pull", env=home.environ | {"PULL_MEMORY": str(16 * 10**9)})
    assert manifest(home)["precision"] == "mixed"
    assert "precision mixed: q8 needs" in done.stderr


def test_embeddings_may_stay_as_they_are(home):
    home.pull("-q", "--embeddings", "bf16")
    header = read_header(home.models / "miso" / "model.safetensors")
    assert header["text_embeddings.weight"][0] == "BF16"
    assert header["backbone.layers.0.attn.q_proj.weight"][0] == "U32"


def test_what_was_fetched_is_recorded_with_commit_size_and_digest(pulled, files):
    recorded = json.loads((pulled.models / ".sources.json").read_text())
    data = files[MISO.repo]["model.safetensors"]
    assert recorded[MISO.repo]["revision"] == MISO.revision
    assert recorded[MISO.repo]["files"]["model.safetensors"] == {"bytes": len(data), "sha256": sha256(data)}
    assert set(recorded) == {MISO.repo, CODEC.repo, TOKENIZER.repo}


def test_a_repository_without_a_pinned_commit_stays_at_the_one_of_the_first_pull(home, hub, files):
    other = sources.WEIGHTS[1]
    hub.repos[other.repo] = type(hub.repos[MISO.repo])(dict(files[MISO.repo]), "a1" * 20)
    assert home.pull("-q", "--from", other.repo).returncode == 0
    assert manifest(home)["source"]["revision"] == "a1" * 20
    home.misod("rm", "miso", "-q")
    hub.requests.clear()
    assert home.pull("-q", "--from", other.repo).returncode == 0
    assert f"/api/models/{other.repo}/revision/{'a1' * 20}" in [request.path for request in hub.requests]


def test_the_token_goes_to_the_hub_and_never_to_where_the_files_are_stored(home, hub):
    hub.accepted_token = "hf_test"
    assert home.pull("-q", HF_TOKEN="hf_test").returncode == 0
    stored = [r for r in hub.requests if r.path.startswith("/stored/")]
    assert stored and not any(r.token for r in stored)
    assert all(r.token == "Bearer hf_test" for r in hub.requests if r not in stored)


def test_the_hubs_own_token_file_is_read(home, hub):
    (home.path / "hf").mkdir(parents=True)
    (home.path / "hf" / "token").write_text("hf_filed\n")
    assert home.pull("-q").returncode == 0
    assert "Bearer hf_filed" in {r.token for r in hub.requests}


def test_nothing_but_models_and_files_is_asked_for(pulled):
    """No telemetry, no update check, no registry of agents."""
    asked = ("/api/models/", "/api/resolve-cache/models/", "/stored/")
    assert pulled.hub.requests
    assert all(r.path.startswith(asked) or "/resolve/" in r.path for r in pulled.hub.requests)


def test_a_large_model_is_spread_over_shards(home, hub, files, pulled):
    """Sharded sources too: as mlx-community's."""
    from misod.weights.tensors import Writer, read

    whole = home.path.parent / "whole.safetensors"
    whole.write_bytes(files[MISO.repo]["model.safetensors"])
    header, repo = read_header(whole), hub.repos[MISO.repo]
    names = list(header)
    for i, part in enumerate((names[: len(names) // 2], names[len(names) // 2 :]), 1):
        path = home.path.parent / f"model-0000{i}-of-00002.safetensors"
        writer = Writer(path, {name: (header[name].dtype, header[name].shape) for name in part})
        for name in part:
            writer.write(read(header[name]))
        writer.finish()
        repo.files[path.name] = path.read_bytes()
    del repo.files["model.safetensors"]
    assert home.pull("-q").returncode == 0
    assert home.contents() == pulled.contents()


def test_what_is_pinned_is_a_commit_and_what_is_known_a_digest():
    for source in (*sources.WEIGHTS, CODEC, TOKENIZER):
        assert source.revision is None or re.fullmatch("[0-9a-f]{40}", source.revision)
        assert source.about_bytes and source.licence
        assert all(re.fullmatch("[0-9a-f]{64}", known.sha256) and known.bytes for known in source.known.values())
    assert MISO.revision and CODEC.revision and CODEC.known and TOKENIZER.revision


@pytest.fixture
def kittens(hub, tmp_path):
    """A hub that has small kittens, too."""
    hub.repos[sources.KITTEN.repo] = Repo(kitten_files(tmp_path), sources.KITTEN.revision)
    codec = {sources.KITTEN_CODEC.wanted[0]: b"codec" * 4000, "t3_turbo_v1.safetensors": b"not wanted"}
    hub.repos[sources.KITTEN_CODEC.repo] = Repo(codec, sources.KITTEN_CODEC.revision)
    return hub


def test_pull_kitten_takes_what_was_published_under_a_manifest(home, kittens):
    done = home.misod("pull", "kitten", "--json", "--from", sources.KITTEN.repo)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["precision"], told["source"], told["pulled"]) == ("ternary", sources.KITTEN.repo, True)
    kept = home.contents("kitten")
    assert kept["codec/s3gen_meanflow.safetensors"] == b"codec" * 4000 and kept["voices/bruno.npz"] == b"bruno"
    assert "lm/model.safetensors" not in kept and "codec/t3_turbo_v1.safetensors" not in kept
    assert not home.downloads.exists()
    assert "all 10 files are as they were made" in home.misod("verify", "kitten").stderr
    assert home.misod("list").stdout.splitlines()[1].split()[:2] == ["kitten", "ternary"]
    assert "1 tensors in lm/model-ternary.safetensors" in home.misod("show", "kitten").stdout
    sent = kittens.sent()
    assert json.loads(home.misod("pull", "kitten", "--json").stdout)["pulled"] is False and kittens.sent() == sent
    (home.models / "kitten" / "manifest.json").unlink()
    assert "damaged" not in home.misod("list").stdout and "put here by hand" in home.misod("list").stdout
    assert home.misod("rm", "kitten").returncode == 0 and not (home.models / "kitten").exists()


def test_pull_kitten_refuses_what_is_for_miso_and_weights_of_another_kind(home, kittens):
    assert "--precision is for miso" in home.refused(errors.USAGE, "kitten")
    done = home.misod("pull", "-q", "kitten", "--from", sources.WEIGHTS[0].repo)
    assert done.returncode == errors.USAGE and "no repository that this version knows" in done.stderr
    repo = kittens.repos[sources.KITTEN.repo]
    repo.files["config.json"] = b'{"type": "KITTEN2", "default_weights": "full"}'
    done = home.misod("pull", "-q", "kitten")
    assert done.returncode == errors.BAD_DATA and "with packed weights" in done.stderr
    assert not (home.models / "kitten").exists()

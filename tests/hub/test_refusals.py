"""Each way in which a pull cannot be done: its own sentence, what to do, its own exit code; and nothing that loads."""

import json
import os
import socket

import pytest
from double import sha256

from misod.weights import sources
from protocol import errors

MISO, CODEC, TOKENIZER = sources.WEIGHTS[0], sources.CODEC, sources.TOKENIZER


def on_every_request(hub, status: int, code: str = "") -> None:
    hub.trouble.status, hub.trouble.error_code = status, code


# ---- the network


def test_offline_no_such_host(home):
    line = home.refused(errors.NO_HOST, HF_ENDPOINT="http://hub.invalid")
    assert "cannot reach hub.invalid" in line and "are you online?" in line and "--from" in line


def test_a_proxy_that_refuses(home, hub):
    """The double knows no CONNECT."""
    line = home.refused(errors.NO_HOST, HF_ENDPOINT="https://hub.invalid", HTTPS_PROXY=hub.url)
    assert "cannot reach hub.invalid: the proxy says 501" in line and "HTTPS_PROXY" in line


def test_connection_refused(home):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    line = home.refused(errors.NO_HOST, HF_ENDPOINT=f"http://127.0.0.1:{port}")
    assert f"127.0.0.1:{port}: connection refused" in line


def test_a_hub_that_never_answers(home, hub):
    hub.trouble.silent = True
    line = home.refused(errors.TRY_AGAIN, HF_HUB_DOWNLOAD_TIMEOUT="1")
    hub.trouble.silent = False
    assert "did not answer within 1 s" in line and "try again" in line


def test_a_download_that_stalls(home, hub):
    hub.trouble.slow_s = 3.0
    line = home.refused(errors.TRY_AGAIN, HF_HUB_DOWNLOAD_TIMEOUT="1")
    assert "did not answer within 1 s" in line and "goes on from there" in line


def test_offline_mode_is_respected(home, hub):
    assert "HF_HUB_OFFLINE" in home.refused(errors.NO_HOST, HF_HUB_OFFLINE="1")
    assert not hub.requests


@pytest.mark.parametrize("endpoint", ["nonsense", "ftp://hub.example"])
def test_an_endpoint_that_is_no_address(home, endpoint):
    assert f"HF_ENDPOINT='{endpoint}'" in home.refused(errors.BAD_CONFIG, HF_ENDPOINT=endpoint)


def test_a_network_that_wants_a_log_in_first(home, hub):
    hub.trouble.page = b"<html>Welcome to our hotel</html>"
    assert "no model hub" in home.refused(errors.NO_HOST)


@pytest.mark.parametrize("status", [500, 503])
def test_a_hub_with_a_fault_of_its_own(home, hub, status):
    on_every_request(hub, status)
    assert f"has a fault of its own ({status})" in home.refused(errors.TRY_AGAIN)


def test_a_fault_of_the_hub_while_a_file_comes_is_tried_again(home, hub):
    hub.trouble.status, hub.trouble.where = 503, "/stored/"
    line = home.refused(errors.TRY_AGAIN)
    assert "503" in line
    assert len([r for r in hub.requests if r.path.startswith("/stored/")]) == 6


def test_asked_too_often(home, hub):
    on_every_request(hub, 429)
    assert "too often" in home.refused(errors.TRY_AGAIN)


# ---- who may


def test_a_gated_repository_without_a_token(home, hub):
    hub.repos[MISO.repo].gated = True
    line = home.refused(errors.NO_TOKEN)
    assert "is gated: accept its terms at" in line and MISO.repo in line and "`hf auth login`" in line


def test_a_gated_repository_that_the_account_may_not_read(home, hub):
    hub.repos[MISO.repo].gated = True
    assert "your account has no access" in home.refused(errors.NO_PERMISSION, HF_TOKEN="hf_stranger")


def test_a_wrong_token(home, hub):
    hub.accepted_token = "hf_right"
    line = home.refused(errors.NO_TOKEN, HF_TOKEN="hf_wrong")
    assert "does not accept your Hugging Face token" in line and "hf_wrong" not in line


def test_a_hub_that_wants_a_token(home, hub):
    on_every_request(hub, 401)
    assert "wants to know who asks" in home.refused(errors.NO_TOKEN)


def test_a_token_with_odd_characters(home, hub):
    line = home.refused(errors.NO_TOKEN, HF_TOKEN="hf_caf\u00e9")
    assert "odd characters" in line and "hf_caf" not in line


def test_a_token_file_that_cannot_be_read(home, hub):
    (home.path / "hf" / "token").mkdir(parents=True)
    assert str(home.path / "hf" / "token") in home.refused(errors.NO_TOKEN)


# ---- what is there


@pytest.mark.parametrize("token", [{}, {"HF_TOKEN": "hf_any"}], ids=["anonymous", "known"])
def test_a_repository_that_is_not_there(home, hub, token):
    del hub.repos[CODEC.repo]
    assert f"there is no {CODEC.repo} on 127.0.0.1" in home.refused(errors.NO_INPUT, **token)


def test_a_commit_that_is_gone(home, hub):
    hub.repos[MISO.repo].commit = "0" * 40
    assert "the commit that this version takes is gone" in home.refused(errors.NO_INPUT)


def test_a_file_that_is_not_there(home, hub):
    del hub.repos[TOKENIZER.repo].files["tokenizer.json"]
    assert f"{TOKENIZER.repo} has no tokenizer.json" in home.refused(errors.NO_INPUT)


def test_a_file_that_goes_away_between_list_and_download(home, hub):
    hub.trouble.status, hub.trouble.error_code, hub.trouble.where = 404, "EntryNotFound", "tokenizer.json"
    assert f"{TOKENIZER.repo}/tokenizer.json is not on" in home.refused(errors.NO_INPUT)


# ---- what came


FETCHED = [f"{MISO.repo}/model.safetensors", f"{TOKENIZER.repo}/tokenizer.json"]  # a large and a small one
MORE = [f"{MISO.repo}/config.json", f"{MISO.repo}/LICENSE", f"{CODEC.repo}/{sources.CODEC_FILE}"]


@pytest.mark.parametrize("name", [*FETCHED, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)])
def test_a_flipped_byte_in_any_file_is_refused_naming_it_and_fetched_again_next_time(home, hub, name):
    repo, _, hub.trouble.flip = name.rpartition("/")
    hub.trouble.flip_in = repo
    line = home.refused(errors.BAD_DATA)
    assert line.startswith(f"misod: {name}: what came is not what was announced") and "pull again" in line
    hub.trouble.flip = ""
    assert home.pull("-q").returncode == 0


def test_the_codec_must_be_the_published_one(home, hub):
    """misod itself, without the test's leave to take a small Mimi."""
    command = ["-m", "misod", "pull", "-q"]
    done = home.misod(*command, plain=True)
    assert done.returncode == errors.BAD_DATA
    assert f"{CODEC.repo}/{sources.CODEC_FILE}: the hub has" in done.stderr and "384,644,900" in done.stderr
    assert not [r for r in hub.bodies() if r.path.endswith(sources.CODEC_FILE)]


def test_a_file_that_differs_from_the_one_of_the_first_pull_is_refused_before_a_byte_comes(home, hub):
    home.pull("-q")
    home.misod("rm", "miso", "-q")
    data = hub.repos[MISO.repo].files["model.safetensors"]
    hub.repos[MISO.repo].files["model.safetensors"] = data[:-1] + bytes([data[-1] ^ 1])
    hub.requests.clear()
    line = home.refused(errors.BAD_DATA)
    assert f"{MISO.repo}/model.safetensors: the hub has a file of sha256" in line
    assert sha256(data)[:12] in line
    assert not [r for r in hub.bodies() if r.path.endswith("model.safetensors")]


def test_a_small_file_that_differs_from_the_one_of_the_first_pull_is_refused(home, hub):
    """Of those the hub tells no sha256."""
    home.pull("-q")
    home.misod("rm", "miso", "-q")
    hub.repos[TOKENIZER.repo].files["tokenizer.json"] = hub.repos[TOKENIZER.repo].files["tokenizer.json"][:-1] + b" "
    assert f"{TOKENIZER.repo}/tokenizer.json: what came is not what was announced" in home.refused(errors.BAD_DATA)


def test_a_record_that_cannot_be_read(home, hub):
    home.models.mkdir(parents=True)
    (home.models / ".sources.json").write_text("{")
    line = home.refused(errors.BAD_DATA)
    assert str(home.models / ".sources.json") in line and "move it away" in line


def test_a_file_that_is_no_checkpoint(home, hub):
    hub.repos[MISO.repo].files["model.safetensors"] = b"no tensors here" * 1000
    line = home.refused(errors.BAD_DATA)
    assert "model.safetensors" in line and "not a safetensors file" in line


# ---- room


def test_too_little_room_says_how_much_to_free_before_a_large_file_comes(home, hub):
    line = home.refused(errors.IO_ERROR, PULL_FREE_BYTES="1000000")
    assert "needs" in line and "are free: free" in line and "or choose a smaller --precision" in line
    assert f"`--from {sources.WEIGHTS[1].repo}`" in line
    assert "smaller --precision" not in home.refused(errors.IO_ERROR, "--precision", "q4-d3", PULL_FREE_BYTES="1000000")
    assert not [r for r in hub.bodies() if r.path.endswith("model.safetensors")]


def test_what_a_killed_pull_left_is_swept_before_the_room_is_measured(home):
    for name in (".miso.partial", ".miso.removed"):
        (home.models / name).mkdir(parents=True)
        (home.models / name / "model.safetensors").write_bytes(b"half")
    home.refused(errors.IO_ERROR, PULL_FREE_BYTES="1000000")
    assert not list(home.models.glob(".miso.*"))


def test_what_is_here_already_needs_no_room_twice(home, hub, files):
    """Enough for what is written and the rest of what is fetched is enough."""
    assert home.pull("-q", "--keep").returncode == 0
    home.misod("rm", "miso", "-q")
    total = sum(len(files[MISO.repo][name]) for name in files[MISO.repo])
    assert home.pull("-q", PULL_FREE_BYTES=str(total * 2)).returncode == 0


def test_a_disk_that_is_full_midway_keeps_what_came(home, hub):
    line = home.refused(errors.IO_ERROR, PULL_FULL_AFTER="3000000")
    assert "No space left on device" in line and "goes on from here" in line
    assert home.partial()
    assert home.pull("-q").returncode == 0


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_home_that_cannot_be_written(home, hub):
    home.path.mkdir(mode=0o500)
    assert "set MISO_HOME" in home.refused(errors.CANT_CREATE)


def test_a_home_that_is_a_file(home, hub):
    home.path.write_text("")
    done = home.pull("-q")
    assert done.returncode in (errors.NO_PERMISSION, errors.CANT_CREATE)
    assert "set MISO_HOME" in done.stderr and done.stderr.count("\n") == 1


# ---- what was asked for


def test_a_misspelt_model_is_no_download(home, hub):
    line = home.refused(errors.USAGE, "mios")
    assert "did you mean miso?" in line
    assert not hub.requests and not home.path.exists()


def test_a_repository_that_is_not_known_is_no_download(home, hub):
    line = home.refused(errors.USAGE, "--from", "MisoLabs/MisoTTZ")
    assert f"did you mean {MISO.repo}?" in line
    assert not hub.requests


def test_a_failed_pull_leaves_the_model_that_was_there(home, hub):
    home.pull("-q")
    before = home.contents()
    hub.trouble.flip = "model.safetensors"
    home.path.joinpath("models/.sources.json").unlink()
    assert home.pull("-q", "--precision", "q4").returncode == errors.BAD_DATA
    assert home.contents() == before
    assert json.loads(home.misod("list", "--json").stdout)[1]["precision"] == "q8"

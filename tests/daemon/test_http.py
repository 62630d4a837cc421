"""`misoctl http` as OpenAI's own client meets it: a real listener, a real daemon, bytes over the loopback."""

import base64
import functools
import io
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, IncompleteRead
from urllib.parse import urlsplit

import numpy as np
import openai
import psutil
import pytest
import soundfile
from harness import Raw, lives, until
from test_flow import FOREVER, frames_after

from protocol import errors
from protocol import messages as m
from tests.unit.test_encode import with_length

TEXT = "Come in."


class Listener:
    def __init__(self, home, *arguments: str, **env: str):
        self.home = home
        environ = home.env | env
        self.process = home.misoctl_process("http", "--port", "0", *arguments, stdout=subprocess.PIPE, env=environ)
        self.url = self.process.stdout.readline().decode().strip()
        assert self.url, self.process.stderr.read()
        self.port = urlsplit(self.url).port
        self.token = (home.path / "http-token").read_text().strip() if not env else env["MISO_HTTP_TOKEN"]

    @functools.cached_property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url, api_key=self.token, max_retries=0, timeout=60)

    def speech(self, **fields):
        """The body that OpenAI's client gets."""
        fields = {"model": "tts-1", "voice": "alloy", "input": TEXT} | fields
        return self.client.audio.speech.create(**fields)

    def ask(self, body: bytes | dict | None = None, path: str = "/v1/audio/speech", method: str = "", **headers: str):
        """(status, headers, body) of a plain request; a header that is empty is not sent."""
        headers = {"authorization": f"Bearer {self.token}", "host": f"localhost:{self.port}"} | headers
        body = json.dumps(body).encode() if isinstance(body, dict) else body
        link = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            sent = {name: value for name, value in headers.items() if value}
            link.request(method or ("POST" if body is not None else "GET"), path, body, sent)
            answer = link.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            link.close()

    def open(self, **fields) -> socket.socket:
        """A connection on which a request was sent, and nothing read yet; its buffer is small."""
        body = json.dumps({"response_format": "pcm"} | fields).encode()
        head = f"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.token}\r\n"
        link = socket.socket()
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.settimeout(60)
        link.connect(("127.0.0.1", self.port))
        link.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return link

    def stop(self, number: int = signal.SIGINT) -> tuple[int, str]:
        """Its exit code, and all that it told."""
        self.process.send_signal(number)
        told = self.process.stderr.read().decode()
        return self.process.wait(), told


@pytest.fixture(scope="module")
def listener(nano):
    return Listener(nano)


@pytest.fixture(scope="module")
def said(nano) -> np.ndarray:
    """What `misoctl say --seed 7` says of TEXT."""
    return np.frombuffer(nano.misoctl("say", "--raw", "--seed", "7", TEXT, text=False).stdout, "<i2")


@pytest.mark.parametrize(("name", "kind"), [("pcm", "audio/pcm"), ("wav", "audio/wav"), ("flac", "audio/flac")])
def test_a_seed_gives_the_samples_of_say(listener, said, name, kind):
    answer = listener.speech(response_format=name, extra_body={"seed": 7})
    assert answer.response.headers["content-type"] == kind and answer.response.headers["x-miso-seed"] == "7"
    if name == "pcm":
        assert answer.content == said.tobytes()
        return
    content = with_length(answer.content, len(said)) if name == "flac" else answer.content
    with soundfile.SoundFile(io.BytesIO(content)) as file:
        assert file.samplerate == 24000
        assert np.array_equal(file.read(dtype="int16"), said)


@pytest.mark.parametrize(("name", "kind", "late"), [("mp3", "audio/mpeg", 2304), ("opus", "audio/ogg", 0)])
def test_other_formats_have_all_of_it(listener, said, name, kind, late):
    answer = listener.speech(extra_body={"seed": 7}, **({"response_format": name} if name != "mp3" else {}))
    assert answer.response.headers["content-type"] == kind
    sound, rate_hz = soundfile.read(io.BytesIO(answer.content), dtype="int16")
    assert rate_hz == 24000 and len(said) <= len(sound) <= len(said) + late
    first = said[:12_000].astype(float)
    assert max(np.corrcoef(sound[lag : lag + len(first)], first)[0, 1] for lag in range(late + 1)) > 0.9


def test_events_hold_the_same_samples_and_end_with_a_count(listener, said):
    fields = {"response_format": "pcm", "stream_format": "sse", "extra_body": {"seed": 7}, "instructions": "Whisper."}
    answer = listener.speech(**fields)
    assert answer.response.headers["content-type"] == "text/event-stream"
    assert answer.response.headers["x-miso-ignored"] == "instructions"
    *deltas, done = [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n\n") if line]
    assert {event["type"] for event in deltas} == {"speech.audio.delta"}
    assert b"".join(base64.b64decode(event["audio"]) for event in deltas) == said.tobytes()
    frames = len(said) // 1920
    usage = {"input_tokens": len(TEXT), "output_tokens": frames, "total_tokens": len(TEXT) + frames}
    assert done == {"type": "speech.audio.done", "usage": usage}


def test_voices_are_speakers(listener, nano):
    other = nano.misoctl("say", "--raw", "--seed", "7", "--speaker", "1", TEXT, text=False).stdout
    for voice in ("onyx", "1"):
        assert listener.speech(voice=voice, response_format="pcm", extra_body={"seed": 7}).content == other
    with pytest.raises(openai.BadRequestError) as refused:
        listener.speech(voice="2")
    assert refused.value.param == "voice" and "0 to 1, not 2" in refused.value.message


def test_what_is_there_is_listed(listener):
    assert [model.id for model in listener.client.models.list()][:2] == ["nano", "tts-1"]
    status, _, body = listener.ask(path="/v1/audio/voices")
    voices = json.loads(body)["voices"]
    assert status == 200 and {"id": "alloy", "name": "alloy"} in voices and len(voices) == 13


def test_openais_client_raises_its_own_errors(listener):
    with pytest.raises(openai.NotFoundError) as refused:
        listener.speech(model="nanno")
    assert (refused.value.param, refused.value.code) == ("model", "model_not_found")
    with pytest.raises(openai.BadRequestError, match="did you mean alloy"):
        listener.speech(voice="alloi")
    with pytest.raises(openai.BadRequestError, match=r"1\.0"):
        listener.speech(speed=2.0)
    with pytest.raises(openai.AuthenticationError, match="--print-token"):
        openai.OpenAI(base_url=listener.url, api_key="wrong", max_retries=0).models.list()
    assert listener.speech(response_format="pcm").content


def test_health_needs_no_token_and_holds_none(listener):
    status, headers, body = listener.ask(path="/health", authorization="")
    assert (status, json.loads(body)) == (200, {"status": "ready"})
    assert listener.token not in str(headers)


WRONG = ["Bearer", "Bearer ", "Bearer wrong", "Basic {}", "{}", "Bearer {}x", "Bearer x{}", "Bearer {} {}"]
PATHS = [
    "/v1/audio/speech",
    "/v1/models",
    "/v1/audio/voices",
    "/elsewhere",
    "//health",
    "/health/",
    "/health%3F",
    "/health%23",
]


@pytest.mark.parametrize(("given", "path"), [*((given, PATHS[0]) for given in WRONG), *(("", path) for path in PATHS)])
def test_without_the_token_there_is_nothing(listener, nano, given, path):
    with Raw(nano) as raw:
        before = raw.ping().requests
        body = {"input": TEXT} if path.endswith("speech") else None
        status, headers, answer = listener.ask(body, path, authorization=given.format(listener.token, listener.token))
        assert raw.ping().requests == before
    assert status == 401 and headers["www-authenticate"] == "Bearer"
    assert json.loads(answer)["error"]["code"] == "invalid_api_key" and listener.token.encode() not in answer


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example:7717", "127.0.0.1.nip.io", "0.0.0.0", "[::2]:1"]
)
def test_a_page_whose_name_leads_here_is_turned_away(listener, host):
    """DNS rebinding: the browser would send the page's own name."""
    for path in ("/v1/models", "/health"):
        status, _, answer = listener.ask(path=path, host=host)
        assert status == 403 and json.loads(answer)["error"]["code"] == "bad_host"


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9", "127.0.0.1:7717", "[::1]", "[::1]:7717"])
def test_our_own_names_are_known_at_any_port(listener, host):
    assert listener.ask(path="/v1/models", host=host)[0] == 200


def test_no_other_page_is_let_in_by_a_browser(listener):
    status, headers, _ = listener.ask(b"", method="OPTIONS", origin="http://evil.example", authorization="")
    assert status == 401 and not [name for name in headers if name.lower().startswith("access-control")]


HOSTILE = {
    "not json": (b"nope", 400),
    "nested": (b"[" * 300_000, 400),
    "another type": (b'{"input": 7}', 400),
    "too much": (b'{"input": "' + b"a" * 2_000_000 + b'"}', 413),
    "zeros": (bytes(400_000), 400),
    "a text of bells": (b'{"input": "' + b"\\u0007" * 60_000 + b'"}', 400),
    "nothing": (b"", 400),
}


@pytest.mark.parametrize(("body", "status"), HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_body_is_answered_in_the_same_shape(listener, body, status):
    answered, headers, answer = listener.ask(body, "/v1/audio/speech", "POST")
    assert (answered, headers["content-type"]) == (status, "application/json")
    assert json.loads(answer)["error"].keys() == {"message", "type", "param", "code"}
    assert listener.ask(path="/health")[0] == 200


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/v1/audio/speech", 405), ("POST", "/v1/speech", 404)])
def test_what_is_not_there_is_told_with_what_is(listener, method, path, status):
    answered, _, answer = listener.ask(None, path, method)
    assert answered == status and "/v1/audio/speech" in json.loads(answer)["error"]["message"]


def test_what_is_no_http_does_no_harm(listener):
    for junk in (
        b"\0" * 100,
        b"POST /v1/audio/speech HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", listener.port), timeout=20) as link:
            link.sendall(junk)
            assert link.recv(4096).startswith(b"HTTP/1.1 400")
    assert listener.ask(path="/health")[0] == 200


# ---- clients that go, or dawdle; the engine is fake from here on


def test_the_first_bytes_come_with_the_first_frames(home):
    home.fake(env={"FAKE_STEP_MS": "60"})
    listener = Listener(home)
    for name in ("pcm", "wav", "mp3", "opus", "flac"):
        fields = {"model": "tts-1", "voice": "alloy", "input": f"{name} last 50", "response_format": name}
        with listener.client.audio.speech.with_streaming_response.create(**fields) as answer:
            pieces, size = answer.iter_bytes(), 0
            while size < 1500:  # more than the headers of any
                size += len(next(pieces))
            assert home.traced(f"frame {name}") < 30


def test_each_of_many_at_once_hears_its_own(fake):
    listener = Listener(fake)

    def speak(seed: int) -> bytes:
        return listener.ask({"input": "last 20", "response_format": "pcm", "seed": seed})[2]

    with ThreadPoolExecutor(16) as pool:
        heard = list(pool.map(speak, range(16)))
    assert heard == [speak(seed) for seed in range(16)] and len(set(heard)) == 16


def test_a_client_that_goes_away_frees_its_row_within_two_frames(home):
    home.fake(env={"FAKE_STEP_MS": "80"})
    link = Listener(home).open(input=FOREVER)
    link.recv(100)
    assert frames_after(home, FOREVER, link.close) <= 2


def test_a_client_that_goes_away_while_it_waits_leaves_the_queue(home):
    home.fake(max_rows=1)
    listener = Listener(home)
    with Raw(home) as raw:
        raw.say(1, FOREVER)
        raw.until(m.Pcm)
        with listener.open(input="Hello"):
            until(lambda: raw.ping().queued == 1, "it to wait")
        now = until(lambda: (now := raw.ping()).queued == 0 and now, "it to leave")
    assert (now.speaking + now.parked, home.traced("prefill Hello")) == (1, 0)  # the first still has the row


def test_a_client_that_reads_nothing_holds_back_the_engine_and_is_cut_off(home):
    home.fake(env={"FAKE_SLOW_S": "1", "FAKE_STEP_MS": "0"})
    listener = Listener(home)
    with listener.open(input="last 20000") as link:  # 77 MB
        until(lambda: home.traced("release last"), "misod to lose patience")
        assert home.traced("frame last") < 3000  # what the system's own buffers take, 11 MB, and a window
        assert psutil.Process(listener.process.pid).memory_info().rss < 200e6
        rest = b""
        while piece := link.recv(1 << 16):
            rest = (rest + piece)[-10:]
    assert not rest.endswith(b"0\r\n\r\n")  # no end of the body: a client knows that it is not whole
    told = listener.stop()[1]
    assert "a response was cut off" in told and "did not take it for" in told


def test_a_fault_is_a_status_before_the_first_sound_and_a_broken_body_after_it(fake):
    listener, fake.may_trace_back = Listener(fake), True
    for text, status, code in (
        ("fault at frame 0", 500, "engine"),
        ("raise in prefill", 500, "engine"),
        ("refuse", 400, "unspeakable"),
    ):
        answered, _, answer = listener.ask({"input": text})
        error = json.loads(answer)["error"]
        assert (answered, error["code"]) == (status, code)
        assert error["type"] == ("server_error" if status == 500 else "invalid_request_error")
    late = {"input": "last 40 fault at frame 20", "response_format": "pcm"}
    with pytest.raises(IncompleteRead):
        listener.ask(late)
    with listener.open(**late, stream_format="sse") as link:
        events = b""
        while piece := link.recv(1 << 16):
            events += piece
    assert b'"type": "error"' in events and b"asked to fail at frame 20" in events and not events.endswith(b"0\r\n\r\n")


def test_one_more_than_may_wait_is_told_when_to_come_again(home):
    home.fake(max_rows=1, max_requests=1)
    listener = Listener(home)
    with Raw(home) as raw:
        raw.say(1, FOREVER)
        raw.until(m.Accepted)
        with pytest.raises(openai.InternalServerError) as refused:
            listener.speech()
    assert (refused.value.status_code, refused.value.code) == (503, "busy")
    assert refused.value.response.headers["retry-after"] == "1"


def test_more_than_it_takes_itself_are_told_so_and_health_is_not_among_them(home):
    home.fake(max_rows=1, env={"FAKE_STEP_MS": "20"})
    listener = Listener(home)
    links = [listener.open(input=FOREVER) for _ in range(32)]
    with Raw(home) as raw:
        until(lambda: raw.ping().queued == 31, "all of them to be there")
        status, headers, answer = listener.ask({"input": "Hello"})
        assert (status, headers["retry-after"]) == (503, "1") and b"32 requests" in answer
        assert listener.ask(path="/health")[0] == 200
        for link in links:
            link.close()
        until(lambda: (now := raw.ping()).queued + now.speaking + now.parked == 0, "all of them to leave")
    assert listener.ask({"input": "Hello"})[0] == 200


# ---- its life


def test_it_starts_misod_and_outlives_it(home):
    listener = Listener(home)
    assert stat.S_IMODE((home.path / "http-token").stat().st_mode) == 0o600
    first = home.lock_pid()
    with listener.open(input=" ".join([TEXT] * 20)) as link:
        link.recv(100)
        os.kill(first, signal.SIGKILL)
        until(lambda: not lives(first), "misod to die")
        while link.recv(1 << 16):  # ends: the connection is closed
            pass
    assert json.loads(listener.ask(path="/health")[2]) == {"status": "stopped"}
    assert listener.speech(response_format="pcm").content
    assert home.lock_pid() != first
    code, told = listener.stop()
    assert code == errors.INTERRUPTED and home.lock_pid() and lives(home.lock_pid())
    assert "starting misod" in told and "the connection to misod was lost" in told and listener.token not in told


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_what_it_speaks(fake, number):
    listener = Listener(fake)
    with listener.open(input=FOREVER) as link:
        link.recv(100)
        code, _ = listener.stop(number)
        assert code == errors.SIGNALLED + number
    until(lambda: fake.traced("release"), "the row to be released")


def test_a_signal_ends_it_where_a_client_reads_nothing(home):
    home.fake(env={"FAKE_STEP_MS": "0"})
    listener = Listener(home)
    with listener.open(input=FOREVER), Raw(home) as raw:
        until(lambda: raw.ping().parked, "all buffers to be full")
        code, told = listener.stop(signal.SIGTERM)
        assert code == errors.TERMINATED and told.count("\n") == 2, told  # where the token is, and the request
        until(lambda: home.traced("release"), "the row to be released")


@pytest.mark.parametrize("quiet", [False, True])
def test_each_request_is_a_line_without_the_text(fake, quiet):
    listener = Listener(fake, *["-q"] * quiet)
    listener.ask({"input": "Sesame"})
    listener.ask(None, "/%0Asecret%1b[31m?Sesame")
    told = listener.stop()[1].splitlines()
    lines = {"misoctl: POST /v1/audio/speech: 200", r"misoctl: GET /\nsecret\x1b[31m: 404"}
    assert set(told[-2:]) == (set() if quiet else lines) and "Sesame" not in str(told)


def test_its_token_may_be_ones_own_and_it_may_have_another_name(fake):
    own = "mine-0123456789abcdef"
    listener = Listener(fake, "--allow-host", "Host.Docker.Internal", MISO_HTTP_TOKEN=own)
    assert listener.ask(path="/v1/models", host="host.docker.internal:7717")[0] == 200
    assert listener.ask(path="/v1/models", host="docker.internal")[0] == 403
    assert not (fake.path / "http-token").exists()


def test_the_token_can_be_printed(home):
    first = home.misoctl("http", "--print-token")
    assert first.returncode == 0 and first.stdout == (home.path / "http-token").read_text() and not first.stderr
    assert home.misoctl("http", "--print-token").stdout == first.stdout


REFUSALS = {
    "another machine": (["--host", "0.0.0.0"], errors.USAGE, "would let other machines speak here"),
    "another name": (["--host", "example.com"], errors.USAGE, "localhost, 127.0.0.1, ::1 only"),
    "a name with a port": (["--allow-host", "a:80"], errors.USAGE, "without a port"),
    "no port": (["--port", "65536"], errors.USAGE, "65535"),
    "no token file": (["--token-file", "/nowhere"], errors.NO_INPUT, "/nowhere"),
}


@pytest.mark.parametrize(("arguments", "code", "word"), REFUSALS.values(), ids=REFUSALS.keys())
def test_refused_before_anything_starts(home, arguments, code, word):
    done = home.misoctl("http", *arguments)
    assert done.returncode == code and word in done.stderr and done.stderr.count("\n") == 1
    assert not done.stdout and not home.run.exists()


def test_a_port_in_use_is_one_line_and_no_daemon(home, listener):
    done = home.misoctl("http", "--port", str(listener.port))
    assert done.returncode == errors.OS_LIMIT and f"port {listener.port}" in done.stderr
    assert done.stderr.count("\n") == 1 and not home.run.exists()


def test_without_the_extra_it_says_how_to_get_it(home):
    code = "import sys; sys.modules['starlette'] = None\nfrom misoctl.cli import main; main()"
    command = [sys.executable, "-c", code, "http"]
    done = subprocess.run(command, env=home.env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == errors.UNAVAILABLE and "pip install 'miso-speech[http]'" in done.stderr
    assert done.stderr.count("\n") == 1 and not home.run.exists()
